"""jaxbw.scaled_matmul beside float64 of the dequantized operands, and lax.scaled_dot."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import jaxbw

from ..quantized import BLOCK_FORMATS


def operand(shape: Any, name: str, seed: int, block: int | None = None) -> tuple[Any, Any]:
    """Data and scales `[..., rows, k]` of a format, none of which is NaN."""
    dtype, largest, of_scale, format_block = BLOCK_FORMATS[name]
    rng = np.random.default_rng(seed)
    data = rng.uniform(-largest, largest, shape).astype(dtype)
    *rows, k = shape
    scales = np.exp2(rng.integers(-3, 4, (*rows, -(-k // (block or format_block)))))
    if of_scale == ml_dtypes.float8_e4m3fn:
        scales *= rng.integers(8, 16, scales.shape) / 8
    return data, scales.astype(of_scale)


def wide(data: Any, scales: Any, block: int) -> Any:
    return (
        data.astype(np.float64) * scales.astype(np.float64).repeat(block, -1)[..., : data.shape[-1]]
    )


def assert_near(got: Any, left: Any, right: Any) -> None:
    """lhs @ rhs.mT, within k roundings of float32 sums of exact products."""
    right = right.swapaxes(-1, -2)
    bound = (left.shape[-1] + 4) * 2.0**-23 * (np.abs(left) @ np.abs(right)) + 1e-30
    assert got.dtype == np.float32
    np.testing.assert_array_less(np.abs(np.asarray(got, np.float64) - left @ right), bound)


_extent = st.one_of(st.integers(1, 300), st.sampled_from([1, 15, 17, 31, 33, 127, 129]))


@settings(max_examples=settings().max_examples // 4)  # each is a program
@given(m=_extent, n=_extent, k=_extent, name=st.sampled_from(list(BLOCK_FORMATS)))
def test_shapes(m: int, n: int, k: int, name: str) -> None:
    """Any, of k that is no multiple of a block too."""
    block = BLOCK_FORMATS[name][3]
    (x, x_scales), (w, w_scales) = operand((m, k), name, 0), operand((n, k), name, 1)
    got = jaxbw.scaled_matmul(x, w, x_scales, w_scales, block_size=block)
    assert_near(got, wide(x, x_scales, block), wide(w, w_scales, block))


@pytest.mark.parametrize(
    "shapes",
    [
        *(((0, 40), (3, 40)), ((2, 0), (3, 0)), ((40,), (3, 40)), ((2, 40), (40,))),
        *(((2, 1, 5, 40), (3, 4, 40)), ((1, 5, 40), (1, 4, 40)), ((2, 5, 40), (4, 40))),
    ],
    ids=str,
)
def test_ranks(shapes: Any) -> None:
    """With broadcast batch dimensions, vectors, and with nothing in one."""
    sides = operand(shapes[0], "mxfp8", 0), operand(shapes[1], "mxfp8", 1)
    (x, x_scales), (w, w_scales) = sides
    got = jaxbw.scaled_matmul(x, w, x_scales, w_scales, block_size=32)
    left, right = (wide(*side, 32) for side in sides)
    wanted = left @ (right.swapaxes(-1, -2) if right.ndim > 1 else right)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=2**-16, atol=2**-6)


@pytest.mark.parametrize("block", [16, 20, 32, 64, 128])
def test_block_sizes(block: int) -> None:
    """Multiples of the format's are of the format; others are dequantized."""
    shape, k = (2, 5, 2 * block), 2 * block
    sides = operand(shape, "mxfp8", 0, block), operand((2, 4, k), "mxfp8", 1, block)
    (x, x_scales), (w, w_scales) = sides
    given: Any = {"block_size": block} if block < 32 else {}
    program = jax.make_jaxpr(lambda *operands: jaxbw.scaled_matmul(*operands, **given))
    is_block_scaled = "jaxbw_fused_dot_general" in str(program(x, w, x_scales, w_scales))
    assert is_block_scaled == (block >= 32)
    got = jaxbw.scaled_matmul(x, w, x_scales, w_scales, **given)
    assert_near(got, *(wide(*side, block) for side in sides))
    short = jaxbw.scaled_matmul(x[..., :-7], w[..., :-7], x_scales, w_scales, block_size=block)
    assert_near(short, *(wide(*side, block)[..., :-7] for side in sides))


def test_beside_jax() -> None:
    """Types of jax.nn.scaled_matmul; values of lax.scaled_dot, which multiplies in bfloat16."""
    (x, x_scales), (w, w_scales) = operand((3, 5, 64), "mxfp8", 0), operand((3, 4, 64), "mxfp8", 1)
    for dtype in (np.float32, jnp.bfloat16, np.float16):
        ours, theirs = (
            jax.eval_shape(lambda *given, f=f, d=dtype: f(*given, d), x, w, x_scales, w_scales)
            for f in (jaxbw.scaled_matmul, jax.nn.scaled_matmul)
        )
        assert ours == theirs
    got = jaxbw.scaled_matmul(x, w, x_scales, w_scales)
    wanted = lax.scaled_dot(
        x,
        w,
        lhs_scale=x_scales,
        rhs_scale=w_scales,
        dimension_numbers=(((2,), (2,)), ((0,), (0,))),
        preferred_element_type=np.float32,
    )
    np.testing.assert_allclose(got, wanted, rtol=2**-6, atol=2**-6 * np.abs(wanted).max())
    # The example of its documentation: neither 8 bits nor a format.
    a, b, half = np.arange(1, 4)[None, None], np.arange(4, 7)[None, None], np.full((1, 1, 1), 0.5)
    assert jaxbw.scaled_matmul(a, b, half, half).item() == 8


@pytest.mark.parametrize("axes", [(0, None, 0, None), (None, 1, None, 1), (None, None, 0, None)])
@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_vmap(axes: Any, name: str) -> None:
    """Over either operand with its scales, or over scales alone."""
    block = BLOCK_FORMATS[name][3]
    (x, x_scales), (w, w_scales) = operand((3, 5, 40), name, 0), operand((3, 4, 40), name, 1)
    batched = [x, w, x_scales, w_scales]
    given = [
        each[0] if axis is None else np.moveaxis(each, 0, axis)
        for each, axis in zip(batched, axes, strict=True)
    ]
    got = jax.jit(jax.vmap(lambda *given: jaxbw.scaled_matmul(*given, block_size=block), axes))(
        *given
    )
    x, w, x_scales, w_scales = (
        each[:1] if axis is None else each for each, axis in zip(batched, axes, strict=True)
    )
    assert_near(got, wide(x, x_scales, block), wide(w, w_scales, block))


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4", None])
def test_derivatives(name: str | None) -> None:
    """Of data in both modes, of scales where they have a derivative; and of wider data."""
    block = 16 if name == "nvfp4" else 32
    (x, x_scales), (w, w_scales) = (
        operand((5, 40), name or "mxfp8", 0),
        operand((4, 40), name or "mxfp8", 1),
    )
    if name is None:
        x, w, x_scales, w_scales = (a.astype(np.float32) for a in (x, w, x_scales, w_scales))
    scaled, right = name != "mxfp8", wide(w, w_scales, block)
    bar = np.exp2(np.random.default_rng(2).integers(-6, -3, (5, 4))).astype(np.float32) / 64

    def product(x: Any, x_scales: Any) -> Any:
        x_scales = x_scales if scaled else lax.stop_gradient(x_scales)
        return jaxbw.scaled_matmul(x, w, x_scales, w_scales, block_size=block)

    y, moved = jax.jit(lambda *p: jax.jvp(product, p, (p[0], jnp.zeros_like(p[1]))))(x, x_scales)
    np.testing.assert_array_equal(moved, y)  # linear in the data
    of_x, of_scales = jax.jit(lambda *p: jax.vjp(product, *p)[1](bar))(x, x_scales)
    assert of_x.dtype == x.dtype
    assert of_scales.dtype == x_scales.dtype
    factors = x_scales.astype(np.float64).repeat(block, -1)[:, :40]
    wanted = (bar.astype(np.float64) @ right) * factors
    half_ulp = {"mxfp8": 2.0**-4, "nvfp4": 2.0**-2, None: 2.0**-18}[name]
    least = {"mxfp8": 2.0**-10, "nvfp4": 0.25, None: 1e-6}[name]
    largest = {"nvfp4": 6.0}.get(str(name), np.inf)
    bounded = np.clip(wanted, -largest, largest)
    np.testing.assert_allclose(
        np.asarray(of_x).astype(np.float64), bounded, rtol=half_ulp, atol=least
    )
    if scaled:
        each = (bar.astype(np.float64) @ right) * x.astype(np.float64)
        each = np.add.reduceat(each, np.arange(0, 40, block), axis=-1)
        tolerance = 2.0**-4 if name else 2.0**-16
        np.testing.assert_allclose(
            np.asarray(of_scales).astype(np.float64), each, rtol=tolerance, atol=2**-9
        )


def test_one_nan_scale_is_a_row_or_a_column() -> None:
    """Of the last, short block; where tiles of scales end, nothing is seen of it."""
    (x, x_scales), (w, w_scales) = operand((130, 40), "nvfp4", 0), operand((7, 40), "nvfp4", 1)
    x_scales[129, 2] = w_scales[3, 0] = np.nan
    got = np.isnan(jaxbw.scaled_matmul(x, w, x_scales, w_scales, block_size=16))
    wanted = np.zeros((130, 7), bool)
    wanted[129], wanted[:, 3] = True, True
    np.testing.assert_array_equal(got, wanted)


def test_what_is_refused() -> None:
    (x, x_scales), (w, w_scales) = operand((5, 66), "mxfp8", 0), operand((4, 66), "mxfp8", 1)
    with pytest.raises(ValueError, match=r"22 elements, as of jax.nn.scaled_matmul, or 32 but"):
        jaxbw.scaled_matmul(x, w, x_scales, w_scales)
    with pytest.raises(ValueError, match=r"3 scales are not those of 66 elements in blocks of 16"):
        jaxbw.scaled_matmul(x, w, x_scales, w_scales, block_size=16)
    with pytest.raises(ValueError, match=r"lhs f8_e4m3fn\[5,66\], lhs_scales .*\[4,3\]: they have"):
        jaxbw.scaled_matmul(x, w, w_scales, w_scales, block_size=32)
    with pytest.raises(ValueError, match="k, the last dimension of both, differs"):
        jaxbw.scaled_matmul(x, w[:, :65], x_scales, w_scales, block_size=32)
    with pytest.raises(TypeError, match="scales in float8_e8m0fnu are differentiated"):
        jax.grad(lambda s: jaxbw.scaled_matmul(x, w, s, w_scales, block_size=32).sum())(x_scales)
    with pytest.raises(NotImplementedError, match="MX formats are for sm100"):
        jaxbw.scaled_matmul(x, w, x_scales, w_scales, block_size=32, implementation="sm90")
