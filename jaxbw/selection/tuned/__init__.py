"""Tuned tables: what measurements of many products say of the cost model, by ranges of sizes.

A table corrects the model, it does not replace it: within a range of m, n and k it has a factor for
each kind of a configuration (its tile, its cluster, its parts along K, swapped operands) by which
those took longer, or less long, than modelled. The ranges divide all sizes among them.
`benchmarks/tune_selection.py` makes the tables from what `benchmarks/measure_configs.py` measured.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from jaxbw.selection.candidates import Candidates
from jaxbw.selection.workload import Workload

VERSION = 1
SWITCH = "JAXBW_TUNED"  # environment variable; "off" leaves the model alone
MOST = 2.0  # a factor beyond it says that the model is wrong, not that it is inexact
_FILES = {"H200": "h200.json", "H100": "h200.json"}  # factors of the H200 serve the H100, too
_KIND = re.compile(
    r"tile \d+x\d+( pingpong)?|cluster \dx\d|parts (\d+( in a cluster)?|tail)|swapped"
)

Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """Sizes from `low` to `high`; None where there is no limit."""

    low: int
    high: int | None

    def __contains__(self, size: object) -> bool:
        return isinstance(size, int) and self.low <= size <= (self.high or size)

    def __str__(self) -> str:
        return f"{self.low} up" if self.high is None else f"{self.low} to {self.high}"

    def meets(self, other: "Interval") -> bool:
        """Whether they have a size in common."""
        least = max(self.low, other.low)
        return least in self and least in other


@dataclass(frozen=True)
class Range:
    """Factors for products of some sizes, by kind: how much longer than modelled.

    `products` is how many were measured there.
    """

    m: Interval
    n: Interval
    k: Interval
    products: int
    factors: Mapping[str, float]

    def __contains__(self, sizes: tuple[int, int, int]) -> bool:
        return sizes[0] in self.m and sizes[1] in self.n and sizes[2] in self.k

    def __str__(self) -> str:
        return f"m {self.m}, n {self.n}, k {self.k} ({self.products} products)"

    def meets(self, other: "Range") -> bool:
        """Whether they have a product in common."""
        return self.m.meets(other.m) and self.n.meets(other.n) and self.k.meets(other.k)


@dataclass(frozen=True, eq=False)
class Table:
    """The ranges of a machine, and how they came about. Compared by identity."""

    made: Mapping[str, Any]
    ranges: tuple[Range, ...]

    @classmethod
    def from_json(cls, entry: Any) -> Self:
        """A table as it lies in its file.

        Raises:
          ValueError: it is not one, or of another version.
        """
        if not isinstance(entry, dict) or entry.keys() != {"version", "made", "ranges"}:
            raise ValueError("it has not the keys version, made and ranges")
        if entry["version"] != VERSION:
            raise ValueError(f"it has version {entry['version']}, not {VERSION}")
        ranges = tuple(_range(row) for row in entry["ranges"])
        for i, one in enumerate(ranges):
            if any(one.meets(other) for other in ranges[:i]):
                raise ValueError(f"the range {one} meets another one")
        return cls(entry["made"], ranges)

    def find(self, work: Workload) -> Range | None:
        """The range of a product; None where the table has none."""
        m, n = (work.n, work.m) if work.swapped else (work.m, work.n)
        return next((each for each in self.ranges if (m, n, work.k) in each), None)

    def factors(self, work: Workload, table: Candidates) -> Floats:
        """For each configuration, what its modelled time is multiplied by."""
        product = np.ones(len(table))
        if (found := self.find(work)) is None:
            return product
        for kind, rows in kinds(work, table):
            product[rows] *= found.factors.get(kind, 1.0)
        return product


def kinds(work: Workload, table: Candidates) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Each kind that configurations of a table have, with a mask of those that have it."""
    columns = (table.block_m, table.block_n, table.pingpong)
    for values, rows in _distinct(*columns):
        yield f"tile {values[0]}x{values[1]}{' pingpong' if values[2] else ''}", rows
    for values, rows in _distinct(table.cluster_m, table.cluster_n):
        yield f"cluster {values[0]}x{values[1]}", rows
    for values, rows in _distinct(table.cluster_k, table.split_k, table.split_tail):
        in_cluster, split, tail = values
        if in_cluster > 1:
            yield f"parts {in_cluster} in a cluster", rows
        elif split > 1:
            yield "parts tail" if tail else f"parts {split}", rows
    if work.swapped:
        yield "swapped", np.ones(len(table), np.bool_)


def _distinct(*columns: NDArray[np.int64]) -> Iterator[tuple[list[int], NDArray[np.bool_]]]:
    """The different rows of some columns, with masks of where they are."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        code = code * 1024 + column
    for value in np.unique(code):
        rows = code == value
        first = int(rows.argmax())
        yield [int(column[first]) for column in columns], rows


def _range(row: Any) -> Range:
    if not isinstance(row, dict) or row.keys() != {"m", "n", "k", "products", "factors"}:
        raise ValueError(f"the range {row} has not the keys m, n, k, products and factors")
    for kind, factor in row["factors"].items():
        if not _KIND.fullmatch(kind):
            raise ValueError(f"{kind!r} is no kind of a configuration")
        if not (isinstance(factor, int | float) and 1 / MOST <= factor <= MOST):
            raise ValueError(f"the factor of {kind!r} is {factor!r}, not within {MOST:g}")
    m, n, k = (_interval(row[name]) for name in ("m", "n", "k"))
    return Range(m, n, k, row["products"], dict(row["factors"]))


def _interval(bounds: Any) -> Interval:
    low, high = bounds
    whole = isinstance(low, int) and (high is None or isinstance(high, int))
    if not whole or low < 1 or low > (high or math.inf):
        raise ValueError(f"{bounds} is no range of sizes")
    return Interval(low, high)


def table_for(machine: str) -> Table | None:
    """The table of a machine, by its name in machines.toml; None without one, or if switched off.

    The environment variable JAXBW_TUNED, read at each call, switches all tables off by "off".

    Raises:
      ImportError: the file is not a table that this jaxbw reads.
    """
    if os.environ.get(SWITCH) == "off":
        return None
    return _load(_FILES[machine]) if machine in _FILES else None


@cache
def _load(name: str) -> Table | None:
    path = resources.files("jaxbw.selection.tuned") / name
    if not path.is_file():
        return None
    try:
        return Table.from_json(json.loads(path.read_text()))
    except (ValueError, TypeError, KeyError) as fault:
        raise ImportError(
            f"{path} is no tuned table of this jaxbw: {fault}: reinstall it"
        ) from fault
