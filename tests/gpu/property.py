"""Matmuls under compositions of JAX's transformations on the GPU, by jaxbw and by lax.

    python -m tests.gpu.property --slice 1/8 --out DATE_property.json

The cases of tests/jax/transformed_matmuls.py, by seed and number. A slice takes its share of them;
all slices note what they found beside the results file, which tells of all that have run.
"""

import argparse
import functools
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax

from ..emulator import installed
from ..jax import transformed_matmuls
from ..jax.transformed_matmuls import Case, check, is_refused_by_lax
from . import campaign, environment
from .campaign import Outcome

CASES, TOGETHER = 4000, 20  # so many are compiled together
COMMAND = "python -m tests.gpu.property"


def draw(seed: int, number: int) -> list[Case]:
    """The cases of a program."""
    first = TOGETHER * number
    return [
        transformed_matmuls.draw(random.Random(f"{seed} {i}"))
        for i in range(first, first + TOGETHER)
    ]


def attempt(seed: int, number: int) -> Outcome:
    """Compares the cases of a program; one by one where it does not compile."""
    cases = draw(seed, number)
    with jax.enable_x64(True):
        try:
            check(cases)
        except AssertionError as error:
            return Outcome(number, str(error))
        except (NotImplementedError, ValueError, jax.errors.JaxRuntimeError):
            faults = [fault for case in cases if (fault := _fault(case))]
            return Outcome(number, "\n".join(faults), lost=bool(faults))
    return Outcome(number)


def _fault(case: Case) -> str:
    try:
        check([case])
    except AssertionError as error:
        return str(error)
    except (NotImplementedError, ValueError, jax.errors.JaxRuntimeError) as error:
        return "" if is_refused_by_lax(case) else f"{case}: {error}"
    return ""


def summary(seed: int, notes: campaign.Notes) -> dict[str, Any]:
    """What the results file says."""
    cases = [case for number in notes.outcomes for case in draw(seed, number)]
    return {
        "environment": environment.describe(),
        "device": str(jax.devices()[0]),
        "seed": seed,
        "cases": len(cases),
        "planned": CASES,
        "process_seconds": round(sum(outcome.seconds for outcome in notes.outcomes.values())),
        "faults": [
            {"fault": o.fault, "reproduce": f"{COMMAND} --seed {seed} --only {o.number}"}
            for o in notes.faults
        ],
        "cases_by_transformations": dict(
            Counter(" ".join(step.name for step in case.steps) for case in cases).most_common()
        ),
        "cases_by_dtypes": dict(
            Counter(f"{a} {b} {case.preferred}" for case in cases for a, b in [case.dtypes])
        ),
    }


def share(text: str) -> tuple[int, int]:
    """The argument I/N."""
    index, count = map(int, text.split("/"))
    if not 1 <= index <= count:
        raise ValueError(text)
    return index, count


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the process's exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND)
    parser.add_argument("--slice", type=share, default=(1, 1), help="I/N: the Ith of N parts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=CASES, help="of all slices")
    parser.add_argument("--budget", type=float, default=540, help="seconds; then run it again")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", type=int, help="attempt this number alone, and write nothing")
    parser.add_argument("--out", type=Path, default=Path("property.json"))
    given = parser.parse_args(arguments)
    if given.only is not None:
        outcome = attempt(given.seed, given.only)
        print(outcome.fault or "is right")
        return bool(outcome.fault)

    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # else one would take all the memory
    notes = campaign.Notes(given.out.with_suffix(f".{installed.fingerprint()}-{given.seed}.jsonl"))
    index, count = given.slice
    left = [
        number
        for number in range(index - 1, given.cases // TOGETHER, count)
        if number not in notes.outcomes
    ]
    start = time.monotonic()
    attempts = functools.partial(attempt, given.seed)
    for outcome in campaign.run(attempts, left, jobs=given.jobs, budget=given.budget, limit=300):
        notes.add(outcome)
        if outcome.fault:
            print(f"{outcome.number}: {outcome.fault}", flush=True)
    report = summary(given.seed, notes)
    given.out.write_text(json.dumps(report, indent=1) + "\n")
    print(
        f"{report['cases']} of {given.cases} cases, {len(report['faults'])} faults, "
        f"{time.monotonic() - start:.0f} s"
    )
    return bool(report["faults"])


if __name__ == "__main__":
    sys.exit(main())
