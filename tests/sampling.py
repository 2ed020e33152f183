"""Which of a test's parameters run by default: a sample, drawn the same each time.

`@pytest.mark.sampled(n)` leaves one in n of a test's parameters, and more where a value of one of
its axes would not occur. The others are marked `long`: `make test-long` runs them, too. conftest.py
samples tests with several axes that say nothing.
"""

import random
from collections.abc import Iterable, Sequence

import pytest


def axes(parameters: Sequence[dict[str, object]]) -> list[tuple[int, ...]]:
    """For each axis, the numbers of the items' values.

    A parameter that another one determines is no axis: they are of one parametrize().
    """
    columns = []
    for name in parameters[0]:
        values = [id(item[name]) for item in parameters]
        known = {value: number for number, value in enumerate(dict.fromkeys(values))}
        columns.append(tuple(known[value] for value in values))
    # The finest first, so that a column is compared with all that could determine it.
    found: list[tuple[int, ...]] = []
    for column in sorted(columns, key=max, reverse=True):
        if all(len(set(zip(other, column, strict=True))) > len(set(other)) for other in found):
            found.append(column)
    return found


def sample(of_axes: Sequence[Sequence[int]], every: int, seed: str) -> set[int]:
    """Numbers of the items that run. Of a single axis no value is sure to occur."""
    count = len(of_axes[0])
    order = random.Random(seed).sample(range(count), count)
    chosen: set[int] = set()
    if len(of_axes) > 1:
        seen: set[tuple[int, int]] = set()
        # First those with the most that is new: few are needed then.
        for least in range(len(of_axes), 0, -1):
            for number in order:
                new = {(axis, values[number]) for axis, values in enumerate(of_axes)} - seen
                if len(new) >= least:
                    chosen.add(number)
                    seen |= new
    for number in order:
        if len(chosen) * every >= count:
            break
        chosen.add(number)
    return chosen


def mark(items: Iterable[pytest.Item], unmarked: int = 1, grids: int = 1) -> None:
    """Marks as `long` what is not in the sample of its test.

    At most one in `unmarked` runs, where that is more than one of any values; of a test that says
    nothing and has several axes, one in `grids` if that is fewer.
    """
    groups: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for test, members in groups.items():
        marker = members[0].get_closest_marker("sampled")
        of_axes = axes([member.callspec.params for member in members])
        every = unmarked if len(of_axes) == 1 else max(unmarked, grids)
        if marker:
            every = max(marker.args[0], unmarked)
        chosen = sample(of_axes if unmarked == 1 else of_axes[:1], every, test)
        for number, member in enumerate(members):
            if number not in chosen:
                member.add_marker("long")
