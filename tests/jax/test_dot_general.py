"""jaxbw.dot_general against lax.dot_general, over dimension numbers of every kind."""

from collections.abc import Callable, Sequence
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw
from jaxbw._native import Major
from jaxbw.primitives.dot_general import batched_dimension_numbers
from jaxbw.problem import reduce_dot_general

Operand = Callable[..., Any]


@st.composite
def products(
    draw: st.DrawFn, sizes: Sequence[int] = (0, 1, 2, 3, 4), least: int = 0
) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
    """Shapes and dimension numbers of a dot_general; the dimensions of an operand lie anyhow.

    There are `least` dimensions or more to contract and to keep, of either operand.
    """
    size = st.sampled_from(sizes)
    batch = draw(st.lists(size, max_size=2))
    contract = draw(st.lists(size, min_size=least, max_size=2))
    shapes, dims = [], []
    for _ in range(2):
        free = draw(st.lists(size, min_size=least, max_size=2))
        extents = [*batch, *contract, *free]
        order = draw(st.permutations(range(len(extents))))
        shapes.append(tuple(extents[i] for i in order))
        place = [order.index(i) for i in range(len(extents))]
        dims.append(
            (
                tuple(place[: len(batch)]),
                tuple(place[len(batch) : len(batch) + len(contract)]),
            )
        )
    (lhs_batch, lhs_contract), (rhs_batch, rhs_contract) = dims
    return shapes[0], shapes[1], ((lhs_contract, rhs_contract), (lhs_batch, rhs_batch))


def integers(shape: tuple[int, ...], number: int) -> Any:
    """Small integers as float32: every sum is exact, so equality is the test."""
    return jnp.asarray(
        np.random.default_rng(number).integers(-4, 5, shape).astype(np.float32).reshape(shape)
    )


@hypothesis.settings(max_examples=60)
@hypothesis.given(products())
def test_matches_lax(case: Any) -> None:
    lhs_shape, rhs_shape, dims = case
    lhs, rhs = integers(lhs_shape, 0), integers(rhs_shape, 1)
    result, expected = jaxbw.dot_general(lhs, rhs, dims), jax.lax.dot_general(lhs, rhs, dims)
    assert jax.typeof(result) == jax.typeof(expected)
    np.testing.assert_array_equal(result, expected)


@hypothesis.settings(max_examples=30)
@hypothesis.given(products())
def test_transposes_match_lax(case: Any) -> None:
    lhs_shape, rhs_shape, dims = case
    lhs, rhs = integers(lhs_shape, 0), integers(rhs_shape, 1)
    _, pull_back = jax.vjp(lambda x, y: jaxbw.dot_general(x, y, dims), lhs, rhs)
    out, lax_pull_back = jax.vjp(lambda x, y: jax.lax.dot_general(x, y, dims), lhs, rhs)
    cotangent = integers(out.shape, 2)
    for got, wanted in zip(pull_back(cotangent), lax_pull_back(cotangent), strict=True):
        np.testing.assert_array_equal(got, wanted)


@hypothesis.settings(max_examples=200)
@hypothesis.given(products())
def test_the_reduction_is_the_product(case: Any) -> None:
    """A GEMM in NumPy over the reduced operands: what the kernels compute."""
    lhs_shape, rhs_shape, dims = case
    lhs, rhs = integers(lhs_shape, 0), integers(rhs_shape, 1)
    reduced = reduce_dot_general(lhs, rhs, dims, np.dtype(np.float32))
    problem = reduced.problem
    a, b = np.asarray(reduced.lhs(lhs)), np.asarray(reduced.rhs(rhs))
    assert (a.shape, b.shape) == (problem.lhs_shape, problem.rhs_shape)
    if problem.lhs_major == Major.MN:
        a = a.swapaxes(1, 2)
    if problem.rhs_major == Major.K:
        b = b.swapaxes(1, 2)
    np.testing.assert_array_equal(
        (a @ b).reshape(reduced.output_shape), jax.lax.dot_general(lhs, rhs, dims)
    )


@pytest.mark.parametrize(
    ("lhs", "rhs", "dims", "layout", "copies"),
    [
        ((8, 16), (16, 32), (((1,), (0,)), ((), ())), "nn", 0),
        ((8, 16), (32, 16), (((1,), (1,)), ((), ())), "nt", 0),
        ((16, 8), (16, 32), (((0,), (0,)), ((), ())), "tn", 0),
        ((16, 8), (32, 16), (((0,), (1,)), ((), ())), "tt", 0),
        ((3, 5, 16), (16, 32), (((2,), (0,)), ((), ())), "nn", 0),  # a Flax Dense
        ((3, 5, 16), (3, 5, 32), (((0, 1), (0, 1)), ((), ())), "tn", 0),  # its weight gradient
        ((3, 8, 2, 16), (2, 16, 32), (((2, 3), (0, 1)), ((), ())), "nn", 0),  # DenseGeneral
        ((3, 8, 2, 16), (2, 16, 32), (((3, 2), (1, 0)), ((), ())), "nn", 0),  # paired either way
        ((3, 8, 16), (3, 16, 32), (((2,), (1,)), ((0,), (0,))), "nn", 0),
        ((3, 8, 16), (3, 32, 16), (((2,), (2,)), ((0,), (0,))), "nt", 0),
        ((8, 1, 16), (1, 16, 32), (((2,), (1,)), ((1,), (0,))), "nn", 0),  # size 1 lies anywhere
        ((8, 3, 16), (3, 16, 32), (((2,), (1,)), ((1,), (0,))), "nn", 1),  # batch in the middle
        ((16,), (16, 32), (((0,), (0,)), ((), ())), "nn", 0),
        ((8, 1), (1, 32), (((1,), (0,)), ((), ())), "tn", 0),  # no contraction: rows, not columns
        ((1, 16), (16, 1), (((1,), (0,)), ((), ())), "nt", 0),
    ],
)
def test_layouts_are_read_in_place(lhs: Any, rhs: Any, dims: Any, layout: str, copies: int) -> None:
    reduced = reduce_dot_general(
        jax.ShapeDtypeStruct(lhs, jnp.bfloat16),
        jax.ShapeDtypeStruct(rhs, jnp.bfloat16),
        dims,
        np.dtype(np.float32),
    )
    assert reduced.problem.layout == layout
    assert sum(view.permutation is not None for view in (reduced.lhs, reduced.rhs)) == copies


@hypothesis.settings(max_examples=60)
@hypothesis.given(products(), st.data())
def test_batched_dimension_numbers(case: Any, data: st.DataObject) -> None:
    lhs_shape, rhs_shape, dims = case
    batched = data.draw(
        st.tuples(
            st.none() | st.integers(0, len(lhs_shape)), st.none() | st.integers(0, len(rhs_shape))
        ).filter(lambda axes: axes != (None, None))
    )
    operands = []
    for number, (shape, axis) in enumerate(zip((lhs_shape, rhs_shape), batched, strict=True)):
        grown = shape if axis is None else (*shape[:axis], 2, *shape[axis:])
        operands.append(integers(grown, number))
    new_dims, axis = batched_dimension_numbers((operands[0].ndim, operands[1].ndim), batched, dims)
    expected = jax.vmap(lambda x, y: jax.lax.dot_general(x, y, dims), batched, axis)(*operands)
    lhs, rhs = operands
    np.testing.assert_array_equal(jax.lax.dot_general(lhs, rhs, new_dims), expected)


def test_is_a_drop_in(operand: Operand) -> None:
    """Precision by position, as jnp.einsum passes it; out_sharding=None, as Flax does."""
    lhs, rhs = operand((4, 8)), operand((8, 6), number=1)
    dims = (((1,), (0,)), ((), ()))
    expected = jax.lax.dot_general(lhs, rhs, dims)
    result = jaxbw.dot_general(lhs, rhs, dims, None, jnp.float32, out_sharding=None)
    np.testing.assert_array_equal(result.astype(jnp.bfloat16), expected)
    einsum = jnp.einsum("ij,jk->ik", lhs, rhs, _dot_general=jaxbw.dot_general)
    np.testing.assert_array_equal(einsum, expected)
    lists = jaxbw.dot_general(lhs, rhs, ([[1], [0]], [[], []]))
    np.testing.assert_array_equal(lists, expected)


def test_dimension_errors_are_those_of_lax(operand: Operand) -> None:
    lhs, rhs = operand((4, 8)), operand((8, 6))
    for dims in ((((0,), (0,)), ((), ())), (((5,), (0,)), ((), ())), (((1,), (0,)), ((0,), ()))):
        with pytest.raises(TypeError) as ours:
            jaxbw.dot_general(lhs, rhs, dims)
        with pytest.raises(TypeError) as theirs:
            jax.lax.dot_general(lhs, rhs, dims)
        assert str(ours.value) == str(theirs.value)
