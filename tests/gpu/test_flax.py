"""Flax's layers on the GPU: kernels run, and compute what the layers mean; the GPT learns."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbw._src.primitives.gemm import TARGET

GPT = Path(__file__).parents[2] / "examples" / "gpt.py"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["Dense", "DenseGeneral", "MLP"])
def test_layers(name: str) -> None:
    linen = pytest.importorskip("jaxbw.flax.linen", reason="Flax is not installed here")
    arguments: dict[str, Any] = {
        "Dense": {"features": 256, "activation": "relu"},
        "DenseGeneral": {"features": (4, 64), "activation": "relu"},
        "MLP": {"hidden_features": 512, "gated": True, "use_bias": False, "activation": "relu"},
    }
    generator = np.random.default_rng(0)
    x = jnp.asarray(generator.integers(-1, 2, (8, 64, 128)), jnp.bfloat16)
    layer = getattr(linen, name)(dtype=jnp.bfloat16, **arguments[name])
    shapes = jax.eval_shape(layer.init, jax.random.key(0), x)
    # Small integers: every sum is exact, up to the casts.
    variables = jax.tree.map(
        lambda y: jnp.asarray(generator.integers(-1, 2, y.shape), jnp.float32), shapes
    )
    compiled = jax.jit(layer.apply).lower(variables, x).compile()
    kernels = (compiled.as_text() or "").count(f'custom_call_target="{TARGET}"')
    assert kernels == (2 if name == "MLP" else 1)
    wide = jax.tree.map(lambda y: np.asarray(y).astype(np.float64), variables["params"])
    y = np.asarray(x).astype(np.float64)
    if name == "MLP":
        gate, up, down = (wide[part]["kernel"] for part in ("gate", "up", "down"))
        hidden = np.maximum(y @ gate, 0) * (y @ up)
        exact, size = hidden @ down, np.abs(hidden) @ np.abs(down)
    else:
        exact = np.maximum(np.tensordot(y, wide["kernel"], 1) + wide["bias"], 0)
        size = exact
    error = np.abs(np.asarray(compiled(variables, x)).astype(np.float64) - exact)
    assert (error <= 2.0**-8 * (np.abs(exact) + size) * 1.01).all()


@pytest.mark.gpu
def test_the_gpt_learns_on_all_gpus(tmp_path: Path) -> None:
    """One step's batch is divided among them: sixty-four windows are so by up to 64 GPUs."""
    for package in ("flax", "matplotlib", "optax"):
        pytest.importorskip(package, reason=f"{package} is not installed here")
    run = subprocess.run(
        [sys.executable, GPT, "--steps=300", "--batch=64", "--write=20"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    )
    assert f"{jax.device_count()} x {jax.devices()[0].device_kind}" in run.stdout
    found = re.search(r"before, (\S+) after.*without any context (\S+)", run.stdout, re.DOTALL)
    assert found is not None
    after, without = map(float, found.groups())
    assert after < without - 1
