"""A mixture of experts: each token through some of many feed-forward blocks, none dropped.

Tokens are sorted by expert, so that grouped matmuls compute all experts at once, and back.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbw._src.api.ragged import gated_ragged_dot, ragged_dot


def route(logits: Any, top_k: int, *, normalize: bool) -> tuple[Any, Any]:
    """The experts of each token, and their weights: `[tokens, top_k]`, the latter in float32.

    The weights are the softmax over all experts; with `normalize` over the chosen ones.
    """
    chosen, experts = jax.lax.top_k(
        logits.astype(jnp.promote_types(logits.dtype, np.float32)), top_k
    )
    if normalize:
        return jax.nn.softmax(chosen), experts
    return jnp.exp(chosen - jax.nn.logsumexp(logits, axis=-1, keepdims=True)), experts


def through_experts(
    inputs: Any,
    weights: Any,
    experts: Any,
    gate: Any,
    up: Any,
    down: Any,
    *,
    activation: str | None,
    precision: Any,
) -> Any:
    """The weighted sum of what each token's experts make of it.

    Args:
      inputs: `[tokens, features]`.
      weights, experts: `[tokens, top_k]`.
      gate, up: `[experts, features, hidden]`; gate may be None.
      down: `[experts, hidden, out]`.
    """
    tokens, top_k = experts.shape
    order = jnp.argsort(experts.reshape(-1), stable=True)
    sizes = jnp.bincount(experts.reshape(-1), length=up.shape[0])
    # Permutations both ways: so their gradients are permutations, too, and sums in a fixed order.
    rows = _permuted(jnp.repeat(inputs, top_k, axis=0), order)
    if gate is None:
        hidden = ragged_dot(rows, up, sizes, precision, activation=activation)
    else:
        hidden = gated_ragged_dot(rows, gate, up, sizes, precision, activation=activation)
    out = _permuted(ragged_dot(hidden, down, sizes, precision), jnp.argsort(order))
    wide = out.reshape(tokens, top_k, -1) * weights[..., None]
    return wide.sum(1).astype(out.dtype)


def _permuted(x: Any, order: Any) -> Any:
    return x.at[order].get(unique_indices=True, mode="promise_in_bounds")
