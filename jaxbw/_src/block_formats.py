"""MXFP8, MXFP4 and NVFP4: blocks of a few numbers of 8 or 4 bits that share a scale of 8 bits.

The scale of an MX block is a power of two, amax / max rounded up to one, so that nothing
saturates: NVIDIA's recipe (https://arxiv.org/abs/2506.08027), and that of jax.nn. An NVFP4 block
has a scale in e4m3, amax / 6 rounded to nearest even, of an array that a float32 scale of all of it
has divided before.

A block with NaN or an infinity has the scale NaN: all of it reads as NaN. A block of zeros has the
least scale. Subnormal float32 numbers count as 0. As in fp8.py, what is rounded here is rounded in
integers, or exact: every platform has the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbw._src import compat, fp8, scale_tiles, stochastic

E8M0 = fp8.E8M0
_UE4M3 = fp8.FORMATS["e4m3"]  # whose sign stays 0
_PADDED = 32  # data are padded along k to rows of 16 bytes or 32, which TMA can load
_UNPACKED = 128  # or to whole boxes, which it can unpack to 8 bits
_NAN = np.uint32(0x7F)  # in e4m3
_E8M0_NAN = np.int32(0xFF)

# Half-way between two magnitudes of e2m1, and whether such a tie goes up, to the even one.
_E2M1_TIES = (
    (0.25, False),
    (0.75, True),
    (1.25, False),
    (1.75, True),
    (2.5, False),
    (3.5, True),
    (5.0, False),
)


@dataclass(frozen=True)
class BlockFormat:
    """A block-scaled format.

    Attributes:
      name: as `jaxbw.quantize` takes it.
      element: the format of the data.
      scale: dtype of the scales.
      block: numbers along k that share one.
    """

    name: str
    element: fp8.Format
    scale: Any
    block: int

    @property
    def has_global_scale(self) -> bool:
        """Whether a float32 scale multiplies the whole array, too."""
        return bool(self.scale != E8M0)

    @property
    def unit(self) -> int:
        """Of what an array's data have a multiple along k; MXFP4's may be beside 8 bits."""
        return _UNPACKED if self.element.bits == 4 and not self.has_global_scale else _PADDED

    @property
    def largest(self) -> float:
        """The largest number, data times scale, where there is a global scale besides."""
        return self.element.max * _UE4M3.max


FORMATS = {
    format.name: format
    for format in (
        BlockFormat("mxfp8", fp8.FORMATS["e4m3"], E8M0, 32),
        BlockFormat("mxfp8_e5m2", fp8.FORMATS["e5m2"], E8M0, 32),
        BlockFormat("mxfp4", fp8.E2M1, E8M0, 32),
        BlockFormat("nvfp4", fp8.E2M1, _UE4M3.dtype, 16),
    )
}


def format_of(element: Any, scale: Any) -> BlockFormat | None:
    """The format with data and scales of these dtypes; None where there is none."""
    found = (f for f in FORMATS.values() if f.element.dtype == element and f.scale == scale)
    return next(found, None)


def padded(size: Any, unit: int = _PADDED) -> Any:
    """How many elements the data have along k: as they are made, or of a format's `unit`."""
    return -(-size // unit) * unit


def global_scale(x: Any, format: BlockFormat, signs: Any = None) -> Any:
    """That of an array: its largest finite magnitude becomes the largest number of the format.

    Or of the array rotated with these signs, which need not be in memory for it.
    """
    parts = [x] if signs is None else stochastic.rotated_parts(x, signs)
    magnitudes = [fp8.finite_magnitude(fp8.as_float32(part)) for part in parts]
    amax = fp8.of_bits(jnp.max(reduce(jnp.maximum, magnitudes), initial=np.uint32(0)))
    scale = fp8.divide(amax, format.largest)
    return jnp.where(amax == 0, np.float32(1), scale)


def divided(x: Any, divisor: Any) -> Any:
    """x / divisor in float32, correctly rounded; NaN if the divisor is no positive normal number.

    Quotients that are no normal numbers are as of `fp8.divide`.
    """
    x = fp8.flushed(fp8.as_float32(x))
    is_scale = _is_divisor(divisor)
    safe = jnp.where(is_scale, divisor, np.float32(1))
    magnitude = jnp.abs(x)
    is_number = (magnitude > 0) & (magnitude < np.inf)
    quotient = fp8.divide(
        jnp.where(is_number, magnitude, np.float32(1)), jnp.broadcast_to(safe, x.shape)
    )
    quotient = jnp.where(is_number, jnp.where(x < 0, -quotient, quotient), x)
    # Of NaN with a sign platforms differ in which one they keep.
    return jnp.where(is_scale & ~jnp.isnan(x), quotient, np.float32(np.nan))


def _is_divisor(scale: Any) -> Any:
    """Whether it is a positive normal number."""
    return (scale >= np.finfo(np.float32).tiny) & (scale < np.inf)


def quantized(
    x: Any, format: BlockFormat, *, square: bool = False, dither: Any = None
) -> tuple[Any, Any]:
    """Data and scales of an array whose last dimension is k.

    Args:
      x: `[..., rows, k]`, real floating; `divided` by a global scale, unless dithered.
      format: of data and scales.
      square: as many rows as elements of k share a scale, too.
      dither: of "nvfp4": points, uint16 and shaped as x, at which data are rounded
        stochastically, and the global scale, with dimensions as x, as of `divided`.

    Returns:
      Data `[..., rows, padded(k)]`, and scales `[..., rows, padded(k) / block]`.
    """
    wide = compat.in_whole(fp8.as_float32(x), {-1: _PADDED})
    *batch, rows, k = wide.shape
    behind = padded(k) - k

    def in_blocks(x: Any) -> Any:
        if not (isinstance(behind, int) and behind == 0):
            x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, behind)])
        return x.reshape(*batch, rows, x.shape[-1] // format.block, format.block)

    blocks = in_blocks(fp8.flushed(wide))
    amax = jnp.max(fp8.magnitude(blocks), axis=-1, initial=np.uint32(0))
    if square:
        amax = _over_rows(amax, format.block)
    if dither is not None:
        points, divisor = dither
        data, scale = _dithered(blocks, amax, format, in_blocks(points), divisor)
    elif format.has_global_scale:
        data, scale = _by_e4m3(blocks, amax, format)
    else:
        data, scale = _by_power_of_two(blocks, amax, format)
    return data.reshape(*batch, rows, padded(k)), scale


def in_memory(x: Any, format: BlockFormat, **options: Any) -> tuple[Any, Any]:
    """As `quantized`, but scales in tiles; a vector is a matrix of one row, but for its data."""
    data, scale = quantized(x if x.ndim > 1 else x[None], format, **options)
    return data.reshape(*x.shape[:-1], data.shape[-1]), scale_tiles.tiled(scale)


def shapes(shape: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Those of the data and of the tiles of an array of this shape, in blocks of 32."""
    *others, k = shape
    rows = others[-1] if others else 1
    tiles = scale_tiles.shape(rows, padded(k) // _PADDED)
    return (*others, padded(k)), (*others[:-1], *tiles)


def dequantized(data: Any, scale: Any, dtype: Any = np.float32) -> Any:
    """Data `[..., k]` times scales `[..., blocks]`, without the global scale; exact in float32."""
    *front, blocks = scale.shape
    wide = data.astype(dtype).reshape(*front, blocks, data.shape[-1] // blocks if blocks else 1)
    return (wide * scale.astype(dtype)[..., None]).reshape(data.shape)


def scales_of(tiles: Any, data: Any, block: int) -> Any:
    """Those of each block, of their tiles and the data; of vectors the tiles have one row."""
    are_vectors = tiles.ndim == data.ndim + 2
    rows = 1 if are_vectors else data.shape[-2]
    scale = scale_tiles.untiled(tiles, rows, data.shape[-1] // block)
    return scale[..., 0, :] if are_vectors else scale


def _over_rows(amax: Any, count: int) -> Any:
    """Of so many rows together, as each of them has it."""
    amax = compat.in_whole(amax, {-2: count})
    *batch, rows, blocks = amax.shape
    padding = [(0, 0)] * len(batch) + [(0, -rows % count), (0, 0)]
    whole = jnp.pad(amax, padding)
    apart = whole.reshape(*batch, whole.shape[-2] // count, count, blocks)
    most = jnp.max(apart, axis=-2, keepdims=True, initial=np.uint32(0))
    return jnp.broadcast_to(most, apart.shape).reshape(whole.shape)[..., :rows, :]


def _by_power_of_two(blocks: Any, amax: Any, format: BlockFormat) -> tuple[Any, Any]:
    """Data and scales, of amax as bits."""
    code = jnp.maximum(fp8.exponent_up(amax, format.element), 0)  # it fits: amax < 2**128
    is_number = amax < fp8.INFINITY
    inverse = fp8.of_bits((254 - jnp.minimum(code, 253)).astype(jnp.uint32) << 23)
    inverse = jnp.where(is_number, inverse, np.float32(0))
    code = jnp.where(is_number, code, _E8M0_NAN)
    scale = lax.bitcast_convert_type(code.astype(jnp.uint8), format.scale)
    return fp8.rounded(blocks * inverse[..., None], format.element), scale


def _by_e4m3(blocks: Any, amax: Any, format: BlockFormat) -> tuple[Any, Any]:
    """Likewise. x / scale is never computed: |x| is compared with exact multiples of the scale."""
    scale, factor = _scale_in_e4m3(amax, format)
    factor = factor[..., None]
    magnitude = jnp.abs(blocks)
    beyond = [
        magnitude >= tie * factor if up else magnitude > tie * factor for tie, up in _E2M1_TIES
    ]
    data = sum(each.astype(jnp.uint32) for each in beyond)
    data = jnp.where(factor == 0, np.uint32(0), data)
    return fp8.of_code(data | fp8.sign_of(blocks, format.element), format.element), scale


def _dithered(
    blocks: Any, amax: Any, format: BlockFormat, points: Any, divisor: Any
) -> tuple[Any, Any]:
    """Likewise, of what a divisor has yet to divide.

    y = x / divisor / scale is two multiplications here, by a power of two and by the reciprocals of
    what is left. A code is 2y up to 2, y + 2 up to 4 and y / 2 + 4 from there, the least of the
    three everywhere; and rounded down, after a random fraction of 16 bits was added. A product is
    rounded before it is added to anything, since |y| and the least are taken between.
    """
    scale, factor = _scale_in_e4m3(fp8.magnitude(divided(fp8.of_bits(amax), divisor)), format)
    bits = lax.bitcast_convert_type(divisor, jnp.uint32)
    power = fp8.of_bits(fp8.INFINITY - (bits & fp8.INFINITY))
    rest = fp8.of_bits((bits & (fp8.LEAST_NORMAL - 1)) | np.uint32(0x40000000))  # from 2 to 4
    one = jnp.ones_like(factor)
    inverse = fp8.divide(one, jnp.where(factor == 0, one, factor))
    inverse = inverse * fp8.divide(jnp.ones_like(rest), rest)
    y = jnp.minimum(jnp.abs(blocks * power[..., None]) * inverse[..., None], format.element.max)
    less_one = jnp.minimum(jnp.minimum(2 * y - 1, y + 1), y / 2 + 3)
    and_one = fp8.of_bits(np.uint32(0x3F800040) | points.astype(jnp.uint32) << 7)
    data = jnp.floor(less_one + and_one).astype(jnp.uint32)
    data = jnp.where(factor[..., None] == 0, np.uint32(0), data)
    has_sign = _is_divisor(divisor)[..., None] & ~jnp.isnan(blocks)
    signed = jnp.where(has_sign, blocks, np.float32(0))
    return fp8.of_code(data | fp8.sign_of(signed, format.element), format.element), scale


def _scale_in_e4m3(amax: Any, format: BlockFormat) -> tuple[Any, Any]:
    """Scales of amax as bits, and the same in float32, 0 where they are NaN."""
    is_number = amax < fp8.INFINITY
    counted = jnp.where(is_number & (amax > 0), amax, fp8.LEAST_NORMAL)
    largest = fp8.of_bits(counted)
    quotient = fp8.divide(largest, format.element.max)
    rounded = lax.bitcast_convert_type(fp8.rounded(quotient, _UE4M3), jnp.uint8)
    code = jnp.where(is_number, rounded, _NAN.astype(np.uint8))
    scale = lax.bitcast_convert_type(code, format.scale)
    return scale, jnp.where(is_number, scale.astype(jnp.float32), np.float32(0))
