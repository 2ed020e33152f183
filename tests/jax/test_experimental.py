"""Transformations of jax.experimental, and jax_remat3."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import Recompute, Saveable
from jax.experimental import jet, roofline, sparse

import jaxbw
from jaxbw import checkpoint_policies as policies

X, W, V = (jnp.sin(jnp.arange(16.0).reshape(4, 4) + i) for i in range(3))


def same(f: Callable[[Callable[..., Any]], Any]) -> None:
    """The same for jaxbw.matmul as for jnp.matmul."""
    jax.tree.map(np.testing.assert_allclose, f(jaxbw.matmul), f(jnp.matmul))


def test_jet() -> None:
    same(lambda matmul: jet.jet(matmul, (X, W), ((V, X, W), (W, V, X))))


@pytest.mark.parametrize("kind", [sparse.BCOO, sparse.BCSR])
def test_sparsify(kind: Any) -> None:
    left = kind.fromdense(jnp.where(X > 0, X, 0))
    same(lambda matmul: sparse.sparsify(matmul)(left, W))


def test_roofline() -> None:
    def of(f: Callable[..., Any]) -> Any:
        return roofline.roofline(f)(X, W)[1]

    plain = of(jnp.matmul)
    assert plain.flops == 2 * 4**3
    assert of(jaxbw.matmul) == plain
    fused = of(lambda x, w: jaxbw.matmul(x, w, activation="relu", residual=x))
    assert fused.flops == plain.flops
    assert fused.hbm_bytes == plain.hbm_bytes + X.nbytes
    assert of(lambda x, w: jaxbw.gated_matmul(x, w, w)).flops == 2 * plain.flops


@pytest.mark.skipif(not hasattr(jax.config, "jax_remat3"), reason="this JAX has no jax_remat3")
@pytest.mark.parametrize(
    ("policy", "recomputed"),
    [
        (policies.dots_saveable, 0),
        (lambda *_, **__: Saveable, 0),
        (policies.offload_dot_with_no_batch_dims("device", "pinned_host"), 0),
        (lambda *_, **__: Recompute, 1),
        (jax.checkpoint_policies.nothing_saveable, 1),
        (None, 1),
    ],
)
def test_remat3(policy: Any, recomputed: int) -> None:
    """How many matmuls the backward pass runs beside the two of the gradient."""

    def loss(x: Any, w: Any) -> Any:
        return jnp.sin(jaxbw.matmul(x, w)).sum()

    expected = jax.grad(loss, (0, 1))(X, W)
    jax.config.update("jax_remat3", True)
    try:
        gradient = jax.grad(jax.checkpoint(loss, policy=policy), (0, 1))
        program = str(jax.make_jaxpr(gradient)(X, W))
        found = gradient(X, W)
    finally:
        jax.config.update("jax_remat3", False)
    assert program.count("jaxbw_dot_general[") == 3 + recomputed
    jax.tree.map(np.testing.assert_allclose, found, expected)
