"""Scales of blocks: 128 elements along a dimension share one, or what is left at its end."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

BLOCK = 128  # kScaleBlock of cuda/params.h


def count(size: Any) -> Any:
    """How many blocks so many elements make."""
    return -(-size // BLOCK)


def spread(scale: Any, shape: Sequence[Any]) -> Any:
    """A scale in the shape of its array: along a dimension it has one, one a block, or all."""
    for axis, (given, size) in enumerate(zip(scale.shape, shape, strict=True)):
        if given not in (1, size):
            repeated = jnp.repeat(scale, BLOCK, axis)
            scale = lax.slice_in_dim(repeated, 0, size, axis=axis)
    return jnp.broadcast_to(scale, shape)
