"""Grouped matmuls for their tests: sizes, operands, and what they mean, by NumPy."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

CONTRACTION = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())


def integers(shape: tuple[int, ...], number: int = 0) -> Any:
    """Small ones, as float32: every sum of their products is exact."""
    return np.random.default_rng([*shape, number]).integers(-3, 4, shape).astype(np.float32)


def normal(shape: tuple[int, ...], number: int = 0) -> Any:
    """Normal numbers, in float64."""
    return np.random.default_rng([*shape, number]).standard_normal(shape)


def bounds(sizes: Any, m: int) -> list[tuple[int, int]]:
    """The first row of each group, and the one behind its last: sizes are clamped."""
    ends = [min(int(x), m) for x in np.cumsum(np.maximum(np.asarray(sizes, object), 0))]
    return [*zip([0, *ends[:-1]], ends, strict=True)] if len(ends) else []


def rows(lhs: Any, rhs: Any, sizes: Any, offset: int = 0) -> Any:
    """Each group of rows by its matrix; rows of other groups are zeros."""
    out = np.zeros((len(lhs), rhs.shape[2]), np.result_type(lhs, rhs))
    for group, (start, end) in enumerate(bounds(sizes, len(lhs))):
        if 0 <= group - offset < len(rhs):
            out[start:end] = lhs[start:end] @ rhs[group - offset]
    return out


def contraction(lhs: Any, rhs: Any, sizes: Any, groups: int, offset: int = 0) -> Any:
    """The transposed rows of each group by those of rhs."""
    out = np.zeros((groups, lhs.shape[1], rhs.shape[1]), np.result_type(lhs, rhs))
    for group, (start, end) in enumerate(bounds(sizes, len(lhs))):
        if 0 <= group - offset < groups:
            out[group - offset] = lhs[start:end].T @ rhs[start:end]
    return out


def dense(lhs: Any, rhs: Any, sizes: Any) -> Any:
    """What `ragged_dot` means, by one-hot rows, so that JAX knows all derivatives."""
    group = jnp.searchsorted(jnp.cumsum(sizes), np.arange(lhs.shape[0]), side="right")
    one_hot = (group[:, None] == np.arange(rhs.shape[0])).astype(lhs.dtype)
    return jnp.einsum("mg,mk,gkn->mn", one_hot, lhs, rhs)


def dense_contraction(lhs: Any, rhs: Any, sizes: Any) -> Any:
    """The same of a contraction with groups."""
    group = jnp.searchsorted(jnp.cumsum(sizes), np.arange(lhs.shape[0]), side="right")
    one_hot = (group[:, None] == np.arange(sizes.shape[0])).astype(lhs.dtype)
    return jnp.einsum("mg,mk,mn->gkn", one_hot, lhs, rhs)
