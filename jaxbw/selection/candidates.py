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
from jaxbw.selection import config as configs
from jaxbw.selection.config import SPAN_BYTES, GemmConfig

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
_SM90_TILES = {(128, 1): (256, 192, 128, 64)}
# By family and cta_group. Hopper's larger ones have not been timed.
_CLUSTERS = {
    ("sm90", 1): ((1, 1), (2, 1), (1, 2)),
    ("sm100", 1): ((1, 1), (2, 1), (1, 2), (2, 2)),
    ("sm100", 2): ((2, 1), (2, 2), (4, 1), (4, 2)),
}
_SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
_TAIL_SPLITS = (2, 3, 4)  # one wave of sums at most: L2 keeps it
# Several spans in a stage pay where a tile's are small: at most so many bytes per CTA and span.
_SPANS = {1: 2**20, 2: 16 * 1024, 4: 12 * 1024}


@dataclass(frozen=True)
class Candidates:
    """Configurations as columns; `accumulators` is 0 where the number of waves decides."""

    block_m: Integers
    block_n: Integers
    cta_group: Integers
    cluster_m: Integers
    cluster_n: Integers
    k_spans: Integers
    stages: Integers
    split_k: Integers
    split_tail: Integers
    accumulators: Integers
    relaunched: Integers  # 1: a cluster for each work item

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
            cta_group=values["cta_group"],
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
    splits = [(split, 0) for split in _SPLITS] + [(split, 1) for split in _TAIL_SPLITS]
    rows = bases.take(np.tile(np.arange(len(bases)), len(splits)))
    split_k, split_tail = (np.repeat(column, len(bases)) for column in np.array(splits).T)
    return replace(rows, split_k=split_k, split_tail=split_tail)


def _bases(family: str, itemsize: int, swap_ab: bool) -> Iterator[GemmConfig]:
    """Every tile in every cluster, unsplit."""
    for (block_m, group), widths in (_SM100_TILES if family == "sm100" else _SM90_TILES).items():
        for width in sorted(widths, reverse=True):
            bytes_per_span = (block_m + width) // group * SPAN_BYTES
            for cluster in _CLUSTERS[family, group]:
                for spans, limit in _SPANS.items():
                    if bytes_per_span <= limit and (spans == 1 or family == "sm100"):
                        yield GemmConfig(
                            block_m,
                            width,
                            block_k=spans * SPAN_BYTES // itemsize,
                            cluster=cluster,
                            cta_group=group,
                            swap_ab=swap_ab,
                        )


def _row(c: GemmConfig, family: str, itemsize: int) -> tuple[int, ...]:
    return (
        *c.tile,
        c.cta_group,
        *c.cluster,
        c.k_spans(itemsize),
        c.stages or configs.max_stages(c, family, itemsize),
        c.split_k,
        c.split_tail,
        c.accumulators or 0,
        c.scheduler == "none",
    )
