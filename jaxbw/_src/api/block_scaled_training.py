"""dot_generals in block-scaled formats, with gradients: jax.nn's, and recipes to train by.

The cotangent of a result is quantized, too, and multiplied by the operands in blocks along the
dimension that the backward matmul contracts. These, made beside those of the forward matmul, are
all that is kept for it.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbw._src import block_formats, compat
from jaxbw._src.api import arguments
from jaxbw._src.api.fp8_training import checked
from jaxbw._src.api.matmul import dot_general, matmul
from jaxbw._src.api.quantize import quantize
from jaxbw._src.primitives.transposition import kept
from jaxbw._src.problem import describe
from jaxbw._src.selection.implementations import Implementation


class _Recipe(NamedTuple):
    """What is quantized to which format.

    Attributes:
      lhs, rhs: names of formats.
      cotangent: likewise; None: the backward matmuls are of the operands as they were, and what
        a global scale does not reach has no gradient.
      square_rhs: rhs has square blocks, so that it is the same numbers forward and backward.
    """

    lhs: str
    rhs: str
    cotangent: str | None
    square_rhs: bool = False


class _Static(NamedTuple):
    recipe: _Recipe
    dtype: Any  # of the result
    implementation: Implementation
    shardings: tuple[Any, Any]  # of the operands and their gradients, in an explicit mesh


_MXFP8 = _Recipe("mxfp8", "mxfp8", "mxfp8")
_NVFP4 = _Recipe("nvfp4", "nvfp4", "nvfp4", square_rhs=True)


def mxfp8_dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out_sharding: Any = None,
) -> jax.Array:
    """`lax.dot_general` in MXFP8, forward and backward: the recipe "mxfp8".

    Both operands and the result's cotangent are quantized (`jaxbw.quantize`), each along the
    dimensions that a matmul contracts; for the backward pass operands are kept as that. It has
    no state: `nn.Dense(512, dot_general=jaxbw.mxfp8_dot_general)`. Reverse mode only: what is kept
    of the operands lies in blocks for the cotangent, along which no tangent is contracted.

    Args:
      lhs, rhs, dimension_numbers: as of `lax.dot_general`, of real floating dtypes.
      precision: not looked at.
      preferred_element_type: dtype of the result; default that of the operands together.
      out_sharding: None.

    Returns:
      As of `lax.dot_general`.

    Raises:
      TypeError, ValueError: as `jaxbw.dot_general`; operands that are not real floating; forward
        mode ("to a custom_vjp function").
      NotImplementedError: an out_sharding.

    >>> x, w = jnp.full((2, 40), 7.0), jnp.full((40, 3), 3.5)
    >>> jaxbw.mxfp8_dot_general(x, w, (((1,), (0,)), ((), ())))[0]
    Array([980., 980., 980.], dtype=float32)
    """
    del precision
    call = "jaxbw.mxfp8_dot_general"
    return _by_recipe(
        call, lhs, rhs, dimension_numbers, preferred_element_type, out_sharding, _MXFP8
    )


def nvfp4_dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    key: Any = None,
    out_sharding: Any = None,
) -> jax.Array:
    """`lax.dot_general` in NVFP4, forward and backward: the recipe "nvfp4".

    As `mxfp8_dot_general`, with a global scale of each array at each call. rhs, the weights of a
    layer, has square blocks, 16x16 (https://arxiv.org/abs/2509.25149). With a key of jax.random
    the backward pass is as there, too: the cotangent is rounded stochastically, and what the
    gradient of rhs contracts, both operands, is rotated by a random Hadamard transform of 16, which
    spreads outliers and leaves the product as it is. The same key gives the same bits; take another
    at each call, as `nn.Dense(512, dot_general=partial(jaxbw.nvfp4_dot_general, key=key))`. Default
    None: to nearest, unrotated.

    >>> x, w = jnp.full((2, 40), 7.0), jnp.full((40, 3), 3.5)
    >>> jaxbw.nvfp4_dot_general(x, w, (((1,), (0,)), ((), ())))[0].round()
    Array([980., 980., 980.], dtype=float32)
    """
    del precision
    call = "jaxbw.nvfp4_dot_general"
    return _by_recipe(
        call, lhs, rhs, dimension_numbers, preferred_element_type, out_sharding, _NVFP4, key
    )


def _by_recipe(
    call: str,
    lhs: Any,
    rhs: Any,
    dims: Any,
    dtype: Any,
    out_sharding: Any,
    recipe: _Recipe,
    key: Any = None,
) -> jax.Array:
    if out_sharding is not None:
        raise NotImplementedError(f"{call}: out_sharding is to be None")
    return _dot_general(call, lhs, rhs, dims, dtype, recipe, (None, None), None, key)


def scaled_dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: Any,
    preferred_element_type: Any = np.float32,
    configs: Sequence[Any] | None = None,
    implementation: Implementation = None,
) -> jax.Array:
    """`jax.nn.scaled_dot_general`: operands are quantized as configs say, and multiplied.

    Of any rank and size, on any platform. Gradients are as of jax.nn: with "mxfp8" as the third
    config, of quantized matmuls, for which the operands are kept quantized; with "nvfp4" those of
    the operands, 0 where a number is beyond what its global scale reaches. Reverse mode only, as of
    `mxfp8_dot_general`.

    Args:
      lhs, rhs: arrays of real floating dtypes.
      dimension_numbers: as of `lax.dot_general`.
      preferred_element_type: dtype of the result; None: that of the operands together.
      configs: three of `jax.nn.get_scaled_dot_general_config`, for lhs, rhs, and the cotangent; or
        default None, `jaxbw.dot_general`.
      implementation: as of `matmul`; it is about the forward matmul.

    Returns:
      As of `lax.dot_general`.

    Raises:
      TypeError: as `jaxbw.dot_general`; operands that are not real floating.
      ValueError: likewise; other configs.
      NotImplementedError: a strict implementation that does not serve it.

    >>> configs = [jax.nn.get_scaled_dot_general_config("mxfp8")] * 3
    >>> x, w = jnp.full((2, 40), 7.0), jnp.full((40, 3), 3.5)
    >>> jaxbw.scaled_dot_general(x, w, (((1,), (0,)), ((), ())), configs=configs)[0]
    Array([980., 980., 980.], dtype=float32)
    """
    call, dtype = "jaxbw.scaled_dot_general", preferred_element_type
    if configs is None:
        plain: jax.Array = dot_general(
            lhs, rhs, dimension_numbers, None, dtype, implementation=implementation
        )
        return plain
    if len(configs) != 3:
        raise ValueError(f"{call}: there are {len(configs)} configs; they are for lhs, rhs, grad")
    left, right, cotangent = (_format_of(call, config) for config in configs)
    recipe = _Recipe(left.name, right.name, None if cotangent.has_global_scale else cotangent.name)
    scales = tuple(config.global_scale for config in configs[:2])
    return _dot_general(call, lhs, rhs, dimension_numbers, dtype, recipe, scales, implementation)


def _format_of(call: str, config: Any) -> block_formats.BlockFormat:
    dtypes = np.dtype(config.data_type), np.dtype(config.scale_type)
    format = block_formats.format_of(*dtypes)
    if format is None or format.block != config.block_size:
        known = ", ".join(
            f"{f.element.dtype} by {np.dtype(f.scale)} in {f.block}"
            for f in block_formats.FORMATS.values()
        )
        raise ValueError(
            f"{call}: a config has {dtypes[0]} by {dtypes[1]} in blocks of {config.block_size}; "
            f"there are {known}"
        )
    return format


def _dot_general(
    call: str,
    lhs: Any,
    rhs: Any,
    dims: Any,
    dtype: Any,
    recipe: _Recipe,
    global_scales: Any,
    implementation: Implementation,
    key: Any = None,
) -> jax.Array:
    """As one matmul of `[..., m, k]` and `[..., k, n]`: blocks lie along a single dimension."""
    implementation = arguments.hashable(call, "implementation", implementation)
    static, lhs, rhs = checked(call, lhs, rhs, dims, dtype)
    contracted, batch = static.dims
    for of_lhs, of_rhs in (contracted, batch):
        if [lhs.shape[i] for i in of_lhs] != [rhs.shape[i] for i in of_rhs]:
            raise TypeError(
                f"{call}: lhs {describe(lhs.dtype, lhs.shape)}, rhs "
                f"{describe(rhs.dtype, rhs.shape)}: dimensions {of_lhs} and {of_rhs} of "
                "dimension_numbers differ in size"
            )
    rows = kept(lhs.ndim, contracted[0], batch[0])
    columns = kept(rhs.ndim, contracted[1], batch[1])
    left = _flattened(lhs, batch[0], rows, contracted[0])
    right = _flattened(rhs, batch[1], contracted[1], columns)
    shardings = (compat.explicit_sharding(left), compat.explicit_sharding(right))
    matmul_static = _Static(recipe, static.dtype, implementation, shardings)
    result = _matmul(matmul_static, left, right, global_scales, key)
    shape = [lhs.shape[i] for i in (*batch[0], *rows)] + [rhs.shape[i] for i in columns]
    return result.reshape(shape)


def _flattened(x: Any, batch: Any, *parts: Any) -> Any:
    """x with these dimensions in front, and those of each part as one."""
    order = (*batch, *(i for part in parts for i in part))
    sizes = [math.prod(x.shape[i] for i in part) for part in parts]
    return lax.transpose(x, order).reshape(*(x.shape[i] for i in batch), *sizes)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _matmul(static: _Static, lhs: Any, rhs: Any, global_scales: Any, key: Any) -> jax.Array:
    result: jax.Array = _forward(static, lhs, rhs, global_scales, key)[0]
    return result


def _forward(static: _Static, lhs: Any, rhs: Any, global_scales: Any, key: Any) -> Any:
    recipe = static.recipe
    both = recipe.cotangent is not None
    of_lhs, of_rhs = global_scales
    left: Any = quantize(lhs, recipe.lhs, axis=-1, both=both and key is None, global_scale=of_lhs)
    square = recipe.square_rhs
    options: Any = {"axis": -2, "square": square, "both": both, "global_scale": of_rhs}
    right: Any = quantize(rhs, recipe.rhs, **options)
    result = matmul(
        left,
        right,
        preferred_element_type=static.dtype,
        implementation=static.implementation,
    )
    if not both:
        return result, (lhs, rhs, global_scales, key)
    if key is None:
        left = left.along(-2).alone()
    else:
        *_, rotation = _split(key)
        left = quantize(lhs, recipe.lhs, axis=-2, rotation=rotation)
    return result, (left, right.along(-1).alone(), None, key)


def _backward(static: _Static, residuals: Any, bar: Any) -> Any:
    lhs, rhs, global_scales, key = residuals
    cotangent = static.recipe.cotangent
    along_rows = along_columns = bar
    if cotangent is not None and key is None:
        along_rows = along_columns = quantize(bar, cotangent, both=True)
    elif cotangent is not None:
        of_rows, of_columns, rotation = _split(key)
        along_rows = quantize(bar, cotangent, key=of_rows)
        along_columns = quantize(bar, cotangent, axis=-2, key=of_columns, rotation=rotation)
    left, right = static.shardings
    of_lhs = matmul(along_rows, rhs.mT, preferred_element_type=lhs.dtype, out_sharding=left)
    of_rhs = matmul(lhs.mT, along_columns, preferred_element_type=rhs.dtype, out_sharding=right)
    if cotangent is None:
        of_lhs, of_rhs = (
            _within_reach(of_x, x, name, scale)
            for of_x, x, name, scale in zip(
                (of_lhs, of_rhs), (lhs, rhs), static.recipe[:2], global_scales, strict=True
            )
        )
    return of_lhs, of_rhs, (None, None), None


def _split(key: Any) -> Any:
    """Keys of rounding the cotangent along its rows and its columns, and of the rotation."""
    return jax.random.split(key, 3)


def _within_reach(bar: Any, x: Any, format: str, global_scale: Any) -> Any:
    """A gradient, 0 where x is beyond the largest number of its format."""
    form = block_formats.FORMATS[format]
    if not form.has_global_scale or global_scale is None:  # one of amax reaches all
        return bar
    return jnp.where(jnp.abs(x) <= form.largest * global_scale, bar, 0)


_matmul.defvjp(_forward, _backward)
