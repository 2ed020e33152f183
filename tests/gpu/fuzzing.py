"""The command line and the results file of the fuzzers: fuzz_direct.py and fuzz_jit.py."""

import argparse
import functools
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxbw._native import Plan

from ..emulator import gemm_cases, installed
from ..emulator.gemm_cases import Case
from . import campaign, environment
from .campaign import Outcome

SM_COUNT = 132  # of an H200
PROGRESS = 20  # seconds


@dataclass(frozen=True)
class Fuzzer:
    """A campaign: what is drawn by seed and number, and how it is tried."""

    module: str
    draw: Callable[[int, int], list[Case]]
    attempt: Callable[[int, int], Outcome]
    attempts: int  # of a whole campaign
    repeats: int  # launches of every case


def features(case: Case) -> dict[str, str]:
    """What a case is counted by.

    A call of fuzz_jit.py may not have the configuration that was drawn. Then the selection chooses,
    and no kernel is counted.
    """
    resident = SM_COUNT // case.config().clusters
    plan = case.planned(resident)
    found = {axis: str(getattr(case, axis)) for axis in gemm_cases.AXES}
    found |= {"k": str(case.k), "repacked": " ".join(case.repacked)}
    if isinstance(plan, Plan):
        found |= {"kernel": plan.kernel, "waves": str(math.ceil(plan.items / resident))}
    return found


def summary(fuzzer: Fuzzer, seed: int, planned: int, notes: campaign.Notes) -> dict[str, Any]:
    """What a results file says."""
    cases = [case for number in notes.outcomes for case in fuzzer.draw(seed, number)]
    counts: dict[str, Counter[str]] = {}
    for case in cases:
        for axis, value in features(case).items():
            counts.setdefault(axis, Counter())[value] += 1
    outcomes = notes.outcomes.values()
    command = f"python -m tests.gpu.{fuzzer.module} --seed {seed} --only"
    return {
        "environment": environment.describe(),
        "seed": seed,
        "attempts": len(outcomes),
        "planned": planned,
        "cases": len(cases),
        "launches": fuzzer.repeats * len(cases),
        "instances": len(counts.get("kernel", ())),
        "process_seconds": round(sum(outcome.seconds for outcome in outcomes)),
        "faults": [
            {
                "cases": [str(case) for case in fuzzer.draw(seed, outcome.number)],
                "fault": outcome.fault,
                "reproduce": f"{command} {outcome.number}",
            }
            for outcome in notes.faults
        ],
        "cases_by": {axis: dict(sorted(values.items())) for axis, values in counts.items()},
    }


def main(fuzzer: Fuzzer) -> int:
    """The command line; returns the process's exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.gpu.{fuzzer.module}")
    parser.add_argument("--cases", type=int, default=fuzzer.attempts, help="what is attempted")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=540, help="seconds; then run it again")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", type=int, help="attempt this number alone, and write nothing")
    parser.add_argument("--out", type=Path, default=Path(f"{fuzzer.module}.json"))
    given = parser.parse_args()
    if given.only is not None:
        outcome = fuzzer.attempt(given.seed, given.only)
        print(*fuzzer.draw(given.seed, given.only), outcome.fault or "is right", sep="\n")
        return bool(outcome.fault)

    # A core for each process: the reference matmuls are NumPy's.
    os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # else one would take all the memory
    notes = campaign.Notes(given.out.with_suffix(f".{installed.fingerprint()}-{given.seed}.jsonl"))
    left = [number for number in range(given.cases) if number not in notes.outcomes]
    start = shown = time.monotonic()
    attempt = functools.partial(fuzzer.attempt, given.seed)
    for outcome in campaign.run(attempt, left, jobs=given.jobs, budget=given.budget):
        notes.add(outcome)
        if outcome.fault:
            print(f"{outcome.number}: {outcome.fault}", flush=True)
        if time.monotonic() - shown > PROGRESS:
            shown = time.monotonic()
            print(f"{len(notes.outcomes)} of {given.cases}, {shown - start:.0f} s", flush=True)
    report = summary(fuzzer, given.seed, given.cases, notes)
    given.out.write_text(json.dumps(report, indent=1) + "\n")
    print(
        f"{report['attempts']} of {given.cases}: {report['cases']} cases, "
        f"{report['instances']} instances, {len(report['faults'])} faults, "
        f"{time.monotonic() - start:.0f} s"
    )
    return bool(report["faults"])
