"""A small GPT of Flax's layers and of ours, linen and nnx: logits and gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx

from jaxbw.flax import linen
from jaxbw.flax import nnx as ours

from .oracle import FUSED, assert_one_tree, assert_same, in_float64, primitives, slopes

VOCABULARY, WIDTH, LAYERS, LENGTH = 11, 8, 2, 6
TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, (2, LENGTH))


class Block(nn.Module):
    library: Any
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, _: None = None) -> Any:
        norm = nn.LayerNorm(dtype=self.dtype, name="first")
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        attention = self.library.MultiHeadAttention(2, dtype=self.dtype, name="attention")
        x = x + attention(norm(x), mask=mask)
        hidden = nn.LayerNorm(dtype=self.dtype, name="second")(x)
        if self.library is linen:
            return x + linen.MLP(4 * WIDTH, dtype=self.dtype, name="mlp")(hidden), None
        return x + FlaxMLP(dtype=self.dtype, name="mlp")(hidden), None


class FlaxMLP(nn.Module):
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = nn.gelu(nn.Dense(4 * WIDTH, dtype=self.dtype, name="up")(x))
        result: jax.Array = nn.Dense(WIDTH, dtype=self.dtype, name="down")(hidden)
        return result


class GPT(nn.Module):
    """One block for all layers, by `nn.scan`, recomputed in the backward pass, by `nn.remat`."""

    library: Any
    dtype: Any = None

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(VOCABULARY, WIDTH, dtype=self.dtype)(tokens)
        x = x + self.param("positions", nn.initializers.normal(0.1), (LENGTH, WIDTH), x.dtype)
        stack = nn.scan(
            nn.remat(Block, prevent_cse=False),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=LAYERS,
        )
        x, _ = stack(self.library, self.dtype, name="blocks")(x, None)
        logits: jax.Array = self.library.Dense(VOCABULARY, dtype=self.dtype, name="head")(x)
        return logits


def test_linen() -> None:
    theirs, layered = GPT(nn), GPT(linen)
    variables = jax.jit(theirs.init)(jax.random.key(1), TOKENS)
    same = jax.jit(layered.init)(jax.random.key(1), TOKENS)
    assert_one_tree(same, variables)

    wanted, got = (
        in_float64(slopes(lambda v, model=model: model.apply(v, TOKENS)), variables)
        for model in (theirs, layered)
    )
    assert_same(got, wanted)
    found = primitives(layered.apply, variables, TOKENS)
    assert found[FUSED] == 4 + 2 + 1

    half, ours_half = (
        jax.jit(GPT(library, jnp.bfloat16).apply)(variables, TOKENS) for library in (nn, linen)
    )
    assert_no_less_exact(ours_half, half, wanted[1])


def assert_no_less_exact(got: Any, theirs: Any, exact: Any) -> None:
    """A fused layer rounds once where Flax's rounds up to three times: it loses no more than that.

    Room is for luck, of two sums of roundings that are independent of each other.
    """
    assert got.dtype == theirs.dtype == jnp.bfloat16
    lost, lost_by_flax = (
        np.sqrt(np.mean((np.asarray(x).astype(np.float64) - exact) ** 2)) for x in (got, theirs)
    )
    assert 0 < lost <= 1.25 * lost_by_flax


def attend(query: Any, key: Any, value: Any, **_: Any) -> Any:
    """Causal attention in the operands' dtype: `jax.nn`'s computes its softmax in float32."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(query.shape[-1])
    scores = jnp.where(jnp.tri(query.shape[1], dtype=bool), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)


class NnxBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, dtype: Any) -> None:
        keywords: Any = {"dtype": dtype, "rngs": rngs}
        self.first, self.second = (nnx.LayerNorm(WIDTH, **keywords) for _ in range(2))
        self.attention = nnx.MultiHeadAttention(
            2, WIDTH, decode=False, attention_fn=attend, **keywords
        )
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, **keywords)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, **keywords)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.first(x))
        return x + self.down(nnx.gelu(self.up(self.second(x))))


class NnxGPT(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, dtype: Any = None) -> None:
        self.embed = nnx.Embed(VOCABULARY, WIDTH, dtype=dtype, rngs=rngs)
        self.blocks = nnx.List([NnxBlock(rngs, dtype) for _ in range(LAYERS)])
        self.head = nnx.Linear(WIDTH, VOCABULARY, dtype=dtype, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens)
        for block in self.blocks:
            x = nnx.remat(type(block).__call__)(block, x)
        return self.head(x)


def logits(model: nnx.Module) -> tuple[Callable[[Any], Any], Any]:
    """A model as a function of its parameters."""
    definition, state = nnx.split(model)
    return lambda state: nnx.merge(definition, state)(TOKENS), state


def test_nnx_swapped() -> None:
    theirs, swapped = NnxGPT(nnx.Rngs(1)), NnxGPT(nnx.Rngs(1))
    assert len(ours.swap_layers(swapped)) == LAYERS * 6 + 1
    (function, state), (ours_function, same) = logits(theirs), logits(swapped)
    assert_one_tree(same, state)
    wanted, got = (in_float64(slopes(f), state) for f in (function, ours_function))
    assert_same(got, wanted)
    assert primitives(ours_function, state)[FUSED] == LAYERS * 6 + 1

    halves = [NnxGPT(nnx.Rngs(1), jnp.bfloat16) for _ in range(2)]
    ours.swap_layers(halves[1])
    theirs_half, ours_half = (jax.jit(f)(state) for f, state in map(logits, halves))
    assert_no_less_exact(ours_half, theirs_half, wanted[1])
