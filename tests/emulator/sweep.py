"""Every kernel instance in the emulator, over a grid of launches and many schedules.

    python -m tests.emulator.sweep --jobs 2 --out benchmarks/results/DATE_sweep.json

An sm90 instance meets every number of waves; the other axes (cluster, dtypes, edges, stages, ...)
are drawn at random for each, always the same. An sm100 instance, which serves every tile and
layout, meets launches that are drawn from all that is legal (gemm_draw.py), and so does a grouped
one of either family (ragged_draw.py). `--full` draws eight times as many. All runs of one schedule
come before the next, and what is done is noted beside `--out`: a sweep that was stopped goes on
where it was, as long as kernels and emulator are the same.
"""

import argparse
import json
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from jaxbw import emulator
from jaxbw._src.selection.kernel_table import Kernel

from . import gemm_cases, gemm_draw, installed, ragged_draw, ragged_launch
from .gemm_cases import Case
from .ragged_launch import Ragged

DRAWS = 64  # launches of an sm100 instance
GROUPED_DRAWS = 8  # of a grouped one
WAVES = (0.5, 1.0, 1.25, 2.5)  # of an sm90 instance: work items, in rounds of the clusters

SIZES = ("m", "n", "k", "sizes", "offset", "source_rows")  # no axes of the summary

Schedule = tuple[str, int]
SCHEDULES: tuple[Schedule, ...] = (
    ("eager", 0),
    ("latest", 0),
    *(("random", seed) for seed in range(1, 13)),
    *(("pct", seed) for seed in range(1, 7)),
)


def kernels() -> tuple[Kernel, ...]:
    """All that multiply."""
    return (*gemm_cases.gemms(has_mx=True), *ragged_draw.kernels())


def cases(kernel: Kernel, full: bool = False) -> Iterator[Case | Ragged]:
    """The launches of an instance, always the same."""
    times = 8 if full else 1
    if not kernel.is_dense:
        for index in range(GROUPED_DRAWS * times):
            yield ragged_draw.draw_case(random.Random(f"{kernel.name} {index}"), kernel)
        return
    if kernel.family == "sm90":
        for waves in WAVES:
            for index in range(times):
                draw = random.Random(f"{kernel.name} {waves} {index}")
                yield gemm_draw.draw_sm90_case(draw, kernel, waves)
        return
    for index in range(DRAWS * times):
        yield gemm_draw.draw_case(random.Random(f"{kernel.name} {index}"), kernel.name)


def check(case: Case | Ragged, schedule: Schedule) -> int:
    """Runs a case and compares it with the oracle; returns the steps it took.

    Raises:
      AssertionError: the result is wrong, or the emulator finds something.
      emulator.EmulatorError: the kernel did something from which there is no going on.
    """
    if isinstance(case, Ragged):
        how, seed = schedule
        reports = ragged_launch.check(case, schedule=how, seed=seed, checks="strict")
        return sum(report.steps for report in reports)
    return int(gemm_cases.check(installed.load(case.kernel), case, *schedule).report.steps)


Job = tuple[Case | Ragged, Schedule]


def _key(job: Job) -> str:
    case, (kind, seed) = job
    return f"{case.kernel} {case} {kind} {seed}"


def _attempt(job: Job) -> dict[str, Any]:
    start = time.monotonic()
    outcome: dict[str, Any] = {"run": _key(job), "steps": 0, "fault": ""}
    try:
        outcome["steps"] = check(*job)
    except (AssertionError, emulator.EmulatorError) as error:
        outcome["fault"] = str(error)[:2000]
    return outcome | {"seconds": round(time.monotonic() - start, 3)}


def _summary(jobs: list[Job], done: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Counts of what ran, by axis."""
    ran = [job for job in jobs if _key(job) in done]
    outcomes = [done[_key(job)] for job in ran]
    axes: dict[str, Counter[str]] = {}
    for case, _ in ran:
        for axis in (spec.name for spec in fields(case) if spec.name not in SIZES):
            axes.setdefault(axis, Counter())[str(getattr(case, axis))] += 1
    return {
        "runs": len(ran),
        "planned": len(jobs),
        "instances": len({case.kernel for case, _ in ran}),
        "cases": len({case for case, _ in ran}),
        "schedules": Counter(f"{kind} {seed}" for _, (kind, seed) in ran),
        "steps": sum(outcome["steps"] for outcome in outcomes),
        "seconds": round(sum(outcome["seconds"] for outcome in outcomes)),
        "faults": [outcome for outcome in outcomes if outcome["fault"]],
        "runs_by": {axis: dict(sorted(counts.items())) for axis, counts in axes.items()},
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--full", action="store_true", help="eight times as many launches")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after them")
    parser.add_argument("--kernels", default="", help="only instances with this in their name")
    parser.add_argument("--out", type=Path, default=Path("sweep.json"))
    args = parser.parse_args()
    chosen = [kernel for kernel in kernels() if args.kernels in kernel.name]
    grid = [case for kernel in chosen for case in cases(kernel, args.full)]
    jobs = [(case, schedule) for schedule in SCHEDULES for case in grid]
    note = args.out.with_suffix(f".{installed.fingerprint()}.jsonl")
    lines = note.read_text().splitlines() if note.exists() else []
    done = {outcome["run"]: outcome for outcome in map(json.loads, lines)}
    left = [job for job in jobs if _key(job) not in done]
    start = time.monotonic()
    with note.open("a") as log, multiprocessing.Pool(args.jobs) as pool:
        for number, outcome in enumerate(pool.imap(_attempt, left, chunksize=4), 1):
            done[outcome["run"]] = outcome
            log.write(json.dumps(outcome) + "\n")
            if outcome["fault"]:
                print(f"{outcome['run']}: {outcome['fault']}", flush=True)
            spent = time.monotonic() - start
            if number % 100 == 0:
                print(f"{len(done)} of {len(jobs)}, {spent:.0f} s", file=sys.stderr, flush=True)
            if spent > args.seconds:
                break
        pool.terminate()
    summary = _summary(jobs, done)
    args.out.write_text(json.dumps(summary, indent=1) + "\n")
    print(f"{summary['runs']} of {len(jobs)} runs, {len(summary['faults'])} faults")
    sys.exit(bool(summary["faults"]))


if __name__ == "__main__":
    main()
