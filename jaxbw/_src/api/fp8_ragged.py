"""ragged_dot that multiplies in 8 bits, with gradients: float8 with current scales, or MXFP8.

Of float8 each row and each matrix has a scale. Hopper's tensor cores take 8 bits along k alone.
That is what the result and the gradient of lhs are summed along, of weights in either orientation,
which `quantize(both=True)` writes; the gradient of the weights is summed along rows, whose scales
are no factors of it, and for which Hopper would have lhs and cotangent transposed within their
groups. Blocks of MXFP8 along rows would straddle groups. So it is a matmul of 16 bits.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxbw._src.api.arguments import Quantized
from jaxbw._src.api.block_scaled import BlockScaled
from jaxbw._src.api.fp8_training import floating, nothing
from jaxbw._src.api.quantize import quantize
from jaxbw._src.api.ragged import ragged_dot
from jaxbw._src.problem import describe


class _Recipe(NamedTuple):
    """What is quantized how: keywords of `quantize`."""

    rows: dict[str, Any]
    matrices: dict[str, Any]
    cotangent: dict[str, Any]


_RECIPES = {
    "fp8": _Recipe(
        rows={"format": "e4m3", "axis": -1},
        matrices={"format": "e4m3", "axis": (-2, -1), "both": True},
        cotangent={"format": "e5m2", "axis": -1},
    ),
    "mxfp8": _Recipe(
        rows={"format": "mxfp8"},
        matrices={"format": "mxfp8", "axis": -2, "both": True},
        cotangent={"format": "mxfp8"},
    ),
}


class _Static(NamedTuple):
    recipe: str
    precision: Any
    dtype: Any  # of the result
    rows_per_group: int | None


def fp8_ragged_dot(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    *,
    rows_per_group: int | None = None,
    quantized: Any = None,
) -> jax.Array:
    """`ragged_dot` in float8 with current scaling.

    Rows of lhs are quantized as e4m3 with a scale each, matrices of rhs with one each; in the
    backward pass rows of the cotangent as e5m2, which gives the gradient of lhs. That of rhs is a
    matmul of lhs and the cotangent in 16 bits: bfloat16, or float16 of float16 operands. Gradients
    are in the operands' dtypes. Reverse mode only, once. Each of the three is a kernel.
    Weights are quantized at each call, and it takes some thousand rows of a group to gain, unless
    `quantized` is given.

    Args:
      lhs, rhs, group_sizes, group_offset, rows_per_group: as of `ragged_dot`; operands are real
        floating, and none is `Quantized`.
      precision: of both matmuls in float8. Default None: fast accumulation; "highest" sums in
        float32.
      preferred_element_type: dtype of the result; default that of the operands together.
      quantized: what `quantize(rhs, "e4m3", axis=(-2, -1), both=True)` gave, for several calls with
        the same weights: a step's microbatches, or what `jax.checkpoint` computes again. The
        gradient is rhs's, of which the values are not read. Inside of what is differentiated,
        quantize `jax.lax.stop_gradient(rhs)`. Default None: rhs is quantized here.

    Returns:
      `[m, n]`.

    Raises:
      TypeError, ValueError: as `ragged_dot`; operands that are not real floating; a `quantized`
        that is not of rhs's shape, e4m3, with a scale for each matrix and its transpose.

    >>> x, experts = jnp.full((3, 2), 7.0), jnp.full((2, 2, 1), 3.5)
    >>> jaxbw.fp8_ragged_dot(x, experts, jnp.array([1, 1]))[:, 0]
    Array([49., 49.,  0.], dtype=float32)
    """
    static = _Static("fp8", precision, preferred_element_type, rows_per_group)
    return _checked(static, lhs, rhs, quantized, group_sizes, group_offset)


def mxfp8_ragged_dot(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    *,
    rows_per_group: int | None = None,
    quantized: Any = None,
) -> jax.Array:
    """`ragged_dot` in MXFP8, as `mxfp8_dot_general` is a `dot_general`.

    Rows of lhs and columns of rhs are quantized along k, in the backward pass those of
    the cotangent, and rows of rhs, along n. All else is as of `fp8_ragged_dot`: the gradient of rhs
    is a matmul in 16 bits.

    Args:
      lhs, rhs, group_sizes, preferred_element_type, group_offset, rows_per_group: as of
        `fp8_ragged_dot`.
      precision: not looked at.
      quantized: what `quantize(rhs, "mxfp8", axis=-2, both=True)` gave, as of `fp8_ragged_dot`.

    Returns:
      `[m, n]`.

    Raises:
      TypeError, ValueError: as `fp8_ragged_dot`.

    >>> x, experts = jnp.full((3, 40), 7.0), jnp.full((2, 40, 1), 3.5)
    >>> jaxbw.mxfp8_ragged_dot(x, experts, jnp.array([1, 1]))[:, 0]
    Array([980., 980.,   0.], dtype=float32)
    """
    del precision
    static = _Static("mxfp8", None, preferred_element_type, rows_per_group)
    return _checked(static, lhs, rhs, quantized, group_sizes, group_offset)


def _checked(
    static: _Static, lhs: Any, rhs: Any, quantized: Any, sizes: Any, offset: Any
) -> jax.Array:
    """Of arguments as they are given; a dtype of None is the operands'."""
    call = f"jaxbw.{static.recipe}_ragged_dot"
    dtype, lhs, rhs = floating(call, lhs, rhs, static.dtype)
    if quantized is not None:
        check = _check_blocks if static.recipe == "mxfp8" else _check
        check(call, rhs, quantized)
    static = static._replace(dtype=dtype)
    out: jax.Array = _grouped(static, lhs, rhs, quantized, sizes, offset)
    return out


def _check(call: str, rhs: Any, quantized: Any) -> None:
    if not isinstance(quantized, Quantized):
        raise TypeError(f"{call}: quantized is a {type(quantized).__name__}, and no Quantized")
    data, scale = quantized.data, quantized.scale
    is_whole = data.dtype == jnp.float8_e4m3fn and quantized.transposed is not None
    if not is_whole or data.shape != rhs.shape or scale.shape != (*rhs.shape[:-2], 1, 1):
        raise ValueError(
            f"{call}: quantized is {describe(data.dtype, data.shape)} with scales "
            f"{describe(scale.dtype, scale.shape)}, and rhs {describe(rhs.dtype, rhs.shape)}; "
            'it is quantize(rhs, "e4m3", axis=(-2, -1), both=True)'
        )


def _check_blocks(call: str, rhs: Any, quantized: Any) -> None:
    if not isinstance(quantized, BlockScaled):
        raise TypeError(f"{call}: quantized is a {type(quantized).__name__}, and no BlockScaled")
    q = quantized
    has_both = q.axis == -2 and q.transposed_scale is not None
    if q.format != "mxfp8" or q.shape != rhs.shape or not has_both:
        raise ValueError(
            f"{call}: quantized is {describe(q.dtype, q.shape)} in {q.format}, with blocks along "
            f"{q.axis}, and rhs {describe(rhs.dtype, rhs.shape)}; "
            'it is quantize(rhs, "mxfp8", axis=-2, both=True)'
        )


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _grouped(
    static: _Static, lhs: Any, rhs: Any, quantized: Any, sizes: Any, offset: Any
) -> jax.Array:
    out: jax.Array = _forward(static, lhs, rhs, quantized, sizes, offset)[0]
    return out


def _forward(static: _Static, lhs: Any, rhs: Any, quantized: Any, sizes: Any, offset: Any) -> Any:
    recipe = _RECIPES[static.recipe]
    rows = quantize(lhs, **recipe.rows)
    matrices = quantize(rhs, **recipe.matrices) if quantized is None else quantized
    out = _multiply(static, rows, matrices, sizes, offset, static.precision, static.dtype)
    if isinstance(matrices, BlockScaled):
        matrices = matrices.along(-1).alone()
    return out, (lhs, matrices, sizes, offset, nothing(rhs))


def _backward(static: _Static, kept: Any, bar: Any) -> Any:
    lhs, matrices, sizes, offset, of_rhs = kept
    rows = quantize(bar, **_RECIPES[static.recipe].cotangent)
    of_lhs = _multiply(static, rows, matrices.mT, sizes, offset, static.precision, lhs.dtype)
    narrow = jnp.float16 if lhs.dtype == jnp.float16 == bar.dtype else jnp.bfloat16

    def in_16_bits(matrices: Any) -> jax.Array:
        return _multiply(static, lhs.astype(narrow), matrices, sizes, offset, None, narrow)

    transposed = jax.linear_transpose(
        in_16_bits,
        jax.ShapeDtypeStruct((*matrices.shape[:-2], lhs.shape[-1], bar.shape[-1]), narrow),
    )
    (product,) = transposed(bar.astype(narrow))
    return of_lhs, product.astype(of_rhs.dtype), None, None, None


def _multiply(
    static: _Static, rows: Any, matrices: Any, sizes: Any, offset: Any, precision: Any, dtype: Any
) -> jax.Array:
    hint = static.rows_per_group
    return ragged_dot(rows, matrices, sizes, precision, dtype, offset, rows_per_group=hint)


_grouped.defvjp(_forward, _backward)
