"""jaxbw.matmul against jnp.matmul: values, types, shapes, derivatives, transformations."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw
from jaxbw._src import compat

Operand = Callable[..., Any]

SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((5, 2, 3), (1, 3, 4)),
    ((1, 2, 3), (1, 3, 4)),
    ((6, 1, 2, 3), (5, 3, 4)),
    ((6, 1, 2, 3), (1, 5, 3, 4)),
    ((5, 2, 3), (3,)),
    ((3,), (5, 3, 4)),
    ((1, 1), (1, 1)),
]
ZERO_SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((0, 3), (3, 4)),
    ((2, 0), (0, 4)),
    ((2, 3), (3, 0)),
    ((0, 2, 3), (3, 4)),
]
FLOATS = ["bfloat16", "float16", "float32"]


def beside_jnp(function: Callable[..., Any], *operands: Any) -> Any:
    """What a function makes of jaxbw.matmul, and of jnp.matmul; by one program."""
    return jax.jit(lambda *given: [function(f, *given) for f in (jaxbw.matmul, jnp.matmul)])(
        *operands
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("lhs_shape", "rhs_shape"), SHAPES + ZERO_SHAPES)
@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "bool", "complex64"])
def test_matches_jnp(
    lhs_shape: tuple[int, ...], rhs_shape: tuple[int, ...], dtype: str, operand: Operand
) -> None:
    lhs = np.asarray(operand(lhs_shape, jnp.float32)).astype(dtype)
    rhs = np.asarray(operand(rhs_shape, jnp.float32, 1)).astype(dtype)
    compiled, expected = beside_jnp(lambda matmul, *given: matmul(*given), lhs, rhs)
    for result in (compiled, jaxbw.matmul(lhs, rhs)):
        assert jax.typeof(result) == jax.typeof(expected)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("lhs_dtype", "rhs_dtype"),
    list(itertools.product(["bfloat16", "float16", "float32", "int8", "bool"], repeat=2)),
)
def test_promotes_like_jnp(lhs_dtype: str, rhs_dtype: str, operand: Operand) -> None:
    lhs = np.asarray(operand((2, 3))).astype(lhs_dtype)
    rhs = np.asarray(operand((3, 4))).astype(rhs_dtype)
    result, expected = beside_jnp(lambda matmul, *given: matmul(*given), lhs, rhs)
    assert jax.typeof(result) == jax.typeof(expected)
    np.testing.assert_array_equal(result, expected)


def test_weak_types_are_those_of_jnp() -> None:
    weak = compat.convert_element_type(jnp.ones((3, 3)), np.dtype("float32"), True)
    assert jax.typeof(weak).weak_type
    others = [np.ones((3, 3), dtype) for dtype in (jnp.bfloat16, jnp.int8, bool)]
    for given in itertools.product([weak, *others], repeat=2):
        ours, theirs = (jax.make_jaxpr(f)(*given).out_avals for f in (jaxbw.matmul, jnp.matmul))
        assert ours == theirs


def test_float64(operand: Operand) -> None:
    with jax.enable_x64(True):
        lhs, rhs = operand((8, 9), jnp.float64), operand((9, 4), jnp.float64, 1)
        result = jaxbw.matmul(lhs, rhs)
        assert result.dtype == jnp.float64
        np.testing.assert_allclose(result, np.asarray(lhs) @ np.asarray(rhs), rtol=1e-13)
        fused = jaxbw.matmul(lhs, rhs, bias=rhs[0], activation="relu")
        np.testing.assert_allclose(
            fused, np.maximum(np.asarray(lhs) @ np.asarray(rhs) + np.asarray(rhs)[0], 0), rtol=1e-13
        )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("preferred", [None, "float32"])  # XLA's casts to others round twice
def test_is_within_the_rounding_bound(
    dtype: str, preferred: str | None, operand: Operand, assert_matmul_close: Callable[..., None]
) -> None:
    k = 200
    lhs, rhs = operand((17, k), dtype), operand((k, 24), dtype, 1)
    result = jaxbw.matmul(lhs, rhs, preferred_element_type=preferred)
    assert result.dtype == (preferred or dtype)
    left, right = np.asarray(lhs).astype(np.float64), np.asarray(rhs).astype(np.float64)
    assert_matmul_close(result, left @ right, np.abs(left) @ np.abs(right), k)


def test_nan_and_inf_are_where_jnp_has_them(operand: Operand) -> None:
    lhs = operand((8, 16)).at[1, 2].set(jnp.nan).at[3, 4].set(jnp.inf)
    rhs = operand((16, 8), number=1).at[5, 6].set(-jnp.inf)
    result, expected = jaxbw.matmul(lhs, rhs), jnp.matmul(lhs, rhs)
    np.testing.assert_array_equal(result.astype(jnp.float32), expected.astype(jnp.float32))


def test_takes_numpy_and_refuses_lists() -> None:
    assert jaxbw.matmul(np.ones((2, 3)), np.ones((3, 4))).dtype == jnp.float32
    with pytest.raises(TypeError, match=r"jaxbw\.matmul"):
        jaxbw.matmul([[1.0]], [[1.0]])


@pytest.mark.parametrize("precision", ["highest", jax.lax.Precision.HIGH, None])
def test_precision(precision: Any, operand: Operand) -> None:
    lhs, rhs = operand((4, 8), jnp.float32), operand((8, 4), jnp.float32, 1)
    np.testing.assert_array_equal(
        jaxbw.matmul(lhs, rhs, precision=precision), jnp.matmul(lhs, rhs, precision=precision)
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("lhs_shape", "rhs_shape"),
    [
        ((3,), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((1, 2, 3), (5, 3, 4)),
        ((5, 2, 3), (5, 3, 4)),
    ],
)
def test_derivatives_are_those_of_jnp(
    lhs_shape: tuple[int, ...], rhs_shape: tuple[int, ...], operand: Operand
) -> None:
    lhs, rhs = operand(lhs_shape, jnp.float32), operand(rhs_shape, jnp.float32, 1)

    tangents = (operand(lhs_shape, jnp.float32, 2), operand(rhs_shape, jnp.float32, 3))

    def derivatives(matmul: Callable[..., Any], given: Any, tangents: Any) -> Any:
        def loss(lhs: Any, rhs: Any) -> Any:
            return jnp.sin(matmul(lhs, rhs)).sum()

        return (
            jax.grad(loss, (0, 1))(*given),
            jax.jvp(loss, given, tangents),
            jax.jvp(jax.grad(loss, (0, 1)), given, tangents),
            jax.hessian(loss, (0, 1))(*given),
            jax.jacfwd(jax.jacrev(loss))(*given),
        )

    result, expected = beside_jnp(derivatives, (lhs, rhs), tangents)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), result, expected
    )


def test_gradients_of_mixed_and_preferred_dtypes_have_the_operands_dtypes(operand: Operand) -> None:
    cases = [("bfloat16", "bfloat16", "float32"), ("bfloat16", "float32", None)]
    for lhs_dtype, rhs_dtype, preferred in cases:
        lhs, rhs = operand((4, 8), lhs_dtype), operand((8, 4), rhs_dtype, 1)

        def loss(lhs: Any, rhs: Any, matmul: Any, preferred: Any = preferred) -> Any:
            return matmul(lhs, rhs, preferred_element_type=preferred).sum()

        result = jax.grad(loss, (0, 1))(lhs, rhs, jaxbw.matmul)
        expected = jax.grad(loss, (0, 1))(lhs, rhs, jnp.matmul)
        for got, wanted in zip(result, expected, strict=True):
            assert got.dtype == wanted.dtype
            np.testing.assert_array_equal(got, wanted)


def test_linear_transpose(operand: Operand) -> None:
    lhs, rhs = operand((4, 8), jnp.float32), operand((8, 6), jnp.float32, 1)
    cotangent = operand((4, 6), jnp.float32, 2)
    (of_lhs,) = jax.linear_transpose(lambda lhs: jaxbw.matmul(lhs, rhs), lhs)(cotangent)
    (of_rhs,) = jax.linear_transpose(lambda rhs: jaxbw.matmul(lhs, rhs), rhs)(cotangent)
    np.testing.assert_allclose(of_lhs, cotangent @ rhs.T, rtol=1e-5)
    np.testing.assert_allclose(of_rhs, lhs.T @ cotangent, rtol=1e-5)


def test_the_jvp_that_custom_vjp_would_break(operand: Operand) -> None:
    """Why the plain matmul is a bilinear primitive (docs/architecture.md)."""
    lhs, rhs = operand((4, 8), jnp.float32), operand((8, 6), jnp.float32, 1)

    @jax.custom_vjp
    def wrapped(lhs: Any, rhs: Any) -> Any:
        return lhs @ rhs

    wrapped.defvjp(lambda lhs, rhs: (lhs @ rhs, (lhs, rhs)), lambda saved, g: (g, g))
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(wrapped, (lhs, rhs), (lhs, rhs))
    _, tangent = jax.jvp(jaxbw.matmul, (lhs, rhs), (lhs, rhs))
    np.testing.assert_allclose(tangent, 2 * lhs @ rhs, rtol=1e-5)


@pytest.mark.parametrize("in_axes", [(0, 0), (0, None), (None, 0), (2, 1), (1, None), (None, 2)])
@pytest.mark.parametrize("out_axes", [0, 1])
def test_vmap(in_axes: Any, out_axes: int, operand: Operand) -> None:
    shapes = [list(shape) for shape in ((4, 8), (8, 6))]
    for shape, axis in zip(shapes, in_axes, strict=True):
        if axis is not None:
            shape.insert(axis, 3)
    lhs, rhs = operand(tuple(shapes[0]), jnp.float32), operand(tuple(shapes[1]), jnp.float32, 1)

    def once_and_twice(matmul: Any, lhs: Any, rhs: Any) -> Any:
        once = jax.vmap(matmul, in_axes, out_axes)
        return once(lhs, rhs), jax.vmap(once)(*(jnp.stack([x, x + 1]) for x in (lhs, rhs)))

    for result, expected in zip(*beside_jnp(once_and_twice, lhs, rhs), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_names_of_jnp() -> None:
    x, w = jnp.ones((2, 3)), jnp.ones((3, 4))
    assert jaxbw.matmul(a=x, b=w).shape == jaxbw.matmul(x, b=w).shape == (2, 4)
    with pytest.raises(TypeError, match=r"jaxbw.matmul: lhs and a are one argument"):
        jaxbw.matmul(x, a=x, b=w)
