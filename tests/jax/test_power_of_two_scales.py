"""Scales of blocks of 128 in float8_e8m0fnu: sm100 multiplies them as MXFP8, sm90 as float32."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxbw

from .. import quantized as oracle
from .test_partitioning import mesh_of, put

Array = Any
E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
POWERS: dict[str, Any] = {"block": 128, "scale_dtype": jnp.float8_e8m0fnu}
EVERYWHERE = ("emulator", "emulator-sm90", "xla")


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def quantized(m: int, k: int, n: int, batch: tuple[int, ...] = (), axis: Any = (-2, -1)) -> Any:
    """DeepSeek's: 1x128 of lhs, 128x128 of rhs; with another axis, other scales of rhs."""
    return (
        jaxbw.quantize(random(*batch, m, k), "e4m3", axis=-1, **POWERS),
        jaxbw.quantize(random(*batch, k, n, seed=1), "e4m3", axis=axis, **POWERS),
    )


def whole(scale: Array, shape: tuple[int, ...]) -> Array:
    """A scale of each element, float64."""
    scale = np.asarray(scale).astype(np.float64)
    for axis, size in enumerate(shape):
        if scale.shape[axis] != size:
            scale = np.repeat(scale, 128, axis).take(np.arange(size), axis)
    return scale


def check_bits(found: Any, wanted: Any) -> None:
    """Of all leaves of two pytrees."""
    for one, other in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        np.testing.assert_array_equal(
            np.asarray(one).view(np.uint8), np.asarray(other).view(np.uint8)
        )


def exact(x: Any) -> Array:
    return np.asarray(x.data).astype(np.float64) * whole(x.scale, x.shape)


def check(result: Any, lhs: Any, rhs: Any) -> None:
    left, right = exact(lhs), exact(rhs)
    bound = (lhs.shape[-1] + 4) * 2.0**-23 * (np.abs(left) @ np.abs(right))
    assert (np.abs(np.asarray(result, np.float64) - left @ right) <= bound).all()


def integers(m: int, k: int, n: int, batch: tuple[int, ...] = ()) -> tuple[Any, ...]:
    """Data and scales, of whose products all sums are exact."""
    rng = np.random.default_rng(m + n + k)
    blocks = [-(-size // 128) for size in (k, n)]
    x, w = (rng.integers(-3, 4, (*batch, *s)) for s in ((m, k), (k, n)))
    sx, sw = (np.exp2(rng.integers(-2, 3, (*batch, *s))) for s in ((m, blocks[0]), tuple(blocks)))
    wanted = (x * whole(sx, x.shape)) @ (w * whole(sw, w.shape))
    data = (each.astype(np.float32).astype(jnp.float8_e4m3fn) for each in (x, w))
    return *data, *(each.astype(np.float32).astype(E8M0) for each in (sx, sw)), wanted


@pytest.mark.parametrize("format", ["e4m3", "e5m2"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((5, 300), -1), ((300, 130), (-2, -1)), ((2, 129, 7), -2), ((128,), None)]
)
def test_scales_are_rounded_up(format: str, shape: tuple[int, ...], axis: Any) -> None:
    """The least power of two that is no less than amax / max, by NumPy in float64."""
    dtype, largest = oracle.FORMATS[format]
    x = random(*shape) * np.exp2(random(*shape, seed=1) * 8).astype(np.float32)
    # Each beside the magnitudes at which the exponent changes, and what counts as 0 or not at all.
    least = np.float32(largest * 2.0**-3)
    edges = [least, np.nextafter(least, np.float32(0)), np.nextafter(least, np.float32(np.inf))]
    rows = x.reshape(-1, shape[-1])
    rows[: min(3, len(rows))] *= 2.0**-30
    for row, edge in zip(rows, edges, strict=False):
        row[: min(9, shape[-1])] = edge
    rows[-1, -1] = np.inf
    q = jaxbw.quantize(x, format, axis=axis, **POWERS)
    axes = [*range(len(shape))] if axis is None else np.atleast_1d(axis) % len(shape)
    counted = np.where(np.isfinite(x), np.abs(x), 0).astype(np.float64)
    for i in axes:
        counted = np.maximum.reduceat(counted, [*range(0, shape[i], 128)], i)
    power = np.exp2(np.ceil(np.log2(np.where(counted == 0, largest, counted) / largest)))
    assert q.scale.dtype == E8M0
    np.testing.assert_array_equal(np.asarray(q.scale).astype(np.float64), power)
    scaled = np.clip(x / whole(power, x.shape), -largest, largest)
    np.testing.assert_array_equal(
        np.asarray(q.data).view(np.uint8), scaled.astype(np.float32).astype(dtype).view(np.uint8)
    )
    finite = np.isfinite(x)
    error = np.abs(np.asarray(q.dequantized()) - x)[finite] / np.abs(x)[finite].max()
    assert error.max() <= 2.0**-3


def test_zeros_and_the_largest_and_least_numbers() -> None:
    tiny, most = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    x = np.array([[0.0], [np.nan], [tiny], [most], [-np.inf]], np.float32)
    q = jaxbw.quantize(np.repeat(x, 4, 1), "e4m3", axis=-1, **POWERS)
    assert np.asarray(q.scale)[:, 0].astype(np.float64).tolist() == [1, 1, 2.0**-126, 2.0**120, 1]
    assert np.isnan(np.asarray(q.data, np.float32)[1]).all()


@pytest.mark.parametrize("implementation", EVERYWHERE)
@pytest.mark.parametrize(
    ("m", "k", "n", "batch"),
    [(70, 300, 200, ()), (33, 640, 130, (2,)), (1, 400, 257, ()), (200, 129, 300, ())],
)
def test_exact_on_scaled_integers(
    m: int, k: int, n: int, batch: tuple[int, ...], implementation: str
) -> None:
    x, w, sx, sw, wanted = integers(m, k, n, batch)
    terms: dict[str, Any] = {"preferred_element_type": jnp.float32}
    terms["implementation"] = implementation
    y = jaxbw.matmul(x, w, lhs_scale=sx, rhs_scale=sw, **terms)
    np.testing.assert_array_equal(np.asarray(y), wanted)
    if not batch:  # MN-major operands
        turned = jaxbw.dot_general(
            x.T, w.T, (((0,), (1,)), ((), ())), lhs_scale=sx.T, rhs_scale=sw.T, **terms
        )
        np.testing.assert_array_equal(np.asarray(turned), wanted)


@pytest.mark.parametrize(
    "config",
    [
        jaxbw.GemmConfig(256, 160, cta_group=2, cluster=(2, 1)),
        jaxbw.GemmConfig(128, 64, split_k=3),
        jaxbw.GemmConfig(128, 96, swap_ab=True),
    ],
    ids=str,
)
def test_configurations_of_blackwell(config: Any) -> None:
    x, w, sx, sw, wanted = integers(300, 656, 400)
    y = jaxbw.matmul(
        *(x, w), lhs_scale=sx, rhs_scale=sw, preferred_element_type=jnp.float32,
        implementation="emulator", config=config,
    )  # fmt: skip
    np.testing.assert_array_equal(np.asarray(y), wanted)


@pytest.mark.parametrize("implementation", [*EVERYWHERE, None])
def test_quantized_operands(implementation: str | None) -> None:
    lhs, rhs = quantized(70, 300, 200)
    product = partial(jaxbw.matmul, implementation=implementation)
    check(jax.jit(product)(lhs, rhs), lhs, rhs)
    biased = product(lhs, rhs, bias=jnp.ones(200), activation="relu", residual=-jnp.ones((70, 200)))
    wanted = np.maximum(exact(lhs) @ exact(rhs) + 1, 0) - 1
    assert np.allclose(np.asarray(biased), wanted, atol=1e-4)


def test_what_blackwell_takes_and_hopper_does_not() -> None:
    """Scales of each column, gated matmuls, and results in MXFP8."""
    lhs, rhs = quantized(40, 300, 200, axis=-2)
    assert rhs.scale.shape == (3, 200)
    check(jaxbw.matmul(lhs, rhs, implementation="emulator"), lhs, rhs)
    up = jaxbw.quantize(random(300, 200, seed=2), "e5m2", axis=(-2, -1), **POWERS)
    gate = jaxbw.quantize(random(300, 200, seed=1), "e5m2", axis=-2, **POWERS)
    gated = partial(jaxbw.gated_matmul, activation=None)
    wanted = (exact(lhs) @ exact(gate)) * (exact(lhs) @ exact(up))
    for implementation in ("emulator", None):
        found = np.asarray(gated(lhs, gate, up, implementation=implementation))
        assert np.allclose(found, wanted, rtol=1e-4, atol=1e-3)
    made = jaxbw.matmul(lhs, rhs, out_format="mxfp8", implementation="emulator")
    d = jaxbw.matmul(lhs, rhs, preferred_element_type=jnp.float32, implementation="emulator")
    check_bits(made, jaxbw.quantize(d, "mxfp8"))


def test_what_serves(cuda_hlo: Callable[..., str]) -> None:
    lhs, rhs = quantized(256, 512, 384)
    kernels = {"B200": "jaxbw_sm100_8bit_mx_", "H100": "jaxbw_sm90_8bit_promoted_"}
    for device, kernel in kernels.items():
        with jaxbw.target(device):
            found = re.findall(
                r'kernel = "([^"]*)"', cuda_hlo(lambda *xs: jaxbw.matmul(*xs), lhs, rhs)
            )
        assert len(found) == 1
        assert found[0].startswith(kernel)
        choice = jaxbw.explain(lhs, rhs, device=device)
        assert choice.kernel == found[0]
    assert "mxfp8" in jaxbw.explain(lhs, rhs, device="B200").problem
    # Beside others they are as float32's.
    other = jaxbw.quantize(random(512, 384, seed=1), "e4m3", axis=(-2, -1), block=128)
    assert jaxbw.explain(lhs, other, device="B200").implementation == "xla"
    assert jaxbw.explain(lhs, other, device="H100").implementation == "sm90"
    check(jaxbw.matmul(lhs, other, implementation="emulator-sm90"), lhs, other)


@pytest.mark.parametrize("implementation", ["emulator", "emulator-sm90"])
def test_vmap_is_one_kernel(implementation: str) -> None:
    lhs, rhs = quantized(40, 200, 136, (3,))
    shared = jax.tree.map(lambda x: x[0], rhs)
    mapped: Any = jax.vmap(partial(jaxbw.matmul, implementation=implementation), (0, None))
    check(mapped(lhs, shared), lhs, shared)
    assert str(jax.make_jaxpr(mapped)(lhs, shared)).count("jaxbw_fused_dot_general[") == 1


def test_derivatives() -> None:
    """Of all but the scales, which have none."""
    lhs, rhs = quantized(40, 300, 200)

    def loss(x: Array, bias: Array, scale: Array, implementation: Any = None) -> Array:
        y = jaxbw.matmul(
            x, rhs.data, lhs_scale=scale, rhs_scale=rhs.scale, bias=bias, activation="silu",
            preferred_element_type=jnp.float32, implementation=implementation, precision="highest",
        )  # fmt: skip
        return (y * jnp.cos(jnp.arange(y.size).reshape(y.shape))).sum()

    def reference(x: Array, bias: Array) -> Array:
        left = x * jnp.float32(whole(lhs.scale, x.shape))
        z = jnp.matmul(left, jnp.float32(exact(rhs)), precision="highest") + bias
        return (jax.nn.silu(z) * jnp.cos(jnp.arange(z.size).reshape(z.shape))).sum()

    x, bias = random(40, 300), random(200)
    found = jax.grad(loss, (0, 1))(x, bias, lhs.scale)
    for bar, wanted in zip(found, jax.grad(reference, (0, 1))(x, bias), strict=True):
        assert np.allclose(bar, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    wide = jnp.float32(lhs.data)
    of_bias = jax.grad(loss, 1)(lhs.data, bias, lhs.scale, "emulator")
    assert np.allclose(of_bias, jax.grad(reference, 1)(wide, bias), rtol=1e-4, atol=1e-2)
    with pytest.raises(TypeError, match="scales in float8_e8m0fnu are differentiated"):
        jax.grad(loss, 2)(x, bias, lhs.scale)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_several_devices(kind: AxisType) -> None:
    """By XLA, as scales of blocks in float32; a pytree of shards."""
    mesh, (lhs, rhs) = mesh_of(kind), quantized(256, 512, 256)
    placed = jax.tree.map(lambda x: put(mesh, x, P("x")), lhs)
    with jax.set_mesh(mesh):
        given = jax.tree.map(lambda x: put(mesh, x, P()), rhs)
        y = jax.jit(partial(jaxbw.matmul, implementation=("emulator", "xla")))(placed, given)
        again = jax.jit(lambda x: jaxbw.quantize(x, "e4m3", axis=-1, **POWERS))(
            put(mesh, random(256, 512), P("x"))
        )
    check(y, lhs, rhs)
    check_bits(again, lhs)


def test_what_is_refused() -> None:
    x = random(4, 256)
    wrong: tuple[dict[str, Any], ...] = (
        {"axis": -1, "scale_dtype": "float8_e8m0fnu"},
        {"axis": -1, "block": 128, "scale_dtype": "float16"},
        {"axis": -1, "block": 128, "scale_dtype": "nonsense"},
    )
    for options in wrong:
        with pytest.raises(ValueError, match=r"scale_dtype is .* it is float32 or, with block=128"):
            jaxbw.quantize(x, "e4m3", **options)
    with pytest.raises(ValueError, match="format 'mxfp8'"):
        jaxbw.quantize(x, "mxfp8", scale_dtype="float8_e8m0fnu")
    with pytest.raises(NotImplementedError, match="no kernel rounds scales to powers of two"):
        jaxbw.quantize(x, "e4m3", axis=-1, implementation="sm90", **POWERS)
    assert jaxbw.quantize(x, "e4m3", scale_dtype=jnp.float32).scale.dtype == np.float32
    lhs, rhs = quantized(40, 300, 200)
    wide = [jnp.float32(each.data) for each in (lhs, rhs)]
    with pytest.raises(NotImplementedError, match="unless both operands are float8"):
        jaxbw.matmul(*wide, lhs_scale=lhs.scale, rhs_scale=rhs.scale, implementation="emulator")
