"""`BlockScaled`: an array in a block-scaled format, as kernels read it, and how it is made."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbw._src import block_formats, compat, stochastic
from jaxbw._src.api.arguments import WithScales
from jaxbw._src.block_formats import BlockFormat
from jaxbw._src.epilogue import saved_dtype
from jaxbw._src.primitives.originals import Transposed
from jaxbw._src.primitives.quantize_blocks import Wanted, quantize_blocks
from jaxbw._src.primitives.quantizing import undifferentiated
from jaxbw._src.problem import describe


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["data", "scale", "global_scale", "transposed", "transposed_scale"],
    meta_fields=["format", "axis", "size", "dtype"],
)
@dataclass(frozen=True)
class BlockScaled(WithScales):
    """An array in MXFP8, MXFP4 or NVFP4, which `quantize` makes: a pytree.

    Data and scales lie as tensor cores read them, so that no call has to rearrange them: along k,
    the dimension whose elements share scales, and which a matmul contracts. Of an array of more
    than two dimensions the leading ones are in front, so that `jax.vmap`, `jax.lax.scan` and
    indexing of all leaves take parts of it.

    Attributes:
      data: `[..., rows, k]`, the array with k as its last dimension, padded with zeros to a
        multiple of 32, in MXFP4 of 128: float8_e4m3fn, float8_e5m2 or float4_e2m1fn. Of an array of
        one dimension `[k]`.
      scale: `[..., row tiles, k tiles, 512]`, float8_e8m0fnu or float8_e4m3fn: tiles of 128 rows by
        4 blocks, that of row r and block c at (r % 32) * 16 + (r // 32) * 4 + c; zero bytes behind
        the array.
      global_scale: of "nvfp4" a float32 scalar, else None.
      transposed: with `both=True` data and scales of blocks along the other one of the last two
        dimensions, k and rows exchanged. Data are None where `data` serves both directions:
        square blocks of 8 bits.
      transposed_scale: likewise.
      format: its name.
      axis: where k is in the array, counted from its end: -1, -2, ...
      size: of k, without padding.
      dtype: that of the array, which decides the dtype of a matmul's result.
    """

    data: Any
    scale: Any
    global_scale: Any
    transposed: Any
    transposed_scale: Any
    format: str
    axis: int
    size: Any
    dtype: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the array."""
        *others, _ = self.data.shape
        others.insert(self.data.ndim + self.axis, self.size)
        return tuple(others)

    @property
    def ndim(self) -> int:
        """Its dimensions."""
        rank: int = self.data.ndim
        return rank

    @property
    def mT(self) -> "BlockScaled":
        """The same with the last two dimensions swapped. Nothing is computed."""
        if self.axis < -2 or self.ndim < 2:
            raise ValueError(
                f"mT: the array is {describe(np.dtype(self.dtype), self.shape)} with blocks along "
                f"dimension {self.axis}; only what has them along -1 or -2 is transposed"
            )
        return replace(self, axis=-3 - self.axis)

    def along(self, axis: int) -> "BlockScaled":
        """The same array with blocks along this dimension: itself, or the other of `both`.

        Raises:
          ValueError: there are no such blocks.
        """
        axis = axis - self.ndim if axis >= 0 else axis
        if axis == self.axis:
            return self
        if self.transposed_scale is None or axis != -3 - self.axis:
            raise ValueError(
                f"the array is {describe(np.dtype(self.dtype), self.shape)} in {self.format} with "
                f"blocks along dimension {self.axis}, and {axis} is contracted: "
                f"jaxbw.quantize(..., axis={axis}), or of the last two dimensions both=True"
            )
        data = self.transposed
        if data is None:
            data = padded(jnp.matrix_transpose(self.data[..., : self.size]))
        return replace(
            self,
            data=data,
            scale=self.transposed_scale,
            transposed=None if self.transposed is None else self.data,
            transposed_scale=self.scale,
            axis=axis,
            size=self.shape[axis],
        )

    def alone(self) -> "BlockScaled":
        """The same without what `both` added."""
        return replace(self, transposed=None, transposed_scale=None)

    def dequantized(self) -> jax.Array:
        """Data times scales, computed in float32, in the array's dtype."""
        format = block_formats.FORMATS[self.format]
        scale = block_formats.scales_of(self.scale, self.data, format.block)
        wide = block_formats.dequantized(self.data, scale)[..., : self.size]
        if self.global_scale is not None:
            wide = wide * self.global_scale
        array: jax.Array = jnp.moveaxis(wide, -1, self.axis).astype(self.dtype)
        return array


class BlockScales(NamedTuple):
    """What a matmul takes of operands all of which are `BlockScaled`.

    Attributes:
      data: in the order of the arrays' dimensions.
      scales: global ones, or None.
      tiles: of lhs, rhs, and of a gated matmul the other rhs.
      formats: of lhs and rhs.
    """

    data: tuple[Any, ...]
    scales: tuple[Any, ...]
    tiles: tuple[Any, ...]
    formats: tuple[str, str]


def unscaled(
    call: str,
    names: Sequence[str],
    operands: Sequence[Any],
    scales: Sequence[Any],
    contracting: tuple[tuple[int, ...], tuple[int, ...]] | None,
) -> BlockScales | None:
    """Operands, some of which are `BlockScaled`, for a matmul; None where others are not.

    Args:
      names: of the operands.
      scales: those that were given beside them.
      contracting: as of `scales.unquantized`.

    Raises:
      TypeError: an operand has a scale, and another is given.
      ValueError: blocks that lie along another dimension than the contracted one; sizes or formats
        that differ.
    """
    for name, x, scale in zip(names, operands, scales, strict=True):
        if isinstance(x, BlockScaled) and scale is not None:
            raise TypeError(
                f"{call}: {name} is a BlockScaled, which has scales, and {name}_scale is given; "
                "leave it out"
            )
    if not all(isinstance(x, BlockScaled) for x in operands):
        return None
    found = []
    for name, x in zip(names, operands, strict=True):
        axes: tuple[int, ...] = (-2 if name != "lhs" and x.ndim > 1 else -1,)
        axes = axes if contracting is None else contracting[name != "lhs"]
        if len(axes) != 1:
            raise ValueError(
                f"{call}: {len(axes)} dimensions of {name} are contracted, and blocks lie along "
                "one; reshape it before quantizing"
            )
        try:
            found.append(x.along(axes[0]))
        except ValueError as error:
            raise ValueError(f"{call}: {name}: {error}") from None
    lhs, *rights = found
    for name, x in zip(names[1:], rights, strict=True):
        if x.size != lhs.size:
            raise ValueError(
                f"{call}: {names[0]} {describe(np.dtype(lhs.dtype), lhs.shape)}, {name} "
                f"{describe(np.dtype(x.dtype), x.shape)}: {lhs.size} elements are contracted with "
                f"{x.size}"
            )
        if x.format != rights[0].format:
            raise ValueError(
                f"{call}: the right operands are {rights[0].format} and {x.format}; they have one "
                "format"
            )
    return BlockScales(
        tuple(_in_order(x) for x in _as_long(found)),
        tuple(x.global_scale for x in found),
        (*(x.scale for x in found), None)[:3],
        (lhs.format, rights[0].format),
    )


def _as_long(operands: Sequence[BlockScaled]) -> Sequence[BlockScaled]:
    """The same with data as long along k: those of MXFP4 may be longer than of 8 bits beside them.

    What has fewer elements is copied: 8 bits are padded, or 4 shortened, which kernels then unpack.
    """
    lengths = [x.data.shape[-1] for x in operands]
    if len({*lengths}) == 1:
        return operands
    shorter, longer = (
        sum(math.prod(x.shape) for x in operands if x.data.shape[-1] == length)
        for length in (min(lengths), max(lengths))
    )
    is_known = isinstance(shorter, int) and isinstance(longer, int)
    length = min(lengths) if is_known and longer < shorter else max(lengths)

    def cut(data: Any) -> Any:
        return padded(data[..., :length], length)

    def resized(data: Any) -> Any:
        is_described = isinstance(data, jax.ShapeDtypeStruct)
        return jax.eval_shape(cut, data) if is_described else cut(data)

    return [replace(x, data=resized(x.data)) for x in operands]


def _in_order(x: BlockScaled) -> Any:
    """Data as the array has its dimensions: a transposition that a matmul reads in place."""
    if x.axis == -1:
        return x.data
    permutation = [*range(x.ndim - 1)]
    permutation.insert(x.ndim + x.axis, x.ndim - 1)
    return Transposed(x.data, tuple(permutation))


OUT_FORMATS = ("mxfp8",)  # of results


def result_dtype(
    call: str, format: Any, operands: Sequence[Any], out_scale: Any, dtype: Any
) -> Any:
    """That of the array that a matmul with this `out_format` stands for.

    Raises:
      TypeError: an `out_scale` beside it.
      ValueError: an unknown format; right operands that are no matrices.
    """
    if format not in OUT_FORMATS:
        names = " or ".join(map(repr, OUT_FORMATS))
        raise ValueError(f"{call}: out_format is {format!r}; it is {names}, or None")
    if out_scale is not None:
        raise TypeError(f"{call}: out_format and out_scale are given; {format} has its own scales")
    if any(np.ndim(x) != 2 for x in operands[1:]):
        rank = np.ndim(operands[1])
        raise ValueError(
            f"{call}: out_format is {format!r} and the right operand has {rank} dimensions; it has "
            "2: use jax.vmap over the others, or jaxbw.quantize of the result"
        )
    known = [x.dtype for x in operands if hasattr(x, "dtype")]  # others are refused later
    return np.dtype(
        saved_dtype(jnp.result_type(*known or [np.float32])) if dtype is None else dtype
    )


def of_result(results: tuple[Any, Any], format: str, size: int, dtype: Any) -> BlockScaled:
    """What a matmul with an `out_format` gives, of the data and the tiles of scales."""
    data, tiles = results
    return BlockScaled(data, tiles, None, None, None, format, -1, size, dtype)


def unblocked(x: Any) -> Any:
    """An operand beside which one has no such scales: a `BlockScaled` as an array."""
    if not isinstance(x, BlockScaled):
        return x
    is_described = isinstance(x.data, jax.ShapeDtypeStruct)
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if is_described else x.dequantized()


def block_scaled(
    call: str,
    x: Any,
    format: str,
    axis: Any,
    *,
    square: bool,
    both: bool,
    global_scale: Any,
    key: Any,
    rotation: Any,
    served_by: tuple[tuple[str, ...] | None, str | None],
) -> BlockScaled:
    """An array in the format of this name, checked; `served_by`: implementations and a target.

    Raises:
      ValueError: another `axis` than one dimension; too few dimensions for `both` or `square`; a
        global scale of a format that has none, or that is no scalar; a key or a rotation of another
        than "nvfp4", a rotation along another dimension than -2.
    """
    described = describe(x.dtype, x.shape)
    if not isinstance(axis, int | np.integer) or not -x.ndim <= axis < x.ndim:
        raise ValueError(
            f"{call}: axis is {axis!r} and x {described}; {format} has blocks along one dimension"
        )
    axis = int(axis) if axis < 0 else int(axis) - x.ndim
    if (both or square) and (x.ndim < 2 or axis < -2):
        raise ValueError(
            f"{call}: x is {described}, axis {axis}, and {'both' if both else 'square'}=True; that "
            "is for the last two dimensions"
        )
    chosen = block_formats.FORMATS[format]
    if global_scale is not None:
        global_scale = jnp.asarray(global_scale, np.float32)
        if not chosen.has_global_scale or global_scale.size != 1:
            raise ValueError(
                f"{call}: global_scale has shape {list(global_scale.shape)} and format is "
                f"{format!r}; it is a scalar, of 'nvfp4'"
            )
        global_scale = global_scale.reshape(())
    if key is not None and not chosen.has_global_scale:
        raise ValueError(
            f"{call}: key is given and format is {format!r}; only 'nvfp4' is rounded stochastically"
        )
    if rotation is not None and (not chosen.has_global_scale or axis != -2):
        raise ValueError(
            f"{call}: rotation is given, format is {format!r} and axis {axis}; only 'nvfp4' is "
            "rotated, along axis -2"
        )
    made: BlockScaled = _block_scaled(
        chosen, axis, bool(square), bool(both), served_by, x, global_scale, key, rotation
    )
    return made


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4), inline=compat.INLINED)
def _block_scaled(
    format: BlockFormat,
    axis: int,
    square: bool,
    both: bool,
    served_by: tuple[Any, Any],
    x: Any,
    global_scale: Any,
    key: Any,
    rotation: Any,
) -> BlockScaled:
    x = undifferentiated(x)
    signs = None if rotation is None else stochastic.signs_of(rotation)
    if format.has_global_scale and global_scale is None:
        global_scale = block_formats.global_scale(x, format, signs)
    # A matrix in whichever direction, or k is brought to the end.
    along = axis if axis >= -2 and x.ndim > 1 else -1
    matrix = jnp.moveaxis(x, axis, along)
    other = Wanted.NOTHING
    if both:
        serves_both = square and format.element.bits == 8
        other = Wanted.SCALES if serves_both else Wanted.DATA_AND_SCALES
    wanted = (Wanted.DATA_AND_SCALES, other)
    columns, rows = wanted if along == -1 else wanted[::-1]
    implementation, target = served_by
    matrix = matrix if x.ndim > 1 else matrix[None]
    of_columns, of_rows = quantize_blocks(
        matrix,
        global_scale,
        format.name,
        columns=columns,
        rows=rows,
        square=square,
        seed=None if key is None else stochastic.seed_of(key),
        signs=signs,
        implementation=implementation,
        target=target,
    )
    (data, scale), turned = (of_columns, of_rows) if along == -1 else (of_rows, of_columns)
    dtype, size = np.dtype(x.dtype), x.shape[axis]
    size = size if signs is None else block_formats.padded(size, stochastic.ROTATED)
    data, transposed = (
        each if each is None or not isinstance(each.shape[-1], int) else padded(each, format.unit)
        for each in (data if x.ndim > 1 else data[0], turned[0])
    )
    return BlockScaled(
        data, scale, global_scale, transposed, turned[1], format.name, axis, size, dtype
    )


def padded(data: Any, unit: int = block_formats.FORMATS["mxfp8"].unit) -> Any:
    """Data with zeros behind k, up to a multiple."""
    behind = block_formats.padded(data.shape[-1], unit) - data.shape[-1]
    data = compat.in_whole(data, {-1: unit}) if behind else data
    return jnp.pad(data, [(0, 0)] * (data.ndim - 1) + [(0, behind)]) if behind else data
