"""XLA's form of scales of blocks: they multiply the operands, in the dtype of the sums.

A product of float8 and a scale is rounded there, where the kernels multiply sums.
"""

from typing import Any

import numpy as np
from jax import lax

from jaxbw._src import blocks
from jaxbw._src.epilogue import Epilogue
from jaxbw._src.primitives.transposition import kept
from jaxbw._src.problem import DimensionNumbers, Operands

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
        found[of] = x.astype(dtype)
        if not (epilogue.lhs_blocks, epilogue.rhs_blocks)[side]:
            continue
        contracting, batch = dims[0][side], dims[1][side]
        order = (*batch, *kept(x.ndim, contracting, batch), *contracting)
        in_place = lax.transpose(scale, np.argsort(order).tolist())
        found[of] *= blocks.spread(in_place, x.shape).astype(dtype)
        found[of_scale] = None
    return operands._replace(**found)


def precision_of(precision: Any) -> Any:
    """What a precision of float8 operands asks of wide ones."""
    if precision == lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32:
        return lax.Precision.HIGHEST
    fast = precision == lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32_FAST_ACCUM
    return None if fast else precision
