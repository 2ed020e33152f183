"""A grouped matmul: the problem as the kernels and their selection see it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxbw._native import Grouped, Major, Problem
from jaxbw._src.epilogue import IDENTITY, Epilogue
from jaxbw._src.problem import ACTIVATIONS, DATA_TYPES, describe, mx_of


@dataclass(frozen=True)
class RaggedProblem:
    """A matmul whose rows, or contraction, fall into groups of sizes that only the device knows.

    With `ragged_contraction` False, ``out[b, r] = lhs[b, r] @ rhs[b, group of r]``: lhs is
    [batch|1, m, k], rhs [batch|1, groups, k, n] or its transpose [.., n, k], out [batch, m, n].
    Rows that belong to no group, or to one that this rhs does not have, are zeros.

    With `ragged_contraction` True, ``out[b, g] = lhs[b, rows of g]^T @ rhs[b, rows of g]``: lhs is
    [batch|1, m, k], rhs [batch|1, m, n], out [batch, groups, k, n]. An empty group is zeros.

    An epilogue's bias, of rows in groups, has a row for each matrix, [batch|1, groups, n], as have
    the scales of rhs; rows that are zeros stay so. Its c, of a contraction, is shaped as out.

    Where rows are grouped they may be gathered: `source_rows` says how many there are, lhs is
    [1, source_rows, k], and its row r above is the one that the r-th of m indices says.

    Attributes:
      batch: as many rows of group_sizes; 1 where there is no vmap.
      groups: of this rhs or out.
      total_groups: entries of group_sizes; the first group of rhs or out is at group_offset in it.
      rhs_major: MN for [.., k, n], K for [.., n, k].
      promoted: as of `GemmProblem`.
      rows_per_group: what the caller expects; only the choice of a kernel looks at it.
      epilogue: what happens to the product on its way out.
    """

    ragged_contraction: bool
    batch: int
    m: int
    k: int
    n: int
    groups: int
    total_groups: int
    lhs_batched: bool
    rhs_batched: bool
    rhs_major: Major
    lhs_dtype: np.dtype[Any]
    rhs_dtype: np.dtype[Any]
    output: np.dtype[Any]
    promoted: bool = False
    rows_per_group: int | None = None
    epilogue: Epilogue = IDENTITY
    source_rows: int | None = None

    @property
    def is_sized(self) -> bool:
        """Whether all extents are known."""
        extents = (self.batch, self.m, self.k, self.n, self.groups, self.total_groups)
        return all(isinstance(extent, int) for extent in extents)

    @property
    def key(self) -> str:
        """What a tuned table compares: as of a dense matmul, and what a program knows of groups.

        That is how many there are, and the rows that are expected of one; and promoted sums, which
        have tiles of their own.
        """
        sums = ", sums promoted" if self.promoted else ""
        return f"{self}, {self.total_groups} groups, {self.expected_rows} rows of one{sums}"

    @property
    def lhs_shape(self) -> tuple[int, int, int]:
        """[batch|1, m, k], or of gathered rows [1, source_rows, k]."""
        rows = self.m if self.source_rows is None else self.source_rows
        return (self.batch if self.lhs_batched else 1, rows, self.k)

    @property
    def rhs_shape(self) -> tuple[int, ...]:
        """[batch|1, groups, k, n] or [.., n, k]; of a ragged contraction [batch|1, m, n]."""
        batch = self.batch if self.rhs_batched else 1
        if self.ragged_contraction:
            return (batch, self.m, self.n)
        matrix = (self.n, self.k) if self.rhs_major == Major.K else (self.k, self.n)
        return (batch, self.groups, *matrix)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """[batch, m, n]; [batch, groups, k, n] where the contraction is ragged."""
        if self.ragged_contraction:
            return (self.batch, self.groups, self.k, self.n)
        return (self.batch, self.m, self.n)

    @property
    def results(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of what comes out."""
        return [(self.output_shape, self.output)]

    @property
    def expected_rows(self) -> int:
        """Of a group: the caller's word, or what there is on average; at least 1."""
        if self.rows_per_group is not None:
            return max(self.rows_per_group, 1)
        return -(-self.m // max(self.total_groups, 1))

    @property
    def native(self) -> Problem:
        """The same for the planner: extents are known, dtypes among `DATA_TYPES`."""
        contraction, e = self.ragged_contraction, self.epilogue
        c, bias = (None if dtype is None else DATA_TYPES[dtype.name] for dtype in (e.c, e.bias))
        return Problem(
            batch=self.batch,
            m=self.k if contraction else self.m,
            n=self.n,
            k=self.m if contraction else self.k,
            lhs_batched=self.lhs_batched,
            rhs_batched=self.rhs_batched,
            lhs_major=Major.MN if contraction else Major.K,
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
            mx=mx_of(e),
            c=c,
            bias=bias,
            activation=ACTIVATIONS[e.activation],
            gated=e.gated,
            grouped=Grouped.CONTRACTION if contraction else Grouped.ROWS,
            groups=self.groups,
            total_groups=self.total_groups,
            source_rows=self.source_rows or 0,
        )

    def __str__(self) -> str:
        lhs = describe(self.lhs_dtype, self.lhs_shape)
        lhs += "" if self.source_rows is None else "[lhs_rows]"
        rhs = describe(self.rhs_dtype, self.rhs_shape)
        turned = "^T" if self.ragged_contraction else ""
        transposed = "^T" if self.rhs_major == Major.K else ""
        result = describe(self.output, self.output_shape)
        matmul = self.epilogue.describe(f"{lhs}{turned} @ {rhs}{transposed}")
        return f"ragged {matmul} -> {result}"
