"""Layers of experts that benchmarks/ragged.py times, and what else reads its records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxbw._native import Major
from jaxbw._src.lab import group_sizes
from jaxbw._src.ragged import RaggedProblem

FORMS = ("forward", "dlhs", "drhs")
MICROBATCHES = 4


@dataclass(frozen=True)
class Case:
    """A layer of experts: m rows in all, weights [groups, k, n]."""

    layer: str
    groups: int
    m: int
    k: int
    n: int
    form: str
    kind: str

    @property
    def flops(self) -> float:
        """Of what has to be multiplied, where all rows belong to groups."""
        matmuls = {"gated": 2, "chosen gated": 2, "sums": MICROBATCHES, "training": 3}.get(
            self.form, 1
        )
        return 2.0 * matmuls * self.m * self.k * self.n

    def __str__(self) -> str:
        return (
            f"{self.layer} {self.groups} x {self.m / self.groups:.0f} rows, {self.k}x{self.n} "
            f"{self.form} {self.kind}"
        )


def sizes_of(case: Case) -> Any:
    """int32 [groups], which sum to m."""
    return group_sizes.drawn(case.kind, case.groups, case.m)


def problem_of(case: Case) -> RaggedProblem:
    """The matmul of a case's form."""
    bf16 = np.dtype(jnp.bfloat16)
    forward = RaggedProblem(
        ragged_contraction=False,
        batch=1,
        m=case.m,
        k=case.k,
        n=case.n,
        groups=case.groups,
        total_groups=case.groups,
        lhs_batched=True,
        rhs_batched=True,
        rhs_major=Major.MN,
        lhs_dtype=bf16,
        rhs_dtype=bf16,
        output=bf16,
    )
    if case.form == "dlhs":  # the weights as they are stored, read transposed
        return replace(forward, k=case.n, n=case.k, rhs_major=Major.K)
    return replace(forward, ragged_contraction=case.form == "drhs")
