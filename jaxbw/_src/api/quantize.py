"""`jaxbw.quantize`: an array as float8 with scales, which `jaxbw.matmul` takes as an operand."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbw._src import blocks, compat, fp8
from jaxbw._src.api import arguments
from jaxbw._src.api.arguments import Quantized
from jaxbw._src.primitives import quantize as primitive
from jaxbw._src.problem import describe
from jaxbw._src.selection.implementations import Implementation
from jaxbw._src.selection.policy import policy_of


def quantize(
    x: Any,
    format: str,
    *,
    axis: int | Sequence[int] | None = None,
    block: int | None = None,
    both: bool = False,
    implementation: Implementation = None,
) -> Quantized:
    """An array as float8, with the scales that use the whole range of the format.

    A scale is amax / max: the largest finite magnitude of what shares the scale, by the largest
    number of the format, 448 of "e4m3" and 57344 of "e5m2"; 1 where amax is 0. The data are
    x / scale (x times the rounded reciprocal), rounded to nearest even. They saturate: infinities
    become the largest numbers, as of PTX's cvt.satfinite, and do not count for amax. NaN stays NaN.
    All is computed from x in float32, whose subnormal numbers count as 0, and gives the same bits
    on every platform. Under `jit`, amax over a sharded axis is that of all shards.

    On CUDA a kernel serves float32, bfloat16 and float16 whose scales are shared along the last
    dimensions, in programs of one device and in a `shard_map`; XLA what is left. The results are
    the same.

    It has no derivative, since a cotangent in float8 without a scale would vanish: what is
    differentiated is refused. `jaxbw.fp8_dot_general` has gradients.

    Args:
      x: an array of a real floating dtype.
      format: "e4m3" or "e5m2".
      axis: the dimensions along which a scale is shared; default None, all. For `matmul` that is
        the one that is contracted: -1 of lhs, for a scale of each row, and -2 of rhs, for a scale
        of each column.
      block: 128: along these dimensions each 128 elements share a scale, and what is left of them;
        default None, all. axis=-1 gives DeepSeek's scales of activations, 1x128, and axis=(-2, -1)
        of weights, 128x128, which `matmul` takes together.
      both: also the transposed data, for weights that a kernel reads in both directions; default
        False.
      implementation: as of `matmul`, and as strict; default None. What the context
        `jaxbw.implementation` names serves where it can, and XLA elsewhere.

    Returns:
      A `Quantized`: a scalar scale if `axis` is None, else one with size 1 along `axis`, or of
      blocks with their number.

    Raises:
      TypeError: x is no array, or not real floating; it is differentiated.
      ValueError: an unknown format; an axis that x has not; another `block`; `both`
        of less than two dimensions; an unknown implementation.
      NotImplementedError: a strict implementation that does not take x.

    >>> q = jaxbw.quantize(jnp.array([[1.0, -7.0], [0.5, 1.75]]), "e4m3", axis=-1)
    >>> q.data
    Array([[64, -448],
           [128, 448]], dtype=float8_e4m3fn)
    >>> q.scale.shape, q.dequantized().tolist()
    ((2, 1), [[1.0, -7.0], [0.5, 1.75]])
    """
    call = "jaxbw.quantize"
    x = arguments.array(call, "x", x)
    if not isinstance(format, str) or format not in fp8.FORMATS:
        names = ", ".join(map(repr, fp8.FORMATS))
        raise ValueError(f"{call}: format is {arguments.shown(format)}; it is one of {names}")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"{call}: x is {x.dtype}; cast it to a real floating dtype")
    if both and x.ndim < 2:
        raise ValueError(
            f"{call}: x is {describe(x.dtype, x.shape)} and both=True; only matrices are transposed"
        )
    if implementation is not None:
        implementation = arguments.hashable(call, "implementation", implementation)
    if block not in (None, blocks.BLOCK):
        raise ValueError(f"{call}: block is {arguments.shown(block)}; it is {blocks.BLOCK} or None")
    policy = policy_of(implementation, None, call)
    if implementation is None:  # a context's is about matmuls, first of all
        policy = policy.for_gradients
    served_by = (policy.implementation, policy.target)
    quantized: Quantized = _quantize(
        x, format, _axes(call, x, axis), block is not None, bool(both), served_by
    )
    return quantized


def _axes(call: str, x: Any, axis: Any) -> tuple[int, ...] | None:
    if axis is None:
        return None
    given = (axis,) if isinstance(axis, int | np.integer) else tuple(axis)
    if any(not isinstance(i, int | np.integer) or not -x.ndim <= i < x.ndim for i in given):
        raise ValueError(
            f"{call}: axis is {axis!r} and x {describe(x.dtype, x.shape)}; it is a dimension of x, "
            "a sequence of them, or None"
        )
    return tuple(sorted({int(i) % x.ndim for i in given}))


_ServedBy = tuple[tuple[str, ...] | None, str | None]  # implementation and target


@partial(jax.jit, static_argnums=(1, 2, 3, 4, 5), inline=compat.INLINED)
def _quantize(
    x: Any,
    format: str,
    axis: tuple[int, ...] | None,
    in_blocks: bool,
    both: bool,
    served_by: _ServedBy,
) -> Quantized:
    shared = tuple(range(x.ndim)) if axis is None else axis
    if in_blocks:
        data, scale = _blockwise(format, shared, served_by, x)
        turned = jnp.matrix_transpose(data) if both else None
        return Quantized(data, scale, turned, np.dtype(x.dtype))
    data, scale, *transposed = _rounded(format, shared, both, served_by, x)
    if axis is None:
        scale = scale.reshape(())
    return Quantized(data, scale, transposed[0] if both else None, np.dtype(x.dtype))


def _blockwise(format: str, axis: tuple[int, ...], served_by: _ServedBy, x: Any) -> tuple[Any, Any]:
    """The data, and a scale for each block: whole blocks, as a dimension of x that has two then."""
    behind = [-n % blocks.BLOCK if i in axis else 0 for i, n in enumerate(x.shape)]
    whole = jnp.pad(x, [(0, more) for more in behind]) if any(behind) else x
    shape: list[int] = []
    shared: list[int] = []
    for i, n in enumerate(whole.shape):
        shape += [n // blocks.BLOCK, blocks.BLOCK] if i in axis else [n]
        shared += [len(shape) - 1] if i in axis else []
    data, scale = _rounded(format, tuple(shared), False, served_by, whole.reshape(shape))
    data = data.reshape(whole.shape)[tuple(map(slice, x.shape))]
    return data, scale.reshape([blocks.count(n) if i in axis else n for i, n in enumerate(x.shape)])


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2, 3))
def _rounded(
    format: str, axis: tuple[int, ...], both: bool, served_by: _ServedBy, x: Any
) -> tuple[Any, ...]:
    implementation, target = served_by
    options: Any = {"both": both, "implementation": implementation, "target": target}
    return tuple(primitive.quantize(x, format, axis, **options))


@_rounded.defjvp
def _refuse(*_: Any) -> Any:
    raise TypeError(
        "jaxbw.quantize: x is differentiated, and float8 has no useful derivative; take "
        "jax.lax.stop_gradient(x), or jaxbw.fp8_dot_general, whose gradients are scaled"
    )
