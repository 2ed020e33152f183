"""Every kernel instance in the emulator, over a grid of launches and many schedules.

    python -m tests.emulator.sweep --jobs 2 --out benchmarks/results/DATE_sweep.json

An instance meets every number of waves; the other axes (cluster, layout, dtypes, edges, stages,
...) are drawn at random for each, always the same. `--full` draws for every cluster, too. All runs
of one schedule come before the next, and what is done is noted beside `--out`: a sweep that was
stopped goes on where it was, as long as kernels and emulator are the same.
"""

import argparse
import functools
import hashlib
import itertools
import json
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import jaxbw
from jaxbw import _native, emulator
from jaxbw.selection.kernel_table import Kernel

from ..gpu import direct
from ..gpu.direct import Case
from . import gemm_launch
from .gemm_launch import SM90, SM100, Config

KERNELS = Path(jaxbw.__file__).parent / "kernels"
WAVES = (0.5, 1.0, 1.25, 2.5)  # work items, in rounds of the clusters that the GPU holds at a time
RESIDENT = 2  # clusters, at least
MIN_SMS = 4
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (4, 2))
ACTIVATIONS = ("none", "relu", "gelu", "silu")  # as Activation of cuda/params.h counts them

AXES: tuple[str, ...] = (
    *("layout", "dtype", "output", "bias", "activation", "block_n", "cluster", "cta_group"),
    *("stages", "swizzle", "batch", "shared", "integers"),
)

Schedule = tuple[str, int]
SCHEDULES: tuple[Schedule, ...] = (
    ("eager", 0),
    ("latest", 0),
    *(("random", seed) for seed in range(1, 13)),
    *(("pct", seed) for seed in range(1, 7)),
)


def sm_count(case: Case) -> int:
    """SMs of the emulated GPU of a case."""
    return max(MIN_SMS, RESIDENT * case.cluster[0] * case.cluster[1])


def cases(kernel: Kernel, full: bool = False) -> Iterator[Case]:
    """The launches of an instance: every number of waves, for one cluster or for all."""
    clusters = [c for c in CLUSTERS if c[0] % kernel.cta_group == 0]
    # An instance of sm_100 serves what 16 of sm_90 do.
    repeats = range(4 if kernel.family == "sm100" else 1)
    for waves, index in itertools.product(WAVES, repeats):
        draw = random.Random(f"{kernel.name} {waves} {index}")
        for cluster in clusters if full or kernel.family == "sm100" else [draw.choice(clusters)]:
            yield _case(kernel, waves, cluster, draw)


def _case(kernel: Kernel, waves: float, cluster: tuple[int, int], draw: random.Random) -> Case:
    layout = kernel.layout if kernel.layout != "any" else draw.choice(("nn", "nt", "tn", "tt"))
    dtype = kernel.input if kernel.input != "16bit" else draw.choice(("bf16", "f16"))
    block_n = kernel.block_n or draw.choice(_widths(kernel.cta_group, layout))
    size = cluster[0] * cluster[1]
    resident = max(MIN_SMS, RESIDENT * size) // size
    items = max(1, round(waves * resident))
    tiles_m = draw.choice([d for d in range(1, items + 1) if items % d == 0])
    batch = draw.choice([d for d in (1, 2, 3) if items // tiles_m % d == 0])
    tiles_n = items // tiles_m // batch
    deepest = _native.max_stages(kernel.family, kernel.block_m, block_n, kernel.cta_group)
    blocks = 128 * block_n * size
    return Case(
        # TMA wants rows of 16 bytes; where the rows of A run along K, M may be anything.
        m=tiles_m * cluster[0] * 128 - draw.choice((0, 8, 72, 3 if layout[0] == "n" else 120)),
        n=tiles_n * cluster[1] * block_n - draw.choice((0, 8, 24)),
        k=draw.choice((24, 64, 136, 200, 328) if blocks <= 128 * 256 * 2 else (24, 64, 136)),
        batch=batch,
        shared=draw.choice(((), ("lhs",), ("rhs",))) if batch > 1 else (),
        layout=layout,
        dtype=dtype,
        output=draw.choice(("f32", "bf16", "f16")),
        bias=draw.choice((None, "f32", dtype)),
        activation=draw.choice(ACTIVATIONS),
        block_n=block_n,
        cluster=cluster,
        cta_group=kernel.cta_group,
        stages=draw.choice(sorted({2, min(3, deepest), deepest})),
        swizzle=draw.choice((1, 2, 3)),
        integers=draw.random() < 0.5,
        family=kernel.family,
    )


def _widths(cta_group: int, layout: str) -> tuple[int, ...]:
    if layout[1] == "t":
        return (32, 64, 96, 160, 224, 256)
    return (64, 128, 192, 256) if cta_group == 1 else (128, 256)


@functools.cache
def _module(name: str) -> emulator.Module:
    path = KERNELS / f"{name}.ptx"
    return emulator.Module(path.read_text(), path.name)


@functools.cache
def _operands(case: Case) -> direct.Operands:
    return direct.operands(case)


def check(case: Case, schedule: Schedule) -> int:
    """Runs a case and compares it with the oracle; returns the steps it took.

    Raises:
      AssertionError: the result is wrong, or the emulator finds something.
      emulator.EmulatorError: the kernel did something from which there is no going on.
    """
    given = _operands(case)
    output = np.dtype(direct.DTYPES[case.output][0])
    config = Config(
        family=SM90 if case.family == "sm90" else SM100,
        block_m=128 * case.cta_group,
        block_n=case.block_n,
        cta_group=case.cta_group,
        cluster=case.cluster,
        stages=case.stages or 2,
        swizzle=case.swizzle,
        lhs_major=int(case.layout[0] == "t"),
        rhs_major=int(case.layout[1] == "n"),
        output=output,
        activation=ACTIVATIONS.index(case.activation),
    )
    result, report = gemm_launch.run(
        _module(direct.kernel_for(case)),
        config,
        given.lhs,
        given.rhs,
        np.dtype(direct.DTYPES[case.dtype][0]),
        bias=given.bias,
        sm_count=sm_count(case),
        schedule=schedule[0],
        seed=schedule[1],
    )
    assert report.findings == [], f"{case} under {schedule}: {report.findings}"
    direct.verify(case, given, result)
    return int(report.steps)


Job = tuple[Case, Schedule]


def _key(job: Job) -> str:
    case, (kind, seed) = job
    return f"{direct.kernel_for(case)} {case} {kind} {seed}"


def _attempt(job: Job) -> dict[str, Any]:
    start = time.monotonic()
    outcome: dict[str, Any] = {"run": _key(job), "steps": 0, "fault": ""}
    try:
        outcome["steps"] = check(*job)
    except (AssertionError, emulator.EmulatorError) as error:
        outcome["fault"] = str(error)[:2000]
    return outcome | {"seconds": round(time.monotonic() - start, 3)}


def _fingerprint() -> str:
    digest = hashlib.sha256(Path(_native.__file__).read_bytes())
    for path in sorted(KERNELS.glob("*.ptx")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _summary(jobs: list[Job], done: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Counts of what ran, by axis."""
    ran = [job for job in jobs if _key(job) in done]
    outcomes = [done[_key(job)] for job in ran]
    axes = {axis: Counter(str(getattr(case, axis)) for case, _ in ran) for axis in AXES}
    return {
        "runs": len(ran),
        "planned": len(jobs),
        "instances": len({direct.kernel_for(case) for case, _ in ran}),
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
    parser.add_argument("--full", action="store_true", help="all clusters for all instances")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after them")
    parser.add_argument("--kernels", default="", help="only instances with this in their name")
    parser.add_argument("--out", type=Path, default=Path("sweep.json"))
    args = parser.parse_args()
    chosen = [kernel for kernel in direct.kernels() if args.kernels in kernel.name]
    grid = [case for kernel in chosen for case in cases(kernel, args.full)]
    jobs = [(case, schedule) for schedule in SCHEDULES for case in grid]
    note = args.out.with_suffix(f".{_fingerprint()}.jsonl")
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
