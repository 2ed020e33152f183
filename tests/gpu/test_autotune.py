"""jaxbw.autotune on a GPU: what it stores is used, right, and not slower than what it replaces."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw
from jaxbw._src.lab import group_sizes
from jaxbw._src.selection.tuned_matmuls import TunedMatmuls

pytestmark = pytest.mark.gpu


def step(x: jax.Array, w: jax.Array) -> jax.Array:
    """A loss's gradient: matmuls with and without an epilogue, in three layouts."""

    def loss(w: jax.Array) -> Any:
        return jaxbw.matmul(jaxbw.matmul(x, w, activation="gelu"), w.T).astype(jnp.float32).sum()

    gradient: jax.Array = jax.grad(loss)(w)
    return gradient


def test_what_is_tuned_is_right_and_stays_so(tmp_path: Path) -> None:
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.normal(keys[0], (512, 1024), jnp.bfloat16)
    w = jax.random.normal(keys[1], (1024, 768), jnp.bfloat16) / 32
    y = jax.ShapeDtypeStruct((512, 768), jnp.bfloat16)
    path = tmp_path / "tuned.json"
    outcomes = jaxbw.autotune(step, x, w, path=path, configurations=40)
    entries = TunedMatmuls.load(path).entries
    assert len(entries) == len(outcomes) >= 4
    assert all(0 < entry.us <= entry.untuned_us for entry in entries.values())
    expected = np.asarray(jax.jit(step)(x, w), np.float32)
    with jaxbw.use_tuned(path):
        found = np.asarray(jax.jit(step)(x, w), np.float32)
        by_columns = (((1,), (1,)), ((), ()))
        choice = jaxbw.explain(y, w, dimension_numbers=by_columns)
        assert "measured the fastest" in choice.reason
    # Sums in another order, rounded to bfloat16: half a unit of either, of the largest element.
    assert np.abs(found - expected).max() <= 2.0**-7 * np.abs(expected).max()
    assert jaxbw.autotune(step, x, w, path=path) == []


@pytest.mark.parametrize("kind", group_sizes.KINDS)
def test_grouped_matmuls_keep_their_bits(kind: str, tmp_path: Path) -> None:
    """The value, both gradients, the gate, and chosen rows; of real values, by other sizes."""
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (2048, 1024), jnp.bfloat16)
    gate, up = (jax.random.normal(key, (16, 1024, 768), jnp.bfloat16) / 32 for key in keys[1:])
    sizes = jnp.asarray(group_sizes.drawn("random", 16, 2000))

    def layer(x: jax.Array, gate: jax.Array, up: jax.Array) -> Any:
        y, pull = jax.vjp(lambda x, w: jaxbw.ragged_dot(x, w, sizes), x, gate)
        rows = jnp.arange(2048)[::-1]
        h = jaxbw.gated_ragged_dot(x, gate, up, sizes, activation="silu", lhs_rows=rows)
        return y, h, *pull(y)

    path = tmp_path / "tuned.json"
    outcomes = jaxbw.autotune(layer, x, gate, up, path=path, group_sizes=kind)
    entries = TunedMatmuls.load(path).entries.values()
    assert len(entries) == len(outcomes) == 4, [str(each) for each in outcomes]
    assert all(0 < entry.us <= entry.untuned_us and entry.xla_us is None for entry in entries)
    expected = jax.jit(layer)(x, gate, up)
    with jaxbw.use_tuned(path):
        explained = jaxbw.explain_function(layer, x, gate, up).matmuls
        assert {each.choice.reason.split(":")[0] for each in explained} == {"tuned"}
        found = jax.jit(layer)(x, gate, up)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
