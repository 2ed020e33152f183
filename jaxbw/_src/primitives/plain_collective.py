"""A matmul with one collective before or behind it: ring.py's, when nothing is to overlap."""

from typing import Any

import numpy as np
from jax import lax

from jaxbw._src.primitives.dot_general import dot_general
from jaxbw._src.primitives.ring import Ring
from jaxbw._src.problem import DimensionNumbers


def plain_dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: DimensionNumbers,
    ring: Ring,
    preferred_element_type: np.dtype[Any],
    **params: Any,
) -> Any:
    """The matmul with what `ring` says gathered or scattered, at once.

    Sums over devices are of results, in their dtype: what XLA makes of such a matmul, and half of
    what float32 would send for 16 bits.

    Args: as those of `ring.ring_dot_general`.
    """
    if ring.array == "lhs":
        lhs = _gathered(lhs, ring)
    elif ring.array == "rhs":
        rhs = _gathered(rhs, ring)
    result = dot_general(
        lhs, rhs, dimension_numbers, preferred_element_type=preferred_element_type, **params
    )
    if ring.array != "out":
        return result
    if result.dtype != bool:
        return _scattered(result, ring)
    return _scattered(result.astype(np.int32), ring).astype(bool)  # no collective adds these up


def _scattered(x: Any, ring: Ring) -> Any:
    return lax.psum_scatter(x, ring.axis_name, scatter_dimension=ring.dimension, tiled=True)


def _gathered(x: Any, ring: Ring) -> Any:
    return lax.all_gather(x, ring.axis_name, axis=ring.dimension, tiled=True)
