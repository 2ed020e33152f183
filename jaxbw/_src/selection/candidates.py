"""The configurations that are compared: every tile worth considering, in clusters, split or not.

A table of arrays, one row a configuration, so that the cost model evaluates all at once. Which rows
there are depends on the kernels' family and the operands' layouts, never on the sizes: a search
that always looks at the same candidates finds no slower one on a larger machine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from jaxbw._native import Major
from jaxbw._src.selection import config as configs
from jaxbw._src.selection.config import SPAN_BYTES, GemmConfig

Integers = NDArray[np.int64]

# (block_m, cta_group) -> block_n. Steps of 16 where the tile is the usual one: against wave
# quantisation. Few where it is for a purpose: 64 rows for small products, the tall ones, which fill
# Tensor Memory, for few loads.
_SM100_TILES = {
    (256, 2): range(32, 257, 16),
    (128, 1): range(16, 257, 16),
    (64, 1): (8, 16, 24, 32, 48, 64, 96, 128),
    (512, 2): (128, 160, 192, 224, 256),
    (256, 1): (128, 192, 256),
    (128, 2): (64, 128, 192, 256),
}
# (block_m, pingpong) -> block_n.
_SM90_TILES = {
    (128, False): (256, 192, 160, 128, 96, 64, 32),
    (256, False): (128,),
    (128, True): (128, 64),
    (64, True): (192, 160, 128, 96, 64, 32),
}
# By family and cta_group: CTAs along m, n and k.
_CLUSTERS = {
    ("sm90", 1): (
        *((1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (4, 1, 1), (1, 4, 1), (4, 2, 1), (2, 4, 1)),
        *((1, 1, 2), (1, 1, 4), (1, 1, 8), (2, 1, 2), (1, 2, 2), (2, 1, 4), (1, 2, 4)),
    ),
    ("sm100", 1): ((1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1)),
    ("sm100", 2): ((2, 1, 1), (2, 2, 1), (4, 1, 1), (4, 2, 1)),
}
_SPLITS = {
    "sm90": (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 15, 16, 22, 24, 30, 32, 48, 64),
    "sm100": (1, 2, 3, 4, 5, 6, 8, 10, 12, 16),
}
_TAIL_SPLITS = (2, 3, 4)  # one wave of sums at most: L2 keeps it
# Several spans in a stage pay where a tile's are small: at most so many bytes per CTA and span.
_SPANS = {1: 2**20, 2: 16 * 1024, 4: 12 * 1024}


@dataclass(frozen=True)
class Candidates:
    """Configurations as columns; `accumulators` is 0 where the number of waves decides."""

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

    @property
    def team_rows(self) -> Integers:
        """`GemmConfig.team_rows`."""
        return np.where(self.pingpong, self.block_m, self.block_m // 2)

    def __len__(self) -> int:
        return len(self.block_m)

    @classmethod
    def of(cls, given: Sequence[GemmConfig], family: str, itemsize: int) -> Self:
        """The columns of configurations that have a tile."""
        rows = [_row(config, family, itemsize) for config in given]
        columns = np.array(rows, np.int64).reshape(len(rows), len(fields(cls))).T
        return cls(*columns)

    def take(self, keep: NDArray[Any]) -> Self:
        """Some of the rows: a mask, or indices."""
        return type(self)(*(getattr(self, field.name)[keep] for field in fields(self)))

    def config(self, row: int, itemsize: int, *, swap_ab: bool) -> GemmConfig:
        """One row as a configuration."""
        values = {field.name: int(getattr(self, field.name)[row]) for field in fields(self)}
        return GemmConfig(
            block_m=values["block_m"],
            block_n=values["block_n"],
            block_k=values["k_spans"] * SPAN_BYTES // itemsize,
            cluster=(values["cluster_m"], values["cluster_n"]),
            cluster_k=values["cluster_k"],
            cta_group=values["cta_group"],
            pingpong=bool(values["pingpong"]),
            stages=values["stages"],
            split_k=values["split_k"],
            split_tail=bool(values["split_tail"]),
            swap_ab=swap_ab,
        )


@cache
def candidates(
    family: str,
    lhs_major: Major,
    rhs_major: Major,
    itemsize: int,
    *,
    gated: bool,
    swap_ab: bool,
    whole: bool,
) -> Candidates:
    """The candidates for products of a family, best first among equals: wide tiles, small clusters.

    Args:
      family: "sm90" or "sm100".
      lhs_major, rhs_major: layouts as the problem has them, after any repacking.
      itemsize: bytes of an operand's element.
      gated: whether the product is gated.
      swap_ab: the candidates that exchange the operands, or those that do not.
      whole: no tile is split along K.
    """
    legal = [
        base
        for base in _bases(family, itemsize, swap_ab)
        if configs.refusal(base, family) is None
        and configs.layout_refusal(
            base,
            lhs_major,
            rhs_major,
            family=family,
            itemsize=itemsize,
            gated=gated,
        )
        is None
    ]
    bases = Candidates.of(legal, family, itemsize)
    if whole:
        return bases
    splits = [(split, 0) for split in _SPLITS[family]] + [(split, 1) for split in _TAIL_SPLITS]
    rows = bases.take(np.tile(np.arange(len(bases)), len(splits)))
    split_k, split_tail = (np.repeat(column, len(bases)) for column in np.array(splits).T)
    rows = replace(rows, split_k=split_k, split_tail=split_tail)
    return rows.take((rows.cluster_k == 1) | (rows.split_k == 1))


def _bases(family: str, itemsize: int, swap_ab: bool) -> Iterator[GemmConfig]:
    """Every tile in every cluster, unsplit."""
    for tile, cta_group, pingpong in _tiles(family):
        bytes_per_span = sum(tile) // cta_group * SPAN_BYTES
        for cluster in _CLUSTERS[family, cta_group]:
            for spans, limit in _SPANS.items():
                if bytes_per_span <= limit and (spans == 1 or family == "sm100"):
                    yield GemmConfig(
                        *tile,
                        block_k=spans * SPAN_BYTES // itemsize,
                        cluster=cluster[:2],
                        cluster_k=cluster[2],
                        cta_group=cta_group,
                        pingpong=pingpong,
                        swap_ab=swap_ab,
                    )


def _tiles(family: str) -> Iterator[tuple[tuple[int, int], int, bool]]:
    """Tiles with their cta_group and schedule, wide ones first."""
    if family == "sm90":
        for (block_m, pingpong), widths in _SM90_TILES.items():
            yield from (((block_m, width), 1, pingpong) for width in widths)
        return
    for (block_m, cta_group), steps in _SM100_TILES.items():
        for width in sorted(steps, reverse=True):
            yield (block_m, width), cta_group, False


def _row(c: GemmConfig, family: str, itemsize: int) -> tuple[int, ...]:
    return (
        *c.tile,
        c.cta_group,
        c.pingpong,
        *c.cluster,
        c.cluster_k,
        c.k_spans(itemsize),
        c.stages or configs.max_stages(c, family, itemsize),
        c.split_k,
        c.split_tail,
        c.accumulators or 0,
        c.scheduler_on(family) == "none",
    )
