"""The configurations that are compared: every tile worth considering, in clusters, split or not.

A table of arrays, one row a configuration, so that the cost model evaluates all at once. Which rows
there are depends on the kernels' family and the operands' layouts, never on the sizes: a search
that always looks at the same candidates finds no slower one on a larger machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from jaxbw._native import DataType, Major, Problem, kernel_names, plan_many
from jaxbw._src.families import FAMILIES
from jaxbw._src.families.family import SPAN_BYTES
from jaxbw._src.selection import planner
from jaxbw._src.selection.config import GemmConfig

Integers = NDArray[np.int64]

_TAIL_SPLITS = (2, 3, 4)  # one wave of sums at most: L2 keeps it


@dataclass(frozen=True)
class Candidates:
    """Configurations as columns.

    `stages` is 0 where as many as fit are meant, `accumulators` where the number of waves decides.
    """

    block_m: Integers
    block_n: Integers
    cta_group: Integers
    pingpong: Integers
    cluster_m: Integers
    cluster_n: Integers
    cluster_k: Integers
    k_spans: Integers
    stages: Integers
    split_k: Integers
    split_tail: Integers
    accumulators: Integers
    relaunched: Integers  # 1: a cluster for each work item

    @property
    def ctas(self) -> Integers:
        """CTAs of a cluster."""
        return self.cluster_m * self.cluster_n * self.cluster_k

    def __len__(self) -> int:
        return len(self.block_m)

    @classmethod
    def of(cls, given: Sequence[GemmConfig], family: str, itemsize: float) -> Self:
        """The columns of configurations that have a tile."""
        rows = [_row(config, family, itemsize) for config in given]
        columns = np.array(rows, np.int64).reshape(len(rows), len(fields(cls))).T
        return cls(*map(np.ascontiguousarray, columns))

    def plans(
        self,
        family: str,
        problem: Problem,
        *,
        swap_ab: bool,
        resident: Sequence[int] = (),
    ) -> dict[str, Integers]:
        """What each of them will do, by `_native.plan_many`."""
        return plan_many(family, problem, vars(self), swap_ab=swap_ab, resident=resident)

    def take(self, keep: NDArray[Any]) -> Self:
        """Some of the rows: a mask, or indices."""
        return type(self)(*(getattr(self, field.name)[keep] for field in fields(self)))

    def config(self, row: int, itemsize: float, **others: Any) -> GemmConfig:
        """One row as a configuration, with other fields."""
        values = {field.name: int(getattr(self, field.name)[row]) for field in fields(self)}
        return GemmConfig(
            block_m=values["block_m"],
            block_n=values["block_n"],
            block_k=int(values["k_spans"] * SPAN_BYTES / itemsize),
            cluster=(values["cluster_m"], values["cluster_n"]),
            cluster_k=values["cluster_k"],
            cta_group=values["cta_group"],
            pingpong=bool(values["pingpong"]),
            stages=values["stages"] or None,
            split_k=values["split_k"],
            split_tail=bool(values["split_tail"]),
            **others,
        )


@cache
def candidates(
    family: str,
    lhs_major: Major,
    rhs_major: Major,
    input: DataType,
    *,
    gated: bool,
    mx: int = 0,
    out_mx: bool = False,
    swap_ab: bool,
    whole: bool,
    instances: frozenset[str] = frozenset(kernel_names()),
) -> Candidates:
    """The candidates for matmuls of a family, best first among equals: wide tiles, small clusters.

    Args:
      family: "sm90" or "sm100".
      lhs_major, rhs_major: layouts as the problem has them, after any repacking.
      input: dtype of the operands.
      gated: whether the matmul is gated.
      mx: numbers of k that share a scale, where it has an MX format.
      out_mx: whether its result is in MXFP8.
      swap_ab: the candidates that exchange the operands, or those that do not.
      whole: no tile is split along K.
      instances: the names of the kernels that there are; all, by default.
    """
    bases = _bases(family, 4 if input == DataType.F32 else 2)
    problem = planner.any_problem(input, lhs_major, rhs_major, gated=gated, mx=mx, out_mx=out_mx)
    plans = bases.plans(family, problem, swap_ab=swap_ab)
    installed = [place for place, name in enumerate(kernel_names()) if name in instances]
    bases = replace(bases, stages=plans["stages"])
    bases = bases.take((plans["legal"] == 1) & np.isin(plans["kernel"], installed))
    if whole:
        return bases
    splits = [(split, 0) for split in FAMILIES[family].splits]
    splits += [(split, 1) for split in _TAIL_SPLITS]
    rows = bases.take(np.tile(np.arange(len(bases)), len(splits)))
    split_k, split_tail = (np.repeat(column, len(bases)) for column in np.array(splits).T)
    rows = replace(rows, split_k=split_k, split_tail=split_tail)
    in_two = replace(bases, split_k=np.full(len(bases), 2)).plans(family, problem, swap_ab=swap_ab)
    may_split = (rows.cluster_k == 1) & np.tile(in_two["legal"] == 1, len(splits))
    return rows.take(may_split | (rows.split_k == 1))


def _bases(family: str, itemsize: int) -> Candidates:
    """Every tile in every cluster, unsplit."""
    of = FAMILIES[family]
    bases = [
        GemmConfig(
            *tile,
            block_k=spans * SPAN_BYTES // itemsize,
            cluster=cluster[:2],
            cluster_k=cluster[2],
            cta_group=cta_group,
            pingpong=pingpong,
        )
        for tile, cta_group, pingpong in of.tiles()
        for cluster in of.clusters[cta_group]
        for spans, limit in of.stage_spans.items()
        if sum(tile) // cta_group * SPAN_BYTES <= limit
    ]
    return Candidates.of(bases, family, itemsize)


def _row(c: GemmConfig, family: str, itemsize: float) -> tuple[int, ...]:
    return (
        *c.tile,
        c.cta_group,
        c.pingpong,
        *c.cluster,
        c.cluster_k,
        1 if c.block_k is None else int(c.block_k * itemsize) // SPAN_BYTES,
        c.stages or 0,
        c.split_k,
        c.split_tail,
        c.accumulators or 0,
        planner.scheduler_on(c.scheduler, family) == "none",
    )
