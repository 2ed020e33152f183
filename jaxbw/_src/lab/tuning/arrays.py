"""The arrays of a matmul's custom call, for those who launch it without JAX: shapes and places."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxbw import _native
from jaxbw._native import Untyped
from jaxbw._src import blocks
from jaxbw._src.lab import group_sizes
from jaxbw._src.problem import DATA_TYPES, GemmProblem
from jaxbw._src.ragged import RaggedProblem

Array = tuple[tuple[int, ...], np.dtype[Any]]  # shape and dtype
Placed = tuple[int, tuple[int, ...], _native.DataType | Untyped]  # as the direct launcher takes it

_LINE = 256  # XLA's alignment of buffers


def operands(problem: GemmProblem | RaggedProblem) -> list[Array]:
    """Shape and dtype of each operand of the custom call, in its order.

    Of a grouped matmul without `indices`, and without what `adds_in_place` is about.
    """
    p, e, f32 = problem, problem.epilogue, np.dtype(np.float32)
    lhs_batch, rhs_batch = (p.batch if each else 1 for each in (p.lhs_batched, p.rhs_batched))
    of_groups = (rhs_batch, p.groups, p.n) if isinstance(p, RaggedProblem) else None
    found: list[Array] = [(p.lhs_shape, p.lhs_dtype), (p.rhs_shape, p.rhs_dtype)]
    if e.gated:
        found.append((p.rhs_shape, p.rhs_dtype))
    if e.c is not None and of_groups is None:
        found.append((p.output_shape, e.c))
    if e.bias is not None:
        found.append((of_groups or (p.m if e.bias_axis == "m" else p.n,), e.bias))
    if e.residual is not None:
        found.append((p.output_shape, e.residual))
    if e.factors_in_memory:
        found += [((), f32)] * (1 if e.c is None else 2)
    if e.lhs_scale:
        found.append(((lhs_batch, p.m), f32))
    if e.rhs_scale:
        found += [(of_groups or (rhs_batch, p.n), f32)] * (1 + e.gated)
    k_blocks = blocks.count(p.k)
    if e.lhs_blocks:
        found.append(((lhs_batch, p.m, k_blocks), f32))
    if e.rhs_blocks:
        found.append(((rhs_batch, blocks.count(p.n), k_blocks), f32))
    if e.out_scale:
        found.append(((), f32))
    return found


def indices(
    problem: GemmProblem | RaggedProblem, sizes: str | group_sizes.Sizes = group_sizes.DEFAULT
) -> list[group_sizes.Sizes]:
    """The operands of a grouped matmul that are behind `operands`: which rows, sizes, offset.

    `sizes`: as of `group_sizes.of_problem`.
    """
    if not isinstance(problem, RaggedProblem):
        return []
    rows = []
    if problem.source_rows is not None:
        draw = np.random.default_rng(0).integers(problem.source_rows, size=problem.m)
        rows = [draw.astype(np.int32)]
    return [*rows, group_sizes.of_problem(problem, sizes), np.zeros((), np.int32)]


def adds_in_place(problem: GemmProblem | RaggedProblem) -> bool:
    """Whether the result is an operand as well, behind lhs and rhs: grouped matmuls add to it."""
    return isinstance(problem, RaggedProblem) and problem.epilogue.c is not None


def laid_out(arrays: Sequence[Array]) -> tuple[list[int], int]:
    """Where each array begins when they lie behind each other, and the bytes of all."""
    sizes = [-(-math.prod(shape) * dtype.itemsize // _LINE) * _LINE for shape, dtype in arrays]
    *starts, end = itertools.accumulate(sizes, initial=0)
    return starts, end


def placed(at: int, starts: Sequence[int], arrays: Sequence[Array]) -> list[Placed]:
    """The arrays as the direct launcher takes them."""
    return [
        (at + start, shape, DATA_TYPES[dtype.name])
        for start, (shape, dtype) in zip(starts, arrays, strict=True)
    ]
