"""gated_matmul: act(x @ w_gate) * (x @ w_up), against the formula in float64, on XLA."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw

from .epilogues import UNIT_ROUNDOFF, K, M, N, Operand, activate, assert_same, in_float64

ACTIVATIONS = [None, "relu", "silu", "gelu", "gelu_exact"]


def formula(x: Any, w_gate: Any, w_up: Any, activation: str | None = "silu", **_: Any) -> Any:
    return activate(activation, jnp.matmul(x, w_gate)) * jnp.matmul(x, w_up)


def operands(operand: Operand, dtype: str = "float32") -> tuple[Any, Any, Any]:
    return operand((M, K), dtype), operand((K, N), dtype, 1), operand((K, N), dtype, 2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_are_exact(activation: str | None, recompute: bool, operand: Operand) -> None:
    """Value, gradient, gradient of the gradient."""
    given, weights = operands(operand), operand((M, N), "float32", 9)
    direction = tuple(operand(x.shape, "float32", 10 + i) for i, x in enumerate(given))
    keywords = {"activation": activation, "recompute": recompute}

    def derivatives(function: Any, given: Any, weights: Any, direction: Any) -> Any:
        def loss(*given: Any) -> Any:
            out = function(*given, **keywords)
            return (out * weights).sum(), out

        def slope(*given: Any) -> Any:
            gradient, out = jax.grad(loss, (0, 1, 2), has_aux=True)(*given)
            return sum((x * y).sum() for x, y in zip(gradient, direction, strict=True)), out

        first = jax.grad(loss, (0, 1, 2), has_aux=True)(*given)
        return first, jax.grad(slope, (0, 1, 2), has_aux=True)(*given)

    assert_same(derivatives, (jaxbw.gated_matmul, formula), given, weights, direction)


# Not gelu in float32: as tests compile, unoptimized, XLA's gradient of the plain formula is 34
# units off, and ours as many.
@pytest.mark.parametrize(
    ("activation", "dtype"),
    [*itertools.product(["silu", "gelu"], ["bfloat16", "float16"]), ("silu", "float32")],
)
def test_value_and_gradient(activation: str, dtype: str, operand: Operand) -> None:
    given, weights = operands(operand, dtype), operand((M, N), "float32", 9)

    def loss(function: Any, given: Any, weights: Any) -> Any:
        out = function(*given, activation=activation)
        return (out.astype(weights.dtype) * weights).sum(), out

    gradient = functools.partial(jax.grad, has_aux=True, argnums=1)
    got, out = jax.jit(gradient(loss), static_argnums=0)(jaxbw.gated_matmul, given, weights)
    wanted, reference = in_float64(functools.partial(gradient(loss), formula), given, weights)
    unit = UNIT_ROUNDOFF[dtype]
    x, w_gate, w_up = (np.abs(np.asarray(x).astype(np.float64)) for x in given)
    # The cast, and the float32 sums of K terms in each factor of the matmul.
    sums = 4 * 1.13 * (K + 4) * 2.0**-24 * (x @ w_gate) * (x @ w_up)
    assert out.dtype == dtype
    error = np.abs(np.asarray(out).astype(np.float64) - reference)
    assert (error <= unit * np.abs(reference) + sums + 2.0**-20 * np.abs(reference)).all()
    np.testing.assert_array_equal(out, jaxbw.gated_matmul(*given, activation=activation))
    for a, b, primal in zip(got, wanted, given, strict=True):
        assert a.dtype == primal.dtype
        # Gate, up and their cotangents are rounded, and so is the first of the two matmuls that
        # make the cotangent of x.
        error = np.abs(np.asarray(a).astype(np.float64) - b).max()
        assert error <= 16 * unit * np.abs(b).max()


@pytest.mark.parametrize("recompute", [False, True])
def test_what_is_kept_for_the_backward_pass(recompute: bool, operand: Operand) -> None:
    fused = functools.partial(jaxbw.gated_matmul, recompute=recompute)
    given = operands(operand)
    _, pull_back = jax.vjp(fused, *given)
    kept = [x.shape for x in jax.tree.leaves(pull_back)]
    assert kept.count((M, N)) == (0 if recompute else 2)

    # Two matmuls, and two again behind a barrier; two for x, one for each weight.
    step = jax.jit(jax.value_and_grad(lambda *x: fused(*x).sum(), (0, 1, 2)))
    text = step.lower(*given).as_text()
    assert text.count("stablehlo.dot_general") == (8 if recompute else 6)
    assert text.count("stablehlo.optimization_barrier") == recompute


@pytest.mark.parametrize(
    "axes", [(0, None, None), (None, 0, 0), (None, 1, 2), (0, 1, None), (1, None, 0), (0, 0, 0)]
)
def test_vmap(axes: Any, operand: Operand) -> None:
    given = [
        x if axis is None else np.stack([np.asarray(x) * factor for factor in (1, -2, 3)], axis)
        for x, axis in zip(operands(operand), axes, strict=True)
    ]

    def vmapped(function: Any, given: Any) -> Any:
        def loss(*given: Any) -> Any:
            return (function(*given) ** 2).sum()

        return jax.vmap(jax.value_and_grad(loss, (0, 1, 2)), axes)(*given)

    assert_same(vmapped, (jaxbw.gated_matmul, formula), given)


@pytest.mark.parametrize(
    ("x_shape", "w_shape"),
    [((8,), (8, 6)), ((4, 8), (8,)), ((2, 3, 4, 8), (8, 6)), ((4, 8), (2, 8, 6)), ((0, 8), (8, 6))],
)
def test_shapes(x_shape: Any, w_shape: Any, operand: Operand) -> None:
    shapes = (x_shape, w_shape, w_shape)
    given = [operand(shape, "float32", i) for i, shape in enumerate(shapes)]
    result = jaxbw.gated_matmul(*given)
    wanted = formula(*given)
    assert result.shape == wanted.shape
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)
    jax.grad(lambda x: jaxbw.gated_matmul(x, *given[1:]).sum())(given[0])


def test_factors_are_float32_up_to_the_cast() -> None:
    """257 * 255 is 65536 as bfloat16; with 257 rounded to bfloat16 first it were 65280."""
    x = jnp.array([[256.0, 1.0]], jnp.bfloat16)
    up = jnp.array([[255 / 256], [0.0]], jnp.bfloat16)
    result = jaxbw.gated_matmul(x, jnp.ones((2, 1), jnp.bfloat16), up, activation=None)
    assert result[0, 0] == 65536
