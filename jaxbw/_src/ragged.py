"""A grouped matmul: the problem as the kernels and their selection see it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxbw._native import Major


@dataclass(frozen=True)
class RaggedProblem:
    """A matmul whose rows, or whose contraction, fall into groups of sizes that only the device knows.

    With `ragged_contraction` False, ``out[b, r] = lhs[b, r] @ rhs[b, group of r]``: lhs is
    [batch|1, m, k], rhs [batch|1, groups, k, n] or its transpose [.., n, k], out [batch, m, n]. Rows
    that belong to no group, or to one that this rhs does not have, are zeros.

    With `ragged_contraction` True, ``out[b, g] = lhs[b, rows of g]^T @ rhs[b, rows of g]``: lhs is
    [batch|1, m, k], rhs [batch|1, m, n], out [batch, groups, k, n]. An empty group is zeros.

    Attributes:
      batch: as many rows of group_sizes; 1 where there is no vmap.
      groups: of this rhs or out.
      total_groups: entries of group_sizes; the first group of rhs or out is at group_offset in it.
      rhs_major: MN for [.., k, n], K for [.., n, k].
      dtype: of lhs and rhs.
      rows_per_group: what the caller expects; only the choice of a kernel looks at it.
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
    dtype: np.dtype[Any]
    output: np.dtype[Any]
    rows_per_group: int | None = None

    @property
    def lhs_shape(self) -> tuple[int, int, int]:
        """[batch|1, m, k]."""
        return (self.batch if self.lhs_batched else 1, self.m, self.k)

    @property
    def rhs_shape(self) -> tuple[int, ...]:
        """[batch|1, groups, k, n] or [.., n, k]; [batch|1, m, n] where the contraction is ragged."""
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
