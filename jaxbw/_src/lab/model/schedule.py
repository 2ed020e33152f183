"""Who computes which tile: clusters that fit, items, the order of tiles, waves."""

from collections.abc import Iterator
from dataclasses import dataclass

from jaxbw._native import walk
from jaxbw._src.lab.model.kernel import Kernel
from jaxbw._src.lab.model.machine import Replayed


@dataclass(frozen=True)
class Shape:
    """A matmul of `batch` matrices, D[m, n] = A[m, k] B[k, n]."""

    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.m * self.n * self.k * self.batch


@dataclass(frozen=True)
class Raster:
    """The order of cluster tiles: bands `width` tiles wide across M or N, walked along the other.

    `snake`: every other band is walked backwards.
    """

    across: str = "m"
    width: int = 1
    snake: bool = False


@dataclass(frozen=True)
class Schedule:
    """How a matmul is cut.

    Attributes:
      tiles_m, tiles_n: cluster tiles; `tiles`: of all matrices of a batch.
      resident: clusters that run at a time.
      waves: tiles that the busiest cluster computes.
    """

    tiles_m: int
    tiles_n: int
    tiles: int
    resident: int
    waves: int

    def active(self, wave: int) -> int:
        """Clusters that have a tile in a wave."""
        return min(self.resident, self.tiles - wave * self.resident)


def schedule(machine: Replayed, kernel: Kernel, shape: Shape) -> Schedule:
    """Places the clusters of a kernel on a machine."""
    tiles_m = -(-shape.m // kernel.cluster_rows)
    tiles_n = -(-shape.n // kernel.cluster_columns)
    tiles = tiles_m * tiles_n * shape.batch
    resident = min(machine.shared.resident_clusters(kernel.ctas), tiles)
    return Schedule(tiles_m, tiles_n, tiles, resident, -(-tiles // resident))


def order(plan: Schedule, raster: Raster) -> Iterator[tuple[int, int, int]]:
    """The tiles (batch, m, n), as they are handed out."""
    for matrix in range(plan.tiles // (plan.tiles_m * plan.tiles_n)):
        tiles = _snake(plan, raster) if raster.snake else _bands(plan, raster)
        yield from ((matrix, i, j) for i, j in tiles)


def _bands(plan: Schedule, raster: Raster) -> Iterator[tuple[int, int]]:
    yield from walk(plan.tiles_m, plan.tiles_n, raster.width, raster.across).tolist()


def _snake(plan: Schedule, raster: Raster) -> Iterator[tuple[int, int]]:
    across_m = raster.across == "m"
    across, along = (plan.tiles_m, plan.tiles_n) if across_m else (plan.tiles_n, plan.tiles_m)
    for number, first in enumerate(range(0, across, raster.width)):
        for step in range(along):
            j = along - 1 - step if number % 2 else step
            for i in range(first, min(first + raster.width, across)):
                yield (i, j) if across_m else (j, i)
