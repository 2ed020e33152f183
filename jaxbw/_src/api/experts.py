"""A mixture of experts: each token through some of many feed-forward blocks, none dropped.

Tokens are sorted by expert, so that grouped matmuls compute all experts at once, and back.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxbw._src.api.ragged import gated_ragged_dot, ragged_dot


def through_experts(
    inputs: Any,
    logits: Any,
    gate: Any,
    up: Any,
    down: Any,
    *,
    top_k: int,
    normalize: bool,
    activation: str | None,
    precision: Any,
    axis: str | None,
) -> jax.Array:
    """The sum of what the `top_k` likeliest experts make of each token, by their weights.

    The weights are the softmax over all experts; with `normalize` over the chosen ones.

    Args:
      inputs: `[tokens, features]`.
      logits: float32 `[tokens, experts]`.
      gate, up: `[experts, features, hidden]`; gate may be None.
      down: `[experts, hidden, out]`.
      axis: of an enclosing `shard_map`, whose devices have parts of the tokens and of the experts.
        Each computes what its experts make of all tokens.
    """
    first = None
    if axis is not None:
        inputs, logits = (jax.lax.all_gather(x, axis, tiled=True) for x in (inputs, logits))
        first = jax.lax.axis_index(axis) * up.shape[0]
    chosen, experts = jax.lax.top_k(logits, top_k)
    if normalize:
        weights = jax.nn.softmax(chosen)
    else:
        weights = jnp.exp(chosen - jax.nn.logsumexp(logits, axis=-1, keepdims=True))
    order = jnp.argsort(experts.reshape(-1), stable=True)
    sizes = jnp.bincount(experts.reshape(-1), length=logits.shape[-1])
    # Permutations both ways: so their gradients are permutations, too, and sums in a fixed order.
    rows = _permuted(jnp.repeat(inputs, top_k, axis=0), order)
    by_expert: dict[str, Any] = {"precision": precision, "group_offset": first}
    if gate is None:
        hidden = ragged_dot(rows, up, sizes, activation=activation, **by_expert)
    else:
        hidden = gated_ragged_dot(rows, gate, up, sizes, activation=activation, **by_expert)
    out = _permuted(ragged_dot(hidden, down, sizes, **by_expert), jnp.argsort(order))
    each = out.reshape(*experts.shape, -1).astype(weights.dtype)
    mixed = (each * weights[..., None]).sum(1)
    if axis is not None:  # rows of other devices' experts are zeros
        mixed = jax.lax.psum_scatter(mixed, axis, tiled=True)
    rounded: jax.Array = mixed.astype(out.dtype)
    return rounded


def _permuted(x: Any, order: Any) -> Any:
    return x.at[order].get(unique_indices=True, mode="promise_in_bounds")
