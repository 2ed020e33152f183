"""Matmuls of which one array lies in chunks on a ring of devices, a chunk travelling at each step.

The array is an operand, which is gathered as the matmul goes along, or the result, whose partial
sums are scattered. Instead of one collective before or after the matmul there are as many matmuls
as devices and, between them, one `lax.ppermute` each, for which the matmul of the same step does
not wait: XLA's scheduler overlaps them. Wang et al., "Overlap communication with dependent
computation via decomposition in large deep learning models", ASPLOS 2023; as there, chunks travel
both ways round, so that half as many steps follow each other and both directions of a link are in
use.

Called inside `jax.shard_map`. Nothing here is differentiated: collective_dot_general.py says how.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbw._src.epilogue import Epilogue, wide_dtype
from jaxbw._src.primitives.dot_general import dot_general
from jaxbw._src.primitives.fused_dot_general import fused_dot_general
from jaxbw._src.primitives.transposition import kept
from jaxbw._src.problem import DimensionNumbers, Operands

Array = Literal["lhs", "rhs", "out"]
AxisName = str | tuple[str, ...]

# Elements of a result: a tile for each SM of an H200. A smaller matmul does not take less time.
FULL = 132 * 128 * 256


@dataclass(frozen=True)
class Ring:
    """What of a dot_general is in chunks, one for each device of a mesh axis.

    Attributes:
      axis_name, size: the mesh axis; more than one are taken as one.
      array: an operand, each of whose chunks is a device's own, or the result.
      dimension: of that array; chunks follow each other along it. It is no batch dimension.
    """

    axis_name: AxisName
    size: int
    array: Array
    dimension: int

    def partner(self, ranks: tuple[int, int], dims: DimensionNumbers) -> tuple[Array, int]:
        """The other array with this dimension, and where; every device has all of it."""
        (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dims
        lhs_kept = kept(ranks[0], lhs_contract, lhs_batch)
        rhs_kept = kept(ranks[1], rhs_contract, rhs_batch)
        rows = len(lhs_batch)
        columns = rows + len(lhs_kept)
        if self.array == "out":
            if self.dimension < columns:
                return "lhs", lhs_kept[self.dimension - rows]
            return "rhs", rhs_kept[self.dimension - columns]
        if self.array == "lhs":
            if self.dimension in lhs_contract:
                return "rhs", rhs_contract[lhs_contract.index(self.dimension)]
            return "out", rows + lhs_kept.index(self.dimension)
        if self.dimension in rhs_contract:
            return "lhs", lhs_contract[rhs_contract.index(self.dimension)]
        return "out", columns + rhs_kept.index(self.dimension)

    @property
    def others(self) -> list[int]:
        """How many places on the other devices are; near ones first, on both sides in turn."""
        around = range(-((self.size - 1) // 2), self.size // 2 + 1)
        return sorted((places for places in around if places), key=lambda d: (abs(d), -d))

    def index(self, places: int) -> Any:
        """The index of the device so many places on."""
        here = lax.axis_index(self.axis_name)
        return lax.rem(here + np.int32(places % self.size), np.int32(self.size))

    def shift(self, x: Any, places: int) -> Any:
        """What the device so many places back has."""
        pairs = [(i, (i + places) % self.size) for i in range(self.size)]
        return lax.ppermute(x, self.axis_name, pairs)

    def chunk(self, x: Any, dimension: int, places: int) -> Any:
        """The chunk of x that belongs to the device so many places on."""
        size = x.shape[dimension] // self.size
        return lax.dynamic_slice_in_dim(x, self.index(places) * size, size, dimension)

    def chunks(self, x: Any) -> Iterator[tuple[int, Any]]:
        """Every device's x, and how many places on it is; this device's own first."""
        arrived = {0: x}
        yield 0, x
        for places in self.others:
            step = _sign(places)
            arrived[places] = self.shift(arrived[places - step], -step)
            yield places, arrived[places]


def _sign(x: int) -> int:
    return 1 if x > 0 else -1


def ring_dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: DimensionNumbers,
    ring: Ring,
    preferred_element_type: np.dtype[Any],
    **params: Any,
) -> Any:
    """The matmul with what `ring` says gathered or scattered.

    Sums over devices are taken, and partial sums travel, in float32 where the result is narrower.

    Args:
      lhs, rhs: the operands that a device has.
      dimension_numbers: of the matmul of the whole arrays.
      ring: what is in chunks.
      preferred_element_type: dtype of the result.
      **params: the other ones of `primitives.dot_general.dot_general`.
    """
    dims = dimension_numbers
    matmul = _Matmul(dims, preferred_element_type, params)
    array, dimension = ring.partner((lhs.ndim, rhs.ndim), dims)
    if ring.array == "out":
        return _scattered(matmul, ring, array, dimension, lhs, rhs)
    if array == "out":
        return _placed(matmul, ring, dimension, lhs, rhs)
    return _summed(matmul, ring, dimension, lhs, rhs)


@dataclass(frozen=True)
class _Matmul:
    """A dot_general of chunks, to which sums are added."""

    dims: DimensionNumbers
    dtype: np.dtype[Any]
    params: dict[str, Any]

    @property
    def sum_dtype(self) -> Any:
        """The dtype of sums that are not complete."""
        return wide_dtype(self.dtype) if jnp.issubdtype(self.dtype, jnp.inexact) else self.dtype

    def __call__(self, lhs: Any, rhs: Any, *sums: Any, complete: bool = True) -> Any:
        """The matmul with up to two sums added, by its kernel where one serves it."""
        dtype = self.dtype if complete else self.sum_dtype
        params = self.params | {"preferred_element_type": dtype}
        if sums and jnp.issubdtype(dtype, jnp.floating):
            c, residual = (*sums, None)[:2]
            epilogue = Epilogue(c=c.dtype, residual=None if residual is None else residual.dtype)
            operands = Operands(lhs, rhs, c=c, residual=residual)
            return fused_dot_general(operands, epilogue, self.dims, **params)[0]
        return sum(sums, dot_general(lhs, rhs, self.dims, **params))


def _with(array: Array, x: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
    """The operands with x in the place of one."""
    return (x, rhs) if array == "lhs" else (lhs, x)


def _placed(matmul: _Matmul, ring: Ring, dimension: int, lhs: Any, rhs: Any) -> Any:
    """The gathered dimension is one of the result: a chunk of it makes a chunk of the result."""
    parts = {
        places: matmul(*_with(ring.array, chunk, lhs, rhs))
        for places, chunk in ring.chunks(lhs if ring.array == "lhs" else rhs)
    }
    own = parts[0]
    if ring.size == 1:
        return own
    size = own.shape[dimension]
    shape = (*own.shape[:dimension], ring.size * size, *own.shape[dimension + 1 :])
    result = jnp.zeros(shape, own.dtype)
    for places, part in parts.items():
        start = ring.index(places) * size
        result = lax.dynamic_update_slice_in_dim(result, part, start, dimension)
    return result


def _summed(matmul: _Matmul, ring: Ring, dimension: int, lhs: Any, rhs: Any) -> Any:
    """The gathered dimension is contracted: chunks meet slices, and their matmuls are added up."""
    moving, whole = (lhs, rhs) if ring.array == "lhs" else (rhs, lhs)
    sums: tuple[Any, ...] = ()
    for step, (places, chunk) in enumerate(ring.chunks(moving)):
        part = ring.chunk(whole, dimension, places)
        operands = (chunk, part) if ring.array == "lhs" else (part, chunk)
        sums = (matmul(*operands, *sums, complete=step == ring.size - 1),)
    return sums[0]


def _scattered(
    matmul: _Matmul, ring: Ring, sliced: Array, dimension: int, lhs: Any, rhs: Any
) -> Any:
    """Sums for a device start at those that are farthest from it, and come in from both sides.

    Where halves of a chunk are work for a whole GPU, one of them travels while the other is
    multiplied: else nothing is beside the last transfer, for which the last matmul waits.
    """
    whole = lhs if sliced == "lhs" else rhs
    size = whole.shape[dimension] // ring.size
    elements = jax.eval_shape(lambda x, y: lax.dot_general(x, y, matmul.dims), lhs, rhs).size
    known = isinstance(elements, int)  # not symbolic
    parts = 2 if known and size % 2 == 0 and elements // (2 * ring.size) >= FULL else 1

    def multiply(places: int, part: int, *sums: Any, complete: bool) -> Any:
        chunk = ring.chunk(whole, dimension, places)
        cut = lax.slice_in_dim(
            chunk, part * size // parts, (part + 1) * size // parts, axis=dimension
        )
        return matmul(*_with(sliced, cut, lhs, rhs), *sums, complete=complete)

    arrived: dict[tuple[int, int], Any] = {}  # by part, and the side that it comes from
    for places, part in itertools.product(reversed(ring.others), range(parts)):
        side = _sign(places)
        sums = [arrived[part, side]] if (part, side) in arrived else []
        arrived[part, side] = ring.shift(multiply(places, part, *sums, complete=False), side)
    results = [
        multiply(0, part, *(x for key, x in arrived.items() if key[0] == part), complete=True)
        for part in range(parts)
    ]
    return results[0] if parts == 1 else lax.concatenate(results, ring.dimension)
