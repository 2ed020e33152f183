"""What Nsight Compute counts of single launches, from the CSV that `ncu --page raw` writes."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

ACTIVE, ELAPSED = "sm__cycles_active.avg", "sm__cycles_elapsed.max"
INSTRUCTIONS = "smsp__inst_executed.sum"
METRICS = (ACTIVE, ELAPSED, INSTRUCTIONS)


@dataclass(frozen=True)
class Counted:
    """One call: the sums over its kernels.

    Attributes:
      active: cycles in which an SM has a CTA, the mean of all SMs; `elapsed`: from the kernel's
        start to its end.
    """

    kernels: tuple[str, ...]
    active: float
    elapsed: float
    instructions: float

    def to_json(self) -> dict[str, Any]:
        """By name."""
        return asdict(self)


def calls(text: str, launches: int) -> list[Counted]:
    """The last of so many launches in a row of each call, in order.

    Calls of ours and of others alternate, which is how the kernels of a call are told from the
    next one's: ours have names that begin with "jaxbw".

    Raises:
      ValueError: a call has a number of kernels that so many launches do not give.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = [row for row in csv.DictReader(lines) if row["ID"]]  # without that of the units
    found = []
    for _, group in itertools.groupby(rows, lambda row: row["Kernel Name"].startswith("jaxbw")):
        kernels = list(group)
        if len(kernels) % launches:
            names = ", ".join(row["Kernel Name"] for row in kernels)
            raise ValueError(f"{len(kernels)} kernels in {launches} launches: {names}")
        found.append(_sum(kernels[-(len(kernels) // launches) :]))
    return found


def _sum(kernels: Iterable[dict[str, str]]) -> Counted:
    rows = list(kernels)

    def total(metric: str) -> float:
        return sum(float(row[metric].replace(",", "")) for row in rows)

    names = tuple(row["Kernel Name"] for row in rows)
    return Counted(names, total(ACTIVE), total(ELAPSED), total(INSTRUCTIONS))
