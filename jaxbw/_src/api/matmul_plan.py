"""jnp.matmul's shapes as one dot_general: which dimensions are contracted, batched and squeezed."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax

from jaxbw._src import compat
from jaxbw._src.problem import DimensionNumbers, describe


@dataclass(frozen=True)
class MatmulPlan:
    """Squeeze the operands, multiply, transpose the matmul, and give back what both had squeezed.

    A batch dimension of size 1 that the other operand does not have, or has larger, is squeezed,
    so that it is broadcast without being written.
    """

    lhs_squeeze: tuple[int, ...]
    rhs_squeeze: tuple[int, ...]
    dimension_numbers: DimensionNumbers
    permutation: tuple[int, ...]
    expand: tuple[int, ...]
    shape: tuple[int, ...]  # of the result

    def operands(self, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        """The operands of the dot_general."""
        return _squeeze(lhs, self.lhs_squeeze), _squeeze(rhs, self.rhs_squeeze)

    def result(self, matmul: Any) -> Any:
        """The matmul's result, of the dot_general's."""
        if list(self.permutation) != sorted(self.permutation):
            matmul = lax.transpose(matmul, self.permutation)
        return lax.expand_dims(matmul, self.expand) if self.expand else matmul

    def like_matmul(self, call: str, name: str, x: Any) -> Any:
        """The inverse of `result`: an array shaped as the matmul's, as the dot_general's.

        Raises:
          ValueError: it is not.
        """
        if x.shape != self.shape:
            raise ValueError(
                f"{call}: {name} {describe(x.dtype, x.shape)} is not shaped as the result, "
                f"[{','.join(map(str, self.shape))}]; broadcast it"
            )
        x = _squeeze(x, self.expand)
        if list(self.permutation) != sorted(self.permutation):
            x = lax.transpose(x, np.argsort(self.permutation).tolist())
        return x


def _squeeze(x: Any, dims: tuple[int, ...]) -> Any:
    """x without these dimensions; a transposition comes last, where a matmul looks for it."""
    if not dims:
        return x
    original, permutation = compat.before_transposition(x)
    if permutation is None:
        return lax.squeeze(x, dims)
    rest = [dim for i, dim in enumerate(permutation) if i not in dims]
    squeezed = lax.squeeze(original, [permutation[i] for i in dims])
    return lax.transpose(squeezed, [sorted(rest).index(dim) for dim in rest])


def plan_matmul(call: str, lhs: Any, rhs: Any) -> MatmulPlan:
    """The plan for two arrays.

    Raises:
      ValueError: a scalar operand, contracting sizes that differ, or batch dimensions that do not
        broadcast.
    """
    shapes = f"lhs {describe(lhs.dtype, lhs.shape)}, rhs {describe(rhs.dtype, rhs.shape)}"
    if lhs.ndim < 1 or rhs.ndim < 1:
        raise ValueError(f"{call}: {shapes}: operands have one dimension or more; scale with *")
    lhs_is_matrix, rhs_is_matrix = lhs.ndim > 1, rhs.ndim > 1
    k_axis = rhs.ndim - 1 - rhs_is_matrix
    if lhs.shape[-1] != rhs.shape[k_axis]:
        raise ValueError(
            f"{call}: {shapes}: the last dimension of lhs, {lhs.shape[-1]}, is not "
            f"dimension {k_axis} of rhs, {rhs.shape[k_axis]}; transpose an operand, or use "
            "jaxbw.dot_general to contract others"
        )

    rank = max(lhs.ndim - 2, rhs.ndim - 2, 0)
    lhs_batch = _batch_dims(lhs, rank)
    rhs_batch = _batch_dims(rhs, rank)
    lhs_squeeze: list[int] = []
    rhs_squeeze: list[int] = []
    both_squeeze: list[int] = []
    contracted: tuple[list[int], list[int]] = ([], [])  # batch dimensions of the squeezed operands
    # Where each dimension of the matmul goes: batch dimensions, then those of lhs, those of rhs.
    shared: list[int] = []
    of_lhs: list[int] = []
    of_rhs: list[int] = []
    shape: list[int] = []
    for i, (left, right) in enumerate(zip(lhs_batch, rhs_batch, strict=True)):
        lhs_axis = len(shared) + len(of_lhs)
        rhs_axis = len(shared) + len(of_rhs)
        wider = left if right is None or right == (1, None) else right
        assert wider is not None
        shape.append(wider[0])
        if left is None:
            of_rhs.append(i)
        elif right is None:
            of_lhs.append(i)
        elif left == right == (1, None):
            lhs_squeeze.append(lhs_axis + len(lhs_squeeze))
            rhs_squeeze.append(rhs_axis + len(rhs_squeeze))
            both_squeeze.append(i)
        elif left == (1, None):
            of_rhs.append(i)
            lhs_squeeze.append(lhs_axis + len(lhs_squeeze))
        elif right == (1, None):
            of_lhs.append(i)
            rhs_squeeze.append(rhs_axis + len(rhs_squeeze))
        elif left == right:
            contracted[0].append(lhs_axis)
            contracted[1].append(rhs_axis)
            shared.append(i)
        else:
            raise ValueError(
                f"{call}: {shapes}: batch dimensions {left[0]} and {right[0]} do not broadcast; "
                "they are equal (and sharded alike), or one of them is 1"
            )
    if lhs_is_matrix:
        of_lhs.append(rank)
        shape.append(lhs.shape[-2])
    if rhs_is_matrix:
        of_rhs.append(rank + lhs_is_matrix)
        shape.append(rhs.shape[-1])

    lhs_k = lhs.ndim - len(lhs_squeeze) - 1
    rhs_k = rhs.ndim - len(rhs_squeeze) - 1 - rhs_is_matrix
    order = np.argsort([*shared, *of_lhs, *of_rhs]).tolist()
    return MatmulPlan(
        tuple(lhs_squeeze),
        tuple(rhs_squeeze),
        (((lhs_k,), (rhs_k,)), (tuple(contracted[0]), tuple(contracted[1]))),
        tuple(order),
        tuple(both_squeeze),
        tuple(shape),
    )


def _batch_dims(x: Any, rank: int) -> list[tuple[Any, Any] | None]:
    """(size, sharding) of each batch dimension; None where the operand has none there."""
    sizes = x.shape[:-2] if x.ndim > 1 else ()
    specs = compat.spec_entries(x)[: len(sizes)]
    return [None] * (rank - len(sizes)) + list(zip(sizes, specs, strict=True))
