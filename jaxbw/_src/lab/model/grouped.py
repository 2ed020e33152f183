"""The modelled time of a grouped matmul whose sizes of groups are known: by the dense cost model.

Its tiles are those of a batch of dense matmuls, one for each group that has rows, of as many rows
as these have on average. What differs is how many tiles there are, which follows from the sizes:
that, and nothing else, is put into the model's `Grid` here. Where the contraction is grouped, tiles
of one group take longer than those of another: they are dealt out as the kernel does it, and the
contraction is the one by which equal tiles take as long as the busiest SM's.

Not modelled: L2 that CTAs share less the further they drift apart, tiles of rows that belong to no
group, which load nothing.
"""

from dataclasses import dataclass, replace

import numpy as np
from jax import lax

from jaxbw._native import Major
from jaxbw._src.families.family import SPAN_BYTES
from jaxbw._src.lab import group_sizes
from jaxbw._src.lab.group_sizes import Sizes
from jaxbw._src.problem import GemmProblem, itemsize
from jaxbw._src.ragged import RaggedProblem
from jaxbw._src.selection.candidates import Candidates
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.cost_model import evaluate
from jaxbw._src.selection.cost_model.grid import Grid
from jaxbw._src.selection.cost_model.waves import overlapping
from jaxbw._src.selection.machine import Machine
from jaxbw._src.selection.search import Cost, cost_of
from jaxbw._src.selection.workload import Workload, workload


@dataclass(frozen=True)
class GroupedTime:
    """What the model says of a grouped matmul.

    Attributes:
      cost: the terms, as of a dense matmul.
      zeros_us: writing the results of empty groups, of a grouped contraction.
      total_us: both, as they overlap.
      groups: how many have rows.
      of_group: the fewest and the most tiles of rows of one that has any, or where the contraction
        is grouped blocks along it; `unit`: which of both.
      tiles: all; `waves`: of them, not rounded up.
      wasted: the part of what is multiplied that lies behind the end of a group, or of the result.
      imbalance: what the busiest SM multiplies, over the mean.
    """

    cost: Cost
    zeros_us: float
    total_us: float
    groups: int
    of_group: tuple[int, int]
    unit: str
    tiles: int
    waves: float
    wasted: float
    imbalance: float

    def __str__(self) -> str:
        low, high = self.of_group
        zeros = f", of empty groups {self.zeros_us:.2f}" if self.zeros_us else ""
        return (
            f"modelled {self.total_us:.2f} us: {self.cost}{zeros}\n"
            f"  {low} to {high} {self.unit} in each of {self.groups} groups that have rows, "
            f"{self.tiles} tiles in {self.waves:.2f} waves, {100 * self.wasted:.1f} % of them "
            f"empty, the busiest SM {self.imbalance:.2f} times the mean"
        )


def modelled(
    problem: RaggedProblem, config: GemmConfig, machine: Machine, sizes: Sizes
) -> GroupedTime:
    """The time of a launch.

    Args:
      problem: what is computed.
      config: legal for it.
      machine: where.
      sizes: of groups, int [batch, total groups], of which the first ones are those of rhs.

    Raises:
      ValueError: no group has rows.
    """
    rows = _clamped(sizes, problem.m)[:, : problem.groups].ravel()
    used = rows[rows > 0]
    if not len(used):
        raise ValueError("no group has rows")
    if rows.max() <= problem.m // 2:  # which parts are for
        config = replace(config, split_k=1, split_tail=False)
    contraction, wide = problem.ragged_contraction, itemsize(problem.lhs_dtype)
    table = Candidates.of([config], machine.family, wide)
    native = replace(problem, groups=len(used), batch=1).native
    resident_by_size = machine.resident_by_size
    plan = table.plans(machine.family, native, swap_ab=False, resident=resident_by_size)
    cut = Grid(**plan)
    resident, tiles_n, height, width = (
        int(each[0]) for each in (cut.resident, cut.tiles_n, cut.cluster_rows, cut.cluster_columns)
    )
    block = int(SPAN_BYTES / wide) if contraction else height
    of_group = -(-used // block)
    # Of a matrix of the result, or of a group's rows on average.
    tiles_m = int(cut.tiles_m[0]) if contraction else of_group.sum() / len(used)
    tiles = round(tiles_m * len(used)) * tiles_n
    waves = -(-tiles // resident)
    if contraction:
        depths = np.repeat(of_group, int(tiles_m) * tiles_n)
        dealt = np.bincount(np.arange(tiles) % resident, depths, minlength=resident)
        down, depth = problem.k, max(1, round(dealt.max() / waves)) * block
        filled = used.sum() / (of_group.sum() * block) * problem.k / (tiles_m * height)
    else:
        dealt = np.bincount(np.arange(tiles) % resident, minlength=resident)
        down, depth = max(1, round(used.mean())), problem.k
        filled = used.sum() / (of_group.sum() * block)
    # What makes the table of tiles is a launch ahead that moves nothing to speak of, as a repack.
    work = replace(_of_groups(problem, machine.family, len(used), down, depth), repacks=1)
    if config.split_k == 1:
        whole = np.array([tiles])
        cut = replace(
            cut,
            tiles_m=np.array([tiles_m]),
            tiles=whole,
            items=whole,
            whole_tiles=whole,
            whole_waves=np.array([waves]),
        )
    costs = evaluate(work, machine, table, (np.array([0]), np.array([config.swizzle])), cut=cut)
    is_cleared = contraction and problem.epilogue.c is None
    empty = problem.k * problem.n * problem.output.itemsize * (len(rows) - len(used)) * is_cleared
    zeros = empty / machine.dram_bytes_per_ns
    total = overlapping(machine, np.array([costs.total, [zeros]]))
    return GroupedTime(
        cost=cost_of(costs, 0),
        zeros_us=zeros / 1e3,
        total_us=float(total[0]) / 1e3,
        groups=len(used),
        of_group=(int(of_group.min()), int(of_group.max())),
        unit="blocks along the contraction" if contraction else "tiles of rows",
        tiles=tiles,
        waves=tiles / resident,
        wasted=1 - float(filled * problem.n / (tiles_n * width)),
        imbalance=float(dealt.max() / dealt.mean()),
    )


def for_even_sizes(problem: RaggedProblem, config: GemmConfig, machine: Machine) -> GroupedTime:
    """The same where groups are as large as the call expects."""
    return modelled(problem, config, machine, group_sizes.of_problem(problem))


def _clamped(sizes: Sizes, m: int) -> Sizes:
    """As the kernels take them: none is negative, and none goes beyond m."""
    ends = np.minimum(np.cumsum(np.maximum(sizes, 0), axis=1, dtype=np.int64), m)
    return np.diff(ends, axis=1, prepend=0).astype(np.int32)


def _of_groups(p: RaggedProblem, family: str, groups: int, m: int, k: int) -> Workload:
    """A batch of dense matmuls of so many rows, and of such a contraction, in a group's place."""
    dense = GemmProblem(
        batch=groups,
        m=m,
        n=p.n,
        k=k,
        lhs_batched=True,
        rhs_batched=True,
        lhs_major=Major.MN if p.ragged_contraction else Major.K,
        rhs_major=p.rhs_major,
        lhs_dtype=p.lhs_dtype,
        rhs_dtype=p.rhs_dtype,
        output=p.output,
        epilogue=p.epilogue,
        precision=lax.Precision.HIGHEST if p.promoted else None,
    )
    return workload(dense, family, swapped=False)
