"""jaxbw.quantize to MXFP8, MXFP4 and NVFP4: its bits against NumPy, ml_dtypes and jax.nn."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import jaxbw

from ..quantized import BLOCK_FORMATS, block_scaled, untiled

_quantize = jax.jit(jaxbw.quantize, static_argnums=1, static_argnames=("axis", "square", "both"))


def bits(x: Any) -> Any:
    return np.asarray(x).view(np.uint8)


def assert_as_documented(
    q: Any, x: Any, name: str, *, square: bool = False, of_all: Any = None
) -> None:
    """Of an array whose last dimension is k. What a NaN scale multiplies is not looked at."""
    data, scale, whole = block_scaled(x, name, of_all, square)
    rows, k = x.shape[-2] if x.ndim > 1 else 1, x.shape[-1]
    got = untiled(q.scale, rows, scale.shape[-1]).reshape(scale.shape)
    read = ~np.isnan(scale.astype(np.float32)).repeat(BLOCK_FORMATS[name][3], -1)[..., :k]
    np.testing.assert_array_equal(bits(got), bits(scale))
    # A scale of 0 leaves it open what it multiplies.
    read &= scale.astype(np.float32).repeat(BLOCK_FORMATS[name][3], -1)[..., :k] != 0
    np.testing.assert_array_equal(bits(q.data)[..., :k][read], bits(data)[read])
    assert not bits(q.data)[..., k:].any()
    assert q.data.shape[-1] % 32 == 0
    assert (q.data.dtype, q.scale.dtype) == BLOCK_FORMATS[name][:3:2]
    if name == "nvfp4":
        assert np.float32(q.global_scale) == whole


_values = st.one_of(
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, np.inf, np.nan, 1e-45, -1e-40, 2.0**-126, 3e38, 448.0, 6.0]),
)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
@given(x=arrays.arrays(np.float32, (2, 40), elements=_values, fill=st.just(1.0)))
def test_any_values(name: str, x: Any) -> None:
    assert_as_documented(_quantize(x, name), x, name)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_every_byte_of_data_and_scales(name: str) -> None:
    """Every number that a block can have is what it is made of again, with every scale."""
    dtype, largest, of_scale, block = BLOCK_FORMATS[name]
    count = 16 if dtype == ml_dtypes.float4_e2m1fn else 256
    codes = np.arange(count, dtype=np.uint8)
    values = codes.view(dtype).astype(np.float32)
    codes, values = codes[np.isfinite(values)], values[np.isfinite(values)]
    scales = np.arange(256, dtype=np.uint8).view(of_scale).astype(np.float64)
    scales = scales[(scales > 2.0**-110) & (scales * largest < 3e38)]  # of normal numbers
    rows = np.append(values, np.zeros(-len(values) % (block - 1))).reshape(-1, block - 1)
    rows = np.insert(rows, 0, largest, axis=1)  # decides the scale
    x = (rows.reshape(-1) * scales[:, None]).astype(np.float32)
    q = _quantize(x, name) if name != "nvfp4" else jaxbw.quantize(x, name, global_scale=1.0)
    got = untiled(q.scale, x.shape[0], x.shape[1] // block)
    np.testing.assert_array_equal(got.astype(np.float64), scales[:, None].repeat(got.shape[1], 1))
    data = bits(q.data)[:, : x.shape[1]].reshape(len(scales), -1, block)[..., 1:]
    data = data.reshape(len(scales), -1)[:, : len(codes)]
    np.testing.assert_array_equal(data, codes[None].repeat(len(scales), 0))
    np.testing.assert_array_equal(np.asarray(q.dequantized()), x)


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_of_jax(name: Any, dtype: str) -> None:
    """Those of what jax.nn.scaled_dot_general multiplies, where its sizes allow it."""
    jax_quantize = pytest.importorskip(
        "jax._src.cudnn.scaled_matmul_stablehlo", reason="JAX keeps its quantization elsewhere"
    ).quantize
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 96)) * np.exp(rng.standard_normal((40, 96)))
    x = x.astype(jnp.dtype(dtype))
    # Of others, by which a division is rounded, XLA may multiply with the rounded reciprocal.
    of_all: Any = np.array([2.0**-9], np.float32) if name == "nvfp4" else None
    config = jax.nn.get_scaled_dot_general_config(name, of_all)
    data, scale = jax.jit(lambda x: jax_quantize(x, config))(x)
    q = jax.jit(lambda x: jaxbw.quantize(x, name, global_scale=of_all))(x)
    np.testing.assert_array_equal(bits(untiled(q.scale, *scale.shape)), bits(scale))
    factors = np.asarray(scale).astype(np.float32).repeat(96 // scale.shape[1], 1)
    read = factors != 0
    if of_all is not None:  # XLA may round to e2m1 by way of float16
        ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5]) * factors[..., None] * of_all
        near = np.isclose(np.abs(x.astype(np.float32))[..., None], ties, rtol=2**-10, atol=0)
        read &= ~near.any(-1)
    assert read.mean() > 0.7
    np.testing.assert_array_equal(bits(q.data)[read], bits(data)[read])


@settings(max_examples=settings().max_examples // 3)  # each is a program
@given(shape=st.tuples(st.integers(0, 300), st.integers(0, 300)), turned=st.booleans())
def test_shapes(shape: Any, turned: bool) -> None:
    """Of any size: what pads data and scales is zero, and nothing of it is seen."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    axis = -2 if turned else -1

    @jax.jit
    def quantized(x: Any) -> Any:
        q = jaxbw.quantize(x, "mxfp8", axis=axis)
        return q, q.dequantized()

    q, got = quantized(x)
    assert_as_documented(q, x.T if turned else x, "mxfp8")
    rows, k = shape[::-1] if turned else shape
    blocks = -(-k // 32)
    tiles = np.zeros((-(-rows // 128) * 128, -(-blocks // 4) * 4), np.uint8)
    tiles[:rows, :blocks] = bits(untiled(q.scale, rows, blocks))
    np.testing.assert_array_equal(bits(untiled(q.scale, *tiles.shape)), tiles)
    assert q.shape == shape
    assert q.mT.shape == shape[::-1]
    np.testing.assert_allclose(got, x, atol=2.0**-4 * np.abs(x).max(initial=0))


@pytest.mark.parametrize("name", BLOCK_FORMATS)
@pytest.mark.parametrize("square", [False, True])
def test_both_directions(name: str, square: bool) -> None:
    """Of each direction what quantizing the transpose gives; of square blocks the same numbers."""
    x = np.random.default_rng(1).standard_normal((2, 50, 70)).astype(np.float32)
    q = _quantize(x, name, axis=-2, square=square, both=True)
    assert_as_documented(q, x.swapaxes(1, 2), name, square=square)
    other = q.along(-1)
    assert_as_documented(other, x, name, square=square)
    np.testing.assert_array_equal(bits(other.along(1).data), bits(q.data))
    assert (q.transposed is None) == (square and "fp8" in name)
    got = np.asarray(q.dequantized())
    np.testing.assert_array_equal(np.asarray(q.mT.dequantized()), got.swapaxes(1, 2))
    if square:
        np.testing.assert_array_equal(np.asarray(other.dequantized()), got)


def test_leading_dimensions_and_vmap() -> None:
    """Each matrix has its tiles: leaves are stacked, and parts of them are values again."""
    x = np.random.default_rng(2).standard_normal((3, 5, 33)).astype(np.float32)
    q = _quantize(x, "mxfp4")
    vmapped = jax.vmap(lambda x: jaxbw.quantize(x, "mxfp4"))(x)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(bits, q), jax.tree.map(bits, vmapped))
    part = jax.tree.map(lambda a: a[1], q)
    assert part.shape == (5, 33)
    assert_as_documented(part, x[1], "mxfp4")
    vector = jaxbw.quantize(x[0, 0], "mxfp4")
    assert (vector.shape, vector.scale.shape) == ((33,), (1, 1, 512))
    assert_as_documented(vector, x[0, 0], "mxfp4")
    first = jaxbw.quantize(x, "mxfp4", axis=0)
    np.testing.assert_array_equal(
        np.asarray(first.dequantized()),
        np.moveaxis(np.asarray(_quantize(np.moveaxis(x, 0, -1), "mxfp4").dequantized()), -1, 0),
    )


def test_a_number_that_is_none_is_the_whole_block() -> None:
    x = np.ones((2, 64), np.float32)
    x[0, 3], x[1, 40] = np.nan, -np.inf
    for name in BLOCK_FORMATS:
        got = np.asarray(_quantize(x, name).dequantized())
        block = BLOCK_FORMATS[name][3]
        wanted = np.ones((2, 64))
        wanted[0, :block] = wanted[1, 40 // block * block : (40 // block + 1) * block] = np.nan
        np.testing.assert_allclose(got, wanted, rtol=2**-20)


def test_stochastic_rounding() -> None:
    """To one of two neighbours, so that the mean is the number; the scales do not depend on it."""
    x, keys = (
        np.random.default_rng(0).normal(size=(16, 40)),
        jax.random.split(jax.random.key(0), 4096),
    )
    x = x.astype(np.float32)
    rounded = jax.jit(lambda key: jaxbw.quantize(x, "nvfp4", key=key))
    found = np.asarray(jax.jit(jax.vmap(lambda key: rounded(key).dequantized()))(keys))
    low, high = found.min(axis=0), found.max(axis=0)
    assert ((found == low) | (found == high)).all()
    # Where a scale was rounded down its largest number is less than x.
    beyond = (x < low) | (x > high)
    assert (low[beyond] == high[beyond]).all()
    assert (np.abs(x[beyond] / low[beyond]) < 1 + 2**-3.9).all()
    five_sigma = 5 * (high - low) / 2 / np.sqrt(len(keys))
    assert (np.abs(found.mean(axis=0, dtype=np.float64) - x) <= five_sigma + 1e-6)[~beyond].all()
    nearest, once = jaxbw.quantize(x, "nvfp4"), rounded(keys[0])
    np.testing.assert_array_equal(nearest.scale, once.scale)
    assert (low <= nearest.dequantized()).all()
    assert (nearest.dequantized() <= high).all()
    eager = jaxbw.quantize(x, "nvfp4", key=keys[0])
    np.testing.assert_array_equal(eager.data, once.data)


def test_what_is_refused() -> None:
    x = jnp.ones((4, 8))
    with pytest.raises(ValueError, match=r"it is one of .*'mxfp8', 'mxfp8_e5m2', 'mxfp4', 'nvfp4'"):
        jaxbw.quantize(x, "mxfp6")
    for axis in ((0, 1), 2):
        with pytest.raises(ValueError, match=r"axis is .* and x f32\[4,8\]; mxfp8 has blocks"):
            jaxbw.quantize(x, "mxfp8", axis=axis)
    with pytest.raises(ValueError, match="block is 128; of mxfp8 it is None"):
        jaxbw.quantize(x, "mxfp8", block=128)
    with pytest.raises(ValueError, match="square=True; that is for the last two dimensions"):
        jaxbw.quantize(x[0], "mxfp8", square=True)
    with pytest.raises(ValueError, match="square is given and format is 'e4m3'"):
        jaxbw.quantize(x, "e4m3", square=True)
    for name in ("e4m3", "mxfp4"):
        with pytest.raises(ValueError, match=f"key is given and format is '{name}'"):
            jaxbw.quantize(x, name, key=jax.random.key(0))
        with pytest.raises(ValueError, match=f"rotation is given.* format is '{name}'"):
            jaxbw.quantize(x, name, rotation=jax.random.key(0))
    with pytest.raises(ValueError, match=r"only 'nvfp4' is rotated, along axis -2"):
        jaxbw.quantize(x, "nvfp4", rotation=jax.random.key(0))
    with pytest.raises(ValueError, match=r"global_scale has shape \[\] and format is 'mxfp8'"):
        jaxbw.quantize(x, "mxfp8", global_scale=1.0)
    with pytest.raises(ValueError, match=r"blocks along dimension -1, and -2 is contracted"):
        _quantize(x, "mxfp8").along(-2)
    with pytest.raises(TypeError, match="x is differentiated"):
        jax.grad(lambda x: jaxbw.quantize(x, "nvfp4").dequantized().sum())(x)
