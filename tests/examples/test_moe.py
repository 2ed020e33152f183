"""examples/moe.py as a user runs it, on two devices; and its loss, beside that by einsum."""

from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType

import jaxbw
from jaxbw.flax.nnx import MoE

from .loading import load, trained

LENGTH, CHARACTERS = 16, 40


@pytest.fixture(scope="module")
def moe() -> ModuleType:
    return load("moe")


def test_run_as_a_user_would(tmp_path: Path) -> None:
    """It learns more than how frequent each character is, in a fraction of the default's steps."""
    sizes = {"steps": 100, "width": 32, "layers": 1, "length": 16, "experts": 4}
    _, loss, without_context = trained("moe", tmp_path, sizes)
    assert loss < without_context - 0.2


class EinsumMoE(MoE):
    """What `MoE` computes, in float32, by all experts for every token."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        x = inputs.astype(jnp.float32)
        probabilities = jax.nn.softmax(self.router(x))
        chosen, experts = jax.lax.top_k(probabilities, self.top_k)
        weights = (jax.nn.one_hot(experts, probabilities.shape[-1]) * chosen[..., None]).sum(-2)
        weights /= weights.sum(-1, keepdims=True)
        assert self.gate is not None
        gate, up = (jnp.einsum("btd,edh->bteh", x, w[...]) for w in (self.gate, self.up))
        hidden = jax.nn.silu(gate) * up
        return jnp.einsum("bteh,ehd,bte->btd", hidden, self.down[...], weights)


@pytest.mark.parametrize("dispatch", ["all_gather", "all_to_all"])
def test_the_loss_of_a_step_is_that_of_the_einsum_form(moe: ModuleType, dispatch: str) -> None:
    """In bf16, on four devices: loss, and the experts' gradients."""
    model = moe.MoEGPT(CHARACTERS, LENGTH, 32, 2, 1, 8, 0, dispatch)
    tokens = np.random.default_rng(0).integers(0, CHARACTERS, (8, LENGTH + 1)).astype(np.int32)
    definition, parameters = nnx.split(model)
    mesh = jax.make_mesh((4,), (moe.AXIS,), (AxisType.Auto,), devices=jax.devices()[:4])
    at_home = moe.placed(parameters, mesh)
    ours, gradient = jax.jit(jax.value_and_grad(moe.mean_loss(definition, at_home, mesh)))(
        at_home, tokens
    )

    @nnx.jit
    def by_einsum(model: Any, tokens: Any) -> Any:
        return nnx.value_and_grad(moe.gpt.loss)(model, tokens)

    for block in model.blocks:
        dense = EinsumMoE(32, 64, num_experts=8, rngs=nnx.Rngs(0))
        nnx.update(dense, nnx.state(block.mlp))
        block.mlp = dense
    theirs, of_einsum = by_einsum(model, tokens)
    # Three roundings to bfloat16 on the way through an expert, of values of size 1 as the logits
    # are: of a logit, and so of the loss, 4 * 2^-9 if none cancelled another.
    assert abs(float(ours) - float(theirs)) < 4 * 2.0**-9
    of_experts = gradient["blocks"][0]["mlp"]
    for name in moe.EXPERTS:
        expected = of_einsum["blocks"][0]["mlp"][name][...]
        found = np.asarray(of_experts[name][...])
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert error < 8 * 2.0**-9, name


def test_a_step_on_hopper_gpus(moe: ModuleType) -> None:
    """On each of two: every matmul is a kernel, but what gpt.py's test says, and the router's.

    Grouped ones are three forward, and two for the gradient of each.
    """
    model = nnx.eval_shape(lambda: moe.MoEGPT(103, 64, 128, 4, 1, 8, 0))
    definition, parameters = nnx.split(model)
    mesh = jax.sharding.AbstractMesh((2,), (moe.AXIS,), axis_types=(AxisType.Auto,))
    loss = moe.mean_loss(definition, parameters, mesh)
    optimizer = optax.sgd(1e-3)
    step = moe.training_step(loss, optimizer)
    tokens = jax.ShapeDtypeStruct((16, 65), np.int32)
    with jaxbw.target("H200"):
        state = jax.eval_shape(optimizer.init, parameters)
        text = step.trace(parameters, state, tokens).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("jaxbw_sm90_grouped_") == 3 * 3
