"""XLA's form of scales of blocks: they multiply the operands, in the dtype of the sums.

A product of float8 and a scale is rounded there, where the kernels multiply sums; of the formats of
block_formats.py it is exact, so long as it is a normal number, and also in bfloat16.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbw._src import block_formats, blocks
from jaxbw._src.epilogue import Epilogue
from jaxbw._src.primitives.transposition import kept
from jaxbw._src.problem import TILES, DimensionNumbers, Operands

_SCALES = {"lhs": "lhs_scale", "rhs": "rhs_scale", "rhs_up": "rhs_up_scale"}


def dequantized(
    operands: Operands, epilogue: Epilogue, dims: DimensionNumbers, dtype: Any
) -> Operands:
    """Operands of one dtype, multiplied by those scales that are of blocks, without these.

    Such scales are as `fused_dot_general` has them.
    """
    found: dict[str, Any] = {}
    for of, of_scale in _SCALES.items():
        x, scale, side = getattr(operands, of), getattr(operands, of_scale), int(of != "lhs")
        if x is None:
            continue
        if (format := (epilogue.lhs_format, epilogue.rhs_format)[side]) is not None:
            tiles, (k,) = getattr(operands, TILES[of]), dims[0][side]
            found[of] = of_format(format, x, tiles, dtype, k)
            found[TILES[of]] = None
            continue
        found[of] = x.astype(dtype)
        if not (epilogue.lhs_blocks, epilogue.rhs_blocks)[side]:
            continue
        contracting, batch = dims[0][side], dims[1][side]
        order = (*batch, *kept(x.ndim, contracting, batch), *contracting)
        in_place = lax.transpose(scale, np.argsort(order).tolist())
        found[of] *= blocks.spread(in_place, x.shape).astype(dtype)
        found[of_scale] = None
    return operands._replace(**found)


def of_format(format: str | None, x: Any, tiles: Any, dtype: Any, k: int = -1) -> Any:
    """Data whose dimension k has blocks, times their scales."""
    assert format is not None
    data = jnp.moveaxis(x, k, -1)
    scale = block_formats.scales_of(tiles, data, block_formats.FORMATS[format].block)
    return jnp.moveaxis(block_formats.dequantized(data, scale, dtype), -1, k)


def precision_of(precision: Any) -> Any:
    """What a precision of float8 operands asks of wide ones."""
    if precision == lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32:
        return lax.Precision.HIGHEST
    fast = precision == lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32_FAST_ACCUM
    return None if fast else precision
