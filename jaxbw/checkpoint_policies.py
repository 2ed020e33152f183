"""Policies for `jax.checkpoint` that know the matmuls of jaxbw.

`jax.checkpoint_policies` has policies that keep the results of matmuls and compute the rest
again; they know JAX's own matmuls only. These are their namesakes, for JAX's matmuls and for
those of `jaxbw`: of a matmul with an epilogue they keep the result, and beside it what its
gradient looks at. Like all policies they can be combined:

>>> policies = jax.checkpoint_policies
>>> both = policies.save_from_both_policies(
...     jaxbw.checkpoint_policies.dots_with_no_batch_dims_saveable,
...     policies.save_only_these_names("context"),
... )
>>> layer = jax.checkpoint(lambda x, w: jaxbw.matmul(x, w, activation="gelu"), policy=both)
>>> jax.grad(lambda x, w: layer(x, w).sum())(jnp.zeros((2, 3)), jnp.zeros((3, 4))).shape
(2, 3)

What the gradient of an epilogue looks at has the name `PREACTIVATION`, for the policies that go by
names. docs/transformations.md has a table of what each policy keeps.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.ad_checkpoint import Offloadable, Recompute
from jax.extend.core import Primitive

from jaxbw._src import epilogue

__all__ = [
    "PREACTIVATION",
    "checkpoint_dots",
    "checkpoint_dots_with_no_batch_dims",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "offload_dot_with_no_batch_dims",
]

PREACTIVATION = epilogue.PREACTIVATION
"""The name of what the gradient of an epilogue looks at, beside the operands.

It is what the activation is applied to, or of "relu" without residual the result, which says as
much; of a gated matmul both factors. Without an activation there is nothing of that name.
"""


def dots_saveable(primitive: Any, *types: Any, **params: Any) -> bool:
    """Keeps the results of all matmuls.

    >>> policy = jaxbw.checkpoint_policies.dots_saveable
    >>> layer = jax.checkpoint(jaxbw.matmul, policy=policy)
    """
    if primitive.name in _MATMULS:
        return True
    return bool(jax.checkpoint_policies.dots_saveable(primitive, *types, **params))


def dots_with_no_batch_dims_saveable(primitive: Any, *types: Any, **params: Any) -> bool:
    """Keeps the results of matmuls without batch dimensions.

    Those with batch dimensions, which are computed again, are mostly attention's: large, and quick
    to compute.

    >>> policy = jaxbw.checkpoint_policies.dots_with_no_batch_dims_saveable
    >>> layer = jax.checkpoint(jaxbw.matmul, policy=policy)
    """
    if primitive.name in _MATMULS:
        return not _has_batch(primitive, types, params)
    theirs = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return bool(theirs(primitive, *types, **params))


checkpoint_dots = dots_saveable
checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable


def offload_dot_with_no_batch_dims(offload_src: str, offload_dst: str) -> Callable[..., Any]:
    """A policy as `dots_with_no_batch_dims_saveable` that moves what it keeps to other memory.

    Args:
      offload_src: the kind of memory that results lie in, "device".
      offload_dst: the kind that they are moved to until the backward pass, "pinned_host".

    >>> policy = jaxbw.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")
    >>> layer = jax.checkpoint(jaxbw.matmul, policy=policy)
    """
    theirs = jax.checkpoint_policies.offload_dot_with_no_batch_dims(offload_src, offload_dst)

    def policy(primitive: Any, *types: Any, **params: Any) -> Any:
        if primitive.name not in _MATMULS:
            return theirs(primitive, *types, **params)
        if _has_batch(primitive, types, params):
            return Recompute
        return Offloadable(src=offload_src, dst=offload_dst)

    return policy


# The primitives, by name: those of collective_matmul are loaded where it is first called.
_RAGGED = ("jaxbw_ragged_dot", "jaxbw_ragged_gathered")
_MATMULS = {
    *("jaxbw_dot_general", "jaxbw_fused_dot_general", "jaxbw_collective_dot_general"),
    *_RAGGED,
}


def _has_batch(primitive: Primitive, types: Sequence[Any], params: dict[str, Any]) -> bool:
    """Whether a matmul of jaxbw has batch dimensions; groups are none."""
    if primitive.name in _RAGGED:
        _, _, group_sizes, *_ = types
        return int(group_sizes.shape[0]) > 1
    _, (lhs_batch, _) = params["dimension_numbers"]
    return len(lhs_batch) > 0
