"""Several GPUs of a machine: each measures a share of the cases, in a process that sees no other.

What is measured is device time, and a GPU has its clock and its power limit for itself, so the
processes do not disturb each other; all arms of a case are measured on one GPU. Each process writes
a file, in a folder beside the results file. They are joined at the end, or when a session goes on
that was killed.
"""

import dataclasses
import os
import shutil
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from jaxbw import _native
from jaxbw._src.lab.bench.case import Case
from jaxbw._src.lab.bench.results import Results, merge
from jaxbw._src.lab.bench.session import Plan

Measure = Callable[[Plan, Results], None]


def visible() -> list[str]:
    """The GPUs of this machine, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(i) for i in range(len(_native.devices()))]


def deal(cases: Sequence[Case], count: int) -> list[list[Case]]:
    """Shares of equal work: a case takes as long as another, but for the size of its operands.

    >>> sizes = (8, 64, 16, 32)
    >>> [[case.m for case in share] for share in deal([Case("", n, n, n) for n in sizes], 2)]
    [[64, 16], [32, 8]]
    """
    by_size = sorted(cases, key=lambda case: -case.bytes)
    return [by_size[i::count] for i in range(count)]


def measure_on(
    gpus: Sequence[str], measure: Measure, plan: Plan, found: Results
) -> tuple[Results, list[str]]:
    """Measures what is missing on all of these GPUs.

    Args:
      gpus: as CUDA_VISIBLE_DEVICES names them.
      measure: of one process; it is pickled, and writes the rows to its plan's file.
      plan, found: as of a Session.

    Returns:
      All results, stored in the plan's file; and which processes did not get to their end.
    """
    folder = plan.out.with_name(plan.out.name + ".parts")
    folder.mkdir(exist_ok=True)
    found = _joined(found, folder)
    shares = zip(gpus, deal(plan.missing(found), len(gpus)), strict=True)
    processes = {
        gpu: _start(
            gpu,
            measure,
            dataclasses.replace(plan, cases=cases, out=folder / f"{gpu}.json"),
            Results(tuned=found.tuned),
        )
        for gpu, cases in shares
        if cases
    }
    for process in processes.values():
        process.join()
    results = _joined(found, folder)
    places = {case: i for i, case in enumerate(plan.cases)}
    results.rows.sort(key=lambda row: places.get(row.case, -1))
    results.save(plan.out)
    shutil.rmtree(folder)
    problems = [
        f"the process of GPU {gpu} ended with exit code {process.exitcode}"
        for gpu, process in processes.items()
        if process.exitcode
    ]
    return results, problems


def _start(gpu: str, measure: Measure, plan: Plan, results: Results) -> BaseProcess:
    # CUDA does not survive a fork.
    process = get_context("spawn").Process(
        target=_measure, args=(gpu, measure, plan, results), daemon=True
    )
    process.start()
    return process


def _measure(gpu: str, measure: Measure, plan: Plan, results: Results) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # which CUDA reads when it is used first
    # Beside those that an earlier session left in the file, if it was killed.
    measure(plan, merge([Results.load(plan.out), results]) if plan.out.exists() else results)


def _joined(found: Results, folder: Path) -> Results:
    """With what processes have stored."""
    return merge([found, *map(Results.load, sorted(folder.glob("*.json")))])
