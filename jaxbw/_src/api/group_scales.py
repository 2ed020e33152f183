"""Operands of `ragged_dot` that are `Quantized`: their data, and their scales as terms."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxbw._src.api.arguments import Quantized
from jaxbw._src.problem import describe

_TERMS = {"lhs": "lhs_scale", "rhs": "rhs_scale", "rhs_gate": "rhs_scale", "rhs_up": "rhs_up_scale"}


def unquantized(
    call: str, operands: dict[str, Any], dtype: Any
) -> tuple[dict[str, Any], dict[str, Any], bool, Any]:
    """The operands as arrays, their scales by the names of terms, and the result's dtype.

    And before that whether right operands are `[g, n, k]`: where all have their transposed data.

    Args:
      call: the function that a user called.
      operands: by their names; some are `Quantized`.
      dtype: of the result, where it was given.

    Raises:
      ValueError: scales that are not shared along the contraction.
    """
    if dtype is None:
        dtype = jnp.result_type(*(np.dtype(x.dtype) for x in operands.values()))
    rights = [x for name, x in operands.items() if name.startswith("rhs")]
    transposed = all(isinstance(x, Quantized) and x.transposed is not None for x in rights)
    arrays, scales = dict(operands), {}
    for name, x in operands.items():
        if isinstance(x, Quantized):
            scales[_TERMS[name]] = _shared(call, name, x)
            arrays[name] = x.transposed if transposed and name != "lhs" else x.data
    if len(rights) == 2 and {"rhs_scale", "rhs_up_scale"} & {*scales}:  # the kernel has both
        one = np.float32(1)
        scales = {"rhs_scale": one, "rhs_up_scale": one} | scales
    return arrays, scales, transposed, dtype


def _shared(call: str, name: str, x: Quantized) -> Any:
    """The scales of an operand, checked: a scalar, or with size 1 along the contraction."""
    axis = -1 if name == "lhs" else -2
    sizes = [*zip(jnp.shape(x.scale), x.shape, strict=False)]
    is_shared = jnp.ndim(x.scale) == x.ndim >= -axis and x.scale.shape[axis] == 1
    if jnp.ndim(x.scale) == 0 or (is_shared and all(n in (1, size) for n, size in sizes)):
        return x.scale
    raise ValueError(
        f"{call}: {name} {describe(x.data.dtype, x.shape)} has scales of shape "
        f"{list(jnp.shape(x.scale))}; they are to be shared along the contraction: "
        f"jaxbw.quantize({name}, ..., axis={axis}), or axis=None, without block"
    )
