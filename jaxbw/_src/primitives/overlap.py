"""Whether a matmul travels on a ring or stands beside one collective, where nobody has said it."""

import math
from typing import Any, NamedTuple

from jaxbw._src.primitives.ring import Ring
from jaxbw._src.problem import DimensionNumbers


class Chunk(NamedTuple):
    """The matmul of a chunk that gathers: its dimension in the result, the other one, and k."""

    gathered: int
    other: int
    contracted: int


# By the number of devices, the smallest matmul with whose chunks the ring was measured faster than
# one collective and one matmul: 1.098 [1.054, 1.162] times, on H200s, jax 0.11.2, 2026-11-22,
# benchmarks/results/2026-11-22_h200_collective_scheduler_2_gather.json. Over 4 devices it was
# slower, and so was whatever scatters; that gathers a contraction was never measured alone.
RING_IS_FASTER = {2: Chunk(4096, 4096, 8192)}


def overlaps(
    asked: bool | None, ring: Ring, lhs: Any, rhs: Any, dimension_numbers: DimensionNumbers
) -> bool:
    """Whether it is the ring.

    Args:
      asked: what the user wants; None takes what was measured to be faster.
      ring: what is in chunks.
      lhs, rhs: the operands that a device has, or their types.
      dimension_numbers: of the matmul of the whole arrays.
    """
    if asked is not None:
        return asked
    measured = RING_IS_FASTER.get(ring.size)
    partner, _ = ring.partner((len(lhs.shape), len(rhs.shape)), dimension_numbers)
    if measured is None or partner != "out":
        return False
    chunk = _chunk(ring, lhs.shape, rhs.shape, dimension_numbers)
    return chunk is not None and _is_like(chunk, measured)


def _chunk(ring: Ring, lhs: Any, rhs: Any, dims: DimensionNumbers) -> Chunk | None:
    """Of the shapes of two operands; None if one is symbolic."""
    if not all(isinstance(size, int) for size in (*lhs, *rhs)):
        return None
    (contracted, _), (batch, _) = dims
    k = math.prod(lhs[i] for i in contracted)
    shared = k * math.prod(lhs[i] for i in batch)
    if not shared:
        return None
    sides = math.prod(lhs) // shared, math.prod(rhs) // shared
    return Chunk(*(sides if ring.array == "lhs" else sides[::-1]), k)


def _is_like(chunk: Chunk, measured: Chunk) -> bool:
    """Not smaller; and no more is copied to its place in the result for what travels unseen."""
    return (
        all(size >= least for size, least in zip(chunk, measured, strict=True))
        and chunk.other * measured.contracted <= measured.other * chunk.contracted
    )
