"""What runs by default is a sample that leaves nothing out on an axis."""

import itertools
from types import SimpleNamespace

import pytest

from .sampling import axes, mark, sample

KINDS, SIZES, FLAGS = ["a", "b", "c"], [10, 20, 30, 40, 50], [False, True]


def test_parameters_of_one_parametrize_are_one_axis() -> None:
    items: list[dict[str, object]] = [
        {"kind": kind, "size": size, "name": f"{size} of all"} for kind in KINDS for size in SIZES
    ]
    names = {size: f"{size} of all" for size in SIZES}
    assert len(axes([{**item, "name": names[int(str(item["size"]))]} for item in items])) == 2


def test_each_value_of_each_axis_occurs() -> None:
    items = list(itertools.product(range(3), range(5), range(2)))
    chosen = sample(list(zip(*items, strict=True)), 100, "seed")
    assert len(chosen) < len(items) / 3
    for axis, count in enumerate((3, 5, 2)):
        assert {items[number][axis] for number in chosen} == set(range(count))


def test_of_one_axis_so_many_are_left() -> None:
    one = [tuple(range(10))]
    assert len(sample(one, 3, "seed")) == 4
    assert sample(one, 3, "seed") == sample(one, 3, "seed") != sample(one, 3, "other")
    assert sample(one, 1, "seed") == set(range(10))


def items_of(
    request: pytest.FixtureRequest, name: str, parameters: list[dict[str, int]]
) -> list[pytest.Function]:
    items = []
    for number, each in enumerate(parameters):
        item = pytest.Function.from_parent(
            request.node.parent, name=f"{name}[{number}]", callobj=lambda: None
        )
        item.callspec = SimpleNamespace(params=each)  # type: ignore[assignment]
        items.append(item)
    return items


def test_a_test_without_a_marker_runs_whole_unless_asked(request: pytest.FixtureRequest) -> None:
    """As `pytest --other-python` asks."""
    items = items_of(request, "test_it", [{"of": number} for number in range(6)])
    mark(items)
    assert not any(item.get_closest_marker("long") for item in items)
    mark(items, unmarked=3)
    assert sum(item.get_closest_marker("long") is None for item in items) == 2


def test_only_grids_are_sampled_where_a_test_says_nothing(request: pytest.FixtureRequest) -> None:
    grid = items_of(request, "test_grid", [{"m": m, "n": n} for m in range(4) for n in range(4)])
    listed = items_of(request, "test_list", [{"m": m} for m in range(6)])
    mark([*grid, *listed], grids=2)
    assert sum(item.get_closest_marker("long") is None for item in grid) == 8
    assert not any(item.get_closest_marker("long") for item in listed)


def test_a_small_sample_is_of_no_single_value() -> None:
    """As every fourth of a test with an axis of four values would be."""
    items = list(itertools.product(range(4), range(4)))
    chosen = sample(list(zip(*items, strict=True)), 4, "seed")
    assert {items[number][1] for number in chosen} == set(range(4))
