"""How a `ragged_dot_general` becomes one grouped matmul: [batch, rows, k] and groups of rows.

Dimensions in front of the ragged one, of lhs's free ones or of its contracting ones, have groups of
their own, like a batch. Those behind it make a row of several: sizes grow by as much.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbw._src.primitives.transposition import kept


@dataclass(frozen=True)
class RaggedPlan:
    """The dimensions of a `ragged_dot_general` by what they are for the grouped matmul.

    Attributes:
      ragged_contraction: whether the ragged dimension is contracted.
      lhs, rhs: dimensions of each operand, in groups that become one dimension each: batch, in
        front of the ragged one, rows, then what is left, of lhs k. Of an rhs with groups: batch,
        groups, and k and n, the other way round if `transposed`.
      transposed: rhs is [.., groups, n, k].
      fronts: how many problems each index of the batch has: what is in front of the ragged one.
      ragged: its extent.
      inner: rows for each index of it.
    """

    ragged_contraction: bool
    lhs: tuple[tuple[int, ...], ...]
    rhs: tuple[tuple[int, ...], ...]
    transposed: bool
    fronts: int
    ragged: int
    inner: int

    def operands(self, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        """As the primitive takes them."""
        batch, front, rows, last = self.lhs
        lhs = _joined(lhs, ((*batch, *front), rows, last))
        if self.ragged_contraction:
            batch, front, rows, last = self.rhs
            return lhs, _joined(rhs, ((*batch, *front), rows, last))
        rhs = _joined(rhs, self.rhs)
        if self.rhs[0] and self.fronts != 1:  # both have a batch, and only lhs these
            each = jnp.broadcast_to(rhs[:, None], (rhs.shape[0], self.fronts, *rhs.shape[1:]))
            rhs = each.reshape(lhs.shape[0], *rhs.shape[1:])
        return lhs, rhs

    def sizes(self, group_sizes: Any, batch: int) -> Any:
        """int32 [batch, groups], of rows."""
        sizes = as_int32(group_sizes)
        if self.inner != 1:
            sizes = jnp.clip(sizes, 0, self.ragged) * np.int32(self.inner)
        if sizes.ndim == 1:
            return jnp.broadcast_to(sizes, (batch, *sizes.shape))
        return sizes.reshape(batch, sizes.shape[-1])

    def result(self, product: Any, result: jax.ShapeDtypeStruct) -> Any:
        """As `lax.ragged_dot_general` gives it, of what the primitive gives."""
        if self.ragged_contraction:
            _, *matrices = product.shape
            if self.fronts != 1:
                parts = product.reshape(len(product) // self.fronts, self.fronts, *matrices)
                product = parts.sum(1).astype(result.dtype)
            product = product.swapaxes(0, 1)
        return product.reshape(result.shape)

    def like_product(self, x: Any, shape: tuple[int, ...]) -> Any:
        """An array that is shaped as the result, as the primitive gives it."""
        if not self.ragged_contraction:
            return x.reshape(shape)
        batch, groups, *matrix = shape
        return x.reshape(groups, batch, *matrix).swapaxes(0, 1)


def plan_ragged(lhs: Any, rhs: Any, dims: Any) -> RaggedPlan | None:
    """The plan of what `lax.ragged_dot_general` takes; None where a batch dimension is ragged."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dims.dot_dimension_numbers
    (ragged,) = dims.lhs_ragged_dimensions
    if ragged in lhs_batch:
        return None
    lhs_free = kept(lhs.ndim, lhs_contract, lhs_batch)
    if ragged in lhs_contract:
        at = lhs_contract.index(ragged)
        left = (lhs_batch, lhs_contract[:at], lhs_contract[at:], lhs_free)
        rhs_free = kept(rhs.ndim, rhs_contract, rhs_batch)
        right: tuple[tuple[int, ...], ...]
        right = (rhs_batch, rhs_contract[:at], rhs_contract[at:], rhs_free)
        is_contracted, transposed = True, False
    else:
        # The contraction in the order in which rhs, mostly the larger one, has it.
        order = np.argsort(rhs_contract)
        lhs_contract, rhs_contract = (
            tuple(x[i] for i in order) for x in (lhs_contract, rhs_contract)
        )
        at = lhs_free.index(ragged)
        left = (lhs_batch, lhs_free[:at], lhs_free[at:], lhs_contract)
        (group,) = dims.rhs_group_dimensions
        rhs_free = kept(rhs.ndim, rhs_contract, rhs_batch, (group,))
        transposed = bool(rhs_contract) and max(rhs_contract) == rhs.ndim - 1
        matrix = (rhs_free, rhs_contract) if transposed else (rhs_contract, rhs_free)
        right = (rhs_batch, (group,), *matrix)
        is_contracted = False
    fronts = math.prod(lhs.shape[i] for i in left[1])
    inner = math.prod(lhs.shape[i] for i in left[2][1:])
    return RaggedPlan(
        is_contracted, left, right, transposed, fronts, ragged=lhs.shape[ragged], inner=inner
    )


def _joined(x: Any, dims: Sequence[tuple[int, ...]]) -> Any:
    """An array with each of these groups of its dimensions as one."""
    order = [i for some in dims for i in some]
    x = x if order == sorted(order) else lax.transpose(x, order)
    shape = iter(x.shape)
    return x.reshape([math.prod(next(shape) for _ in some) for some in dims])


def as_int32(x: Any) -> Any:
    """Integers as int32; what is beyond its range becomes one of its ends."""
    if x.dtype.itemsize >= 4 and x.dtype != np.int32:
        limits = np.iinfo(np.int32)
        x = jnp.minimum(x, limits.max)
        x = jnp.maximum(x, limits.min) if jnp.issubdtype(x.dtype, jnp.signedinteger) else x
    return x.astype(np.int32)
