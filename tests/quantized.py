"""The documented formulas of `jaxbw.quantize` and of an `out_scale` in NumPy."""

from typing import Any

import ml_dtypes
import numpy as np

FORMATS = {"e4m3": (ml_dtypes.float8_e4m3fn, 448.0), "e5m2": (ml_dtypes.float8_e5m2, 57344.0)}


def quantized(x: Any, name: str, axis: Any = None) -> tuple[Any, Any]:
    """The bits of the data, and the scales."""
    dtype, largest = FORMATS[name]
    x = np.asarray(x).astype(np.float32)
    tiny = np.finfo(np.float32).tiny
    x = np.where(np.abs(x) < tiny, np.copysign(np.float32(0), x), x)
    counted = np.where(np.isfinite(x), np.abs(x), np.float32(0))
    amax = counted.max(axis=axis, keepdims=axis is not None, initial=0)
    scale = np.where(amax == 0, np.float32(1), np.maximum(amax / np.float32(largest), tiny))
    scale = scale.astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        scaled = np.clip(x * (np.float32(1) / scale), -largest, largest)
        bits = scaled.astype(dtype).view(np.uint8)
    return np.where(np.isnan(x), np.uint8(0x7F), bits), scale


def scaled(x: Any, scale: Any, name: str) -> tuple[Any, Any]:
    """The bits of x / scale, and the amax of x."""
    dtype, largest = FORMATS[name]
    tiny = np.finfo(np.float32).tiny
    x = np.asarray(x, np.float32)
    x = np.where(np.abs(x) < tiny, np.copysign(np.float32(0), x), x)
    scale = np.float32(scale)
    amax = np.abs(x[np.isfinite(x)]).max(initial=0)
    with np.errstate(all="ignore"):
        inverse = np.maximum(np.float32(1) / scale, tiny) if tiny <= scale < np.inf else np.nan
        y = x * np.float32(inverse)
        bits = np.clip(y, -largest, largest).astype(dtype).view(np.uint8)
    return np.where(np.isnan(y), np.uint8(0x7F), bits), amax


# dtype of the data, the largest of them, dtype of the scales, elements of a block
BLOCK_FORMATS = {
    "mxfp8": (ml_dtypes.float8_e4m3fn, 448.0, ml_dtypes.float8_e8m0fnu, 32),
    "mxfp8_e5m2": (ml_dtypes.float8_e5m2, 57344.0, ml_dtypes.float8_e8m0fnu, 32),
    "mxfp4": (ml_dtypes.float4_e2m1fn, 6.0, ml_dtypes.float8_e8m0fnu, 32),
    "nvfp4": (ml_dtypes.float4_e2m1fn, 6.0, ml_dtypes.float8_e4m3fn, 16),
}


def block_scaled(
    x: Any, name: str, global_scale: Any = None, square: bool = False
) -> tuple[Any, Any, Any]:
    """Data `[..., k]`, scales `[..., blocks]`, and the global scale, 1 where there is none.

    In float64, in which none of the quotients is rounded before what they are for.
    """
    dtype, largest, of_scale, block = BLOCK_FORMATS[name]
    x = np.asarray(x).astype(np.float32)
    tiny = np.finfo(np.float32).tiny
    x = np.where(np.abs(x) < tiny, np.copysign(np.float32(0), x), x)
    whole = np.float32(1)
    if name == "nvfp4":
        counted = np.abs(x[np.isfinite(x)]).max(initial=0)
        of_largest = np.maximum(counted / np.float32(448 * 6), tiny) if counted else np.float32(1)
        whole = np.float32(of_largest if global_scale is None else global_scale)
        x = np.where(x == 0, x, x / whole).astype(np.float32)
    k = x.shape[-1]
    x = np.pad(x.astype(np.float64), [(0, 0)] * (x.ndim - 1) + [(0, -k % block)])
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // block, block)
    with np.errstate(all="ignore"):
        amax = np.abs(blocks).max(axis=-1, initial=0)
        amax = np.where(np.isfinite(amax), amax, np.nan)
        if square:
            starts = np.arange(0, amax.shape[-2], block)
            most = np.maximum.reduceat(amax, starts, axis=-2)
            amax = np.repeat(most, block, axis=-2)[..., : amax.shape[-2], :]
        if of_scale == ml_dtypes.float8_e8m0fnu:
            scale = np.exp2(np.ceil(np.log2(np.maximum(amax / largest, 2.0**-127))))
        else:
            scale = np.minimum(amax / largest, 448.0)
        scale = scale.astype(of_scale)
        scaled = blocks / scale.astype(np.float64)[..., None]
        scaled = np.where(blocks == 0, blocks, scaled)  # of a scale that is 0, too
        data = np.clip(scaled, -largest, largest).astype(dtype).reshape(x.shape)
    return data[..., :k], scale, whole


def untiled(tiles: Any, rows: int, blocks: int) -> Any:
    """Scales `[rows, blocks]` of their tiles, by the address of each."""
    r, c = np.indices((rows, blocks))
    place = r % 32 * 16 + r % 128 // 32 * 4 + c % 4
    return np.asarray(tiles)[..., r // 128, c // 4, place]


def tiled(scales: Any) -> Any:
    """The inverse, of scales `[..., rows, blocks]`, with zeros behind."""
    *batch, rows, blocks = scales.shape
    tiles = np.zeros((*batch, -(-rows // 128), -(-blocks // 4), 512), scales.dtype)
    r, c = np.indices((rows, blocks))
    tiles[..., r // 128, c // 4, r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = scales
    return tiles
