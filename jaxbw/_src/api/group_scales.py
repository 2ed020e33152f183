"""Operands of `ragged_dot` that have scales: their data, and their scales as terms."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxbw._src.api.arguments import Quantized
from jaxbw._src.api.block_scaled import BlockScaled, unblocked, unscaled
from jaxbw._src.api.ragged_call import RaggedOperands
from jaxbw._src.problem import describe

_TERMS = {"lhs": "lhs_scale", "rhs": "rhs_scale", "rhs_gate": "rhs_scale", "rhs_up": "rhs_up_scale"}
_TILES = ("lhs_tiles", "rhs_tiles", "rhs_up_tiles")
_CONTRACTED = ((-1,), (-2,))


def unquantized(call: str, operands: dict[str, Any], dtype: Any) -> RaggedOperands:
    """The operands as arrays, and their scales; right ones are transposed where all are so stored.

    Beside an operand without such scales a `BlockScaled` is dequantized.

    Args:
      call: the function that a user called.
      operands: by their names; some have scales.
      dtype: of the result, where it was given.

    Raises:
      ValueError: scales that are not shared along the contraction; blocks along another dimension;
        formats that differ.
    """
    if dtype is None:
        dtype = jnp.result_type(*(np.dtype(x.dtype) for x in operands.values()))
    if all(isinstance(x, BlockScaled) for x in operands.values()):
        return _of_blocks(call, operands, dtype)
    operands = {name: unblocked(x) for name, x in operands.items()}
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
    return RaggedOperands(arrays, scales, transposed, dtype)


def _of_blocks(call: str, operands: dict[str, Any], dtype: Any) -> RaggedOperands:
    """Operands all of which are `BlockScaled`. Global scales are factors of each column."""
    names, given = [*operands], [*operands.values()]
    for name, x in operands.items():
        if x.ndim != (2 if name == "lhs" else 3):
            shape = "[m, k]" if name == "lhs" else "[g, k, n]"
            shown = describe(np.dtype(x.dtype), x.shape)
            raise TypeError(f"{call}: {name} is {shown}; in a block-scaled format it is {shape}")
    found = unscaled(call, names, given, [None] * len(given), _CONTRACTED)
    assert found is not None
    arrays = [getattr(x, "original", x) for x in found.data]
    scales = {name: x for name, x in zip(_TILES, found.tiles, strict=True) if x is not None}
    if any(x is not None for x in found.scales):
        of_lhs, *of_rights = (_factor(x) for x in found.scales)
        names_of_rights = (_TERMS[name] for name in names[1:])
        scales |= {name: of_lhs * x for name, x in zip(names_of_rights, of_rights, strict=True)}
    return RaggedOperands(dict(zip(names, arrays, strict=True)), scales, True, dtype, found.formats)


def _factor(scale: Any) -> Any:
    """A global scale, or one of each matrix, as a term."""
    return jnp.ones((1, 1, 1), np.float32) if scale is None else scale.reshape(-1, 1, 1)


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
