"""The order in which a launch goes through its work: what cuda/gemm/tile_order.h and
tile_scheduler.h say, restated for pictures. `tests/emulator/test_tile_order.py` holds it to the
running kernels.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from jaxbw._src.selection.config import GemmConfig


@dataclass(frozen=True)
class WorkItem:
    """A cluster tile, or one of the `parts` along K that it is split into.

    `row`, `column` count cluster tiles of what the kernel computes: with swap-AB of the transposed
    product.
    """

    batch: int
    row: int
    column: int
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class Grid:
    """How a product is cut: cluster tiles of each batch index, and elements of one of them."""

    batch: int
    rows: int
    columns: int
    tile: tuple[int, int]

    @classmethod
    def of(cls, config: GemmConfig, batch: int, m: int, n: int, *, gated: bool = False) -> "Grid":
        """The grid of a product m x n; exchanged where the configuration swaps its operands."""
        if config.swap_ab:
            m, n = n, m
        tile = (
            config.cluster[0] * config.cta_rows,
            config.cluster[1] * config.tile_columns(gated),
        )
        return cls(batch, -(-m // tile[0]), -(-n // tile[1]), tile)


def walk(rows: int, columns: int, swizzle: int, raster: str) -> Iterator[tuple[int, int]]:
    """(row, column) of each tile, in the order of their numbers.

    Bands of `swizzle` tile rows are walked one after the other, each column by column; with raster
    "n", bands of tile columns, row by row.

    >>> list(walk(3, 2, 2, "m"))
    [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]
    """
    across, along = (rows, columns) if raster == "m" else (columns, rows)
    for first in range(0, across, swizzle):
        for j in range(along):
            for i in range(first, min(first + swizzle, across)):
                yield (i, j) if raster == "m" else (j, i)


def work_items(grid: Grid, config: GemmConfig, resident: int) -> list[WorkItem]:
    """What the clusters of a launch compute, in the order in which it is handed out.

    Args:
      resident: clusters that run at a time; with `split_tail`, tiles behind the last full wave of
        so many are split.
    """
    tiles = [
        (batch, row, column)
        for batch in range(grid.batch)
        for row, column in walk(grid.rows, grid.columns, config.swizzle, config.raster)
    ]
    whole = len(tiles)
    if config.split_k > 1:
        whole = whole // resident * resident if config.split_tail else 0
    parts = range(config.split_k)
    return [WorkItem(*tile) for tile in tiles[:whole]] + [
        WorkItem(*tile, part, config.split_k) for tile in tiles[whole:] for part in parts
    ]
