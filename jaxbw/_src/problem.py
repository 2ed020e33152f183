"""GemmProblem: a dot_general reduced to one batched matmul, and how it gets there.

D[batch, m, n] = epilogue(sum over k of A[batch, m, k] * B[batch, k, n]); a gated matmul has
a second B like the first. The reduction knows nothing of kernels or devices. It costs no copy where
each operand's dimensions already lie as [batch, outer, contraction] or [batch, contraction, outer],
in blocks of any number of dimensions; anything else is transposed first, as XLA would do it. Where
one operand alone has dimensions in front of these, as a stack of weights that share their input,
they may be a batch that the other operand serves whole.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax import lax

from jaxbw._native import Activation, DataType, Major, Problem
from jaxbw._src.epilogue import IDENTITY, Epilogue, saved_dtype

if TYPE_CHECKING:
    from jaxbw._src.pieces import Pieces

ACTIVATIONS = {
    None: Activation.NONE,
    "relu": Activation.RELU,
    "silu": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_exact": Activation.GELU_EXACT,
}
DATA_TYPES = {
    "float16": DataType.F16,
    "bfloat16": DataType.BF16,
    "float32": DataType.F32,
    "float8_e4m3fn": DataType.E4M3,
    "float8_e5m2": DataType.E5M2,
    "float4_e2m1fn": DataType.E2M1,
}

# Formats of block_formats.py, any two of a set of which kernels multiply as they are, and the
# numbers of k that share a scale.
MX_FORMATS = {
    frozenset({"mxfp8", "mxfp8_e5m2", "mxfp4"}): 32,
    frozenset({"nvfp4"}): 16,
}

_MXFP8 = {
    np.dtype("float8_e4m3fn"): "mxfp8",
    np.dtype("float8_e5m2"): "mxfp8_e5m2",
}


def mx_of(epilogue: Epilogue) -> int:
    """Numbers of k that share a scale where Blackwell's tensor cores multiply both; else 0."""
    if len(epilogue.formats) != 2:
        return 0
    given = set(epilogue.formats)
    return next((block for alike, block in MX_FORMATS.items() if given <= alike), 0)


_LEAST_OF_STACK = 64  # rows, or columns, of each matrix: those of the smallest tile

DimensionNumbers = tuple[
    tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]
]


@dataclass(frozen=True)
class GemmProblem:
    """One matmul: all that the choice of a kernel may depend on, beside the device.

    An operand that is not batched serves every batch index. `precision` is canonical
    (see `compat.canonicalize_precision`). Extents are symbolic where `jax.export`'s shapes are.
    Where float32 operands are split into `pieces`, it is the GEMM of these: bfloat16, and k is as
    many times as long as there are matmuls of pieces. `has_tiles`: where operands have a format of
    blocks, their tiles of scales are those of the GEMM's matrices.
    """

    batch: int
    m: int
    n: int
    k: int
    lhs_batched: bool
    rhs_batched: bool
    lhs_major: Major
    rhs_major: Major
    lhs_dtype: np.dtype[Any]
    rhs_dtype: np.dtype[Any]
    output: np.dtype[Any]
    epilogue: Epilogue = IDENTITY
    precision: Any = None
    pieces: "Pieces | None" = None
    has_tiles: bool = True

    @property
    def unsplit(self) -> "GemmProblem":
        """The matmul that was asked for: with float32 operands where this has pieces of them."""
        if self.pieces is None:
            return self
        f32, k = np.dtype(np.float32), self.k // len(self.pieces.matmuls)
        return replace(self, lhs_dtype=f32, rhs_dtype=f32, k=k, pieces=None)

    @property
    def key(self) -> str:
        """What a tuned table compares: shapes in memory, dtypes, transpositions, epilogue.

        Precision is not part of it: it decides whether a kernel serves, not which one is fast.
        """
        return f"{self}{', saving z' if self.epilogue.save else ''}"

    @property
    def layout(self) -> str:
        """The operands' layouts as in kernels.toml: "n" is row-major, "t" its transpose."""
        lhs = "n" if self.lhs_major == Major.K else "t"
        rhs = "n" if self.rhs_major == Major.MN else "t"
        return lhs + rhs

    @property
    def promoted(self) -> bool:
        """Whether sums of 8-bit products must have float32's accuracy.

        Hopper's tensor cores keep 13 fraction bits of them, which is "fast accumulation". XLA and
        Flax take DEFAULT for leave to do so, and HIGHEST for the opposite.
        """
        if self.lhs_dtype.itemsize != 1:
            return False
        return self.promoted_by_blocks or asks_for_accurate_sums(self.precision)

    @property
    def promoted_by_blocks(self) -> bool:
        """Whether scales of blocks multiply the sums, which goes without swap_ab."""
        return bool(self.epilogue.lhs_blocks or self.epilogue.rhs_blocks)

    @property
    def mx(self) -> int:
        """As of `mx_of`."""
        return mx_of(self.epilogue)

    def on(self, family: str) -> "GemmProblem":
        """The same as the kernels of a family have it.

        Of Blackwell, scales of blocks of 128 that are powers of two are those of MXFP8's blocks.
        """
        e, operands = self.epilogue, (self.lhs_dtype, self.rhs_dtype)
        if family != "sm100" or not e.e8m0_blocks or not {*operands} <= {*_MXFP8}:
            return self
        lhs_format, rhs_format = (_MXFP8[dtype] for dtype in operands)
        of_128: Any = {"lhs_blocks": 0, "rhs_blocks": 0, "e8m0_blocks": False}
        e = replace(e, **of_128, lhs_format=lhs_format, rhs_format=rhs_format)
        return replace(self, epilogue=e)

    @property
    def is_mixed(self) -> bool:
        """Whether one operand has 4 bits and the other 8: both take 8 in shared memory."""
        return itemsize(self.lhs_dtype) != itemsize(self.rhs_dtype)

    @property
    def is_sized(self) -> bool:
        """Whether all extents are known."""
        return all(isinstance(extent, int) for extent in (self.batch, self.m, self.n, self.k))

    def sized(self, m: int) -> "GemmProblem":
        """The same with this for a symbolic m, and 1 for a symbolic batch."""
        return replace(
            self,
            m=self.m if isinstance(self.m, int) else m,
            batch=self.batch if isinstance(self.batch, int) else 1,
        )

    @property
    def lhs_shape(self) -> tuple[int, int, int]:
        """(batch, outer, contiguous) of A in memory."""
        batch = self.batch if self.lhs_batched else 1
        outer = (self.m, self.k) if self.lhs_major == Major.K else (self.k, self.m)
        return (batch, *outer)

    @property
    def rhs_shape(self) -> tuple[int, int, int]:
        """(batch, outer, contiguous) of B in memory."""
        batch = self.batch if self.rhs_batched else 1
        outer = (self.n, self.k) if self.rhs_major == Major.K else (self.k, self.n)
        return (batch, *outer)

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """(batch, m, n)."""
        return (self.batch, self.m, self.n)

    @property
    def results(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of d, of what is saved, and of amax, or of tiles of scales."""
        if self.epilogue.out_format is not None:
            from jaxbw._src import block_formats  # wanted by few

            data, tiles = block_formats.shapes(self.output_shape)
            return [(data, self.output), (tiles, block_formats.E8M0)]
        saved = [(self.output_shape, saved_dtype(self.output))] * self.epilogue.saves
        amax = [((self.batch,), np.dtype(np.float32))] * self.epilogue.out_scale
        return [(self.output_shape, self.output), *saved, *amax]

    @property
    def native(self) -> Problem:
        """The same for the planner: extents are known, dtypes among `DATA_TYPES`."""
        e = self.epilogue
        c, bias, residual = (
            None if dtype is None else DATA_TYPES[dtype.name] for dtype in (e.c, e.bias, e.residual)
        )
        return Problem(
            batch=self.batch,
            m=self.m,
            n=self.n,
            k=self.k,
            lhs_batched=self.lhs_batched,
            rhs_batched=self.rhs_batched,
            lhs_major=self.lhs_major,
            rhs_major=self.rhs_major,
            lhs=DATA_TYPES[self.lhs_dtype.name],
            rhs=DATA_TYPES[self.rhs_dtype.name],
            output=DATA_TYPES[self.output.name],
            promoted=self.promoted,
            alpha=1.0 if e.alpha is None else e.alpha,
            beta=1.0 if e.beta is None else e.beta,
            factors_in_memory=e.factors_in_memory,
            lhs_scale=e.lhs_scale,
            rhs_scale=e.rhs_scale,
            lhs_blocks=min(e.lhs_blocks, 1),  # of 128 rows is given to each of them
            rhs_blocks=e.rhs_blocks,
            mx=self.mx,
            c=c,
            bias=bias,
            bias_along_m=e.bias is not None and e.bias_axis == "m",
            residual=residual,
            activation=ACTIVATIONS[e.activation],
            gated=e.gated,
            save=e.save,
            out_scale=e.out_scale,
            out_mx=e.out_format is not None,
        )

    def __str__(self) -> str:
        if self.pieces is not None:
            count, asked = len(self.pieces.matmuls), self.unsplit
            return f"{asked} as a bfloat16 GEMM{f', k = {count} x {asked.k}' if count > 1 else ''}"
        lhs, rhs = (
            describe(self.lhs_dtype, self.lhs_shape),
            describe(self.rhs_dtype, self.rhs_shape),
        )
        text = f"{lhs}{'' if self.lhs_major == Major.K else '^T'} @ "
        text += f"{rhs}{'' if self.rhs_major == Major.MN else '^T'}"
        result = describe(self.output, self.output_shape)
        return f"{self.epilogue.describe(text)} -> {result}"


# Operands, and their tiles of scales.
TILES = {"lhs": "lhs_tiles", "rhs": "rhs_tiles", "rhs_up": "rhs_up_tiles"}


class Operands(NamedTuple):
    """The arrays that a matmul and its epilogue read; None for what its epilogue does not have.

    The last three are tiles of scales (scale_tiles.py), of operands with k as their last dimension.
    """

    lhs: Any
    rhs: Any
    rhs_up: Any = None
    c: Any = None
    bias: Any = None
    residual: Any = None
    alpha: Any = None
    beta: Any = None
    lhs_scale: Any = None
    rhs_scale: Any = None
    rhs_up_scale: Any = None
    out_scale: Any = None
    lhs_tiles: Any = None
    rhs_tiles: Any = None
    rhs_up_tiles: Any = None

    def given(self) -> list[Any]:
        """Those that are there, in order."""
        return [x for x in self if x is not None]

    def factors(self, epilogue: Epilogue) -> tuple[Any, Any]:
        """Alpha and beta: numbers, or scalar arrays."""
        return (
            epilogue.alpha if self.alpha is None else self.alpha,
            epilogue.beta if self.beta is None else self.beta,
        )

    @classmethod
    def of(cls, epilogue: Epilogue, given: Sequence[Any]) -> "Operands":
        """The inverse of `given`."""
        e = epilogue
        arrays = (e.c, e.bias, e.residual)
        factors = (e.alpha is None, e.beta is None)
        of_lhs, of_rhs = e.scaled_operands
        scales = (of_lhs, of_rhs, of_rhs and e.gated)
        there = (True, True, e.gated, *(x is not None for x in arrays), *factors, *scales)
        tiles = (e.lhs_format is not None, of_blocks := e.rhs_format is not None)
        there = (*there, e.out_scale, *tiles, of_blocks and e.gated)
        rest = iter(given)
        return cls(*(next(rest) if is_there else None for is_there in there))


@dataclass(frozen=True)
class OperandView:
    """How an operand becomes a GEMM operand: reshape, perhaps transpose, reshape.

    Or how the GEMM's result becomes that of the dot_general.
    """

    squeezed: tuple[int, ...]  # its shape without dimensions of size 1
    permutation: tuple[int, ...] | None  # None: no transposition, hence no copy
    shape: tuple[int, ...]

    def __call__(self, operand: Any) -> Any:
        """An operand as [batch, outer, contiguous]."""
        if self.permutation is not None:
            operand = lax.transpose(lax.reshape(operand, self.squeezed), self.permutation)
        return lax.reshape(operand, self.shape)


@dataclass(frozen=True)
class Reduction:
    """A problem and the views of its operands and its result."""

    problem: GemmProblem
    lhs: OperandView
    rhs: OperandView
    result: OperandView


def itemsize(dtype: np.dtype[Any]) -> float:
    """Bytes of a number on a device, where two of 4 bits share one."""
    return 0.5 if dtype.name == "float4_e2m1fn" else dtype.itemsize


def precisions(precision: Any) -> tuple[Any, ...]:
    """That of each operand, or the one of both."""
    return precision if isinstance(precision, tuple) else (precision,)


def asks_for_accurate_sums(precision: Any) -> bool:
    """Whether float8 operands are to be summed in float32."""
    if isinstance(precision, lax.DotAlgorithmPreset):
        return precision == lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32
    return lax.Precision.HIGHEST in precisions(precision)


def describe(dtype: np.dtype[Any], shape: Sequence[int]) -> str:
    """A type as JAX prints it, for messages: bf16[16,32]."""
    short = {
        **{"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"},
        **{"float8_e4m3fn": "f8_e4m3fn", "float8_e5m2": "f8_e5m2"},
        "float4_e2m1fn": "f4_e2m1fn",
    }
    return f"{short.get(dtype.name, dtype.name)}[{','.join(map(str, shape))}]"


def _pieces(precision: Any, *dtypes: np.dtype[Any]) -> "Pieces | None":
    """Those that a matmul's precision asks for."""
    if not isinstance(precision, lax.DotAlgorithmPreset):
        return None
    from jaxbw._src.pieces import pieces_of  # wanted by few

    return pieces_of(precision, *dtypes)


def reduce_dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: DimensionNumbers,
    output: np.dtype[Any],
    *,
    precision: Any = None,
    epilogue: Epilogue = IDENTITY,
) -> Reduction:
    """Reduces a dot_general.

    Args:
      lhs, rhs: anything with integer `shape` and `dtype`, valid for `lax.dot_general`.
      dimension_numbers: as of `lax.dot_general`, canonical.
      output: dtype of the result.
      precision, epilogue: as in `GemmProblem`.
    """
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
    lhs_free = _others(len(lhs.shape), lhs_contract, lhs_batch)
    rhs_free = _others(len(rhs.shape), rhs_contract, rhs_batch)
    batch, m_dims, n_dims = (
        tuple(x.shape[i] for i in dims)
        for x, dims in ((lhs, lhs_batch), (lhs, lhs_free), (rhs, rhs_free))
    )
    extents = math.prod(batch), math.prod(m_dims), math.prod(n_dims)
    output_shape = batch + m_dims + n_dims
    dtypes = np.dtype(lhs.dtype), np.dtype(rhs.dtype)
    k = math.prod(lhs.shape[i] for i in lhs_contract)
    if (pieces := _pieces(precision, *dtypes)) is not None:
        dtypes = (np.dtype("bfloat16"),) * 2
        k *= len(pieces.matmuls)

    # The order of the contraction is free, so long as both operands have the same: by either one.
    layouts = []
    for by in (lhs_contract, rhs_contract):
        order = sorted(range(len(by)), key=by.__getitem__)
        lhs_k, rhs_k = ([dims[i] for i in order] for dims in (lhs_contract, rhs_contract))
        left = _view(lhs.shape, lhs_batch, lhs_free, lhs_k)
        right = _view(rhs.shape, rhs_batch, rhs_free, rhs_k)
        in_order = OperandView(output_shape, None, output_shape)
        m_tiles = _has_tiles(epilogue, lhs.shape, lhs_batch, lhs_free)
        n_tiles = _has_tiles(epilogue, rhs.shape, rhs_batch, rhs_free)
        layouts.append(_Layout(left, right, in_order, extents, has_tiles=m_tiles and n_tiles))
        for side, count in _stacks(m_dims, n_dims, batch, epilogue, dtypes[0].itemsize):
            if side == "lhs":
                stack, rows = m_dims[:count], m_dims[count:]
                view = _view(lhs.shape, lhs_free[:count], lhs_free[count:], lhs_k)
                sizes = math.prod(stack), math.prod(rows), math.prod(n_dims)
                tiles = n_tiles and _has_tiles(
                    epilogue, lhs.shape, lhs_free[:count], lhs_free[count:]
                )
                layouts.append(
                    _Layout(view, right, in_order, sizes, rhs_batched=False, has_tiles=tiles)
                )
            else:
                stack, columns = n_dims[:count], n_dims[count:]
                view = _view(rhs.shape, rhs_free[:count], rhs_free[count:], rhs_k)
                sizes = math.prod(stack), math.prod(m_dims), math.prod(columns)
                back = (*range(count, count + len(m_dims)), *range(count))
                back = (*back, *range(len(back), len(output_shape)))
                result = OperandView((*stack, *m_dims, *columns), back, output_shape)
                tiles = m_tiles and _has_tiles(
                    epilogue, rhs.shape, rhs_free[:count], rhs_free[count:]
                )
                layouts.append(
                    _Layout(left, view, result, sizes, lhs_batched=False, has_tiles=tiles)
                )
    itemsizes = lhs.dtype.itemsize, rhs.dtype.itemsize, output.itemsize
    best = min(
        layouts,
        key=lambda layout: (not layout.has_tiles, layout.copied(epilogue, itemsizes)),
    )

    (lhs_view, lhs_k_major), (rhs_view, rhs_k_major) = best.lhs, best.rhs
    problem = GemmProblem(
        *best.extents,
        k=k,
        lhs_batched=best.lhs_batched,
        rhs_batched=best.rhs_batched,
        lhs_major=Major.K if lhs_k_major else Major.MN,
        rhs_major=Major.K if rhs_k_major else Major.MN,
        lhs_dtype=dtypes[0],
        rhs_dtype=dtypes[1],
        output=np.dtype(output),
        epilogue=epilogue,
        precision=precision,
        pieces=pieces,
        has_tiles=best.has_tiles,
    )
    return Reduction(problem, lhs_view, rhs_view, best.result)


@dataclass(frozen=True)
class _Layout:
    """One way to read the operands of a dot_general: their views, and whether they are K-major.

    `extents` are batch, m and n.
    """

    lhs: tuple[OperandView, bool]
    rhs: tuple[OperandView, bool]
    result: OperandView
    extents: tuple[int, int, int]
    lhs_batched: bool = True
    rhs_batched: bool = True
    has_tiles: bool = True

    def copied(self, epilogue: Epilogue, itemsizes: tuple[int, int, int]) -> int:
        """The bytes that are transposed, so far as sizes are known."""
        views = (self.lhs[0], self.rhs[0], self.result)
        counts = (1, 1 + epilogue.gated, 1 + epilogue.saves)
        return sum(
            count * itemsize * math.prod(size for size in view.shape if isinstance(size, int))
            for view, count, itemsize in zip(views, counts, itemsizes, strict=True)
            if view.permutation is not None
        )


def _stacks(
    m_dims: Sequence[int],
    n_dims: Sequence[int],
    batch: Sequence[int],
    epilogue: Epilogue,
    itemsize: int,
) -> Iterator[tuple[str, int]]:
    """Which operand may be a stack that the other one serves whole, and of how many dimensions.

    Not where both have a batch; where the epilogue's arrays would have to be moved with it; nor
    where tiles would stay empty, or the rows of a matrix be no multiples of 16 bytes: unless it has
    a format of blocks, whose tiles of scales are those of each matrix.
    """
    if batch or not all(isinstance(size, int) for size in (*m_dims, *n_dims)):
        return
    e = epilogue
    for side, axis, dims in (("lhs", "m", m_dims), ("rhs", "n", n_dims)):
        if side == "rhs" and not (e.c is None and e.residual is None):
            continue
        whole = e.bias_rank if e.bias is not None and e.bias_axis == axis else 1
        for count in range(1, len(dims) - whole + 1):
            extent = math.prod(dims[count:])
            if e.formats or (extent >= _LEAST_OF_STACK and extent * itemsize % 16 == 0):
                yield side, count


def _has_tiles(
    epilogue: Epilogue, shape: Sequence[int], batch: Sequence[int], rows: Sequence[int]
) -> bool:
    """Whether an operand's tiles of scales, if it has any, are those of the GEMM's matrices.

    They are of its rows, the last dimension but k: of that alone, or of whole tiles of it.
    """
    if not epilogue.formats:
        return True
    from jaxbw._src import scale_tiles  # wanted by few

    order = [*batch, *rows]
    if order != sorted(order):
        return False
    if not rows:
        return not batch or shape[batch[-1]] == 1
    count = math.prod(shape[i] for i in rows)
    last = shape[rows[-1]]
    return bool(count == last) or (isinstance(last, int) and last % scale_tiles.ROWS == 0)


def is_read_in_place(shape: Sequence[int], contract: Sequence[int], batch: Sequence[int]) -> bool:
    """Whether an operand needs no copy, so far as its own dimensions decide it."""
    free = _others(len(shape), contract, batch)
    view, _ = _view(shape, batch, free, sorted(contract))
    return view.permutation is None


def _others(rank: int, *taken: Sequence[int]) -> list[int]:
    used = {i for dims in taken for i in dims}
    return [i for i in range(rank) if i not in used]


def _view(
    shape: Sequence[int], batch: Sequence[int], free: Sequence[int], contract: Sequence[int]
) -> tuple[OperandView, bool]:
    """The view of an operand, and whether it is K-major.

    Dimensions of size 1 lie wherever it suits. Of an operand without a contraction the other
    dimension is the contiguous one (MN-major), else TMA would have to read rows of one element.
    A copy keeps what is innermost: it moves whole rows, and a matmul that contracts the other
    dimension, as of a gradient, needs the same copy.
    """

    def extent(dims: Sequence[int]) -> int:
        return math.prod(shape[i] for i in dims)

    kept = [i for i in range(len(shape)) if shape[i] != 1]
    position = {dim: i for i, dim in enumerate(kept)}

    def order(*groups: Sequence[int]) -> tuple[int, ...]:
        return tuple(position[i] for group in groups for i in group if shape[i] != 1)

    squeezed = tuple(shape[i] for i in kept)
    in_place = tuple(range(len(kept)))
    k_major = (order(batch, free, contract), (extent(batch), extent(free), extent(contract)))
    mn_major = (order(batch, contract, free), (extent(batch), extent(contract), extent(free)))
    preferred = [(False, mn_major), (True, k_major)]
    if extent(contract) != 1:
        preferred.reverse()
    for is_k_major, (permutation, view) in preferred:
        if permutation == in_place:
            return OperandView(squeezed, None, view), is_k_major
    own = [i for i in (*free, *contract) if shape[i] != 1]
    is_k_major = bool(own) and max(own) in contract
    permutation, view = k_major if is_k_major else mn_major
    return OperandView(squeezed, permutation, view), is_k_major
