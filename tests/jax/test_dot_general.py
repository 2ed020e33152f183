"""jaxbw.dot_general: how any dimension numbers become a GEMM, and what it takes as lax does.

Values and gradients beside lax's, of matmuls drawn alike, are those of test_transformed_matmuls.py.
"""

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw
from jaxbw._native import Major
from jaxbw._src.epilogue import IDENTITY, Epilogue
from jaxbw._src.primitives.dot_general import batched_dimension_numbers
from jaxbw._src.problem import GemmProblem, OperandView, reduce_dot_general

from .dot_general_cases import in_numpy

Operand = Callable[..., Any]

WITH_C = Epilogue(c=np.dtype(np.float32))
ROWS_BIAS = Epilogue(bias=np.dtype(np.float32), bias_axis="m")


@st.composite
def matmuls(
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
    values: Any = np.random.default_rng(number).integers(-4, 5, shape)
    return np.asarray(values, np.float32)


@pytest.mark.parametrize("least_of_stack", [64, 4])
@hypothesis.given(matmuls())
def test_the_reduction_is_the_matmul(least_of_stack: int, case: Any) -> None:
    """A GEMM in NumPy over the reduced operands: what the kernels compute."""
    with mock.patch("jaxbw._src.problem._LEAST_OF_STACK", least_of_stack):
        assert_reduces(*case)


@pytest.mark.parametrize(
    ("lhs", "rhs", "contract", "epilogue", "shapes"),
    [
        # Stacks of weights that share their input: where the result is the smaller to move.
        ((16, 128), (3, 128, 64), (1, 1), IDENTITY, ((1, 16, 128), (3, 128, 64))),
        ((4, 4, 128), (3, 128, 64), (2, 1), IDENTITY, ((1, 16, 128), (3, 128, 64))),
        ((16, 128), (2, 3, 128, 64), (1, 2), IDENTITY, ((1, 16, 128), (6, 128, 64))),
        ((256, 128), (3, 128, 64), (1, 1), IDENTITY, ((1, 256, 128), (1, 128, 192))),
        # Of inputs that lie transposed: there the result is as it should be.
        ((3, 128, 64), (128, 16), (1, 0), IDENTITY, ((3, 128, 64), (1, 128, 16))),
        ((3, 128, 8, 8), (128, 16), (1, 0), IDENTITY, ((3, 128, 64), (1, 128, 16))),
        ((3, 128, 8, 8), (128, 16), (1, 0), ROWS_BIAS, ((3, 128, 64), (1, 128, 16))),
        ((3, 128, 64), (128, 16), (1, 0), WITH_C, ((3, 128, 64), (1, 128, 16))),
        # Not with arrays that would have to be moved, nor for matrices that are small or unaligned.
        ((16, 128), (3, 128, 64), (1, 1), WITH_C, ((1, 16, 128), (1, 128, 192))),
        ((16, 128), (3, 128, 32), (1, 1), IDENTITY, ((1, 16, 128), (1, 128, 96))),
        ((16, 128), (3, 128, 65), (1, 1), IDENTITY, ((1, 16, 128), (1, 128, 195))),
        # What lies in place anyhow is one matmul.
        ((3, 64, 128), (128, 16), (2, 0), IDENTITY, ((1, 192, 128), (1, 128, 16))),
    ],
)
def test_stacks_are_read_in_place(
    lhs: Any, rhs: Any, contract: tuple[int, int], epilogue: Epilogue, shapes: Any
) -> None:
    dims = (((contract[0],), (contract[1],)), ((), ()))
    problem = assert_reduces(lhs, rhs, dims, epilogue)
    assert (problem.lhs_shape, problem.rhs_shape) == shapes


def assert_reduces(
    lhs_shape: Any, rhs_shape: Any, dims: Any, epilogue: Epilogue = IDENTITY
) -> GemmProblem:
    lhs, rhs = integers(lhs_shape, 0), integers(rhs_shape, 1)
    reduced = reduce_dot_general(lhs, rhs, dims, np.dtype(np.float32), epilogue=epilogue)
    problem = reduced.problem
    a, b = viewed(reduced.lhs, lhs), viewed(reduced.rhs, rhs)
    assert (a.shape, b.shape) == (problem.lhs_shape, problem.rhs_shape)
    if problem.lhs_major == Major.MN:
        a = a.swapaxes(1, 2)
    if problem.rhs_major == Major.K:
        b = b.swapaxes(1, 2)
    assert np.broadcast_shapes(a.shape[:1], b.shape[:1]) == (problem.batch,)
    np.testing.assert_array_equal(viewed(reduced.result, a @ b), in_numpy(lhs, rhs, dims))
    return problem


def viewed(view: OperandView, x: Any) -> Any:
    """The view of a NumPy array: JAX would compile a program for each."""
    if view.permutation is not None:
        x = x.reshape(view.squeezed).transpose(view.permutation)
    return x.reshape(view.shape)


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
@hypothesis.given(matmuls(), st.data())
def test_batched_dimension_numbers(case: Any, data: st.DataObject) -> None:
    lhs_shape, rhs_shape, dims = case
    batched = data.draw(
        st.tuples(
            st.none() | st.integers(0, len(lhs_shape)), st.none() | st.integers(0, len(rhs_shape))
        ).filter(lambda axes: axes != (None, None))
    )
    operands: list[Any] = []
    for number, (shape, axis) in enumerate(zip((lhs_shape, rhs_shape), batched, strict=True)):
        grown = shape if axis is None else (*shape[:axis], 2, *shape[axis:])
        operands.append(integers(grown, number))
    new_dims, axis = batched_dimension_numbers((operands[0].ndim, operands[1].ndim), batched, dims)
    each = []
    for i in range(2):
        one, other = (
            x if d is None else x.take(i, d) for x, d in zip(operands, batched, strict=True)
        )
        each.append(in_numpy(one, other, dims))
    found = in_numpy(operands[0], operands[1], new_dims)
    np.testing.assert_array_equal(found, np.stack(each, axis))


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


def test_one_dimension_stands_for_itself(operand: Operand) -> None:
    """lax.dot_general takes `((1, 0), ((), ()))`, too."""
    lhs, rhs = operand((2, 3)), operand((3, 4))
    dims: Any = ((1, 0), ((), ()))
    result = jaxbw.dot_general(lhs, rhs, dims)
    np.testing.assert_array_equal(result, jax.lax.dot_general(lhs, rhs, dims))


def test_dimension_errors_are_those_of_lax(operand: Operand) -> None:
    lhs, rhs = operand((4, 8)), operand((8, 6))
    for dims in ((((0,), (0,)), ((), ())), (((5,), (0,)), ((), ())), (((1,), (0,)), ((0,), ()))):
        with pytest.raises(TypeError) as ours:
            jaxbw.dot_general(lhs, rhs, dims)
        with pytest.raises(TypeError) as theirs:
            jax.lax.dot_general(lhs, rhs, dims)
        assert str(ours.value).startswith("jaxbw.dot_general: lhs bf16[4,8], rhs bf16[8,6], ")
        assert str(ours.value).endswith(f": {theirs.value}")
