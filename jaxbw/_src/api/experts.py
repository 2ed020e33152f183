"""A mixture of experts: each token through some of many feed-forward blocks, none dropped.

Tokens are sorted by expert, so that grouped matmuls compute all experts at once, and back.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxbw._src.api.exchange import Exchange
from jaxbw._src.api.ragged import gated_ragged_dot, ragged_dot


class _Static(NamedTuple):
    top_k: int
    activation: str | None
    precision: Any


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
    dispatch: str,
) -> jax.Array:
    """The sum of what the `top_k` likeliest experts make of each token, by their weights.

    The weights are the softmax over all experts; with `normalize` over the chosen ones.

    Args:
      inputs: `[tokens, features]`.
      logits: float32 `[tokens, experts]`.
      gate, up: `[experts, features, hidden]`; gate may be None.
      down: `[experts, hidden, out]`.
      axis: of an enclosing `shard_map`, whose devices have parts of the tokens and of the experts.
      dispatch: "all_gather": each device computes what its experts make of all tokens;
        "all_to_all": of the rows that are sent to it.

    Raises:
      ValueError: another dispatch.
    """
    if dispatch not in ("all_gather", "all_to_all"):
        raise ValueError(
            f"jaxbw.flax: MoE: dispatch is {dispatch!r}; it is 'all_gather' or 'all_to_all'"
        )
    gathers = axis is not None and dispatch == "all_gather"
    first = None
    if gathers:
        inputs, logits = (jax.lax.all_gather(x, axis, tiled=True) for x in (inputs, logits))
        first = jax.lax.axis_index(axis) * up.shape[0]
    chosen, experts = jax.lax.top_k(logits, top_k)
    if normalize:
        weights = jax.nn.softmax(chosen)
    else:
        weights = jnp.exp(chosen - jax.nn.logsumexp(logits, axis=-1, keepdims=True))
    static = _Static(top_k, activation, precision)
    flat, matrices = experts.reshape(-1), (gate, up, down)
    if axis is None or gathers:
        out = _served(static, inputs, flat, matrices, logits.shape[-1], first)
    else:
        out = _sent(static, inputs, flat, matrices, logits.shape[-1], axis)
    each = out.reshape(*experts.shape, out.shape[-1]).astype(weights.dtype)
    mixed = (each * weights[..., None]).sum(1)
    if gathers:  # rows of other devices' experts are zeros
        mixed = jax.lax.psum_scatter(mixed, axis, tiled=True)
    rounded: jax.Array = mixed.astype(out.dtype)
    return rounded


def _served(
    static: _Static, inputs: Any, experts: Any, matrices: Any, count: int, first: Any
) -> Any:
    """What `experts[i]` of `count` makes of the token `i // top_k`; zeros if it is not here."""
    gate, up, down = matrices
    order = jnp.argsort(experts, stable=True)
    sizes = jnp.bincount(experts, length=count)
    hidden = _hidden(static, inputs, gate, up, order, sizes, first)
    out = ragged_dot(hidden, down, sizes, static.precision, group_offset=first)
    return _permuted(out, jnp.argsort(order))


def _sent(static: _Static, inputs: Any, experts: Any, matrices: Any, count: int, axis: str) -> Any:
    """The same of all experts: rows go to the devices that have them, and come back."""
    order = jnp.argsort(experts, stable=True)
    sizes = jnp.bincount(experts, length=count)
    # A token's experts differ, so that a device has at most all of its own for it.
    slots = inputs.shape[0] * min(static.top_k, matrices[1].shape[0])
    exchange = Exchange.of(axis, len(experts), slots, sizes)
    rows = exchange.send(_permuted(jnp.repeat(inputs, static.top_k, axis=0), order))
    each = static._replace(top_k=1)
    out = _served(each, rows, exchange.expert_of_slot, matrices, matrices[1].shape[0], None)
    return _permuted(exchange.bring(out), jnp.argsort(order))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _hidden(
    static: _Static, inputs: Any, gate: Any, up: Any, order: Any, sizes: Any, first: Any
) -> Any:
    """What experts' first matmuls make of the tokens, whose rows they find where these lie."""
    return _first(static, inputs, gate, up, sizes, first, lhs_rows=order // static.top_k)


@_hidden.defjvp
def _by_permutation(static: _Static, primals: Any, tangents: Any) -> Any:
    """The same by permutations: so their gradients are permutations, and sums in a fixed order."""

    def permuted(inputs: Any, gate: Any, up: Any, order: Any, sizes: Any, first: Any) -> Any:
        rows = _permuted(jnp.repeat(inputs, static.top_k, axis=0), order)
        return _first(static, rows, gate, up, sizes, first)

    return jax.jvp(permuted, primals, tangents)


def _first(
    static: _Static, rows: Any, gate: Any, up: Any, sizes: Any, first: Any, **options: Any
) -> Any:
    options |= {"activation": static.activation, "group_offset": first}
    if gate is None:
        return ragged_dot(rows, up, sizes, static.precision, **options)
    return gated_ragged_dot(rows, gate, up, sizes, static.precision, **options)


def _permuted(x: Any, order: Any) -> Any:
    return x.at[order].get(unique_indices=True, mode="promise_in_bounds")
