"""`jaxbw.quantize`: an array of 8 or 4 bits with scales, an operand of `jaxbw.matmul`."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbw._src import block_formats, blocks, compat, fp8
from jaxbw._src.api import arguments
from jaxbw._src.api.arguments import Quantized
from jaxbw._src.api.block_scaled import BlockScaled, block_scaled
from jaxbw._src.primitives import quantize as primitive
from jaxbw._src.primitives import quantizing
from jaxbw._src.primitives.quantizing import undifferentiated
from jaxbw._src.problem import describe
from jaxbw._src.selection.implementations import Implementation
from jaxbw._src.selection.policy import policy_of


def quantize(
    x: Any,
    format: str,
    *,
    axis: int | Sequence[int] | None = None,
    block: int | None = None,
    scale_dtype: Any = None,
    square: bool = False,
    both: bool = False,
    global_scale: Any = None,
    key: Any = None,
    rotation: Any = None,
    implementation: Implementation = None,
) -> Quantized | BlockScaled:
    """An array as float8 or float4, with the scales that use the whole range of the format.

    Of "e4m3" and "e5m2" a scale is amax / max: the largest finite magnitude of what shares the
    scale, by the largest number of the format, 448 of "e4m3" and 57344 of "e5m2"; 1 where amax is
    0. The data are x / scale (x times the rounded reciprocal), rounded to nearest even. They
    saturate: infinities become the largest numbers, as of PTX's cvt.satfinite, and do not count for
    amax. NaN stays NaN. All is computed from x in float32, whose subnormal numbers count as 0, and
    gives the same bits on every platform. Under `jit`, amax over a sharded axis is that of all
    shards.

    On CUDA a kernel serves float32, bfloat16 and float16: block-scaled formats, all results in one
    pass over x, on several devices of what each has; and scales that are shared along the last
    dimensions, in programs of one device and in a `shard_map`. XLA serves what is left. The results
    are the same.

    The other formats are block-scaled, as Blackwell multiplies them: along `axis`, each 32 numbers
    (16 of "nvfp4") share a scale of 8 bits. Of MX formats
    (https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf) it is a
    power of two, amax / max of the block rounded up to one (https://arxiv.org/abs/2506.08027). Of
    "nvfp4" it is amax / 6 of x / global_scale, rounded to e4m3. A block with NaN or an infinity
    has the scale NaN, so that it is NaN as a whole; other bits are those of
    `jax.nn.scaled_dot_general`. A global scale that is not given XLA finds.

    It has no derivative, since a cotangent in float8 without a scale would vanish: what is
    differentiated is refused. `jaxbw.fp8_dot_general` has gradients.

    Args:
      x: an array of a real floating dtype.
      format: "e4m3" or "e5m2"; block-scaled "mxfp8" (e4m3), "mxfp8_e5m2", "mxfp4" or "nvfp4" (both
        e2m1).
      axis: the dimensions along which a scale is shared; default None, all, or of a block-scaled
        format -1, the only dimension then. For `matmul` that is the one that is contracted: -1 of
        lhs, for a scale of each row, and -2 of rhs, for a scale of each column.
      block: 128, of "e4m3" and "e5m2": along these dimensions each 128 elements share a scale, and
        what is left of them; default None, all. axis=-1 gives DeepSeek's scales of activations,
        1x128, and axis=(-2, -1) of weights, 128x128, which `matmul` takes together.
      scale_dtype: of "e4m3" and "e5m2": float32, or with `block` float8_e8m0fnu: scales are
        rounded up to powers of two, as DeepGEMM's, by XLA, and Blackwell's kernels multiply them,
        too, as MXFP8. Default None: float32, and of block-scaled formats their own.
      square: of a block-scaled format: blocks are square, of the last two dimensions, so that they
        are the same for an array and its transpose; default False.
      both: also the transposed data, for weights that a kernel reads in both directions; of a
        block-scaled format the array in blocks along the other one of its last two dimensions;
        default False.
      global_scale: of "nvfp4": a scalar that multiplies the whole array; default None, amax /
        (448 * 6) of it, 1 where that is 0.
      key: of "nvfp4": a key of jax.random, with which data are rounded stochastically, to either
        neighbour with the probability that makes the mean x. What is beyond 6 times its scale,
        since that was rounded down, becomes 6 times it. Default None, to nearest even.
      rotation: of "nvfp4" with axis=-2: a key of jax.random. x is padded to a multiple of 16 rows,
        each 16 of which get random signs and are mixed by a Hadamard matrix, which spreads
        outliers: `q.mT @ r` of two arrays rotated by one key is the product of the arrays. Default
        None.
      implementation: as of `matmul`, and as strict; default None. What the context
        `jaxbw.implementation` names serves where it can, and XLA elsewhere.

    Returns:
      A `Quantized`: a scalar scale if `axis` is None, else one with size 1 along `axis`, or of
      blocks with their number. Of a block-scaled format a `BlockScaled`.

    Raises:
      TypeError: x is no array, or not real floating; it is differentiated.
      ValueError: an unknown format; an axis that x has not, or of a block-scaled format several;
        another `block` or `scale_dtype`; `both` or `square` of less than two dimensions; a
        `square`, `global_scale`, `key` or `rotation` that the format has not; an unknown
        implementation.
      NotImplementedError: a strict implementation that does not take x.

    >>> q = jaxbw.quantize(jnp.array([[1.0, -7.0], [0.5, 1.75]]), "e4m3", axis=-1)
    >>> q.data
    Array([[64, -448],
           [128, 448]], dtype=float8_e4m3fn)
    >>> q.scale.shape, q.dequantized().tolist()
    ((2, 1), [[1.0, -7.0], [0.5, 1.75]])
    >>> q = jaxbw.quantize(jnp.array([[1.0, -7.0], [0.5, 1.75]]), "mxfp4")
    >>> q.data.shape, q.scale.shape, q.dequantized().tolist()
    ((2, 128), (1, 1, 512), [[1.0, -8.0], [0.5, 2.0]])
    >>> powers = {"block": 128, "scale_dtype": "float8_e8m0fnu"}
    >>> q = jaxbw.quantize(jnp.full((1, 256), 449.0), "e4m3", axis=-1, **powers)
    >>> q.scale, q.data[0, 0]
    (Array([[2, 2]], dtype=float8_e8m0fnu), Array(224, dtype=float8_e4m3fn))
    """
    call = "jaxbw.quantize"
    x = arguments.array(call, "x", x)
    is_block_scaled = isinstance(format, str) and format in block_formats.FORMATS
    if not is_block_scaled and not (isinstance(format, str) and format in fp8.FORMATS):
        names = ", ".join(map(repr, (*fp8.FORMATS, *block_formats.FORMATS)))
        raise ValueError(f"{call}: format is {arguments.shown(format)}; it is one of {names}")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"{call}: x is {x.dtype}; cast it to a real floating dtype")
    if implementation is not None:
        implementation = arguments.hashable(call, "implementation", implementation)
    policy = policy_of(implementation, None, call)
    if implementation is None:  # a context's is about matmuls, first of all
        policy = policy.for_gradients
    served_by = (policy.implementation, policy.target)
    known = (None,) if is_block_scaled else (None, blocks.BLOCK)
    if block not in known:
        expected = " or ".join(map(str, reversed(known)))
        raise ValueError(f"{call}: block is {arguments.shown(block)}; of {format} it is {expected}")
    powers = False
    if scale_dtype is not None:
        powers = _are_powers(call, format, scale_dtype, block)
        if powers and policy.implementation and "xla" not in policy.implementation:
            reason = "no kernel rounds scales to powers of two"
            raise NotImplementedError(quantizing.message(policy.implementation, x, reason))
    if is_block_scaled:
        axis = -1 if axis is None else axis
        return block_scaled(
            *(call, x, format, axis),
            square=square,
            both=both,
            global_scale=global_scale,
            key=key,
            rotation=rotation,
            served_by=served_by,
        )
    given = {"global_scale": global_scale, "key": key, "rotation": rotation}
    others = {"square": square} | {name: each is not None for name, each in given.items()}
    if name := next((name for name, is_given in others.items() if is_given), None):
        raise ValueError(f"{call}: {name} is given and format is {format!r}, which has none")
    if both and x.ndim < 2:
        raise ValueError(
            f"{call}: x is {describe(x.dtype, x.shape)} and both=True; only matrices are transposed"
        )
    quantized: Quantized = _quantize(
        x, format, _axes(call, x, axis), block is not None, powers, bool(both), served_by
    )
    return quantized


def _are_powers(call: str, format: str, scale_dtype: Any, block: Any) -> bool:
    """Whether scales of this dtype are powers of two, checked."""
    known = {np.dtype(np.float32): False} if format in fp8.FORMATS else {}
    known |= {fp8.E8M0: True} if block is not None else {}
    try:
        return known[np.dtype(scale_dtype)]
    except (KeyError, TypeError):
        raise ValueError(
            f"{call}: scale_dtype is {arguments.shown(scale_dtype)}, format {format!r} and block "
            f"{block}; it is float32 or, with block=128, float8_e8m0fnu, of 'e4m3' and 'e5m2'"
        ) from None


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


@partial(jax.jit, static_argnums=(1, 2, 3, 4, 5, 6), inline=compat.INLINED)
def _quantize(
    x: Any,
    format: str,
    axis: tuple[int, ...] | None,
    in_blocks: bool,
    powers: bool,
    both: bool,
    served_by: _ServedBy,
) -> Quantized:
    x = undifferentiated(x)
    shared = tuple(range(x.ndim)) if axis is None else axis
    if in_blocks:
        data, scale = _blockwise(format, shared, powers, served_by, x)
        turned = jnp.matrix_transpose(data) if both else None
        return Quantized(data, scale, turned, np.dtype(x.dtype))
    data, scale, *transposed = _rounded(format, shared, both, served_by, x)
    if axis is None:
        scale = scale.reshape(())
    return Quantized(data, scale, transposed[0] if both else None, np.dtype(x.dtype))


def _blockwise(
    format: str, axis: tuple[int, ...], powers: bool, served_by: _ServedBy, x: Any
) -> tuple[Any, Any]:
    """The data, and a scale for each block: whole blocks, as a dimension of x that has two then."""
    behind = [-n % blocks.BLOCK if i in axis else 0 for i, n in enumerate(x.shape)]
    whole = jnp.pad(x, [(0, more) for more in behind]) if any(behind) else x
    shape: list[int] = []
    shared: list[int] = []
    for i, n in enumerate(whole.shape):
        shape += [n // blocks.BLOCK, blocks.BLOCK] if i in axis else [n]
        shared += [len(shape) - 1] if i in axis else []
    whole_blocks = whole.reshape(shape)
    if powers:
        data, scale = _rounded_by_powers(format, tuple(shared), whole_blocks)
    else:
        data, scale = _rounded(format, tuple(shared), False, served_by, whole_blocks)
    data = data.reshape(whole.shape)[tuple(map(slice, x.shape))]
    return data, scale.reshape([blocks.count(n) if i in axis else n for i, n in enumerate(x.shape)])


def _rounded_by_powers(format: str, axis: tuple[int, ...], x: Any) -> tuple[Any, Any]:
    options: Any = {"format": format, "axis": axis, "both": False}
    data, scale = primitive.on_xla(x, **options, scale_of=fp8.power_of_two_of)
    return data, fp8.as_e8m0(scale)


def _rounded(
    format: str, axis: tuple[int, ...], both: bool, served_by: _ServedBy, x: Any
) -> tuple[Any, ...]:
    implementation, target = served_by
    options: Any = {"both": both, "implementation": implementation, "target": target}
    return tuple(primitive.quantize(x, format, axis, **options))
