"""XLA in the place of a kernel on a GPU: what it gives, alone, fused and differentiated."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw
from jaxbw._src.primitives.gemm import TARGET
from jaxbw._src.selection import select, xla
from jaxbw._src.selection.devices import running_device
from jaxbw._src.selection.xla import XlaTime

pytestmark = pytest.mark.gpu


def step(x: Any, w: Any, b: Any) -> Any:
    """A loss of a plain matmul and a fused one, with its gradients."""

    def loss(x: Any, w: Any, b: Any) -> Any:
        h = jaxbw.matmul(jaxbw.matmul(x, w), w.T, bias=b, activation="gelu")
        return (h.astype(jnp.float32) ** 2).mean()

    return jax.value_and_grad(loss, (0, 1, 2))(x, w, b)


def test_xla_takes_the_place_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (256, 512), jnp.bfloat16)
    w = jax.random.normal(keys[1], (512, 384), jnp.bfloat16) / 20
    b = jax.random.normal(keys[2], (512,), jnp.bfloat16)
    kernels = jax.jit(lambda *given: step(*given)).lower(x, w, b).compile()
    monkeypatch.setattr(select, "xla_time", lambda problem, device: XlaTime(0.0, 0.0))
    ours = jax.jit(lambda *given: step(*given)).lower(x, w, b).compile()
    assert TARGET in str(kernels.as_text())
    assert TARGET not in str(ours.as_text())
    for found, expected in zip(
        jax.tree.leaves(ours(x, w, b)), jax.tree.leaves(kernels(x, w, b)), strict=True
    ):
        found, expected = (np.asarray(each, np.float32) for each in (found, expected))
        assert np.linalg.norm(found - expected) < 2e-2 * np.linalg.norm(expected)


def test_the_shipped_model_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `explain` says is what is lowered, for matmuls of either kind."""
    monkeypatch.setattr(select, "xla_time", xla.xla_time)
    device = running_device()
    assert device is not None
    if xla.model_for(device) is None:
        pytest.skip(f"there is no model of XLA's time on {device}")
    served = set()
    for m, n, k in ((16, 768, 768), (32, 51866, 1280), (512, 512, 12288), (256, 2304, 768)):
        x, w = jnp.ones((m, k), jnp.bfloat16), jnp.ones((k, n), jnp.bfloat16)
        choice = jaxbw.explain(x, w)
        program = jax.jit(lambda x, w: jaxbw.matmul(x, w)).lower(x, w).compile()
        assert (TARGET in str(program.as_text())) == (choice.implementation != "xla")
        assert choice.xla_us is not None
        served.add(choice.implementation)
    assert served == {"xla", "sm90"}
