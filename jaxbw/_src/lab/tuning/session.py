"""A sitting of measurements: matmuls that the table does not have yet, each stored when done."""

import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from jaxbw._src.lab.tuning.launching import Bench, Matmul
from jaxbw._src.lab.tuning.measure import Effort, chosen, measure
from jaxbw._src.ragged import RaggedProblem
from jaxbw._src.selection import manifest
from jaxbw._src.selection.choice import Choice, Refusal
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.devices import Device
from jaxbw._src.selection.select import select
from jaxbw._src.selection.tuned_matmuls import Entry, TunedMatmuls, add, new_entry


@dataclass(frozen=True)
class Outcome:
    """What came of a matmul: its entry, or why there is none."""

    problem: Matmul
    entry: Entry | None
    refusal: str | None = None

    def __str__(self) -> str:
        if self.entry is None:
            return f"{self.problem}: not measured: {self.refusal}"
        e = self.entry
        least = e.us if e.xla_us is None else min(e.us, e.xla_us)
        gain = f"{e.untuned_us / least:.3f} times as fast as the choice without it"
        kernel = f"{e.configurations} tried: {e.config}"
        if e.xla_us is None:
            return f"{e.matmul}: {e.us:.2f} us, {gain}; {kernel}"
        if e.is_for_xla:
            return f"{e.matmul}: XLA, {e.xla_us:.2f} us, {gain}; {e.us:.2f} us, {kernel}"
        return f"{e.matmul}: {e.us:.2f} us, {gain}; XLA {e.xla_us:.2f} us; {kernel}"


def missing(problems: Sequence[Matmul], device: Device, path: str | PathLike[str]) -> list[Matmul]:
    """The matmuls that a file has no entry for.

    Raises:
      ValueError: the file is there and no tuned table.
    """
    if not Path(path).exists():
        return list(problems)
    table = TunedMatmuls.load(path)
    return [problem for problem in problems if table.find(problem, device) is None]


def run(
    problems: Sequence[Matmul],
    device: Device,
    bench: Bench,
    path: str | PathLike[str],
    *,
    effort: Effort,
    budget_s: float,
    report: Callable[[Outcome], None],
) -> int:
    """Measures what a file does not have, until the time is over; how many matmuls are left.

    Whoever stops it, by a signal too, loses at most the matmul that is being measured: the same
    call goes on behind the last one that was stored. Several processes may share a file; none
    measures what another has stored.

    Args:
      problems, device: each of these on that.
      bench: what measures.
      path: the table; created if it is not there.
      effort: how thoroughly.
      budget_s: seconds after which no matmul is begun.
      report: is told each matmul's outcome.

    Raises:
      ValueError: the file is there and no tuned table.
      RuntimeError: results of two configurations differ, or a measurement failed.
    """
    begin, left = time.monotonic(), missing(problems, device, path)
    for done, problem in enumerate(left):
        if time.monotonic() - begin >= budget_s:
            return len(left) - done
        if missing([problem], device, path):
            report(_measured(problem, device, bench, path, effort))
    return 0


def _measured(
    problem: Matmul, device: Device, bench: Bench, path: str | PathLike[str], effort: Effort
) -> Outcome:
    """Measures a matmul by the kernels and by XLA, and stores what is best."""
    if isinstance(none := chosen(problem, device), Refusal):
        return Outcome(problem, None, f"XLA serves it: {none.reason}")
    xla_us = None
    try:
        measured = measure(bench, problem, device, effort)
        if not isinstance(problem, RaggedProblem):
            xla_us = bench.xla(problem)
    except ValueError as error:  # it does not fit the memory set aside
        return Outcome(problem, None, str(error))
    times = {each.config: each.microseconds for each in measured}
    best = min(times, key=times.__getitem__)
    untuned = _untuned(problem, device)
    untuned_us = xla_us if untuned is None else times[untuned]
    assert untuned_us is not None
    entry = new_entry(
        problem,
        device,
        best,
        us=round(times[best], 3),
        untuned_us=round(untuned_us, 3),
        xla_us=None if xla_us is None else round(xla_us, 3),
        configurations=len(times),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    add(path, entry)
    return Outcome(problem, entry)


def _untuned(problem: Matmul, device: Device) -> GemmConfig | None:
    """What would be chosen without a table; None for XLA."""
    if isinstance(problem, RaggedProblem):
        choice = chosen(problem, device)
        assert not isinstance(choice, Refusal)
        return choice.config
    found = select(problem, device, None, None, manifest.kernels())
    assert isinstance(found, Choice)
    return found.config
