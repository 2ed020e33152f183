"""Rows sent to the devices that own their experts, and back: a linear map and its transpose.

A device's rows lie sorted by expert, so that those for one device are neighbours: they are packed.
What it receives lies in slots, as many for each device as that could send at most: none is dropped.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# XLA's kernel for up to so many devices of a host gives each update a few CTAs, whatever its size:
# 67 MB between two H100s take 13.8 ms as one update, and 0.63 ms as 64 (2026-11-27). With more
# devices each update is a pair of NCCL calls.
_ONE_KERNEL_DEVICES = 8
_UPDATES = 64


class Exchange(NamedTuple):
    """Who sends how many rows to whom along an axis of an enclosing `shard_map`.

    Attributes:
      axis: its name.
      packed: how many rows a device has, `n`.
      slots: how many it can receive of each device, `s`.
      counts: `[devices, experts]`, how many rows of a device are for an expert.
    """

    axis: str
    packed: int
    slots: int
    counts: Any

    @classmethod
    def of(cls, axis: str, packed: int, slots: int, sizes: Any) -> "Exchange":
        """That of devices with `sizes` rows for each expert."""
        return cls(axis, packed, slots, jax.lax.all_gather(sizes, axis))

    @property
    def expert_of_slot(self) -> jax.Array:
        """The number among this device's experts, `[devices * s]`; of an empty slot, behind all."""
        devices, experts = self.counts.shape
        here = experts // devices
        first = jax.lax.axis_index(self.axis) * here
        mine = jax.lax.dynamic_slice_in_dim(self.counts, first, here, axis=1)
        slot = jnp.arange(self.slots)[:, None]
        found: jax.Array = (slot >= jnp.cumsum(mine, axis=1)[:, None]).sum(-1)
        return found.reshape(-1)

    def send(self, rows: Any) -> jax.Array:
        """From `[n, features]` to the experts' `[devices * s, features]`; empty slots are zeros."""
        return self._linear(_send, _bring, rows)

    def bring(self, rows: Any) -> jax.Array:
        """From the experts' `[devices * s, features]` back to `[n, features]`."""
        return self._linear(_bring, _send, rows)

    def _linear(self, function: Any, transpose: Any, rows: Any) -> jax.Array:
        devices = self.counts.shape[0]
        pairs = self.counts.reshape(devices, devices, -1).sum(-1, dtype=jnp.int32)
        there, back = (
            partial(each, self.axis, self.packed, self.slots) for each in (function, transpose)
        )
        out: jax.Array = jax.custom_derivatives.linear_call(there, back, pairs, rows)
        return out


# Below, device i sends `pairs[i, j]` rows to j, which begin at its row `starts[i, j]`.


def _send(axis: str, packed: int, slots: int, pairs: Any, rows: Any) -> Any:
    me, starts = jax.lax.axis_index(axis), _starts(pairs)

    def ragged(rows: Any) -> Any:
        out = jnp.zeros((len(pairs) * slots, *rows.shape[1:]), rows.dtype)
        there = jnp.full_like(pairs[me], me * slots)
        return _ragged(axis, rows, out, starts[me], pairs[me], there, pairs[:, me])

    def padded(rows: Any) -> Any:
        slot = jnp.arange(slots)
        source = jnp.where(slot < pairs[me][:, None], starts[me][:, None] + slot, packed)
        filled = rows.at[source.reshape(-1)].get(mode="fill", fill_value=0)
        return jax.lax.all_to_all(filled, axis, 0, 0, tiled=True)

    return _where_there_is(ragged, padded, rows)


def _bring(axis: str, packed: int, slots: int, pairs: Any, rows: Any) -> Any:
    me, starts = jax.lax.axis_index(axis), _starts(pairs)

    def ragged(rows: Any) -> Any:
        out = jnp.zeros((packed, *rows.shape[1:]), rows.dtype)
        here = jnp.arange(len(pairs), dtype=pairs.dtype) * slots
        return _ragged(axis, rows, out, here, pairs[:, me], starts[:, me], pairs[me])

    def padded(rows: Any) -> Any:
        row = jnp.arange(packed)
        device = (row[:, None] >= starts[me] + pairs[me]).sum(-1)
        slot = device * slots + row - starts[me][device]
        received = jax.lax.all_to_all(rows, axis, 0, 0, tiled=True)
        return received.at[slot].get(mode="promise_in_bounds", unique_indices=True)

    return _where_there_is(ragged, padded, rows)


def _ragged(
    axis: str, rows: Any, out: Any, mine: Any, sent: Any, theirs: Any, received: Any
) -> Any:
    """`ragged_all_to_all`, in updates; `mine` and `theirs` are the first rows here and there."""
    updates = _UPDATES if len(sent) <= _ONE_KERNEL_DEVICES else 1

    def divided(rows: Any) -> tuple[Any, Any]:
        """The first of each update's rows, and how many they are."""
        first = jnp.arange(updates, dtype=rows.dtype) * (-(-rows // updates))[:, None]
        return first, jnp.clip(rows[:, None] - first, 0, -(-rows // updates)[:, None])

    first, sizes = divided(sent)
    places = (mine[:, None] + first, sizes, theirs[:, None] + first, divided(received)[1])
    flat = (each.reshape(-1) for each in places)
    return jax.lax.ragged_all_to_all(rows, _varying(out, axis), *flat, axis_name=axis)


def _starts(pairs: Any) -> Any:
    return jnp.cumsum(pairs, axis=1, dtype=pairs.dtype) - pairs


def _varying(x: Any, axis: str) -> Any:
    return jax.lax.pcast(x, axis, to="varying")


def _where_there_is(ragged: Any, padded: Any, rows: Any) -> Any:
    """`ragged_all_to_all`, which XLA does not have for CPUs."""
    return jax.lax.platform_dependent(rows, cpu=padded, default=ragged)
