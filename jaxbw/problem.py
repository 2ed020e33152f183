"""GemmProblem: a dot_general reduced to one batched matrix product, and how it gets there.

D[batch, m, n] = epilogue(sum over k of A[batch, m, k] * B[batch, k, n]); a gated product has
a second B like the first. The reduction knows nothing of kernels or devices. It costs no copy where
each operand's dimensions already lie as [batch, outer, contraction] or [batch, contraction, outer],
in blocks of any number of dimensions; anything else is transposed first, as XLA would do it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from jaxbw._native import Major
from jaxbw.epilogue import IDENTITY, Epilogue

DimensionNumbers = tuple[
    tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]
]


@dataclass(frozen=True)
class GemmProblem:
    """One matrix product: all that the choice of a kernel may depend on, beside the device.

    An operand that is not batched serves every batch index. `precision` is canonical
    (see `compat.canonicalize_precision`). Extents are symbolic where `jax.export`'s shapes are.
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

    @property
    def layout(self) -> str:
        """The operands' layouts as in kernels.toml: "n" is row-major, "t" its transpose."""
        lhs = "n" if self.lhs_major == Major.K else "t"
        rhs = "n" if self.rhs_major == Major.MN else "t"
        return lhs + rhs

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

    def __str__(self) -> str:
        lhs, rhs = (
            describe(self.lhs_dtype, self.lhs_shape),
            describe(self.rhs_dtype, self.rhs_shape),
        )
        text = f"{lhs}{'' if self.lhs_major == Major.K else '^T'} @ "
        text += f"{rhs}{'' if self.rhs_major == Major.MN else '^T'}"
        result = describe(self.output, self.output_shape)
        return f"{self.epilogue.describe(text)} -> {result}"


class Operands(NamedTuple):
    """The arrays that a product and its epilogue read; None for what its epilogue does not have."""

    lhs: Any
    rhs: Any
    rhs_up: Any = None
    c: Any = None
    bias: Any = None
    residual: Any = None

    def given(self) -> list[Any]:
        """Those that are there, in order."""
        return [x for x in self if x is not None]

    @classmethod
    def of(cls, epilogue: Epilogue, given: Sequence[Any]) -> "Operands":
        """The inverse of `given`."""
        arrays = (epilogue.c, epilogue.bias, epilogue.residual)
        there = (True, True, epilogue.gated, *(dtype is not None for dtype in arrays))
        rest = iter(given)
        return cls(*(next(rest) if is_there else None for is_there in there))


@dataclass(frozen=True)
class OperandView:
    """How an operand becomes a GEMM operand: reshape, perhaps transpose, reshape."""

    squeezed: tuple[int, ...]  # its shape without dimensions of size 1
    permutation: tuple[int, ...] | None  # None: no transposition, hence no copy
    shape: tuple[int, int, int]

    def __call__(self, operand: Any) -> Any:
        """The operand as [batch, outer, contiguous]."""
        if self.permutation is not None:
            operand = lax.transpose(lax.reshape(operand, self.squeezed), self.permutation)
        return lax.reshape(operand, self.shape)


@dataclass(frozen=True)
class Reduction:
    """A problem and the views of its operands."""

    problem: GemmProblem
    lhs: OperandView
    rhs: OperandView
    output_shape: tuple[int, ...]  # of the dot_general; the product has its elements in order


def describe(dtype: np.dtype[Any], shape: Sequence[int]) -> str:
    """A type as JAX prints it, for messages: bf16[16,32]."""
    short = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}
    return f"{short.get(dtype.name, dtype.name)}[{','.join(map(str, shape))}]"


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

    # The order of the contraction is free, so long as both operands have the same: by either one.
    views = []
    for by in (lhs_contract, rhs_contract):
        order = sorted(range(len(by)), key=by.__getitem__)
        lhs_view, lhs_k_major = _view(
            lhs.shape, lhs_batch, lhs_free, [lhs_contract[i] for i in order]
        )
        rhs_view, rhs_k_major = _view(
            rhs.shape, rhs_batch, rhs_free, [rhs_contract[i] for i in order]
        )
        copied = sum(
            math.prod(size for size in view.shape if isinstance(size, int))  # as far as is known
            for view in (lhs_view, rhs_view)
            if view.permutation is not None
        )
        views.append((copied, lhs_view, rhs_view, lhs_k_major, rhs_k_major))
    _, lhs_view, rhs_view, lhs_k_major, rhs_k_major = min(views, key=lambda view: view[0])

    batch = tuple(lhs.shape[i] for i in lhs_batch)
    m_dims = tuple(lhs.shape[i] for i in lhs_free)
    n_dims = tuple(rhs.shape[i] for i in rhs_free)
    problem = GemmProblem(
        batch=math.prod(batch),
        m=math.prod(m_dims),
        n=math.prod(n_dims),
        k=math.prod(lhs.shape[i] for i in lhs_contract),
        lhs_batched=True,
        rhs_batched=True,
        lhs_major=Major.K if lhs_k_major else Major.MN,
        rhs_major=Major.K if rhs_k_major else Major.MN,
        lhs_dtype=np.dtype(lhs.dtype),
        rhs_dtype=np.dtype(rhs.dtype),
        output=np.dtype(output),
        epilogue=epilogue,
        precision=precision,
    )
    return Reduction(problem, lhs_view, rhs_view, batch + m_dims + n_dims)


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
    A copy keeps what is innermost: it moves whole rows, and a product that contracts the other
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
