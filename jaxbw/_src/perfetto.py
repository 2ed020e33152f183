"""Chrome's trace event format, which https://ui.perfetto.dev reads."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Span:
    """An interval, in what shows as microseconds."""

    name: str
    begin: float
    end: float
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Track:
    """A row of spans, which do not overlap, and of marked moments."""

    name: str
    spans: Sequence[Span]
    marks: Sequence[tuple[float, str]] = ()


@dataclass(frozen=True)
class Group:
    """Tracks below a common title. The number tells groups apart and orders them."""

    number: int
    name: str
    tracks: Sequence[Track]


def trace(groups: Iterable[Group], **said: Any) -> dict[str, Any]:
    """The trace; what is `said` of it besides, Perfetto shows as its metadata."""
    events: list[dict[str, Any]] = []
    thread = 0
    for group in groups:
        place = {"ph": "M", "pid": group.number}
        events.append({**place, "name": "process_name", "args": {"name": group.name}})
        for track in group.tracks:
            thread += 1
            at = {"pid": group.number, "tid": thread}
            order = {"sort_index": thread}
            events.append({"ph": "M", **at, "name": "thread_name", "args": {"name": track.name}})
            events.append({"ph": "M", **at, "name": "thread_sort_index", "args": order})
            for span in track.spans:
                interval = {"ts": span.begin, "dur": span.end - span.begin}
                shown = {"name": span.name, "args": span.details}
                events.append({"ph": "X", **at, **interval, **shown})
            events += [
                {"ph": "i", "s": "t", **at, "ts": moment, "name": name}
                for moment, name in track.marks
            ]
    return {"traceEvents": events, "otherData": said}


def write(path: str | PathLike[str], groups: Iterable[Group], **said: Any) -> None:
    """Writes the trace as JSON."""
    Path(path).write_text(json.dumps(trace(groups, **said), separators=(",", ":")))
