"""jaxbw.accelerate on models of Flax's and Equinox's own layers, and on examples/gpt.py sharded."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import jaxbw
from jaxbw.flax import linen

from ..examples.loading import load

HALF = 2.0**-8  # bfloat16's unit roundoff
VOCABULARY, WIDTH, LENGTH = 16, 32, 16
TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, (2, LENGTH))


class Transformer(nn.Module):
    """A block and the logits, which are an einsum."""

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        embed = nn.Embed(VOCABULARY, WIDTH, dtype=jnp.bfloat16)
        x = embed(tokens)
        normed = nn.LayerNorm(dtype=jnp.bfloat16)(x)
        x = x + nn.MultiHeadAttention(2, dtype=jnp.bfloat16)(normed)
        hidden = nn.gelu(nn.Dense(2 * WIDTH, dtype=jnp.bfloat16)(x))
        x = x + nn.Dense(WIDTH, dtype=jnp.bfloat16)(hidden)
        return embed.attend(x)


class EquinoxBlock(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    embedding: jax.Array

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key, 3)
        self.attention = eqx.nn.MultiheadAttention(2, WIDTH, key=keys[0])
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 2 * WIDTH, 1, key=keys[1])
        self.embedding = jax.random.normal(keys[2], (VOCABULARY, WIDTH)) / 4

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embedding[tokens]
        x = x + self.attention(x, x, x)
        return (x + jax.vmap(self.mlp)(x)) @ self.embedding.T


def mean_loss(logits: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(
        logits.astype(jnp.float32), jnp.roll(TOKENS, 1, axis=1)
    ).mean()


def flax_model() -> tuple[Callable[[Any], Any], Any, int]:
    """A loss of the parameters, these, and the matmuls of the forward pass."""
    model = Transformer()
    variables = jax.jit(model.init)(jax.random.key(0), TOKENS)
    return lambda v: mean_loss(model.apply(v, TOKENS)), variables, 9


def equinox_model() -> tuple[Callable[[Any], Any], Any, int]:
    arrays, rest = eqx.partition(eqx.filter_jit(EquinoxBlock)(jax.random.key(0)), eqx.is_array)

    def loss(arrays: Any) -> Any:
        half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), arrays)
        return mean_loss(jax.vmap(eqx.combine(half, rest))(TOKENS))

    return loss, arrays, 9


MODELS = {"flax": flax_model, "equinox": equinox_model}


def counts(step: Callable[..., Any], *args: Any) -> tuple[int, int]:
    """Custom calls and dot_generals, lowered for CUDA."""
    with jaxbw.implementation("kernel"):
        text = jax.jit(step).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    return text.count("@jaxbw_gemm_v10("), text.count("stablehlo.dot_general")


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_another_librarys_layers(name: str) -> None:
    loss, parameters, matmuls = MODELS[name]()
    before = jax.value_and_grad(loss)
    after = jax.value_and_grad(jaxbw.accelerate(loss))
    _, total = counts(before, parameters)
    assert matmuls * 3 == total
    for target in ("H200", "B200"):
        with jaxbw.target(target):
            assert counts(after, parameters) == (total, 0)
            assert jaxbw.explain_function(after, parameters).on_xla == 0
    assert jaxbw.explain_function(before, parameters).on_xla == total


@pytest.mark.parametrize("name", MODELS)
def test_a_step(name: str) -> None:
    """The loss before, and plainly computed behind it."""
    loss, parameters, matmuls = MODELS[name]()

    def losses(function: Callable[..., Any]) -> list[float]:
        def step(parameters: Any) -> Any:
            value, gradient = jax.value_and_grad(function)(parameters)
            return value, loss(jax.tree.map(lambda p, g: p - 0.01 * g, parameters, gradient))

        return [float(value) for value in jax.jit(step)(parameters)]

    wanted = losses(loss)
    assert wanted[1] < wanted[0]
    for implementation in ("xla", "emulator"):
        with jaxbw.implementation(implementation):
            got = losses(jaxbw.accelerate(loss))
        # Each matmul's result is rounded, and a loss is not more sensitive than its logits.
        np.testing.assert_allclose(got, wanted, rtol=matmuls * HALF)


# examples/gpt.py, of Flax's layers alone, a part of each batch on each of two devices


@pytest.fixture
def gpt(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    class PlainMLP(nnx.Module):
        def __init__(self, width: int, hidden: int, *, activation: str, **layer: Any) -> None:
            self.up, self.down = (
                nnx.Linear(*sizes, **layer) for sizes in ((width, hidden), (hidden, width))
            )

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.down(nnx.gelu(self.up(x)))

    module = load("gpt")
    monkeypatch.setattr(module, "MLP", PlainMLP)
    monkeypatch.setattr(module, "Linear", nnx.Linear)
    monkeypatch.setattr(module, "swap_layers", lambda model: None)
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    return module


def test_the_sharded_gpt(gpt: ModuleType) -> None:
    model = gpt.GPT(VOCABULARY, LENGTH - 1, WIDTH, 2, 1, 0)
    definition, parameters = nnx.split(model)
    optimizer = optax.sgd(0.1)

    def losses(step: Callable[..., Any], implementation: str) -> list[float]:
        """Before a step and behind it, the latter plainly computed."""
        given = jax.tree.map(np.asarray, parameters)
        with jaxbw.implementation(implementation):
            given, state, before = step(given, optimizer.init(given), TOKENS)
        *_, behind = plain(given, state, TOKENS)
        return [float(before), float(behind)]

    step = plain = gpt.training_step(definition, optimizer)
    wanted = losses(plain, "xla")
    assert wanted[1] < wanted[0]
    for implementation in ("xla", "emulator"):
        got = losses(jaxbw.accelerate(step), implementation)
        np.testing.assert_allclose(got, wanted, rtol=9 * HALF)

    args = parameters, optimizer.init(parameters), TOKENS
    assert counts(step, *args) == (0, 9 * 3)
    for target in ("H200", "B200"):
        with jaxbw.target(target):
            report = jaxbw.explain_function(jaxbw.accelerate(step), *args)
            assert counts(jaxbw.accelerate(step), *args) == (report.on_kernels, report.on_xla)
        # The gradient of scores that jax.nn has in float32 is float32, and an operand is not.
        assert report.on_xla == 2
        assert all(
            "the operands have different dtypes" in str(matmul.choice)
            for matmul in report.matmuls
            if matmul.choice.kernel is None
        )


def test_linen_can_be_imported_in_flaxs_place() -> None:
    assert linen.LayerNorm is nn.LayerNorm
    assert linen.gelu is nn.gelu
    assert linen.Dense is not nn.Dense
    assert {"Dense", "LayerNorm", "scan"} <= set(dir(linen))
    with pytest.raises(AttributeError, match="no attribute 'Denze'"):
        linen.Denze  # noqa: B018
