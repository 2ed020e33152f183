"""dot_generals that multiply in float8, forward and backward: with current, or delayed scales.

fp8_mlp.py has a feed-forward block whose hidden layer is float8 and nothing else.

Forward e4m3 by e4m3 at DEFAULT precision (fast accumulation); backward the result's cotangent is
e5m2, and the precision HIGHEST, as of Flax. The scales are one factor in the matmul's epilogue.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxbw._src import compat
from jaxbw._src.api import arguments
from jaxbw._src.api.matmul import dot_general
from jaxbw._src.api.quantize import quantize
from jaxbw._src.fp8 import FORMATS
from jaxbw._src.primitives.transposition import transposition
from jaxbw._src.problem import DimensionNumbers


class Meta(NamedTuple):
    """The state of one tensor under delayed scaling, float32 or a dtype that converts to it.

    Attributes:
      scale: `[1]`, of the step before.
      amax_history: `[length]`, the latest amax first.
    """

    scale: Any
    amax_history: Any


class State(NamedTuple):
    """That of a layer."""

    input: Meta
    kernel: Meta
    output_grad: Meta


class Static(NamedTuple):
    dims: DimensionNumbers
    dtype: Any  # of the results
    compute: Any  # in which Flax divides by the scale


def fp8_dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out_sharding: Any = None,
) -> jax.Array:
    """`lax.dot_general` in float8 with current scaling: the recipe "fp8_current".

    Both operands are quantized as e4m3, each with one scale; in the backward pass the cotangent as
    e5m2, and the gradients are in the operands' dtypes. Reverse mode only. It has no state:
    `nn.Dense(512, dot_general=jaxbw.fp8_dot_general)`. Kernels
    read the scales as alpha.

    Args:
      lhs, rhs, dimension_numbers: as of `lax.dot_general`, of real floating dtypes.
      precision: not looked at: forward DEFAULT, which allows fast accumulation, backward HIGHEST.
      preferred_element_type: dtype of the result; default that of the operands together.
      out_sharding: None.

    Returns:
      As of `lax.dot_general`.

    Raises:
      TypeError, ValueError: as `jaxbw.dot_general`; operands that are not real floating.
      NotImplementedError: an out_sharding.

    >>> x, w = jnp.full((2, 3), 7.0), jnp.full((3, 4), 3.5)
    >>> jaxbw.fp8_dot_general(x, w, (((1,), (0,)), ((), ())))[0]
    Array([73.5, 73.5, 73.5, 73.5], dtype=float32)
    """
    del precision
    given = checked("jaxbw.fp8_dot_general", lhs, rhs, dimension_numbers, preferred_element_type)
    if out_sharding is not None:
        raise NotImplementedError("jaxbw.fp8_dot_general: out_sharding is to be None")
    return _current(*given)


def delayed_dot_general(
    lhs: Any, rhs: Any, dimension_numbers: Any, state: State, preferred_element_type: Any = None
) -> jax.Array:
    """`fp8_dot_general` with scales from the history: the recipe "fp8_delayed".

    Flax's `Fp8DirectDotGeneralOp`, operation by operation, but that the result is rounded to its
    dtype once, behind the scales. The cotangent of the state is the state of the next step.
    """
    call = "fp8_delayed"
    compute = jnp.asarray(rhs).dtype
    lhs = jnp.asarray(lhs, compute)
    static, lhs, rhs = checked(call, lhs, rhs, dimension_numbers, preferred_element_type)
    return _delayed(static, lhs, rhs, state)


def checked(
    call: str, lhs: Any, rhs: Any, dims: Any, preferred_element_type: Any
) -> tuple[Static, Any, Any]:
    """What does not depend on the numbers, and the operands as arrays."""
    dtype, lhs, rhs = floating(call, lhs, rhs, preferred_element_type)
    dims = arguments.dimension_numbers(call, dims, (lhs.ndim, rhs.ndim))
    return Static(dims, dtype, rhs.dtype), lhs, rhs


def floating(call: str, lhs: Any, rhs: Any, preferred_element_type: Any) -> tuple[Any, Any, Any]:
    """The dtype of the result, and the operands as arrays, checked to be real floating."""
    lhs, rhs = arguments.array(call, "lhs", lhs), arguments.array(call, "rhs", rhs)
    for name, x in (("lhs", lhs), ("rhs", rhs)):
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise TypeError(f"{call}: {name} is {x.dtype}; cast it to a real floating dtype")
    dtype = preferred_element_type or jnp.result_type(lhs, rhs)
    # Here, so that the operands vary over the same mesh axes as their cotangents.
    return jnp.dtype(dtype), *compat.insert_reshard(lhs, rhs)


def forward(static: Static, lhs: Any, rhs: Any, scale: Any, bias: Any = None) -> jax.Array:
    """The matmul of float8 arrays, by the product of their scales."""
    default = lax.Precision.DEFAULT
    out: jax.Array = dot_general(
        *(lhs, rhs, static.dims, default, static.dtype), alpha=scale, bias=bias
    )
    return out


def backward(
    static: Static, types: Any, scaled: tuple[Any, Any], cotangent: tuple[Any, Any]
) -> tuple[Any, Any]:
    """The cotangents of lhs and rhs: each operand is data and scale."""
    bars = []
    ranks = (types[0].ndim, types[1].ndim)
    for side in (0, 1):
        plan = transposition(ranks, static.dims, of_rhs=bool(side))
        data, scale = scaled[1 - side]
        matmul = dot_general(
            *plan.operands(cotangent[0], data),
            plan.dimension_numbers,
            lax.Precision.HIGHEST,
            static.dtype,
            out_sharding=plan.sharding(types[side]),
            alpha=scale * cotangent[1],
        )
        bars.append(plan.result(matmul, types[side]))
    return bars[0], bars[1]


# Current scaling


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _current(static: Static, lhs: Any, rhs: Any) -> jax.Array:
    out: jax.Array = _current_forward(static, lhs, rhs)[0]
    return out


def _current_forward(static: Static, lhs: Any, rhs: Any) -> Any:
    pairs = tuple((q.data, q.scale) for q in (quantize(x, "e4m3") for x in (lhs, rhs)))
    (left, left_scale), (right, right_scale) = pairs
    out = forward(static, left, right, left_scale * right_scale)
    return out, (pairs, nothing(lhs), nothing(rhs))


def _current_backward(static: Static, kept: Any, bar: Any) -> Any:
    pairs, *nothings = kept
    types = types_of(pairs, nothings)
    q = quantize(bar, "e5m2")
    return backward(static, types, pairs, (q.data, q.scale))


_current.defvjp(_current_forward, _current_backward)


# Delayed scaling


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _delayed(static: Static, lhs: Any, rhs: Any, state: State) -> jax.Array:
    out: jax.Array = _delayed_forward(static, lhs, rhs, state)[0]
    return out


def _delayed_forward(static: Static, lhs: Any, rhs: Any, state: State) -> Any:
    left, left_meta = by_history(lhs, "e4m3", state.input, static.compute)
    right, right_meta = by_history(rhs, "e4m3", state.kernel, static.compute)
    pairs = ((left, scalar(left_meta)), (right, scalar(right_meta)))
    out = forward(static, left, right, pairs[0][1] * pairs[1][1])
    return out, (pairs, nothing(lhs), nothing(rhs), left_meta, right_meta, state.output_grad)


def _delayed_backward(static: Static, kept: Any, bar: Any) -> Any:
    pairs, *nothings, left_meta, right_meta, meta = kept
    types = types_of(pairs, nothings)
    data, new_meta = by_history(bar, "e5m2", meta, static.dtype)
    bars = backward(static, types, pairs, (data, scalar(new_meta)))
    return *bars, State(left_meta, right_meta, new_meta)


_delayed.defvjp(_delayed_forward, _delayed_backward)


def by_history(x: Any, format: str, meta: Meta, compute: Any) -> tuple[Any, Meta]:
    """x as float8 by the scale of the history, and the state of the next step."""
    new_scale = next_scale(format, meta)
    most = jnp.asarray(FORMATS[format].max, jnp.float32).astype(compute)
    data = jnp.clip(x / new_scale.astype(compute), -most, most).astype(FORMATS[format].dtype)
    return data, next_state(meta, new_scale, jnp.max(jnp.abs(x)))


def next_scale(format: str, meta: Meta) -> jax.Array:
    """The scale of this step, which the history says before there is a tensor."""
    scale, history = (lax.convert_element_type(each, jnp.float32) for each in meta)
    largest = jnp.asarray(FORMATS[format].max, jnp.float32)
    amax = jnp.max(history, axis=0)
    inverse = jnp.where(amax > 0, largest / amax, 1.0 / scale)
    inverse = jnp.where(jnp.isfinite(amax), inverse, 1.0 / scale)
    return 1.0 / inverse


def next_state(meta: Meta, scale: jax.Array, amax: jax.Array) -> Meta:
    """The state of the next step, by the scale and the amax of this one."""
    history = lax.convert_element_type(meta.amax_history, jnp.float32)
    # In a shard_map the state is that of all devices which share it.
    latest = compat.max_over(amax.astype(jnp.float32), like=history)
    new = (scale, jnp.roll(history, -1).at[0].set(latest))
    return Meta(*(lax.convert_element_type(a, b.dtype) for a, b in zip(new, meta, strict=True)))


def scalar(meta: Meta) -> Any:
    return lax.convert_element_type(meta.scale, jnp.float32).reshape(())


def nothing(x: Any) -> Any:
    """An array of x's dtype without elements: what a residual can say of it."""
    return jnp.zeros(0, x.dtype)


def types_of(pairs: Any, nothings: Any) -> list[Any]:
    return [
        jax.typeof(data).update(dtype=nothing.dtype)
        for (data, _), nothing in zip(pairs, nothings, strict=True)
    ]
