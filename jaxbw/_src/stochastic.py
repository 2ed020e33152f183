"""What makes rounding a gradient to few bits unbiased: random points, and a random rotation.

Both are random bits of a seed and of where an element lies, so that a kernel has the same as XLA.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import threefry2x32_p

from jaxbw._src import compat, fp8

ROTATED = 16  # rows that are mixed: those of a block of NVFP4
_PATCH = 2  # rows and columns of what a call of Threefry has points for
_LEAST = np.float32(2.0**-100)  # of what is rotated; with it no sum or difference is subnormal


def seed_of(key: Any) -> Any:
    """A seed, int32 `[2]`, of a key of jax.random of whichever kind."""
    return _bits(key, (2,))


def points(seed: Any, shape: Sequence[Any]) -> Any:
    """16 random bits for each element of matrices: Threefry-2x32-20.

    Its counters are the patch of 2x2 elements that one is in: its row, counted through all matrices
    of a seed, and its column. The words of a call are the rows of the patch, their halves, the low
    one first, its columns (https://doi.org/10.1145/2063384.2063405).

    Args:
      seed: int32 `[..., 2]`.
      shape: `[..., matrices, rows, columns]`, which begins as that of the seed.

    Returns:
      uint16 of this shape.
    """
    lead = seed.shape[:-1]
    *matrices, rows, columns = shape[len(lead) :]
    down, across = -(-rows // _PATCH), -(-columns // _PATCH)
    grid = (*lead, math.prod(matrices) * down, across)
    counters = [lax.broadcasted_iota(np.uint32, grid, len(grid) - 2 + i) for i in range(2)]
    words = lax.bitcast_convert_type(seed, np.uint32)
    keys = [jnp.broadcast_to(words[..., i, None, None], grid) for i in range(2)]
    words = jnp.stack(threefry2x32_p.bind(*keys, *counters), axis=-2)
    halves = jnp.stack([words, words >> 16], axis=-1).astype(np.uint16)
    whole = halves.reshape(*lead, *matrices, _PATCH * down, _PATCH * across)
    return whole[..., :rows, :columns]


def signs_of(key: Any) -> Any:
    """Signs of a rotation, of a key: int32, of which bit i makes row i of 16 negative."""
    return _bits(key, ())


def _bits(key: Any, shape: tuple[int, ...]) -> Any:
    return lax.bitcast_convert_type(jax.random.bits(key, shape, np.uint32), np.int32)


def rotated(x: Any, signs: Any) -> Any:
    """x, each 16 rows of which, or what is left, have random signs and are mixed.

    By the Hadamard matrix of 16, which is orthogonal: of two arrays so rotated the product along
    the rows is that of the two. In float32, and rounded to x's dtype. Numbers below 2^-100 count
    as 0.

    Args:
      x: `[..., rows, n]`.
      signs: of `signs_of`, with dimensions as the first ones of x.

    Returns:
      `[..., rows, n]`, the rows padded to a multiple of 16.
    """
    parts = rotated_parts(x, signs)
    *front, blocks, n = parts[0].shape
    return jnp.stack(parts, axis=-2).reshape(*front, blocks * ROTATED, n)


def rotated_parts(x: Any, signs: Any) -> list[Any]:
    """The same as 16 arrays `[..., blocks, n]`, of the first row of each block, the second ..."""
    *front, rows, n = x.shape
    x = compat.in_whole(x, {-2: ROTATED})
    x = jnp.pad(x, [(0, 0)] * len(front) + [(0, -rows % ROTATED), (0, 0)])
    blocks = x.reshape(*front, x.shape[-2] // ROTATED, ROTATED, n)
    bits = signs.reshape(signs.shape + (1,) * (blocks.ndim - 1 - signs.ndim))
    parts = []
    for i in range(ROTATED):
        row = fp8.as_float32(blocks[..., i, :])
        row = jnp.where(bits >> i & 1 == 1, -row, row)
        parts.append(jnp.where(jnp.abs(row) < _LEAST, np.float32(0), row))
    # The butterflies of a Walsh-Hadamard transform, whose order settles how sums are rounded.
    for distance in (8, 4, 2, 1):
        for i in range(ROTATED):
            if i & distance == 0:
                low, high = parts[i], parts[i + distance]
                parts[i], parts[i + distance] = low + high, low - high
    return [cast(part * np.float32(1 / 4), x.dtype) for part in parts]


def cast(x: Any, dtype: Any) -> Any:
    """float32 x, without subnormal numbers, in a dtype: rounded whatever is done with it next.

    On a GPU XLA leaves out a cast to 16 bits and back, unless the numbers have that precision.
    """
    if dtype == jnp.bfloat16:
        x = lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    elif dtype == jnp.float16:
        least, step = np.float32(2.0**-14), np.float32(2.0**-24)  # normal, and subnormal number
        steps = lax.round(x * (1 / step), lax.RoundingMethod.TO_NEAREST_EVEN)
        normal = lax.reduce_precision(x, exponent_bits=5, mantissa_bits=10)
        x = jnp.where(jnp.abs(x) < least, steps * step, normal)
    return x.astype(dtype)
