"""PendingMatmul: a matmul that waits for its bias and its activation, to run with them as one.

Flax's layers compute `dot_general(inputs, kernel, ...)` and add the bias to what comes back. Given
the one below, they get a description of the matmul back, which takes the bias in; our layers then
run it with the activation, in one kernel where one fits. So all else of a layer stays Flax's own:
parameters, their names, initial values, dtypes and partitioning.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from opt_einsum.parser import parse_einsum_input

from jaxbw._src.api import arguments, matmul
from jaxbw._src.epilogue import ACTIVATIONS
from jaxbw._src.problem import DimensionNumbers


# A pytree, for whatever looks at what layers return: Flax's `capture_intermediates`, for one.
@partial(
    jax.tree_util.register_dataclass,
    data_fields=["lhs", "rhs", "bias"],
    meta_fields=[
        "dimension_numbers",
        "precision",
        "preferred_element_type",
        "out_sharding",
        "permutation",
    ],
)
@dataclass(frozen=True)
class PendingMatmul:
    """A `dot_general` to come. All but its last fields are `lax.dot_general`'s arguments.

    Attributes:
      bias: shaped as the dimensions of rhs that are in the result; None for none.
      permutation: which dimension of the dot_general each of the result is; None for its own.
    """

    lhs: Any
    rhs: Any
    dimension_numbers: DimensionNumbers
    precision: Any = None
    preferred_element_type: Any = None
    out_sharding: Any = None
    bias: Any = None
    permutation: tuple[int, ...] | None = None

    @property
    def ndim(self) -> int:
        """Dimensions of the result."""
        (lhs_contracted, _), _ = self.dimension_numbers
        rank: int = self.lhs.ndim - len(lhs_contracted) + len(self._columns)
        return rank

    @property
    def _columns(self) -> tuple[int, ...]:
        """The sizes of the dimensions of rhs that come last in the dot_general."""
        (_, contracted), (_, batch) = self.dimension_numbers
        return tuple(
            size for i, size in enumerate(self.rhs.shape) if i not in (*contracted, *batch)
        )

    def __add__(self, other: Any) -> Any:
        """The matmul with a bias, or the sum where it is none that a kernel adds."""
        added = jnp.asarray(other)
        bias = self._bias(added)
        return self.run() + added if bias is None else replace(self, bias=bias)

    def _bias(self, added: jax.Array) -> jax.Array | None:
        """What is added to the result, as a bias; None where it is none, or changes the dtype."""
        dtype = self.preferred_element_type or jnp.result_type(self.lhs, self.rhs)
        if not jnp.issubdtype(dtype, jnp.floating) or jnp.result_type(added, dtype) != dtype:
            return None
        if self.bias is not None or not self._columns or added.ndim != self.ndim:
            return None
        if self.permutation is not None:
            added = jnp.transpose(added, np.argsort(self.permutation).tolist())
        rows = self.ndim - len(self._columns)
        if math.prod(added.shape[:rows]) != 1 or added.shape[rows:] != self._columns:
            return None
        return added.reshape(self._columns)

    def run(self, activation: str | None = None) -> jax.Array:
        """The result: `activation(matmul + bias)`."""
        result = matmul.dot_general(
            self.lhs,
            self.rhs,
            self.dimension_numbers,
            self.precision,
            self.preferred_element_type,
            out_sharding=self.out_sharding,
            bias=self.bias,
            activation=activation,
        )
        return result if self.permutation is None else jnp.transpose(result, self.permutation)

    def __jax_array__(self) -> jax.Array:
        """The result, for a function of arrays that is given this."""
        return self.run()


def dot_general(*args: Any, **keywords: Any) -> PendingMatmul:
    """`lax.dot_general` that waits; a function of that name for Flax, whose layers show it."""
    return PendingMatmul(*args, **keywords)


def run(call: str, result: Any, activation: str | None) -> Any:
    """What a layer of Flax's returned, with the activation.

    Args:
      call: the layer, for messages.
      result: a PendingMatmul; or an array, where the layer computed something else.

    Raises:
      ValueError: there is no such activation.
    """
    arguments.check_activation(call, activation)
    if isinstance(result, PendingMatmul):
        return result.run(activation)
    return ACTIVATIONS[activation](result)


def run_gated(call: str, gate: Any, up: Any, activation: str | None) -> Any:
    """`activation(gate) * up`, of two `Dense` layers: one kernel where they have no bias.

    Args:
      gate, up: what the layers returned for the same inputs; as of `run`.
      call, activation: as of `run`.

    Raises:
      ValueError: there is no such activation.
    """
    arguments.check_activation(call, activation)
    if not all(isinstance(x, PendingMatmul) and x.bias is None for x in (gate, up)):
        return run(call, gate, activation) * run(call, up, None)
    return matmul.gated_matmul(
        gate.lhs,
        gate.rhs,
        up.rhs,
        activation=activation,
        precision=gate.precision,
        preferred_element_type=gate.preferred_element_type,
        out_sharding=gate.out_sharding,
    )


def einsum(
    subscripts: str,
    lhs: Any,
    rhs: Any,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:
    """`jnp.einsum` of two operands: a PendingMatmul, or the result where it is no dot_general."""
    operands, result, _ = parse_einsum_input((subscripts, lhs, rhs))
    of_lhs, of_rhs = operands.split(",")
    shared = {*of_lhs} & {*of_rhs}
    # In jnp.einsum's order, so that XLA's sums have its bits.
    batch = [label for label in result if label in shared]
    contracted = sorted(shared.difference(result))
    free = [label for label in of_lhs + of_rhs if label not in shared]
    matmul = [*batch, *free]
    sizes = {*zip(of_lhs, lhs.shape, strict=False), *zip(of_rhs, rhs.shape, strict=False)}
    is_matmul = (
        (len(of_lhs), len(of_rhs)) == (lhs.ndim, rhs.ndim)
        and sorted(matmul) == sorted(result)  # else a label is summed over within one operand
        and len(of_lhs) + len(of_rhs) == len({*of_lhs}) + len({*of_rhs})  # none is repeated
        and len(sizes) == len({*of_lhs, *of_rhs})  # one size each: einsum alone broadcasts
        and (out_sharding is None or matmul == [*result])
    )
    keywords: Any = {
        "preferred_element_type": preferred_element_type,
        "out_sharding": out_sharding,
    }
    if not is_matmul:
        return jnp.einsum(subscripts, lhs, rhs, precision=precision, **keywords)

    def places(group: list[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(map(of_lhs.index, group)), tuple(map(of_rhs.index, group))

    dims = (places(contracted), places(batch))
    permutation = tuple(map(matmul.index, result))
    in_order = permutation == tuple(range(len(permutation)))
    return PendingMatmul(
        lhs, rhs, dims, precision, permutation=None if in_order else permutation, **keywords
    )
