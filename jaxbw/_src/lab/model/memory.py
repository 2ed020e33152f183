"""What of the loads comes from L2, and what from memory: the distance at which panels are reused.

A panel is the part of an operand that one row, or column, of cluster tiles reads: all of K. The
clusters of a wave go through K side by side, so a panel that several of them read is fetched once,
and a slice of it is used again after all that its wave, and those in between, have read.
"""

from dataclasses import dataclass
from itertools import islice

from jaxbw._src.lab.model.kernel import Kernel
from jaxbw._src.lab.model.machine import Replayed
from jaxbw._src.lab.model.schedule import Raster, Schedule, Shape, order

Panel = tuple[str, int, int]  # operand, matrix, cluster tiles along M or N


@dataclass(frozen=True)
class Traffic:
    """A wave's loads.

    Attributes:
      missed: bytes that come from memory, of each byte of the cluster tiles' panels.
      late: the part of the tiles that wait for memory.
    """

    missed: float
    late: float


def traffic(
    machine: Replayed,
    kernel: Kernel,
    shape: Shape,
    plan: Schedule,
    raster: Raster,
    *,
    warm: bool = False,
) -> list[Traffic]:
    """Each wave's loads.

    A panel that is reused after F bytes is still in L2 with the probability l2_bytes / F. When the
    kernel begins, all operands are in memory; or, `warm`, the same matmul has just been computed
    on the same arrays.
    """
    row = shape.k * kernel.itemsize
    sizes = {"a": kernel.cluster_rows * row, "b": kernel.cluster_columns * row}
    recent: dict[Panel, int] = {}  # wave of the last use, oldest first
    tiles = order(plan, raster)
    arrays = (shape.m * shape.k + shape.k * shape.n) * kernel.itemsize
    arrays = (arrays + shape.m * shape.n * kernel.output_size) * shape.batch
    first = max(0.0, 1 - machine["l2_bytes"] / arrays) if warm else 1.0
    waves = []
    for wave in range(plan.waves):
        touched = [
            (("a", matrix, i), ("b", matrix, j))
            for matrix, i, j in islice(tiles, plan.active(wave))
        ]
        panels = dict.fromkeys(panel for pair in touched for panel in pair)
        missing = _missing(recent, panels, sizes, machine["l2_bytes"], first)
        missed = sum(sizes[panel[0]] * part for panel, part in missing.items())
        late = sum(max(missing[a], missing[b]) for a, b in touched)
        for panel in panels:
            recent.pop(panel, None)
            recent[panel] = wave
        waves.append(Traffic(missed / (len(touched) * sum(sizes.values())), late / len(touched)))
    return waves


def _missing(
    recent: dict[Panel, int],
    panels: dict[Panel, None],
    sizes: dict[str, int],
    capacity: float,
    first: float,
) -> dict[Panel, float]:
    """Of each panel, the part that is no longer, or not yet, in L2."""
    since: dict[int, int] = {}  # bytes touched in a wave and after it
    total = 0
    for panel, wave in reversed(recent.items()):
        total += sizes[panel[0]]
        since[wave] = total
    return {
        panel: max(0.0, 1 - capacity / since[recent[panel]]) if panel in recent else first
        for panel in panels
    }
