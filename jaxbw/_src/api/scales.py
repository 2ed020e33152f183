"""Scales of a matmul's operands and result: what is wrong with them, how the epilogue takes them.

One that all rows share, or all columns, is a factor of alpha. Others are arrays: of the epilogue,
or where they differ along the contraction, in blocks of 128, of the operands.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbw._src import blocks, fp8
from jaxbw._src.api.arguments import Quantized
from jaxbw._src.api.block_scaled import BlockScaled, BlockScales, unblocked, unscaled
from jaxbw._src.epilogue import saved_dtype
from jaxbw._src.primitives.originals import Transposed
from jaxbw._src.primitives.transposition import kept
from jaxbw._src.problem import DimensionNumbers, Operands, describe

_OPERANDS = {"lhs_scale": "lhs", "rhs_scale": "rhs", "rhs_up_scale": "rhs_up"}
Contracting = tuple[tuple[int, ...], tuple[int, ...]]  # dimensions of lhs, and of rhs


def unquantized(
    call: str,
    operands: Sequence[Any],
    scales: Sequence[Any],
    dtype: Any,
    contracting: Contracting | None = None,
) -> tuple[Sequence[Any], Sequence[Any], Any, BlockScales | None]:
    """The operands of a matmul some of which are `Quantized`, their scales, and its dtype.

    Of `BlockScaled` ones, too: these have their scales in what is returned last. Beside an operand
    without such scales they are dequantized, since no tensor core multiplies the two.

    Args:
      call: the function that a user called.
      operands: lhs, rhs, and of a gated matmul rhs_up.
      scales: those that were given.
      dtype: of the result, where it was given.
      contracting: of a dot_general; None of a matmul.

    Raises:
      TypeError: a `Quantized` has a scale, and another is given.
      ValueError: scales that differ along the contraction, and not by blocks of one dimension.
    """
    if dtype is None:
        dtype = jnp.result_type(*(np.dtype(x.dtype) for x in operands))
    names = ("lhs", "rhs") if len(operands) == 2 else ("lhs", "rhs_gate", "rhs_up")
    if any(isinstance(x, BlockScaled) for x in operands):
        blocks_of = unscaled(call, names, operands, scales, contracting)
        if blocks_of is not None:
            return blocks_of.data, blocks_of.scales, dtype, blocks_of
        operands = [unblocked(x) for x in operands]
    pairs = []
    for name, x, scale in zip(names, operands, scales, strict=True):
        if not isinstance(x, Quantized):
            pairs.append((x, scale))
            continue
        if scale is not None:
            raise TypeError(
                f"{call}: {name} is a Quantized, which has scales, and {name}_scale is given; "
                f"leave it out, or pass {name}.data"
            )
        axes: Any = (-2 if name != "lhs" and x.ndim > 1 else -1,)
        if contracting is not None:
            axes = contracting[name != "lhs"]
        by_blocks = (
            len(axes) == 1
            and x.scale.ndim == x.ndim
            and x.scale.shape[axes[0]] == blocks.count(x.shape[axes[0]])
        )
        if x.scale.size != 1 and any(x.scale.shape[axis] != 1 for axis in axes) and not by_blocks:
            shared = axes[0] if len(axes) == 1 else axes
            raise ValueError(
                f"{call}: {name} {describe(x.dtype, x.shape)} has scales of shape "
                f"{list(x.scale.shape)}; they are to be shared along the contraction: "
                f"jaxbw.quantize({name}, ..., axis={shared}), or axis=None, perhaps with block=128"
            )
        pairs.append((_read_along(x, axes), x.scale))
    arrays, found = zip(*pairs, strict=True)
    return arrays, found, dtype, None


def _read_along(x: Quantized, contracted: Sequence[int]) -> Any:
    """Its data as the array has its dimensions; where both were stored, those with k contiguous."""
    if x.transposed is None or [axis % x.ndim for axis in contracted] != [x.ndim - 2]:
        return x.data
    return Transposed(x.transposed, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def quantized(results: tuple[Any, Any, Any], operands: Sequence[Any]) -> Quantized:
    """What a matmul with an `out_scale` gives: of d, the scale, and d's amax.

    As an array it has the dtype of the operands together, but bfloat16 where that has 8 bits.
    """
    data, scale, amax = results
    wide = [x.dtype for x in operands if np.dtype(x.dtype).itemsize > 1]
    dtype = jnp.result_type(*wide) if wide else saved_dtype(data.dtype)
    return Quantized(data, scale, None, np.dtype(dtype), amax)


def checked(
    call: str, operands: Operands, alpha: float | None, contracting: Contracting
) -> tuple[Operands, tuple[int, int]]:
    """Operands whose scales, of which there are some, are factors of alpha, or arrays.

    An array is shaped as its operand without the contracting dimensions; that of blocks as its
    operand, with blocks of the contracting dimension, and perhaps of the only other one of rhs. Of
    a gated matmul both right operands have one, or none. Beside them, how many rows and columns
    have a scale of blocks together, 1 or 128; 0 where there are none.

    Args:
      call: the function that a user called.
      operands: with scales as they were given.
      alpha: that of the call, where it is a number.
      contracting: dimensions of the operands.

    Raises:
      TypeError: scales that are not real floating.
      ValueError: scales of another shape.
    """
    if operands.out_scale is not None:
        operands = operands._replace(out_scale=_of_result(call, operands.out_scale))
    found = {name: getattr(operands, name) for name in _OPERANDS}
    factor: Any = operands.alpha if alpha is None else alpha
    gated = operands.rhs_up is not None
    shared = {"lhs_scale": 0, "rhs_scale": 0, "rhs_up_scale": 0}
    for name, scale in found.items():
        if scale is None:
            continue
        if _is_of_blocks(name, scale, operands, contracting):
            found[name], shared[name] = _of_blocks(name, scale, operands, contracting)
            continue
        scale = _wide(_shaped(call, name, scale, operands, contracting))
        if scale.shape == () and not (gated and name != "lhs_scale"):
            factor, scale = scale if alpha == 1 and factor is alpha else factor * scale, None
        found[name] = scale
    # Powers of two are kept as such where all operands have them, of blocks.
    of_all = [scale for scale in found.values() if scale is not None]
    if len(of_all) < 2 + gated or any(scale.dtype != fp8.E8M0 for scale in of_all):
        found = {name: None if scale is None else _wide(scale) for name, scale in found.items()}
    of_rhs = max(shared["rhs_scale"], shared["rhs_up_scale"])
    if gated and of_rhs:
        (k,) = contracting[1]
        for name in ("rhs_scale", "rhs_up_scale"):
            scale = jnp.float32(1) if found[name] is None else found[name]
            scale = lax.expand_dims(scale, (k,)) if 0 < scale.ndim < operands.rhs.ndim else scale
            found[name] = blocks.spread(scale, _grid(operands.rhs, k))
        of_rhs = 1
    elif gated and (found["rhs_scale"] is not None or found["rhs_up_scale"] is not None):
        columns = _without(operands.rhs, contracting[1])
        for name in ("rhs_scale", "rhs_up_scale"):
            scale = jnp.float32(1) if found[name] is None else found[name]
            found[name] = jnp.broadcast_to(scale, columns)
    operands = operands._replace(**found, alpha=None if isinstance(factor, float) else factor)
    return operands, (shared["lhs_scale"], of_rhs)


def _is_of_blocks(name: str, scale: Any, operands: Operands, contracting: Contracting) -> bool:
    """Whether a scale has an element for each block of a dimension, and is none of a vector."""
    of = _OPERANDS[name]
    x, dims = getattr(operands, of), contracting[of != "lhs"]
    if scale.ndim != x.ndim or len(dims) != 1 or not jnp.issubdtype(scale.dtype, jnp.floating):
        return False
    sizes = [*zip(scale.shape, x.shape, strict=True)]
    if any(given not in (1, size, blocks.count(size)) for given, size in sizes):
        return False
    given, size = sizes[dims[0]]
    is_vector = given == 1 and all(n in (1, whole) for n, whole in sizes)
    return not is_vector and given in (1, blocks.count(size))


def _of_blocks(
    name: str, scale: Any, operands: Operands, contracting: Contracting
) -> tuple[Any, int]:
    """Such a scale with all that kernels want of its elements, and how many share one beside k.

    Of lhs each row has its own. Of rhs a block of columns, where there is one dimension of them.
    """
    of = _OPERANDS[name]
    x, (k,) = getattr(operands, of), contracting[of != "lhs"]
    columns = [i for i in range(x.ndim) if i != k][-1:] if of == "rhs" else []
    if not all(scale.shape[i] in (1, blocks.count(x.shape[i])) for i in columns):
        columns = []
    scale = undifferentiated(scale) if scale.dtype == fp8.E8M0 else _wide(scale)
    in_blocks = of == "rhs" and (bool(columns) or x.ndim == 1)
    return blocks.spread(scale, _grid(x, k, *columns)), blocks.BLOCK if in_blocks else 1


def _grid(x: Any, *dims: int) -> tuple[int, ...]:
    """The shape of the scales of blocks along some dimensions."""
    return tuple(blocks.count(size) if i in dims else size for i, size in enumerate(x.shape))


def _shaped(call: str, name: str, scale: Any, operands: Operands, contracting: Contracting) -> Any:
    """A scale as a scalar, or with all its dimensions."""
    of = _OPERANDS[name]
    x, dims = getattr(operands, of), contracting[of != "lhs"]
    shown = describe(scale.dtype, scale.shape)
    if operands.rhs_up is not None and of == "rhs":
        name, of = "rhs_gate_scale", "rhs_gate"
    if not jnp.issubdtype(scale.dtype, jnp.floating):
        raise TypeError(f"{call}: {name} is {scale.dtype}; cast it to float32")
    wanted = _without(x, dims)
    if scale.ndim == x.ndim and all(scale.shape[i] == 1 for i in dims):
        scale = lax.squeeze(scale, dims)
    if scale.size == 1 and scale.ndim <= len(wanted):
        return scale.reshape(())
    fits = scale.ndim == len(wanted) and all(
        size in (1, extent) for size, extent in zip(scale.shape, wanted, strict=True)
    )
    if not fits:
        raise ValueError(
            f"{call}: {name} {shown} does not fit {of} {describe(x.dtype, x.shape)}; it is a "
            f"scalar, or [{','.join(map(str, wanted))}], where sizes of 1 broadcast: reshape it "
            "(scales that differ along the contraction are not supported)"
        )
    return jnp.broadcast_to(scale, wanted)


def _wide(scale: Any) -> Any:
    return scale.astype(jnp.float32 if scale.dtype.itemsize < 4 else scale.dtype)


@jax.custom_jvp
def undifferentiated(scales: Any) -> Any:
    """Scales in float8_e8m0fnu, of which a derivative is refused."""
    return scales


@undifferentiated.defjvp
def _refuse(*_: Any) -> Any:
    raise TypeError(
        "jaxbw: scales in float8_e8m0fnu are differentiated, in which a derivative has neither "
        "zero nor sign; take jax.lax.stop_gradient of them"
    )


def _of_result(call: str, scale: Any) -> Any:
    """An `out_scale` as a scalar."""
    if not jnp.issubdtype(scale.dtype, jnp.floating):
        raise TypeError(f"{call}: out_scale is {scale.dtype}; cast it to float32")
    if scale.size != 1:
        raise ValueError(
            f"{call}: out_scale {describe(scale.dtype, scale.shape)} is no scalar; the result has "
            "one scale"
        )
    return scale.astype(np.float32).reshape(())


def _without(x: Any, dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for i, size in enumerate(x.shape) if i not in dims)


def in_order(operands: Operands, dims: DimensionNumbers) -> Operands:
    """Operands of a dot_general, whose scales have their dimensions in the order of its result.

    Those of blocks have the contracting one last.
    """
    found = {}
    for name, of in _OPERANDS.items():
        scale, side = getattr(operands, name), int(of != "lhs")
        if scale is None:
            continue
        rank, contracting, batch = getattr(operands, of).ndim, dims[0][side], dims[1][side]
        own = [i for i in range(rank) if i not in contracting]
        order = [own.index(i) for i in (*batch, *kept(rank, contracting, batch))]
        if scale.ndim == rank:
            order = [*batch, *kept(rank, contracting, batch), *contracting]
        found[name] = scale if order == sorted(order) else lax.transpose(scale, order)
    return operands._replace(**found)
