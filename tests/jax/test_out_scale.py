"""Matmuls in float8 with a scale of the result: every implementation's bits, and what composes."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jaxbw
from jaxbw._src import fp8
from jaxbw._src.api.arguments import Quantized
from jaxbw._src.epilogue import Epilogue, Ranks, evaluate

from ..quantized import FORMATS, scaled

IMPLEMENTATIONS = ("xla", "emulator", "emulator-sm90")
NAMES = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
# Of float32: both zeros, subnormal and huge numbers, infinities, NaN, and what is halfway in e4m3.
SPECIAL = np.array(
    [0, -0.0, 1e-45, -1e-39, 2.0**-126, 3e38, -3e38, np.inf, -np.inf, np.nan, 464, 464.1, 17, 19],
    np.float32,
)
SCALES = (1.0, 0.37, 2.0**-126, 2.0**127, 3e38, 5e-3)
NO_SCALES = (0.0, -1.0, np.nan, np.inf, 1e-40)


def normal(shape: tuple[int, ...], seed: int, dtype: Any = jnp.bfloat16) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def bits(x: Any) -> Any:
    return np.asarray(x).view(np.uint8)


@pytest.mark.parametrize("name", FORMATS)
def test_the_formula_by_xla(name: str) -> None:
    """Of any float32, by any scale."""
    some = np.random.default_rng(0).integers(0, 2**32, 50_000, dtype=np.uint32).view(np.float32)
    x = np.concatenate([SPECIAL, some])[None]
    form = Epilogue(out_scale=True)
    dtype = fp8.FORMATS[name].dtype
    of = jax.jit(lambda x, s: evaluate(form, dtype, Ranks(0, 1, 1), x, out_scale=s))
    for scale in (*SCALES, *NO_SCALES):
        data, amax = of(x, np.float32(scale))
        wanted, largest = scaled(x, scale, name)
        np.testing.assert_array_equal(bits(data), wanted)
        assert amax == largest


# A kernel's result in float32 says what it divides: bits are compared, not values.


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_bits_of_real_values(implementation: Any, name: str) -> None:
    x, w, c = normal((40, 96), 0), normal((96, 50), 1), normal((40, 50), 2, np.float32)

    @jax.jit
    def layer(x: Any, w: Any, c: Any, scale: Any) -> Any:
        # With a c, both take the same way through the epilogue.
        keywords: Any = dict(c=c, activation="gelu", implementation=implementation)
        exact = jaxbw.matmul(x, w, preferred_element_type=np.float32, **keywords)
        keywords["preferred_element_type"] = NAMES[name]
        return exact, jaxbw.matmul(x, w, out_scale=scale, **keywords)

    for scale in (0.37, 1e-4):
        exact, found = layer(x, w, c, np.float32(scale))
        wanted, amax = scaled(exact, scale, name)
        np.testing.assert_array_equal(bits(found.data), wanted)
        assert (found.amax, found.scale) == (amax, np.float32(scale))
        assert (found.data.dtype, found.dtype) == (NAMES[name], jnp.bfloat16)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_special_values(implementation: Any) -> None:
    """Through a matmul by the identity: what does not become NaN there."""
    # A sum of subnormal numbers is not the same everywhere.
    numbers = np.where(np.abs(SPECIAL) < np.finfo(np.float32).tiny, np.float32(0), SPECIAL)
    x, residual = np.zeros((2, 20, 16), np.float32)
    x[: len(numbers), 0] = np.where(np.isfinite(numbers), numbers, 0)
    residual[: len(numbers), 1] = numbers

    @jax.jit
    def function(x: Any, w: Any, residual: Any, scale: Any) -> Any:
        keywords: Any = dict(residual=residual, implementation=implementation, out_scale=scale)
        return jaxbw.matmul(x, w, preferred_element_type="float8_e4m3fn", **keywords)

    a, w = x.astype(jnp.bfloat16), np.eye(16).astype(jnp.bfloat16)
    for scale in (1.0, 0.5, 2.0**-126, 0.0, np.nan):
        found = function(a, w, residual, np.float32(scale))
        wanted, amax = scaled(a.astype(np.float32) + residual, scale, "e4m3")
        np.testing.assert_array_equal(bits(found.data), wanted)
        assert found.amax == amax
    nothing = function(np.zeros_like(a), w, np.zeros_like(residual), np.float32(2))
    assert (float(nothing.amax), bits(nothing.data).any()) == (0, False)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[1:])
def test_what_lies_outside_of_the_result_does_not_count(implementation: Any) -> None:
    """A bias makes of what tiles have behind the last row or column something large."""
    x, w = -np.ones((33, 40), jnp.bfloat16), np.ones((40, 37), jnp.bfloat16)
    for axis, extent in ((-1, 37), (-2, 33)):
        found = jaxbw.matmul(
            *(x, w),
            bias=np.full(extent, 40, np.float32),
            bias_axis=axis,
            out_scale=1.0,
            preferred_element_type="float8_e5m2",
            implementation=implementation,
        )
        assert found.amax == 0


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gated_batched_and_dot_general(implementation: Any) -> None:
    """Integers, whose scales are powers of two: bits against NumPy."""
    rng = np.random.default_rng(0)
    x, w, u = (rng.integers(-3, 4, s).astype(jnp.bfloat16) for s in ((3, 20, 32), *[(32, 24)] * 2))
    w3 = rng.integers(-3, 4, (3, 32, 24)).astype(jnp.bfloat16)

    @jax.jit
    def function(*xs: Any) -> Any:
        x, w, u, w3 = xs
        options: Any = {
            **{"out_scale": jnp.float32(4), "preferred_element_type": "float8_e4m3fn"},
            **{"implementation": implementation},
        }
        dims = (((2,), (1,)), ((0,), (0,)))
        gated = jaxbw.gated_matmul(x, w, u, activation="relu", **options)
        vmapped = jax.vmap(lambda x, w: jaxbw.matmul(x, w, **options))(x, w3)
        shared = jax.vmap(lambda x: jaxbw.matmul(x, w, **options))(x)
        return gated, jaxbw.dot_general(x, w3, dims, **options), vmapped, shared

    gated, batched, vmapped, shared = function(x, w, u, w3)
    x, w, u, w3 = (each.astype(np.float32) for each in (x, w, u, w3))
    for found, exact in ((gated, np.maximum(x @ w, 0) * (x @ u)), (batched, x @ w3)):
        wanted, amax = scaled(exact, 4, "e4m3")
        np.testing.assert_array_equal(bits(found.data), wanted)
        assert found.amax == amax
    for found, exact in ((vmapped, x @ w3), (shared, x @ w)):
        np.testing.assert_array_equal(bits(found.data), scaled(exact, 4, "e4m3")[0])
        np.testing.assert_array_equal(found.amax, [scaled(y, 4, "e4m3")[1] for y in exact])


def test_a_scan_of_delayed_scales() -> None:
    """The amax of one step is the scale of the next: the same kernel, of a traced scale."""
    xs, w = normal((4, 16, 32), 0) * np.array([1, 4, 16, 1])[:, None, None], normal((32, 16), 1)
    xs = xs.astype(jnp.bfloat16)

    def step(scale: Any, x: Any) -> Any:
        q = jaxbw.matmul(
            *(x, w),
            out_scale=scale,
            preferred_element_type="float8_e4m3fn",
            implementation="emulator-sm90",
        )
        return q.amax / 448, (q.data, q.amax)

    _, (data, amax) = jax.jit(lambda xs: jax.lax.scan(step, jnp.float32(1), xs))(xs)
    scale: Any = np.float32(1)
    for i, x in enumerate(xs):
        exact = x.astype(np.float32) @ w.astype(np.float32)
        np.testing.assert_allclose(amax[i], np.abs(exact).max(), rtol=1e-6)
        largest = float(np.abs(np.asarray(data[i]).astype(np.float32)).max())
        assert largest == min(448, np.float32(amax[i] / scale).astype(ml_dtypes.float8_e4m3fn))
        scale = np.asarray(amax[i]) / np.float32(448)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_hidden_layer_exists_in_float8_only(implementation: Any) -> None:
    """Two layers, the second of which takes what the first gives: no wider array between them."""
    x, w1, w2 = (normal(shape, i) for i, shape in enumerate(((32, 48), (48, 64), (64, 16))))
    qs = [
        Quantized(a.astype(fp8.FORMATS["e4m3"].dtype), np.float32(1), None, a.dtype)
        for a in (x, w1, w2)
    ]

    def mlp(x: Any, w1: Any, w2: Any, scale: Any) -> Any:
        hidden = jaxbw.matmul(
            *(x, w1),
            activation="silu",
            out_scale=scale,
            preferred_element_type="float8_e4m3fn",
            implementation=implementation,
        )
        return jaxbw.matmul(hidden, w2, implementation=implementation), hidden.amax

    arguments = (*qs, np.float32(0.05))
    y, amax = jax.jit(mlp)(*arguments)
    exact = qs[0].data.astype(np.float32) @ qs[1].data.astype(np.float32)
    exact = exact / (1 + np.exp(-exact))
    np.testing.assert_allclose(amax, np.abs(exact).max(), rtol=0.05)
    assert y.dtype == jnp.bfloat16
    wanted = exact @ w2.astype(np.float32)
    assert np.linalg.norm(np.asarray(y, np.float32) - wanted) < 0.05 * np.linalg.norm(wanted)
    if implementation != "xla":
        text = jax.jit(mlp).lower(*arguments).as_text()
        assert "tensor<32x64xf8E4M3FN>" in text.replace("1x32x64", "32x64")
        assert not [t for t in ("bf16", "f32", "f16") if f"32x64x{t}" in text]


@pytest.mark.parametrize("implementation", ["xla", "emulator", "emulator-sm90"])
def test_quantized_operands_of_every_function(implementation: Any) -> None:
    """Those of matmul, which has tests of its own, are data and scales; so are the others'."""
    rng = np.random.default_rng(0)
    q, v, t = (
        Quantized(
            rng.integers(-7, 8, shape).astype(fp8.FORMATS["e4m3"].dtype),
            np.exp2(rng.integers(-1, 2, scales)).astype(np.float32),
            None,
            np.dtype(np.float32),
        )
        for shape, scales in (((20, 32), (20, 1)), *[((32, 24), (1, 24))] * 2)
    )
    x, w, u = (a.data.astype(np.float32) * a.scale for a in (q, v, t))

    @jax.jit
    def function(q: Any, v: Any, t: Any) -> Any:
        turned = v.mT
        options: Any = {"implementation": implementation}
        dims = (((1,), (1,)), ((), ()))
        return (
            jaxbw.gated_matmul(q, v, t, activation="relu", **options),
            jaxbw.dot_general(q, turned, dims, **options),
        )

    gated, turned = function(q, v, t)
    np.testing.assert_array_equal(gated, np.maximum(x @ w, 0) * (x @ u))
    np.testing.assert_array_equal(turned, x @ w)


def test_several_devices() -> None:
    """The amax is that of all shards, whatever is divided."""
    mesh = jax.make_mesh((2, 2), ("a", "b"), (jax.sharding.AxisType.Auto,) * 2)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, s).astype(jnp.bfloat16) for s in ((16, 32), (32, 24)))
    wanted, amax = scaled(x.astype(np.float32) @ w.astype(np.float32), 0.5, "e4m3")

    def function(x: Any, w: Any) -> Any:
        return jaxbw.matmul(
            *(x, w),
            out_scale=0.5,
            preferred_element_type="float8_e4m3fn",
            implementation=("emulator-sm90", "xla"),
        )

    for of_x, of_w in ((("a", None), (None, "b")), ((None, "a"), ("a", "b"))):
        given = (
            jax.device_put(each, NamedSharding(mesh, PartitionSpec(*spec)))
            for each, spec in ((x, of_x), (w, of_w))
        )
        found = jax.jit(function)(*given)
        np.testing.assert_array_equal(bits(found.data), wanted)
        assert found.amax == amax


def test_what_is_refused() -> None:
    x, w = np.ones((4, 8), jnp.bfloat16), np.ones((8, 6), jnp.bfloat16)
    narrow: Any = {"preferred_element_type": "float8_e4m3fn"}
    with pytest.raises(TypeError, match="out_scale is for results of 8 bits, and this one is bf"):
        jaxbw.matmul(x, w, out_scale=1.0)
    with pytest.raises(TypeError, match="out_scale is int32; cast it to float32"):
        jaxbw.matmul(x, w, out_scale=1, **narrow)
    with pytest.raises(ValueError, match=r"out_scale f32\[6\] is no scalar"):
        jaxbw.matmul(x, w, out_scale=np.ones(6, np.float32), **narrow)
    with pytest.raises(TypeError, match="is differentiated, and float8 has no useful derivative"):
        jax.grad(lambda x: jaxbw.matmul(x, w, out_scale=1.0, **narrow).amax)(x)
    stopped = jax.grad(
        lambda x: jaxbw.matmul(jax.lax.stop_gradient(x), w, out_scale=1.0, **narrow).amax
    )
    assert not np.asarray(stopped(x)).astype(np.float32).any()
    q = jaxbw.quantize(w, "e4m3", axis=-1)
    with pytest.raises(ValueError, match=r"rhs_gate .*shared along the contraction.*axis=-2\)"):
        jaxbw.gated_matmul(x, q, q)
    with pytest.raises(ValueError, match=r"shared along the contraction: .*\(rhs, ..., axis=0\)"):
        jaxbw.dot_general(x, q, (((1,), (0,)), ((), ())))
    with pytest.raises(TypeError, match="rhs is a Quantized, which has scales, and rhs_scale is"):
        jaxbw.dot_general(x, q, (((1,), (0,)), ((), ())), rhs_scale=1.0)


def test_explain_knows_it() -> None:
    x = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)
    s = jax.ShapeDtypeStruct((), np.float32)
    found = jaxbw.explain(x, x, out_scale=s, preferred_element_type="float8_e4m3fn", device="H200")
    assert str(found.problem).endswith("/ out_scale -> f8_e4m3fn[1,1024,1024]")
