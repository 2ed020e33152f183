"""How configurations cut a matmul into tiles and waves, and which of them are not compared."""

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from jaxbw._src.selection.candidates import Candidates, Integers
from jaxbw._src.selection.machine import Machine
from jaxbw._src.selection.workload import Workload

Floats = NDArray[np.float64]

SHARED, APART = 1, 2  # values of Grid.gathered
SKINNIEST = 8  # rows of a tile


@dataclass(frozen=True)
class Grid:
    """How a matmul is cut: CTA and cluster tiles, waves of them. See `_native.plan_many`."""

    legal: Integers
    kernel: Integers  # its place in `_native.kernel_names`
    stages: Integers
    rows: Integers  # of A, that a CTA loads and multiplies
    columns: Integers  # of B, that it loads
    cluster_rows: Integers
    cluster_columns: Integers  # of D
    tiles_m: Integers
    tiles_n: Integers
    tiles: Integers
    resident: Integers
    whole_tiles: Integers
    whole_waves: Integers
    part_waves: Integers
    part_rounds: Integers  # of split tiles that an SM brings to their end
    parts: Integers  # of split tiles
    items: Integers
    accumulators: Integers  # the fewest that there can be
    most_accumulators: Integers  # those that there are where several items follow each other
    held_columns: Integers  # not 0: those of the only accumulator that the epilogue reads first
    skinny: Integers  # 1: the tile has few rows, which are loaded without TMA
    general: Integers  # 1: the epilogue takes the general way
    gathered: Integers  # who adds up parts: the last, all that are there, a launch behind

    @property
    def waves(self) -> Integers:
        """Of whole tiles and of parts."""
        return self.whole_waves + self.part_waves

    def take(self, keep: NDArray[Any]) -> Self:
        """Some of the rows: a mask, or indices."""
        return type(self)(*(getattr(self, field.name)[keep] for field in fields(self)))


def grid(work: Workload, machine: Machine, table: Candidates) -> Grid:
    """Cuts a matmul."""
    resident = machine.resident_by_size
    plans = table.plans(machine.family, work.native, swap_ab=work.swapped, resident=resident)
    return Grid(**plans)


def is_excluded(
    work: Workload, machine: Machine, table: Candidates, cut: Grid
) -> NDArray[np.bool_]:
    """Candidates that are not compared for this matmul.

    They are illegal for its sizes, or have CTAs without a tile in any cluster, parts for more than
    two waves (the fastest never had, of 1,266 matmuls measured on an H200), clusters that share K
    for more than one (which gained at most 3 % of 2,445 on one H200, and lost 11 % on another), or
    sums of parts that L2 does not keep; or they are another one in disguise. A tile of few rows has
    all of the matmul's, and no more than it must.
    """
    fits = (work.m <= table.block_m) & (2 * work.m > table.block_m * (table.block_m > SKINNIEST))
    columns = table.block_n // 2 if work.gated else table.block_n
    empty = (table.cluster_m > table.cta_group * ceil(work.m, table.block_m)) | (
        table.cluster_n > ceil(work.n, columns)
    )
    same = (cut.tiles < cut.resident) | (cut.items == cut.tiles)
    all_parts = (table.split_k > 1) & (table.split_tail == 0)
    cta_sums = (table.block_m // table.cta_group) * table.block_n * 4.0
    sums = np.where(all_parts, cut.items * table.ctas * cta_sums, 0.0)
    return np.asarray(
        (cut.legal == 0)
        | empty
        | ((cut.skinny == 1) & ~fits)
        | ((table.split_tail == 1) & same)
        | (all_parts & (cut.part_waves > 2))
        | ((table.cluster_k > 1) & (cut.waves > 1))
        | (sums > machine.l2_bytes / 2)
    )


def ceil(a: Integers | int, b: Integers | int) -> Integers:
    return np.asarray(-(-np.asarray(a, np.int64) // b))
