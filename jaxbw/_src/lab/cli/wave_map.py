"""A picture of which cluster computes which tile of a result, and in which wave.

The last wave shows wave quantisation: the SMs that it leaves idle. The first one shows thread-block
swizzle: how many rows and columns of tiles run together, hence share operands in L2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from jaxbw._native import Plan
from jaxbw._src.primitives.gemm import plan_of
from jaxbw._src.problem import GemmProblem
from jaxbw._src.selection.choice import Choice
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.machine import Machine

LABELLED = 600  # work items; of more, numbers cannot be read
PANELS = 4  # batch indices that are shown
_STRONG, _WEAK = "#202020", "#ffffff90"
_DARK = 1.5  # sum of red, green and blue below which ink is white
_NARROW = 0.2  # of height over width: a result narrower than that is stretched


class WorkItem(NamedTuple):
    """A cluster tile, or one of the `parts` that it is split into: see `Plan.work_items`."""

    batch: int
    row: int
    column: int
    part: int
    parts: int


@dataclass(frozen=True)
class WaveMap:
    """A launch, item by item.

    `resident` clusters run at a time: item i is computed in wave i // resident, by the cluster in
    place i % resident of the GPU. That is exact for the static scheduler; cluster launch control
    hands out the same items in the same order, to whoever is free.
    """

    config: GemmConfig
    problem: GemmProblem
    plan: Plan
    items: tuple[WorkItem, ...]
    sm_count: int
    filled: float

    @classmethod
    def of(cls, choice: Choice, machine: Machine, problem: GemmProblem) -> "WaveMap":
        """The map of a choice for a problem.

        Raises:
          ValueError: XLA serves it.
        """
        if choice.config is None or choice.cost is None:
            raise ValueError(
                f"--png draws what a kernel computes, and XLA serves this matmul: {choice.reason};"
                " ask for one with --implementation kernel, or name a GPU with --device B200"
            )
        ctas = plan_of(problem, choice).cluster_ctas
        plan = plan_of(problem, choice, machine.resident_clusters(ctas))
        items = tuple(WorkItem(*item) for item in plan.work_items.tolist())
        return cls(choice.config, problem, plan, items, machine.sm_count, choice.cost.efficiency)

    @property
    def resident(self) -> int:
        """Clusters that run at a time."""
        return self.plan.resident

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a cluster tile, of what the kernel computes."""
        return self.plan.cluster_rows, self.plan.cluster_columns

    @property
    def waves(self) -> int:
        """How often the GPU is filled."""
        return -(-len(self.items) // self.resident)

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster."""
        return self.plan.cluster_ctas

    @property
    def idle_sms(self) -> int:
        """SMs without a tile in the last wave."""
        last = len(self.items) - (self.waves - 1) * self.resident
        return self.sm_count - last * self.cluster_size

    def footprint(self, wave: int) -> tuple[int, int]:
        """Rows and columns of cluster tiles that a wave reads operands for, over all batches."""
        own = self.items[wave * self.resident : (wave + 1) * self.resident]
        rows = {(item.batch, item.row) for item in own}
        return len(rows), len({(item.batch, item.column) for item in own})

    def caption(self) -> str:
        """What is seen, in words."""
        c, (rows, columns) = self.config, self.footprint(0)
        direction = "rows" if c.raster == "m" else "columns"
        bands = f"bands of {c.swizzle} tile {direction}" if c.swizzle > 1 else "no bands"
        waves = f"{self.waves} wave{'s' if self.waves > 1 else ''}"
        parts = f" in {len(self.items)} parts" if c.split_k > 1 else ""
        return (
            f"{self.plan.tiles} cluster tiles{parts}, {self.resident} at a time: {waves}, "
            f"{100 * self.filled:.1f} % filled, {self.idle_sms} of {self.sm_count} SMs idle in the "
            f"last one\n{bands}: the first wave reads the A of {rows} and the B of {columns} tiles"
        )


def draw(map_: WaveMap, title: str, path: Path) -> None:
    """Writes the picture.

    Raises:
      ValueError: matplotlib is not installed.
    """
    try:
        from matplotlib import colormaps
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import BoundaryNorm
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError('--png needs matplotlib; pip install "jaxbw[bench]"') from error
    panels = min(map_.problem.batch, PANELS)
    figure = Figure(figsize=(2 + 7 * panels, 8), layout="constrained")
    colours = colormaps["viridis"].resampled(max(map_.waves, 2))
    norm = BoundaryNorm([wave - 0.5 for wave in range(map_.waves + 1)], colours.N)
    every = figure.subplots(1, panels, squeeze=False)[0]
    for batch, axes in enumerate(every):
        _panel(axes, map_, batch, [colours(norm(wave)) for wave in range(map_.waves)])
        if map_.problem.batch > 1:
            axes.set_title(f"batch index {batch} of {map_.problem.batch}")
    step = -(-map_.waves // 12)
    bar = ScalarMappable(norm, colours)
    figure.colorbar(bar, ax=every, label="wave", ticks=range(0, map_.waves, step), shrink=0.6)
    numbers = "numbers: cluster" if len(map_.items) <= LABELLED else "clusters not numbered"
    size = f"{map_.config.cluster[0]}x{map_.config.cluster[1]}"
    if map_.config.cluster_k > 1:
        size += f"x{map_.config.cluster_k} (parts of K)"
    legend = f"{numbers}, of {size} CTAs (thin lines); red: the order in the first wave"
    lines = [*title.splitlines(), *map_.caption().splitlines(), legend]
    text = (part for line in lines for part in wrap(line, 80 * panels + 20))
    figure.suptitle("\n".join(text), fontsize=9)
    figure.savefig(path, dpi=110)


def _panel(axes: Any, map_: WaveMap, batch: int, colours: Sequence[Any]) -> None:
    """The result of one batch index, rows downwards."""
    from matplotlib.collections import LineCollection, PatchCollection
    from matplotlib.patches import Rectangle

    own = [(i, item) for i, item in enumerate(map_.items) if item.batch == batch]
    boxes = [_box(map_, item) for _, item in own]
    faces = [colours[i // map_.resident] for i, _ in own]
    patches = [Rectangle((x, y), width, height) for x, y, width, height in boxes]
    axes.add_collection(
        PatchCollection(patches, facecolors=faces, edgecolors=_STRONG, linewidths=0.8)
    )
    axes.add_collection(LineCollection(_cta_lines(map_), colors=_WEAK, linewidths=0.4))
    middles = [
        ((x + min(x + width, map_.problem.n)) / 2, (y + min(y + height, map_.problem.m)) / 2)
        for x, y, width, height in boxes
    ]
    if len(map_.items) <= LABELLED:
        size = max(4, min(9, 260 / max(map_.plan.tiles_m, map_.plan.tiles_n)))
        for (i, _), middle, face in zip(own, middles, faces, strict=True):
            ink = "white" if sum(face[:3]) < _DARK else "black"
            place = {"ha": "center", "va": "center", "fontsize": size, "color": ink}
            axes.text(*middle, str(i % map_.resident), **place)
    path = [at for (i, _), at in zip(own, middles, strict=True) if i < map_.resident]
    axes.plot([x for x, _ in path], [y for _, y in path], color="#ff5a36", linewidth=1.2)
    if map_.config.swizzle > 1:
        for edge in range(map_.config.swizzle, _across(map_), map_.config.swizzle):
            _band_edge(axes, map_, edge)
    right, bottom = _extent(map_)
    m, n = map_.problem.m, map_.problem.n
    for corner, extent in (((n, 0), (right, bottom)), ((0, m), (n, bottom))):
        axes.add_patch(Rectangle(corner, *extent, facecolor="white", alpha=0.6, zorder=3))
    axes.add_patch(Rectangle((0, 0), n, m, fill=False, linewidth=2, zorder=4))
    axes.set(xlim=(0, right), ylim=(bottom, 0), xlabel="n: columns of the result")
    axes.set_ylabel("m: rows of the result")
    if _NARROW < bottom / right < 1 / _NARROW:
        axes.set_aspect("equal")


def _extent(map_: WaveMap) -> tuple[int, int]:
    """Columns and rows of all tiles, which may reach beyond the result."""
    columns, rows = map_.plan.tiles_n * map_.tile[1], map_.plan.tiles_m * map_.tile[0]
    return (rows, columns) if map_.config.swap_ab else (columns, rows)


def _box(map_: WaveMap, item: WorkItem) -> tuple[float, float, float, float]:
    """x, y, width, height in elements of the result; the parts of a tile lie below each other."""
    rows, columns = map_.tile
    y, x = item.row * rows, item.column * columns
    if map_.config.swap_ab:
        x, y, rows, columns = y, x, columns, rows
    return x, y + rows * item.part / item.parts, columns, rows / item.parts


def _cta_lines(map_: WaveMap) -> list[Any]:
    """Where the tiles of a cluster's CTAs meet."""
    right, bottom = _extent(map_)
    steps = [extent // c for extent, c in zip(map_.tile, map_.config.cluster, strict=True)]
    rows, columns = reversed(steps) if map_.config.swap_ab else steps
    across = [((0, y), (right, y)) for y in range(rows, bottom, rows)]
    return across + [((x, 0), (x, bottom)) for x in range(columns, right, columns)]


def _across(map_: WaveMap) -> int:
    """Cluster tiles along the dimension that is cut into bands."""
    return map_.plan.tiles_m if map_.config.raster == "m" else map_.plan.tiles_n


def _band_edge(axes: Any, map_: WaveMap, edge: int) -> None:
    """A line between two bands."""
    is_row = (map_.config.raster == "m") != map_.config.swap_ab
    at = edge * map_.tile[0 if map_.config.raster == "m" else 1]
    (axes.axhline if is_row else axes.axvline)(at, color="white", linewidth=2.5)
