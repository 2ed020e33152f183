"""Matmuls of MXFP8, MXFP4 and NVFP4 operands: XLA's form, against float64 of the dequantized."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxbw

from ..quantized import BLOCK_FORMATS

# Sums of float32: the products of two operands are exact.
_RELATIVE = 2.0**-23


def array(shape: Any, number: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(number).standard_normal(shape).astype(dtype)


def exact(q: Any) -> Any:
    """float64 of a value, without the rounding of `dequantized`."""
    return np.asarray(jax.jit(lambda q: q.dequantized())(q)).astype(np.float64)


def assert_near(got: Any, left: Any, right: Any) -> None:
    """A matmul of float64 operands, within k roundings of its sums."""
    wanted, bound = left @ right, np.abs(left) @ np.abs(right)
    np.testing.assert_array_less(
        np.abs(np.asarray(got, np.float64) - wanted),
        (left.shape[-1] + 4) * _RELATIVE * bound + 1e-30,
    )


@pytest.mark.parametrize("right", BLOCK_FORMATS)
@pytest.mark.parametrize("left", ["mxfp8", "nvfp4"])
def test_formats(left: str, right: str) -> None:
    """In any mix, eager and compiled."""
    x, w = array((5, 70)), array((70, 6), 1)
    q, u = jaxbw.quantize(x, left), jaxbw.quantize(w, right, axis=-2)
    for function in (jaxbw.matmul, jax.jit(jaxbw.matmul)):
        assert_near(function(q, u), exact(q), exact(u))


_extent = st.one_of(st.integers(1, 300), st.sampled_from([1, 16, 31, 33, 127, 129]))


@settings(max_examples=settings().max_examples // 3)  # each is a program
@given(m=_extent, n=_extent, k=_extent, name=st.sampled_from(list(BLOCK_FORMATS)))
def test_shapes(m: int, n: int, k: int, name: Any) -> None:
    x, w = array((m, k)), array((k, n), 1)

    @jax.jit
    def product(x: Any, w: Any) -> Any:
        q, u = jaxbw.quantize(x, name), jaxbw.quantize(w, name, axis=-2)
        return jaxbw.matmul(q, u), q.dequantized(), u.dequantized()

    got, left, right = product(x, w)
    assert_near(got, np.asarray(left, np.float64), np.asarray(right, np.float64))


@pytest.mark.parametrize(
    "shapes",
    [
        *(((0, 40), (40, 3)), ((2, 0), (0, 3)), ((40,), (40, 3)), ((2, 40), (40,)), ((40,), (40,))),
        *(((2, 1, 5, 40), (3, 40, 4)), ((1, 5, 40), (1, 40, 4)), ((2, 5, 40), (40, 4))),
    ],
    ids=str,
)
def test_ranks(shapes: Any) -> None:
    """As of jnp.matmul, with its batch dimensions; with nothing in one."""
    x, w = array(shapes[0]), array(shapes[1], 1)
    q, u = jaxbw.quantize(x, "mxfp8"), jaxbw.quantize(w, "mxfp8", axis=-2 if w.ndim > 1 else -1)
    got = jaxbw.matmul(q, u)
    assert got.shape == np.matmul(x, w).shape
    np.testing.assert_allclose(got, exact(q) @ exact(u), rtol=2**-18, atol=2**-18)


def test_dot_general_of_any_dimension() -> None:
    x, w = array((3, 40, 5)), array((40, 2, 4), 1)
    q, u = jaxbw.quantize(x, "mxfp8", axis=1), jaxbw.quantize(w, "mxfp4", axis=0)
    dims = (((1,), (0,)), ((), ()))
    got = jax.jit(jaxbw.dot_general, static_argnums=2)(q, u, dims)
    wanted = np.einsum("akb,kcd->abcd", exact(q), exact(u))
    np.testing.assert_allclose(got, wanted, rtol=2**-18, atol=2**-18)


def test_epilogue_and_gate() -> None:
    """NVFP4's global scales are factors of each matmul, of both of a gated one."""
    x, gate, up = array((4, 48)), array((48, 6), 1), 3 * array((48, 6), 2)
    bias, residual = array(6, 3), array((4, 6), 4)
    q = jaxbw.quantize(x, "nvfp4")
    u, v = (jaxbw.quantize(w, "nvfp4", axis=-2) for w in (gate, up))
    options: Any = {"bias": bias, "residual": residual, "activation": "relu", "alpha": 2}
    got = jaxbw.matmul(q, u, **options)
    wanted = np.maximum(2 * exact(q) @ exact(u) + bias, 0) + residual
    np.testing.assert_allclose(got, wanted, rtol=2**-18, atol=2**-18)
    gated = jaxbw.gated_matmul(q, u, v, activation="relu")
    wanted = np.maximum(exact(q) @ exact(u), 0) * (exact(q) @ exact(v))
    np.testing.assert_allclose(gated, wanted, rtol=2**-18, atol=2**-17)
    eight = jaxbw.matmul(q, u, out_scale=0.25, preferred_element_type="float8_e4m3fn")
    np.testing.assert_allclose(exact(eight), exact(q) @ exact(u), rtol=2**-4, atol=2**-8)


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0), (1, 0)], ids=str)
@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_vmap(axes: Any, name: str) -> None:
    """Over either operand and both, also where what is vmapped is quantized inside."""
    x = array((3, 5, 40)) if axes[0] is not None else array((5, 40))
    w = array((3, 40, 4), 1) if axes[1] is not None else array((40, 4), 1)

    def product(x: Any, w: Any) -> Any:
        q, u = jaxbw.quantize(x, name), jaxbw.quantize(w, name, axis=-2)
        return jaxbw.matmul(q, u), q.dequantized(), u.dequantized()

    moved = np.moveaxis(x, 0, axes[0]) if axes[0] is not None else x
    got, left, right = jax.jit(jax.vmap(product, axes))(moved, w)
    np.testing.assert_allclose(
        got, np.matmul(left, right, dtype=np.float64), rtol=2**-18, atol=2**-18
    )
    if name == "mxfp8" and axes == (0, 0):  # values as they are: still one operation
        q, u = jaxbw.quantize(x, name), jaxbw.quantize(w, name, axis=-2)
        batched = jax.make_jaxpr(jax.vmap(jaxbw.matmul))(q, u)
        assert str(batched).count("jaxbw_fused_dot_general") == 1
        np.testing.assert_array_equal(jax.vmap(jaxbw.matmul)(q, u), got)


def test_layers_of_a_scan() -> None:
    """Weights that are quantized together, and read one after the other."""
    w = array((3, 40, 40), 1) / 6
    u = jaxbw.quantize(w, "mxfp8", axis=-2)

    def layer(x: Any, u: Any) -> Any:
        return jaxbw.matmul(jaxbw.quantize(x, "mxfp8"), u), None

    got, _ = jax.jit(lambda x, u: jax.lax.scan(layer, x, u))(array((4, 40)), u)
    x = array((4, 40))
    for i in range(3):
        x, _ = layer(x, jax.tree.map(lambda a, i=i: a[i], u))
    np.testing.assert_allclose(got, x, rtol=2**-16, atol=2**-16)


def test_beside_an_array() -> None:
    """Weights of 4 bits for activations of 16: dequantized, with the array's derivatives."""
    x, w, bar = (
        array((5, 40), dtype=jnp.bfloat16),
        array((40, 4), 1, jnp.bfloat16),
        array((5, 4), 2),
    )
    u = jaxbw.quantize(w, "nvfp4", axis=-2)
    right = exact(u)

    def loss(x: Any) -> Any:
        return (jaxbw.matmul(x, u, preferred_element_type=np.float32) * bar).sum()

    got = jax.jit(jax.grad(loss))(x)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        np.asarray(got).astype(np.float64), bar @ right.T, rtol=2**-7, atol=2**-6
    )
    assert jaxbw.matmul(x, u).dtype == jnp.bfloat16


def test_derivatives() -> None:
    """Of the factors of a matmul, in both modes: alpha, bias, and those of the data as float32."""
    x, w, bar = array((5, 40)), array((40, 4), 1), array((5, 4), 2)
    q, u = jaxbw.quantize(x, "mxfp8"), jaxbw.quantize(w, "mxfp8", axis=-2)

    def product(alpha: Any, bias: Any) -> Any:
        return jaxbw.matmul(q, u, alpha=alpha, bias=bias, activation="silu")

    def plain(alpha: Any, bias: Any) -> Any:
        z = alpha * jnp.matmul(q.dequantized(), u.dequantized(), precision="highest")
        return jax.nn.silu(z + bias)

    primals = (jnp.float32(0.5), jnp.asarray(array(4, 3)))
    for transformed in (
        lambda f: jax.vjp(f, *primals)[1](bar),
        lambda f: jax.jvp(f, primals, primals),
    ):
        got, wanted = (jax.jit(lambda f=f, t=transformed: t(f))() for f in (product, plain))
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2**-16, atol=2**-16), got, wanted
        )


def test_one_nan_scale_is_a_row() -> None:
    """And padding is seen by nobody: blocks, rows and tiles end in the middle."""
    x, w = array((130, 40)), array((40, 7), 1)
    x[3, 35] = np.nan
    q, u = jaxbw.quantize(x, "mxfp8"), jaxbw.quantize(w, "mxfp8", axis=-2)
    got = np.isnan(np.asarray(jaxbw.matmul(q, u)))
    assert got[3].all()
    assert got.sum() == 7


def test_explain_and_what_is_strict() -> None:
    ones = jnp.ones((256, 256), jnp.bfloat16)
    q, u = jaxbw.quantize(ones, "nvfp4"), jaxbw.quantize(ones, "mxfp4", axis=0)
    choice = jaxbw.explain(q, u, device="B200")
    assert choice.implementation == "xla"
    reason = (
        "the operands are nvfp4 and mxfp4; kernels take mxfp8, mxfp8_e5m2 and mxfp4 in any mix,"
    )
    assert reason in str(choice)
    assert "lhs_scale of nvfp4 * rhs_scale of mxfp4 * " in choice.problem
    (only,) = jaxbw.explain_function(jaxbw.matmul, q, u, device="B200").matmuls
    assert only.choice.implementation == "xla"
    for strict in ("kernel", "sm100", "emulator"):
        with pytest.raises(NotImplementedError, match=reason):
            jaxbw.matmul(q, u, implementation=strict)


def test_what_is_refused() -> None:
    x = jnp.ones((4, 64))
    q, u = jaxbw.quantize(x, "mxfp8"), jaxbw.quantize(x.T, "mxfp8")
    with pytest.raises(ValueError, match=r"matmul: rhs: .* blocks along dimension -1, and -2 is"):
        jaxbw.matmul(q, u)
    with pytest.raises(ValueError, match=r"lhs f32\[4,64\], rhs f32\[32,4\]: 64 elements"):
        jaxbw.matmul(q, jaxbw.quantize(x.T[:32], "mxfp8", axis=-2))
    with pytest.raises(ValueError, match="2 dimensions of lhs are contracted"):
        jaxbw.dot_general(q, q, (((0, 1), (0, 1)), ((), ())))
    with pytest.raises(TypeError, match="lhs is a BlockScaled, which has scales"):
        jaxbw.matmul(q, q.mT, lhs_scale=jnp.ones(4))
    with pytest.raises(ValueError, match="the right operands are mxfp8 and mxfp4"):
        jaxbw.gated_matmul(q, q.mT, jaxbw.quantize(x, "mxfp4").mT)
