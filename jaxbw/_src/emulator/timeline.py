"""Timelines of a traced launch: a Perfetto trace, and a picture.

A CTA is a group of tracks: its warps by role, its engines, its mbarriers. The axis counts emulated
steps (instructions of warps, steps of asynchronous operations): order, not time.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from jaxbw._native import emulator as _core
from jaxbw._src import perfetto
from jaxbw._src.emulator.report import Report, engine
from jaxbw._src.perfetto import Group, Span

AXIS = "emulated steps: order, not time"
_CTAS_IN_A_PICTURE = 2

_Kind = _core.EventKind

# Of roles and engines, the engines in the order in which a tile passes them.
_COLOURS = {
    "load": "#3b75af",
    "TMA load": "#3b75af",
    "multiply": "#c23b3b",
    "tensor core": "#c23b3b",
    "epilogue": "#3d8f4f",
    "TMEM load": "#3d8f4f",
    "TMEM store": "#3d8f4f",
    "TMA store": "#78b04a",
    "schedule": "#8a5bb5",
    "launch control": "#8a5bb5",
}
_OTHER, _WAIT, _PHASES = "#7f7f7f", "#d9d9d9", ("#d8a23c", "#f0d9a8")


@dataclass(frozen=True)
class Bar:
    """An interval of a track. `kind` is "run", "wait", "busy" or "phase"."""

    begin: int
    end: int
    kind: str
    name: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass
class Track:
    """What one warp, engine or mbarrier of a CTA did. Bars of a lane do not overlap."""

    group: str  # "warp", "engine" or "mbarrier"
    name: str
    role: str
    lanes: list[list[Bar]] = field(default_factory=list)
    findings: list[tuple[int, str]] = field(default_factory=list)

    def add(self, bars: Iterable[Bar]) -> "Track":
        """Spreads bars over as few lanes as they need."""
        for bar in sorted(bars, key=lambda bar: (bar.begin, bar.end)):
            lane = next((lane for lane in self.lanes if lane[-1].end <= bar.begin), None)
            if lane is None:
                self.lanes.append(lane := [])
            lane.append(bar)
        return self


def _warp_tracks(events: Sequence[Any], roles: dict[int, str]) -> list[Track]:
    tracks = []
    for warp in sorted({event.warp for event in events if event.kind == _Kind.run}):
        bars = []
        for event in (event for event in events if event.warp == warp):
            details = {"PTX line": event.line}
            if event.kind == _Kind.run:
                bars.append(Bar(event.begin, event.end, "run", roles[warp]))
            elif event.kind == _Kind.wait:
                name = f"waits: {event.name}"
                if event.mbarrier:
                    name += f" {event.mbarrier:#x}"
                bars.append(Bar(event.begin, event.end, "wait", name, details))
        track = Track("warp", f"warp {warp}  {roles[warp]}", roles[warp]).add(bars)
        track.findings = [
            (e.end, f"{e.name}, PTX line {e.line}")
            for e in events
            if e.kind == _Kind.finding and e.warp == warp
        ]
        tracks.append(track)
    return tracks


def _engine_tracks(events: Sequence[Any]) -> list[Track]:
    by_engine: dict[str, list[Any]] = {}
    for event in events:
        if event.kind == _Kind.operation:
            by_engine.setdefault(engine(event.name), []).append(event)
    tracks = []
    order = [name for name in _COLOURS if name in by_engine]
    for name in dict.fromkeys([*order, *by_engine]):
        operations = by_engine[name]
        bars, free = [], 0
        for event in sorted(operations, key=lambda event: event.end):
            details = {"PTX line": event.line, "issued at": event.begin, "issued by": event.warp}
            begin = event.begin
            if name == "tensor core":  # in order: an operation begins when the one before it ends
                begin, free = max(begin, free), event.end
            # What the emulator does in a single step is in progress since it was issued.
            started = begin if event.started == event.end else max(begin, event.started - 1)
            bars.append(Bar(begin, event.end, "busy", event.name, {**details, "started": started}))
        tracks.append(Track("engine", name, name).add(bars))
    return tracks


def _most_common(names: Iterable[str]) -> str:
    return " / ".join(sorted(name for name, _ in Counter(names).most_common(2)))


def _barrier_tracks(events: Sequence[Any], roles: dict[int, str]) -> list[Track]:
    tracks = []
    phases = [event for event in events if event.kind == _Kind.phase]
    for offset in sorted({event.mbarrier for event in phases}):
        mine = [event for event in phases if event.mbarrier == offset]
        by = [engine(e.name) if e.by_engine else roles[e.warp] for e in mine]
        waiters = _most_common(
            roles[e.warp] for e in events if e.kind == _Kind.wait and e.mbarrier == offset
        )
        bars, begin = [], 0
        for number, (event, completer) in enumerate(zip(mine, by, strict=True)):
            details = {"completed by": completer, "PTX line": event.line}
            bars.append(Bar(begin, event.end, "phase", f"phase {number}", details))
            begin = event.end
        name = f"{offset:#x}  {_most_common(by)}" + (f" → {waiters}" if waiters else "")
        tracks.append(Track("mbarrier", name, "mbarrier").add(bars))
    return tracks


def tracks(report: Report, cta: int, window: tuple[int, int] | None = None) -> list[Track]:
    """Returns the tracks of a CTA: warps, engines, mbarriers."""
    events = [event for event in report.events if event.cta == cta]
    if window:
        events = [event for event in events if event.end > window[0] and event.begin < window[1]]
    roles = {warp: role.name for role in report.roles for warp in role.warps}
    return [
        *_warp_tracks(events, roles),
        *_engine_tracks(events),
        *_barrier_tracks(events, roles),
    ]


def _ctas(report: Report, ctas: Sequence[int] | None) -> list[int]:
    return sorted({event.cta for event in report.events} if ctas is None else ctas)


def groups(
    report: Report, ctas: Sequence[int] | None, window: tuple[int, int] | None
) -> list[Group]:
    """The tracks of each CTA for Perfetto. A step shows as a microsecond."""
    return [
        Group(
            cta,
            f"CTA {cta}",
            [each for track in tracks(report, cta, window) for each in _rows(track)],
        )
        for cta in _ctas(report, ctas)
    ]


def _rows(track: Track) -> list[perfetto.Track]:
    """A row for each lane; the last one has the findings."""
    name = f"{track.group} {track.name}" if track.group != "warp" else track.name
    marks = [(step, f"finding: {finding}") for step, finding in track.findings]
    rows = [
        [Span(bar.name, bar.begin, bar.end, bar.details) for bar in lane] for lane in track.lanes
    ]
    return [
        perfetto.Track(name, row, marks if number == len(rows) else ())
        for number, row in enumerate(rows, 1)
    ]


def write_trace(
    report: Report,
    path: str | PathLike[str],
    ctas: Sequence[int] | None,
    window: tuple[int, int] | None,
) -> None:
    """Writes the tracks of some CTAs, or of all, for Perfetto."""
    perfetto.write(path, groups(report, ctas, window), axis=AXIS)


# --- the picture

_LANE = 0.22  # rows that a further lane adds to a track


def draw(
    report: Report,
    path: str | PathLike[str],
    ctas: Sequence[int] | None,
    window: tuple[int, int] | None,
) -> None:
    """Draws the tracks of some CTAs below each other."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Report.timeline(png=...) draws with matplotlib: install it"
        ) from error
    shown = _ctas(report, ctas)
    if ctas is None:
        shown = shown[:_CTAS_IN_A_PICTURE]
    by_cta = [(cta, tracks(report, cta, window)) for cta in shown]
    heights = [sum(map(_height, cta_tracks)) + 1 for _, cta_tracks in by_cta]
    figure = Figure(figsize=(13, 0.24 * sum(heights) + 1.1), layout="constrained")
    all_axes = figure.subplots(len(by_cta), 1, sharex=True, squeeze=False, height_ratios=heights)
    for axes, (cta, cta_tracks) in zip(all_axes[:, 0], by_cta, strict=True):
        _draw_cta(axes, cta_tracks)
        axes.set_title(f"CTA {cta}", loc="left", fontsize=10)
        if window:
            axes.set_xlim(*window)
    all_axes[-1, 0].set_xlabel(AXIS)
    legend = [
        Patch(color=_COLOURS["load"], label="runs, or in progress"),
        Patch(color=_COLOURS["load"], alpha=0.35, label="issued, not begun"),
        Patch(color=_WAIT, label="waits"),
        Patch(color=_PHASES[0], label="even phase"),
        Patch(color=_PHASES[1], label="odd phase"),
    ]
    figure.legend(
        handles=legend, loc="outside upper right", ncols=len(legend), fontsize=8, frameon=False
    )
    figure.savefig(path, dpi=100)


def _height(track: Track) -> float:
    return 1 if track.group == "warp" else 1 + _LANE * (len(track.lanes) - 1)


def _draw_cta(axes: Any, cta_tracks: list[Track]) -> None:
    top, labels, group = 0.0, [], ""
    for track in cta_tracks:
        if group not in ("", track.group):
            axes.axhline(top, color="black", linewidth=0.6)
        group = track.group
        height = _height(track)
        # Lanes of a warp that have parted are drawn over each other.
        lanes = 1 if track.group == "warp" else len(track.lanes)
        lane_height = 0.8 * height / lanes
        for index, lane in enumerate(track.lanes):
            at = top + 0.1 * height + index % lanes * lane_height
            _draw_lane(axes, track, lane, at, lane_height)
        for step, _ in track.findings:
            axes.plot(step, top + height / 2, "v", color="red", markersize=7, zorder=5)
        labels.append((top + height / 2, track.name))
        top += height
    axes.set_yticks([at for at, _ in labels], [name for _, name in labels], fontsize=8)
    axes.set_ylim(top, 0)
    axes.margins(x=0.005)
    axes.grid(axis="x", linewidth=0.3)
    axes.set_axisbelow(True)


def _draw_lane(axes: Any, track: Track, lane: list[Bar], top: float, height: float) -> None:
    colour = _COLOURS.get(track.role.split(" + ")[0], _OTHER)
    least = 1  # steps, so that a commit is seen

    def bars(of: Iterable[tuple[int, int]], low: float, tall: float, **style: Any) -> None:
        spans = [(begin, max(end - begin, least)) for begin, end in of]
        axes.broken_barh(spans, (low, tall), linewidth=0, **style)

    if track.group == "mbarrier":
        for parity, shade in enumerate(_PHASES):
            bars(((b.begin, b.end) for b in lane[parity::2]), top, height, color=shade)
        return
    waits = [(bar.begin, bar.end) for bar in lane if bar.kind == "wait"]
    bars(waits, top + 0.3 * height, 0.4 * height, color=_WAIT)
    bars(((b.begin, b.end) for b in lane if b.kind == "run"), top, height, color=colour, zorder=2)
    busy = [bar for bar in lane if bar.kind == "busy"]
    bars(((b.begin, b.details["started"]) for b in busy), top, height, color=colour, alpha=0.35)
    bars(((b.details["started"], b.end) for b in busy), top, height, color=colour)
