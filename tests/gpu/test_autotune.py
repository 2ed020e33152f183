"""jaxbw.autotune on a GPU: what it stores is used, right, and not slower than what it replaces."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw
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
