"""A profile from the stamps of a launch."""

from collections import Counter, defaultdict
from collections.abc import Callable

from jaxbw._src.lab.profiling.profile import MOMENTS
from jaxbw._src.lab.profiling.record import ACTIVITIES, Cta, Recorded, Warp
from jaxbw._src.perfetto import Group, Span, Track

EPILOGUE = ("epilogue", "store", "await sums", "await staging")


def groups(recorded: Recorded, scale: float) -> list[Group]:
    """The warps of each CTA; `scale`: of nanoseconds, to what is shown as microseconds."""
    return [
        Group(
            cta.index,
            f"CTA {cta.index} on SM {cta.sm}",
            [Track(f"warp {warp.index}  {warp.role}", _spans(warp, scale)) for warp in cta.warps],
        )
        for cta in recorded.ctas
    ]


def _spans(warp: Warp, scale: float) -> list[Span]:
    times = (warp.times * scale).tolist()
    whats = zip(
        times[:-1], times[1:], warp.activities.tolist(), warp.numbers.tolist(), strict=False
    )
    return [
        Span(ACTIVITIES[what], begin, end, {"number": number}) for begin, end, what, number in whats
    ]


def moments(recorded: Recorded, scale: float) -> dict[str, list[float]]:
    """The moments of `MOMENTS` in each CTA that has them, those that none has left out."""
    found = {
        name: [each for cta in recorded.ctas for each in _moment(cta, name)] for name in MOMENTS
    }
    return {name: [scale * time for time in times] for name, times in found.items() if times}


def _moment(cta: Cta, name: str) -> list[float]:
    """The moment, or nothing."""
    if name == "exit":
        return [max(float(warp.times[-1]) for warp in cta.warps)]
    edge: Callable[[list[float]], float]
    activities, end, edge = {
        "first load issued": (("load",), 0, min),
        "first stage full": (("await full stage",), 1, min),
        "first multiply issued": (("multiply",), 1, min),
        "last multiply done": (("multiply", "await tensor core"), 1, max),
        "epilogue begins": (("epilogue",), 0, min),
        "epilogue ends": (EPILOGUE, 1, max),
    }[name]
    times = [stay[end] for warp in cta.warps for stay in warp.stays(*activities)]
    return [edge(times)] if times else []


def shares(recorded: Recorded) -> dict[str, dict[str, float]]:
    """By role, and by what the warps of it did, the part of their time, the largest first."""
    spent: dict[str, Counter[str]] = defaultdict(Counter)
    for cta in recorded.ctas:
        for warp in cta.warps:
            for what, name in enumerate(ACTIVITIES):
                stays = warp.activities[:-1] == what
                time = float((warp.times[1:] - warp.times[:-1])[stays].sum())
                if time:
                    spent[warp.role][name] += time  # type: ignore[assignment]
    return {
        role: {name: time / parts.total() for name, time in parts.most_common()}
        for role, parts in sorted(spent.items())
        if role != "other"
    }


def lost(recorded: Recorded) -> int:
    """Stamps that did not fit."""
    return sum(warp.lost for cta in recorded.ctas for warp in cta.warps)
