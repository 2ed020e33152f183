"""Which of a test's parameters run by default: a sample, drawn the same each time.

`@pytest.mark.sampled(n)` leaves one in n of a test's parameters, and more where a value of one of
its axes would not occur. The others are marked `long`: `make test-long` runs them, too.
"""

import random
from collections.abc import Iterable, Sequence

import pytest


def _axes(items: Sequence[pytest.Function]) -> list[tuple[int, ...]]:
    """The number of each item's value, by axis: names of one parametrize() are one axis."""
    columns = zip(*(item.callspec.indices.values() for item in items), strict=True)
    return list(dict.fromkeys(columns))


def sample(axes: Sequence[Sequence[int]], every: int, seed: str) -> set[int]:
    """Numbers of the items that run. Of a single axis no value is sure to occur."""
    count = len(axes[0])
    order = random.Random(seed).sample(range(count), count)
    chosen: set[int] = set()
    if len(axes) > 1:
        seen: set[tuple[int, int]] = set()
        # First those with the most that is new: few are needed then.
        for least in range(len(axes), 0, -1):
            for number in order:
                new = {(axis, values[number]) for axis, values in enumerate(axes)} - seen
                if len(new) >= least:
                    chosen.add(number)
                    seen |= new
    for number in order:
        if len(chosen) * every >= count:
            break
        chosen.add(number)
    return chosen


def mark(items: Iterable[pytest.Item]) -> None:
    """Marks as `long` what is not in the sample of its test."""
    groups: dict[str, tuple[int, list[pytest.Function]]] = {}
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            test = item.nodeid.partition("[")[0]
            groups.setdefault(test, (marker.args[0], []))[1].append(item)
    for test, (every, members) in groups.items():
        chosen = sample(_axes(members), every, test)
        for number, member in enumerate(members):
            if number not in chosen:
                member.add_marker("long")
