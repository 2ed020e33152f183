"""Which axis divides which factor: in tables, without XLA."""

import numpy as np
import pytest

from jaxbw._src.primitives.shards import Factors, Plan, common_axes, plan

M, N, K = 0, 1, 2


def matmul(m: int = 1024, n: int = 1024, k: int = 1024) -> Factors:
    return Factors((m, n, k), ((M, K), (K, N)), (M, N), (2, 2), (2,), 2)


def tiles(
    *shape: int, order: tuple[int, ...] | None = None, of: tuple[int, ...] = ()
) -> np.ndarray:
    numbers = np.arange(np.prod(shape)).reshape(of or shape)
    return (numbers if order is None else numbers.transpose(order)).reshape(shape)


@pytest.mark.parametrize(
    ("assignments", "axes", "tilings"),
    [
        ([None, None], (), [((), ()), ((), ())]),
        ([tiles(2, 4), tiles(2, 1, 4)], (2, 4), [((0,), (1,)), ((0,), ())]),
        # One dimension along both axes of a mesh, in either order.
        ([tiles(8, 1), tiles(2, 4)], (2, 4), [((0, 1), ()), ((0,), (1,))]),
        (
            [tiles(8, 1, order=(1, 0), of=(2, 4)), tiles(2, 4)],
            (2, 4),
            [((1, 0), ()), ((0,), (1,))],
        ),
        # The second axis alone; a part of an axis.
        ([tiles(1, 4, 2, order=(1, 0), of=(2, 4)), None], (2, 4), [((), (1,)), ((), ())]),
        ([tiles(2, 4), tiles(1, 4, 2)], (2, 2, 2), [((0,), (1, 2)), ((), (0, 1))]),
        # Six devices as 2 x 3 and as 3 x 2: no axes describe both.
        ([tiles(2, 1, 3), tiles(1, 3, 2)], (2, 3), [((0,), ()), ((), ())]),
        # An order that no axes have.
        ([np.array([[0, 1, 3, 2]]), tiles(2, 2)], (2, 2), [((), ()), ((0,), (1,))]),
    ],
)
def test_common_axes(
    assignments: list[np.ndarray | None],
    axes: tuple[int, ...],
    tilings: list[tuple[tuple[int, ...], ...]],
) -> None:
    assert common_axes(assignments, [2, 2]) == (axes, tilings)


NONE: tuple[tuple[int, ...], ...] = ((), ())


@pytest.mark.parametrize(
    ("lhs", "rhs", "result", "expected"),
    [
        (NONE, NONE, NONE, ((), (), ())),
        # What arrays agree on stays, whatever it costs.
        (((0,), (1,)), ((1,), ()), ((0,), ()), ((0,), (), (1,))),
        (((), (0,)), ((0,), ()), ((0,), ()), ((), (), (0,))),
        (((0,), ()), ((0,), ()), ((0,), ()), ((0,), (), ())),
        (((0,), ()), ((), (0,)), ((), (0,)), ((), (0,), ())),
        # What is replicated is divided for nothing.
        (NONE, NONE, ((0,), (1,)), ((0,), (1,), ())),
        (((0,), ()), NONE, NONE, ((0,), (), ())),
        (((0, 1), ()), NONE, ((0, 1), ()), ((0, 1), (), ())),
    ],
)
def test_plan(
    lhs: tuple[tuple[int, ...], ...],
    rhs: tuple[tuple[int, ...], ...],
    result: tuple[tuple[int, ...], ...],
    expected: tuple[tuple[int, ...], ...],
) -> None:
    assert plan(matmul(), (2, 4), [lhs, rhs, result]) == Plan(expected)


def test_of_two_operands_in_each_others_way_the_smaller_one_is_gathered() -> None:
    lhs, rhs = ((0,), ()), ((), (0,))
    assert plan(matmul(n=64), (8,), [lhs, rhs, NONE]).axes == ((0,), (), ())
    assert plan(matmul(m=64), (8,), [lhs, rhs, NONE]).axes == ((), (0,), ())


def test_an_uneven_contraction_is_not_divided() -> None:
    """The last part of it would be padded, and the padding summed."""
    factors = matmul(k=12)
    assert plan(factors, (8,), [((), (0,)), ((0,), ()), NONE]).summed(factors) == ()
    assert plan(factors, (4,), [((), (0,)), ((0,), ()), NONE]).summed(factors) == (0,)


def test_the_largest_shard() -> None:
    assert Plan(((0, 1), (), (2,))).shard((20, 30), (M, K), (2, 4, 8)) == (3, 4)
