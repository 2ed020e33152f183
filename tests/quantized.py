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
