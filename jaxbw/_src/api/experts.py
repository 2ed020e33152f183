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
) -> jax.Array:
    """The sum of what the `top_k` likeliest experts make of each token, by their weights.

    The weights are the softmax over all experts; with `normalize` over the chosen ones.

    Args:
      inputs: `[tokens, features]`.
      logits: float32 `[tokens, experts]`.
      gate, up: `[experts, features, hidden]`; gate may be None.
      down: `[experts, hidden, out]`.
    """
    chosen, experts = jax.lax.top_k(logits, top_k)
    if normalize:
        weights = jax.nn.softmax(chosen)
    else:
        weights = jnp.exp(chosen - jax.nn.logsumexp(logits, axis=-1, keepdims=True))
    order = jnp.argsort(experts.reshape(-1), stable=True)
    sizes = jnp.bincount(experts.reshape(-1), length=up.shape[0])
    # Permutations both ways: so their gradients are permutations, too, and sums in a fixed order.
    rows = _permuted(jnp.repeat(inputs, top_k, axis=0), order)
    if gate is None:
        hidden = ragged_dot(rows, up, sizes, precision, activation=activation)
    else:
        hidden = gated_ragged_dot(rows, gate, up, sizes, precision, activation=activation)
    out = _permuted(ragged_dot(hidden, down, sizes, precision), jnp.argsort(order))
    wide = out.reshape(*experts.shape, -1) * weights[..., None]
    mixed: jax.Array = wide.sum(1).astype(out.dtype)
    return mixed


def _permuted(x: Any, order: Any) -> Any:
    return x.at[order].get(unique_indices=True, mode="promise_in_bounds")
