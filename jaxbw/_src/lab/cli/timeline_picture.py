"""A modelled run for people to look at: a trace for Perfetto, and a picture with the roofline."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxbw._src.lab.model.costs import ENGINES, MEMORY
from jaxbw._src.lab.model.modelled import Replay
from jaxbw._src.lab.model.replay import Interval
from jaxbw._src.perfetto import Group, Span, Track, trace

_TILES = 2  # and a half, of the first ones, in a picture
_COLOURS = {
    "load": "#3b75af",
    "MMA": "#c23b3b",
    "TMEM load": "#3d8f4f",
    "stage": "#5fa05a",
    "store": "#78b04a",
    "set-up": "#8a5bb5",
    "waits": "#d9d9d9",
}
_OTHER = "#7f7f7f"
_INTENSITIES = (8, 16384)  # FLOP per byte, of the roofline's axis


def tracks(found: Replay) -> list[str]:
    """Agents, then engines, in the order in which a tile passes them."""
    used = dict.fromkeys(interval.track for interval in found.outcome.intervals)
    return [*(name for name in used if name not in ENGINES), *(e for e in ENGINES if e in used)]


def chrome(found: Replay) -> dict[str, Any]:
    """The trace for https://ui.perfetto.dev; modelled microseconds."""
    rows: dict[str, list[Span]] = {name: [] for name in tracks(found)}
    for each in found.outcome.intervals:
        rows[each.track].append(Span(each.name, each.begin / 1000, each.end / 1000))
    place = "one CTA, the leader where they are paired (modelled)"
    group = Group(0, place, [Track(name, spans) for name, spans in rows.items()])
    return trace([group], clock=str(found.clock), time="modelled")


def draw(found: Replay, title: str, path: Path) -> None:
    """Draws the timeline of the first tiles, and the roofline.

    Raises:
      ModuleNotFoundError: there is no matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("--png draws with matplotlib: install it") from error
    names = tracks(found)
    figure = Figure(figsize=(13, 0.32 * len(names) + 6), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[0.32 * len(names) + 1, 4])
    _timeline(above, found, names)
    above.set_title(f"{title}: the first tiles of one CTA, modelled at {found.clock}", loc="left")
    _roofline(below, found)
    figure.savefig(path, dpi=100)


def _timeline(axes: Any, found: Replay, names: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    end = found.outcome.time
    if found.plan.waves > _TILES:
        end *= (_TILES + 0.5) / found.plan.waves
    shown: dict[str, dict[str, list[Interval]]] = {name: {} for name in names}
    for each in found.outcome.intervals:
        if each.begin < end:
            shown[each.track].setdefault(each.name, []).append(each)
    for row, name in enumerate(names):
        for what, intervals in shown[name].items():
            bars = [(each.begin / 1000, (each.end - each.begin) / 1000) for each in intervals]
            axes.broken_barh(bars, (row - 0.4, 0.8), color=_COLOURS.get(what, _OTHER), linewidth=0)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, end / 1000)
    axes.set_xlabel("microseconds after the launch, modelled")
    handles = [Patch(color=colour, label=name) for name, colour in _COLOURS.items()]
    axes.legend(handles=handles, ncols=len(handles), fontsize=8, loc="lower right", framealpha=1)


def _roofline(axes: Any, found: Replay) -> None:
    """Attainable against bytes from memory, at the modelled clock; and where the matmul is."""
    machine, ghz = found.costs.machine, found.clock.ghz
    peak = peak_tflops(found)
    rate = machine["dram_bytes_per_ns"] / 1000  # TB/s
    low, high = _INTENSITIES
    axes.plot([low, peak / rate, high], [low * rate, peak, peak], color="black")
    busy = found.outcome.busy[MEMORY] * machine["dram_bytes_per_ns"]
    intensity = found.shape.flops / max(busy, 1.0)
    axes.plot(intensity, found.tflops, "o", color=_COLOURS["MMA"])
    axes.annotate(
        f"  {found.tflops:.0f} TFLOP/s modelled, {found.tflops / peak:.0%} of {peak:.0f} at "
        f"{ghz:.2f} GHz",
        (intensity, found.tflops),
        verticalalignment="top",
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, max(high, 2 * intensity))
    axes.set_xlabel("FLOP per byte of memory, modelled")
    axes.set_ylabel("TFLOP/s")
    axes.grid(linewidth=0.3)


def peak_tflops(found: Replay) -> float:
    """What the tensor cores give at the modelled clock."""
    machine = found.costs.machine
    # An instruction multiplies 128 rows by N columns by 32 bytes of K.
    flops = 2 * 128 * (32 // found.costs.kernel.itemsize) / machine["mma_cycles_per_column"]
    return flops * machine["sm_count"] * found.clock.ghz / 1000
