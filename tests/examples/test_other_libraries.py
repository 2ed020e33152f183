"""examples/plain.py and examples/equinox_mlp.py: they learn, and a step is eight kernels."""

import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import jaxbw

from .loading import load

PIXELS, DIGITS = jnp.ones((128, 64)), jnp.zeros(128, int)


@pytest.mark.parametrize("name", ["plain", "equinox_mlp"])
def test_run_as_a_user_would(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    load(name).main()
    accuracy = re.fullmatch(r"accuracy (\S+)% on 360 held-out digits\n", capsys.readouterr().out)
    assert accuracy is not None
    assert float(accuracy.group(1)) > 95


def plain() -> tuple[Callable[..., Any], Any]:
    module = load("plain")
    return module.loss, module.initialize(jax.random.key(0))


def equinox() -> tuple[Callable[..., Any], Any]:
    module = load("equinox_mlp")
    model = module.on_jaxbw(eqx.nn.MLP(64, 10, 256, 2, key=jax.random.key(0)), "relu")
    arrays, rest = eqx.partition(model, eqx.is_array)
    return lambda arrays, *batch: module.loss(eqx.combine(arrays, rest), *batch), arrays


@pytest.mark.parametrize("example", [plain, equinox])
def test_a_step_on_a_hopper_gpu(example: Callable[[], Any]) -> None:
    """Three layers, the gradients of their weights, and those of two layers' inputs."""
    loss, parameters = example()
    with jaxbw.target("H200"), jaxbw.implementation("kernel"):
        gradient = jax.jit(jax.grad(loss)).trace(parameters, PIXELS, DIGITS)
        text = gradient.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@jaxbw_gemm_v10(") == 3 + 3 + 2
    assert "stablehlo.dot_general" not in text
