"""The transposition of a matmul: the cotangent of an operand, as a matmul again.

lax always multiplies the result's cotangent by the other operand, and transposes the matmul where
that is not the order of the operand's dimensions. Here the other operand by the cotangent is the
second candidate, so that each layout of a matmul has two transposes that are written in
place: the kernels read either operand in either major, while a transposed result would be a copy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax

from jaxbw._src import compat
from jaxbw._src.problem import DimensionNumbers


@dataclass(frozen=True)
class Transposition:
    """A dot_general whose value is the cotangent of operand x, given the other operand y.

    Attributes:
      dimension_numbers: of the matmul of `operands`.
      cotangent_first: whether the result's cotangent is its lhs.
      axes: which dimension of x each dimension of the matmul is.
    """

    dimension_numbers: DimensionNumbers
    cotangent_first: bool
    axes: tuple[int, ...]

    def operands(self, cotangent: Any, y: Any) -> tuple[Any, Any]:
        """lhs and rhs of the matmul."""
        return (cotangent, y) if self.cotangent_first else (y, cotangent)

    def sharding(self, x: Any) -> Any:
        """The matmul's `out_sharding`, of the type of x."""
        return compat.canonicalize_sharding(compat.permuted_sharding(x, self.axes), "dot_general")

    def result(self, matmul: Any, x: Any) -> Any:
        """The cotangent of x, of the matmul and the type of x."""
        if list(self.axes) != sorted(self.axes):
            matmul = lax.transpose(matmul, np.argsort(self.axes).tolist())
        if np.iscomplexobj(matmul) and not np.issubdtype(x.dtype, np.complexfloating):
            matmul = lax.real(matmul)  # the other operand was complex
        if matmul.dtype != x.dtype:
            matmul = compat.convert_element_type(matmul, x.dtype, x.weak_type)
        return matmul


def transposition(ranks: tuple[int, int], dims: DimensionNumbers, *, of_rhs: bool) -> Transposition:
    """How the cotangent of lhs, or of rhs, is computed for a dot_general of operands so ranked."""
    (x_contract, y_contract), (x_batch, y_batch) = dims
    x_rank, y_rank = ranks
    if of_rhs:
        x_rank, y_rank = y_rank, x_rank
        x_contract, y_contract, x_batch, y_batch = y_contract, x_contract, y_batch, x_batch
    by_x = np.argsort(x_batch).tolist()  # batch dimensions come out in the order of x
    x_kept = kept(x_rank, x_contract, x_batch)
    y_kept = kept(y_rank, y_contract, y_batch)

    # The dimensions of the result: batch, then those kept of lhs and of rhs.
    first, second = (y_kept, x_kept) if of_rhs else (x_kept, y_kept)
    start = len(x_batch)
    middle = start + len(first)
    first_out = tuple(range(start, middle))
    second_out = tuple(range(middle, middle + len(second)))
    y_out = first_out if of_rhs else second_out

    x_contract_by_y = tuple(x_contract[i] for i in np.argsort(y_contract))
    batch_of_x = tuple(x_batch[i] for i in by_x)
    cotangent_first = (*batch_of_x, *x_kept, *x_contract_by_y)
    y_first = (*batch_of_x, *x_contract_by_y, *x_kept)

    cotangent_dims = (y_out, tuple(by_x))
    y_dims = (tuple(y_kept), tuple(y_batch[i] for i in by_x))
    if list(y_first) == sorted(y_first) and list(cotangent_first) != sorted(cotangent_first):
        (left, right), axes, leads = (y_dims, cotangent_dims), y_first, False
    else:
        (left, right), axes, leads = (cotangent_dims, y_dims), cotangent_first, True
    return Transposition(((left[0], right[0]), (left[1], right[1])), leads, axes)


def kept(rank: int, *taken: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions of an array that are in none of these lists."""
    return tuple(i for i in range(rank) if not any(i in dims for dims in taken))


def backward_params(params: Mapping[str, Any], plan: Transposition) -> dict[str, Any]:
    """The parameters of the transposed matmuls, of those of the matmul.

    Of two precisions the first is that of the cotangent, as lax has it.
    """
    precision = params["precision"]
    if type(precision) is tuple and not plan.cotangent_first:
        precision = precision[::-1]
    return {
        "precision": precision,
        "preferred_element_type": params["preferred_element_type"],
        "policy": params["policy"].for_gradients,
    }
