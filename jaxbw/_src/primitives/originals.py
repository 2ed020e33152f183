"""Transposed operands are read where they lie: a matmul takes the arrays that they were before.

Traced, `matmul(x, w.T)` is a matmul of x and w that contracts the last dimension of both. XLA
would find as much of its own matmuls; for a custom call it would write the transposition down.
Before differentiation, too: so w is what is kept for the backward pass, and its cotangent is
computed as it lies. Only transpositions that the kernels need no copy for are taken in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import lax

from jaxbw._src import compat
from jaxbw._src.primitives.transposition import kept
from jaxbw._src.problem import DimensionNumbers, Operands, is_read_in_place
from jaxbw._src.selection.config import GemmConfig

_FACTORS = ("lhs", "rhs", "rhs_up")


@partial(jax.tree_util.register_dataclass, data_fields=("original",), meta_fields=("permutation",))
@dataclass(frozen=True)
class Transposed:
    """A transposition still to be done: an argument of a compiled function, which sees it so."""

    original: Any
    permutation: tuple[int, ...]

    @property
    def type(self) -> jax.ShapeDtypeStruct:
        """That of what is transposed."""
        shape = tuple(self.original.shape[i] for i in self.permutation)
        return jax.ShapeDtypeStruct(shape, self.original.dtype)


def untransposed(operands: Operands) -> Operands:
    """Arguments for a compiled function that calls `transposed`, hence `read_in_place`, on them."""

    def before(x: Any) -> Any:
        if isinstance(x, Transposed):
            return x
        original, permutation = compat.before_transposition(x)
        return x if permutation is None else Transposed(original, permutation)

    return operands._replace(
        **{name: before(x) for name, x in zip(_FACTORS, operands, strict=False) if x is not None}
    )


def transposed(given: Sequence[Any]) -> Operands:
    """The inverse of `untransposed`, which leaves a trace of what is transposed."""
    return Operands(
        *(
            lax.transpose(x.original, x.permutation) if isinstance(x, Transposed) else x
            for x in given
        )
    )


def read_in_place(
    operands: Operands, dims: DimensionNumbers, config: GemmConfig | None
) -> tuple[Operands, DimensionNumbers]:
    """The same matmul, of the originals of operands that are transposed in this trace.

    A given configuration is one for the operands as they are written: so they stay.
    """
    if config is not None and not config.leaves_tile_open:
        return operands, dims
    lhs, rhs, rhs_up, *others = operands
    rights = (rhs,) if rhs_up is None else (rhs, rhs_up)
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dims
    (lhs,), lhs_contract, lhs_batch = _originals((lhs,), lhs_contract, lhs_batch)
    rights, rhs_contract, rhs_batch = _originals(rights, rhs_contract, rhs_batch)
    dims = ((lhs_contract, rhs_contract), (lhs_batch, rhs_batch))
    return Operands(lhs, *rights, *(() if rhs_up is not None else (None,)), *others), dims


def _originals(
    xs: tuple[Any, ...], contract: tuple[int, ...], batch: tuple[int, ...]
) -> tuple[tuple[Any, ...], tuple[int, ...], tuple[int, ...]]:
    """Operands of the same dimensions, or what they were before, and their dimensions there."""
    (x, permutation), *others = map(compat.before_transposition, xs)
    if permutation is None or any(other != permutation for _, other in others):
        return xs, contract, batch

    def before(dims: Sequence[int]) -> tuple[int, ...]:
        return tuple(permutation[i] for i in dims)

    free = before(kept(len(permutation), contract, batch))
    contract_before, batch_before = before(contract), before(batch)
    # The result has the free dimensions in the operand's order.
    if list(free) != sorted(free) or not is_read_in_place(x.shape, contract_before, batch_before):
        return xs, contract, batch
    return (x, *(original for original, _ in others)), contract_before, batch_before
