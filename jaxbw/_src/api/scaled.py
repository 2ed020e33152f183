"""`jaxbw.scaled_matmul`: jax.nn's, of data and scales that are given apart.

What `quantize` makes of an array has its scales in tiles; here they are put there at each call.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbw._src import block_formats, compat, scale_tiles
from jaxbw._src.api import arguments
from jaxbw._src.api.block_scaled import BlockScaled, padded
from jaxbw._src.api.matmul import matmul
from jaxbw._src.api.scales import undifferentiated
from jaxbw._src.block_formats import E8M0, BlockFormat
from jaxbw._src.problem import describe
from jaxbw._src.selection.implementations import Implementation

_CALL = "jaxbw.scaled_matmul"


def scaled_matmul(
    lhs: Any,
    rhs: Any,
    lhs_scales: Any,
    rhs_scales: Any,
    preferred_element_type: Any = np.float32,
    *,
    block_size: int | None = None,
    implementation: Implementation = None,
) -> jax.Array:
    """`jax.nn.scaled_matmul`: `lhs @ rhs.mT`, blocks of both along k having scales.

    Of any rank and size, on any platform, and differentiable in data, and in scales that are no
    float8_e8m0fnu; a derivative has the dtype of what it is of. Data and scales of MXFP8, MXFP4 and
    NVFP4 are multiplied as such; others as float32, the data times the scales.

    The scales are put in tiles at each call; `jaxbw.quantize` keeps them so, for `jaxbw.matmul`.

    Args:
      lhs: `[..., m, k]` or `[k]`.
      rhs: `[..., n, k]` or `[k]`. Batch dimensions broadcast.
      lhs_scales, rhs_scales: `[..., m, blocks]` and `[..., n, blocks]`, a scale of each block of
        `block_size` elements along k; the last one may have less. NaN makes its row or column NaN.
      preferred_element_type: dtype of the result.
      block_size: default None: k / blocks, as of jax.nn, or where that is no integer 32 of
        float8_e8m0fnu, and 16 of float4_e2m1fn by float8_e4m3fn.
      implementation: as of `matmul`.

    Returns:
      `[..., m, n]`.

    Raises:
      TypeError: operands that are no arrays; scales in float8_e8m0fnu are differentiated.
      ValueError: shapes that do not fit; a block size that is not given and not certain.
      NotImplementedError: a strict implementation that does not serve it.

    >>> lhs, rhs = jnp.ones((2, 40), "float8_e4m3fn"), jnp.ones((3, 40), "float8_e4m3fn")
    >>> scales = jnp.full((2, 2), 0.5, "float8_e8m0fnu"), jnp.ones((3, 2), "float8_e8m0fnu")
    >>> jaxbw.scaled_matmul(lhs, rhs, *scales, block_size=32)[0]
    Array([20., 20., 20.], dtype=float32)
    """
    operands = (("lhs", lhs), ("rhs", rhs), ("lhs_scales", lhs_scales), ("rhs_scales", rhs_scales))
    lhs, rhs, lhs_scales, rhs_scales = (arguments.array(_CALL, *each) for each in operands)
    left_block = _block_of("lhs", lhs, lhs_scales, block_size)
    right_block = _block_of("rhs", rhs, rhs_scales, block_size)
    if lhs.shape[-1] != rhs.shape[-1]:
        raise ValueError(
            f"{_CALL}: lhs {describe(lhs.dtype, lhs.shape)}, rhs {describe(rhs.dtype, rhs.shape)}: "
            "k, the last dimension of both, differs; rhs is [..., n, k]"
        )
    left, right = _operands((left_block, right_block), lhs, rhs, lhs_scales, rhs_scales)
    wide = not isinstance(left, BlockScaled)
    result: jax.Array = matmul(
        left,
        right.mT if right.ndim > 1 else right,
        precision=lax.Precision.HIGHEST if wide else None,
        preferred_element_type=preferred_element_type,
        implementation=implementation,
    )
    return result


def _block_of(name: str, x: Any, scales: Any, given: int | None) -> int:
    """How many elements share a scale, checked."""
    shapes = (
        f"{_CALL}: {name} {describe(x.dtype, x.shape)}, "
        f"{name}_scales {describe(scales.dtype, scales.shape)}"
    )
    if x.ndim < 1 or x.shape[:-1] != scales.shape[:-1]:
        raise ValueError(f"{shapes}: they have the same dimensions, but for blocks in place of k")
    (k, count), format = (x.shape[-1], scales.shape[-1]), _format_of(x, scales)
    candidates = [given] if given is not None else [format.block] if format is not None else []
    candidates = [block for block in candidates if block > 0 and -(-k // block) == count]
    if given is None and count and k % count == 0:
        candidates.append(k // count)
    if k == count == 0 and format is None:
        return 1
    if not candidates:
        size = "a block_size" if given is None else f"blocks of {given}"
        raise ValueError(f"{shapes}: {count} scales are not those of {k} elements in {size}")
    if count > 1 and len({*candidates}) > 1:
        raise ValueError(
            f"{shapes}: blocks may have {candidates[1]} elements, as of jax.nn.scaled_matmul, or "
            f"{candidates[0]} but for the last one; pass block_size"
        )
    return candidates[0]


def _format_of(x: Any, scales: Any) -> BlockFormat | None:
    return block_formats.format_of(x.dtype, scales.dtype)


@partial(jax.jit, static_argnums=0, inline=compat.INLINED)
def _operands(
    blocks: tuple[int, int], lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any
) -> tuple[Any, Any]:
    """Operands of a matmul, both of which have a block-scaled format, or none."""
    sides = [*zip((lhs, rhs), (lhs_scales, rhs_scales), blocks, strict=True)]
    formats = [_format_of(x, scales) for x, scales, _ in sides]
    if all(f is not None and b % f.block == 0 for f, b in zip(formats, blocks, strict=True)):
        made = [_block_scaled(f, *side) for f, side in zip(formats, sides, strict=True)]
    else:
        made = [_dequantized(*side) for side in sides]
    return made[0], made[1]


def _block_scaled(format: Any, x: Any, scales: Any, block: int) -> BlockScaled:
    k = x.shape[-1]
    if scales.dtype == E8M0:
        scales = undifferentiated(scales)
    scales = _repeated(scales, block // format.block, -(-k // format.block))
    tiles = scale_tiles.tiled(scales if x.ndim > 1 else scales[None])
    dtype = np.dtype(np.float32)
    return BlockScaled(padded(x), tiles, None, None, None, format.name, -1, k, dtype)


def _dequantized(x: Any, scales: Any, block: int) -> Any:
    wide = np.float64 if np.float64 in (x.dtype, scales.dtype) else np.float32
    if scales.dtype == E8M0:
        scales = undifferentiated(scales)
    return x.astype(wide) * _repeated(scales.astype(wide), block, x.shape[-1])


def _repeated(scales: Any, times: int, count: int) -> Any:
    return scales if times == 1 else jnp.repeat(scales, times, axis=-1)[..., :count]
