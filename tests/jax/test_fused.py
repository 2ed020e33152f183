"""matmul with bias and activation, against its formula in float64."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw

Operand = Callable[..., Any]
ACTIVATIONS = [None, "relu", "gelu", "silu"]
CASES = [
    (activation, bias)
    for activation in ACTIVATIONS
    for bias in (True, False)
    if bias or activation is not None
]


def formula(lhs: Any, rhs: Any, bias: Any, activation: str | None) -> Any:
    """What the operation means, in the operands' own dtype."""
    z = jnp.matmul(lhs, rhs)
    z = z if bias is None else z + bias
    functions = {"relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu}
    return z if activation is None else functions[activation](z)


@pytest.mark.parametrize(("activation", "with_bias"), CASES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_value_and_gradient(
    activation: str | None, with_bias: bool, dtype: str, operand: Operand
) -> None:
    lhs, rhs = operand((6, 16), dtype), operand((16, 8), dtype, 1)
    bias = operand((8,), jnp.float32, 2) if with_bias else None
    weights = operand((6, 8), jnp.float32, 3)

    def loss(lhs: Any, rhs: Any, bias: Any) -> Any:
        out = jaxbw.matmul(lhs, rhs, bias=bias, activation=activation)
        assert out.dtype == dtype
        return (out.astype(jnp.float32) * weights).sum()

    def reference(lhs: Any, rhs: Any, bias: Any) -> Any:
        return (formula(lhs, rhs, bias, activation) * weights).sum()

    wide: tuple[Any, Any, Any] = jax.tree.map(lambda x: x.astype(jnp.float32), (lhs, rhs, bias))
    plain = jaxbw.matmul(lhs, rhs, bias=bias, activation=activation).astype(jnp.float32)
    tolerance = {"bfloat16": 2.0**-6, "float16": 2.0**-8, "float32": 1e-5}[dtype]
    np.testing.assert_allclose(
        plain, formula(*wide, activation=activation), rtol=tolerance / 2, atol=tolerance / 2
    )
    got = jax.jit(jax.grad(loss, (0, 1, 2)))(lhs, rhs, bias)
    wanted = jax.grad(reference, (0, 1, 2))(*wide)
    for x, y, primal in zip(
        jax.tree.leaves(got),
        jax.tree.leaves(wanted),
        jax.tree.leaves((lhs, rhs, bias)),
        strict=True,
    ):
        assert x.dtype == primal.dtype
        scale = np.abs(y).max()
        np.testing.assert_allclose(
            x.astype(jnp.float32), y, rtol=4 * tolerance, atol=4 * tolerance * scale
        )


def test_everything_up_to_the_cast_is_float32() -> None:
    """2^8 + 1 is no bfloat16: a product rounded before the bias would lose the 1."""
    ones = jnp.ones((1, 256), jnp.bfloat16)
    result = jaxbw.matmul(ones, ones.T, bias=jnp.array([-255.0], jnp.float32))
    assert result[0, 0] == 1
    lhs = jnp.array([[256.0, 1.0]], jnp.bfloat16)
    result = jaxbw.matmul(lhs, jnp.ones((2, 1), jnp.bfloat16), bias=jnp.array([-256.0]))
    assert result[0, 0] == 1


@pytest.mark.parametrize(
    "axes", [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0), (0, 0, None), (1, 1, 0)]
)
def test_vmap(axes: Any, operand: Operand) -> None:
    shapes = [list(shape) for shape in ((4, 8), (8, 6), (6,))]
    for shape, axis in zip(shapes, axes, strict=True):
        if axis is not None:
            shape.insert(axis, 3)
    operands = [operand(tuple(shape), jnp.float32, i) for i, shape in enumerate(shapes)]

    def fused(lhs: Any, rhs: Any, bias: Any) -> Any:
        return jaxbw.matmul(lhs, rhs, bias=bias, activation="gelu")

    def plain(lhs: Any, rhs: Any, bias: Any) -> Any:
        return formula(lhs, rhs, bias, "gelu")

    np.testing.assert_allclose(
        jax.vmap(fused, axes)(*operands), jax.vmap(plain, axes)(*operands), rtol=1e-5, atol=1e-5
    )
    gradients = [
        jax.vmap(jax.grad(lambda *args, f=f: f(*args).sum(), (0, 1, 2)), axes)(*operands)
        for f in (fused, plain)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), *gradients)


@pytest.mark.parametrize(
    ("lhs_shape", "rhs_shape"),
    [((8,), (8, 6)), ((2, 3, 4, 8), (8, 6)), ((2, 4, 8), (2, 8, 6)), ((4, 8), (2, 8, 6))],
)
def test_shapes(lhs_shape: Any, rhs_shape: Any, operand: Operand) -> None:
    lhs, rhs = operand(lhs_shape, jnp.float32), operand(rhs_shape, jnp.float32, 1)
    bias = operand((6,), jnp.float32, 2)
    result = jaxbw.matmul(lhs, rhs, bias=bias, activation="silu")
    np.testing.assert_allclose(result, formula(lhs, rhs, bias, "silu"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 8, 6), (4, 0, 6), (4, 8, 0)])
def test_zero_sizes(m: int, k: int, n: int) -> None:
    lhs, rhs, bias = jnp.ones((m, k)), jnp.ones((k, n)), jnp.ones(n)
    result = jaxbw.matmul(lhs, rhs, bias=bias, activation="relu")
    np.testing.assert_array_equal(result, jax.nn.relu(lhs @ rhs + bias))
    jax.grad(lambda x: jaxbw.matmul(x, rhs, bias=bias, activation="gelu").sum())(lhs)


def test_nan_passes_through(operand: Operand) -> None:
    lhs = operand((4, 8)).at[1, 2].set(jnp.nan)
    for activation in ACTIVATIONS:
        result = jaxbw.matmul(lhs, operand((8, 6)), bias=jnp.zeros(6), activation=activation)
        np.testing.assert_array_equal(jnp.isnan(result).all(axis=1), [False, True, False, False])


def test_forward_mode_is_refused_by_jax(operand: Operand) -> None:
    x = operand((4, 4), jnp.float32)
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(lambda x: jaxbw.matmul(x, x, activation="relu"), (x,), (x,))
