"""Results as pictures: speed against size with the roofline, and the speed-up of each matmul."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxbw._src.lab.bench.floors import Roof
from jaxbw._src.lab.bench.results import OURS, Results, Row

MARKERS = "oxsd^v+*"


def draw(results: Results, folder: Path) -> list[Path]:
    """Writes a picture of each kind for each mode; their paths.

    Raises:
      ValueError: matplotlib is not installed.
    """
    require_matplotlib("--plots")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for mode in dict.fromkeys(row.mode for row in results.rows):
        rows = [row for row in results.rows if row.mode == mode]
        written.append(_speed(rows, Roof.over(results), folder / f"speed_{mode}.png"))
        if compared := [row for row in rows if row.against(row.best_peer)]:
            written.append(_speedup(compared, folder / f"speedup_{mode}.png"))
    return written


def require_matplotlib(option: str) -> None:
    """Has matplotlib draw into files, for an option of the command.

    Raises:
      ValueError: it is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError(f'{option} needs matplotlib; pip install "jaxbw[bench]"') from error
    matplotlib.use("Agg")


def _speed(rows: Sequence[Row], roof: Roof | None, path: Path) -> Path:
    """TFLOP/s of every arm over the size of the matmul, below the roof of each."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(11, 6), layout="constrained")
    sizes = {id(row): math.cbrt(row.case.m * row.case.n * row.case.k) for row in rows}
    names = dict.fromkeys(name for row in rows for name in row.arms)
    for marker, name in zip(MARKERS, names, strict=False):
        found = [row for row in rows if name in row.arms]
        axes.plot(
            [sizes[id(row)] for row in found],
            [row.case.flops / row.arms[name].median / 1e6 for row in found],
            marker,
            label=name,
            markersize=8 if name == OURS else 5,
        )
    if roof is not None:
        axes.plot(
            [sizes[id(row)] for row in rows],
            [row.case.flops / max(roof.floors(row.case)) / 1e6 for row in rows],
            "_k",
            markersize=14,
            label=f"roof: tensor cores at {roof.clock_ghz:.2f} GHz, or memory",
        )
    axes.set(xscale="log", xlabel="cube root of M N K", ylabel="TFLOP/s", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    return _saved(figure, path)


def _speedup(rows: Sequence[Row], path: Path) -> Path:
    """Our speed-up over the best peer, row by row, with its interval."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.25 * len(rows)), layout="constrained")
    groups = list(dict.fromkeys(row.case.group for row in rows))
    for position, row in enumerate(rows):
        speedup = row.against(row.best_peer)
        assert speedup is not None
        axes.barh(
            position,
            speedup.value,
            color=f"C{groups.index(row.case.group)}",
            xerr=[[speedup.value - speedup.low], [speedup.high - speedup.value]],
        )
    axes.axvline(1, color="black", linewidth=1)
    labels = [f"{row.case}, {row.best_peer}" for row in rows]
    axes.set_yticks(range(len(rows)), labels, fontsize=7)
    axes.invert_yaxis()
    axes.set(xlabel="speed-up over the best peer, 95 % interval")
    return _saved(figure, path)


def _saved(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
