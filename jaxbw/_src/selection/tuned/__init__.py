"""Tuned tables: what measurements of many matmuls say of the cost model.

A table corrects the model, it does not replace it: it is a row of regression trees whose leaves,
each a range of sizes, of configurations and of what the model says of them (`features`), add up to
the logarithm of a factor: by how much longer such configurations took than modelled, or less long,
beside others of the same matmul. They are grown so that choices by them lose little, which matters
more than the times of slow configurations. (Gradient boosting: J. H. Friedman, Greedy Function
Approximation, Annals of Statistics 29, 2001.) `benchmarks/tune_selection.py` makes the tables from
what `benchmarks/measure_configs.py` measured. Matmuls that are smaller or larger than all of those
are left to the model.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from jaxbw._src.selection.candidates import Candidates
from jaxbw._src.selection.cost_model import Costs
from jaxbw._src.selection.cost_model.grid import Grid
from jaxbw._src.selection.machine import Machine
from jaxbw._src.selection.tuned.features import FEATURES, features
from jaxbw._src.selection.tuned.files import Sizes, check, read
from jaxbw._src.selection.tuned.trees import Forest
from jaxbw._src.selection.tuned_matmuls import SWITCH
from jaxbw._src.selection.workload import Workload

VERSION = 5
MOST = 2.0  # a factor beyond it says that the model is wrong, not that it is inexact
REACH = 2.0  # times the least modelled time: beyond it nothing is corrected, and nothing was learnt
# By the machine, and the bytes of an operand's number. Of 8 bits an H200 has not been measured.
_FILES: Mapping[tuple[str, float], str] = {
    ("H200", 2): "h200.npz",
    ("H100", 2): "h100.npz",
    **{(machine, 1): "h100_8bit.npz" for machine in ("H200", "H100")},
}
_KEYS = {"version", "made", "sizes", "tiles", "features", "trees"}

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Table:
    """The trees of a machine, and how they came about. Compared by identity.

    `sizes`: of the matmuls that were measured; `tiles`: in which (block_m, block_n, pingpong).
    """

    made: Mapping[str, Any]
    sizes: Sizes
    tiles: frozenset[tuple[int, int, int]]
    trees: Forest

    @classmethod
    def of(cls, entry: Any) -> Self:
        """A table as it lies in its file (`files.read`).

        Raises:
          ValueError: it is not one, or of another version.
        """
        check(entry, _KEYS, VERSION, FEATURES)
        sizes = Sizes.of(entry["sizes"])
        tiles = frozenset((int(m), int(n), int(pingpong)) for m, n, pingpong in entry["tiles"])
        return cls(entry["made"], sizes, tiles, Forest.of(entry["trees"], len(FEATURES)))

    def __str__(self) -> str:
        return f"{self.made['products']} matmuls"

    def covers(self, work: Workload) -> bool:
        """Whether a matmul is between those that were measured."""
        m, n, k = (work.n, work.m, work.k) if work.swapped else (work.m, work.n, work.k)
        return self.sizes.cover(m, n, k)

    def knows(self, table: Candidates) -> NDArray[np.bool_]:
        """Which configurations have a tile that was measured: what others take is a guess."""
        tiles = zip(table.block_m, table.block_n, table.pingpong, strict=True)
        return np.array([tile in self.tiles for tile in tiles], np.bool_)

    def factors(
        self,
        work: Workload,
        machine: Machine,
        table: Candidates,
        costs: Costs,
        cut: Grid | None = None,
    ) -> Floats:
        """For each configuration, what its modelled time is multiplied by; `cut` if known."""
        factors = np.ones(len(table))
        if not self.covers(work):
            return factors
        rows = np.flatnonzero(costs.total <= REACH * costs.total.min(initial=math.inf))
        logarithms = self.trees.total(features(work, machine, table, costs, cut)[rows])
        factors[rows] = np.exp(np.clip(logarithms, -math.log(MOST), math.log(MOST)))
        return factors


def table_for(machine: str, itemsize: float) -> Table | None:
    """The table of a machine, by its name in machines.toml; None without one, or if switched off.

    `itemsize`: bytes of a number of the operands.

    The environment variable JAXBW_TUNED, read at each call, switches all tables off by "off".

    Raises:
      ImportError: the file is not a table that this jaxbw reads.
    """
    if os.environ.get(SWITCH) == "off":
        return None
    name = _FILES.get((machine, itemsize))
    return None if name is None else _load(name)


@cache
def _load(name: str) -> Table | None:
    path = resources.files("jaxbw._src.selection.tuned") / name
    if not path.is_file():
        return None
    try:
        return Table.of(read(path))
    except (ValueError, TypeError, KeyError) as fault:
        raise ImportError(
            f"{path} is no tuned table of this jaxbw: {fault}: reinstall it"
        ) from fault
