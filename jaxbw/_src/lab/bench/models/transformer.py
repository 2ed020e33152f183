"""The models: transformers in plain JAX, as a user would write them, over any `Form`.

Weights and activations are bf16; norms, the softmax of the loss and its sum are float32.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxbw._src.lab.bench.models.form import Form

STACKINGS = ("unrolled", "scanned", "scanned+remat")
DTYPE = jnp.bfloat16
SCALE = 0.02  # of the weights, which are iid normal


@dataclass(frozen=True)
class Transformer:
    """A stack of attention and feed-forward layers, and the step that is timed.

    Attributes:
      inputs: size of the vocabulary; of an image model the values of a patch.
      outputs: classes of an image model; 0 for a language model, whose embedding is its head.
      gated: silu(x @ gate) * (x @ up) without biases, as Llama; else gelu(x @ up + b), as GPT-2.
      cache: positions of a decoding step's cache; 0 for a training step.
      attention: `jax.nn.dot_product_attention`'s implementation.
    """

    name: str
    width: int
    heads: int
    ff: int
    layers: int
    inputs: int
    batch: int
    length: int
    gated: bool
    outputs: int = 0
    cache: int = 0
    attention: Literal["cudnn", "xla"] = "cudnn"

    @property
    def stackings(self) -> tuple[str, ...]:
        """How its layers may be written; without a gradient nothing is rematerialised."""
        return STACKINGS[:2] if self.cache else STACKINGS

    def smaller(self, **sizes: Any) -> "Transformer":
        """The same model with other sizes, for tests."""
        return replace(self, **sizes)

    # Arguments

    def argument_shapes(self, stacking: str) -> tuple[Any, ...]:
        """The types of `step`'s arguments."""

        def array(*shape: int, dtype: Any = DTYPE) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, dtype)

        d, ff = self.width, self.ff
        layer: dict[str, tuple[int, ...]] = {name: (d, d) for name in ("q", "k", "v", "o")}
        if self.gated:
            layer |= {"gate": (d, ff), "up": (d, ff), "down": (ff, d)}
            layer |= {"norm1": (d,), "norm2": (d,)}
        else:
            layer |= {"up": (d, ff), "down": (ff, d), "up_bias": (ff,), "down_bias": (d,)}
            layer |= {f"{name}_bias": (d,) for name in ("q", "k", "v", "o")}
            layer |= {"norm1": (2, d), "norm2": (2, d)}
        layers: Any = {name: array(self.layers, *shape) for name, shape in layer.items()}
        if stacking == "unrolled":
            one = {name: array(*shape) for name, shape in layer.items()}
            layers = [one] * self.layers
        parameters = {"embedding": array(self.inputs, d), "layers": layers}
        if self.outputs:
            parameters["head"] = array(d, self.outputs)
            images = array(self.batch, self.length, self.inputs)
            return parameters, images, array(self.batch, dtype=jnp.int32)
        tokens = array(self.batch, self.length, dtype=jnp.int32)
        if self.cache:
            shape = (self.layers, 2, self.batch, self.cache, self.heads, d // self.heads)
            return parameters, tokens, array(*shape), array(dtype=jnp.int32)
        return parameters, tokens

    def arguments(self, stacking: str, seed: int) -> tuple[Any, ...]:
        """Arguments of `step`, drawn; a decoding step is in the middle of its cache."""
        generator = np.random.default_rng(seed)
        labels = self.outputs or self.inputs

        def draw(given: Any) -> Any:
            if given.dtype != jnp.int32:
                values = generator.standard_normal(given.shape, np.float32) * SCALE
                return jnp.asarray(values, given.dtype)
            if not given.shape:
                return jnp.asarray(self.cache // 2, jnp.int32)
            return jnp.asarray(generator.integers(0, labels, given.shape), jnp.int32)

        return tuple(jax.tree.map(draw, each) for each in self.argument_shapes(stacking))

    # Steps

    def step(self, form: Form, stacking: str) -> Callable[..., Any]:
        """The function that is timed: loss and gradient, or logits and cache of the next token."""
        if self.cache:
            return lambda *given: self._decode(form, stacking, *given)
        return jax.value_and_grad(lambda *given: self._loss(form, stacking, *given))

    def _loss(self, form: Form, stacking: str, parameters: Any, inputs: Any, *label: Any) -> Any:
        embedding = parameters["embedding"]
        x = form.matmul(inputs, embedding) if self.outputs else embedding[inputs]

        def layer(x: Any, weights: Any) -> Any:
            return self._layer(form, x, weights, self._attend), None

        x = _stack(layer, x, parameters["layers"], stacking)[0]
        if self.outputs:
            logits, labels = form.matmul(x.mean(1), parameters["head"]), label[0]
        else:
            logits, labels = form.matmul(x, embedding.T)[:, :-1], inputs[:, 1:]
        log_likelihood = jax.nn.log_softmax(logits.astype(jnp.float32))
        return -jnp.take_along_axis(log_likelihood, labels[..., None], -1).mean()

    def _decode(
        self, form: Form, stacking: str, parameters: Any, tokens: Any, cache: Any, position: Any
    ) -> Any:
        x, embedding = parameters["embedding"][tokens], parameters["embedding"]

        def layer(carry: Any, given: Any) -> Any:
            x, cache = carry
            weights, number = given

            def attend(q: Any, k: Any, v: Any) -> Any:
                nonlocal cache
                new = jnp.stack([k, v])[None]
                cache = jax.lax.dynamic_update_slice(cache, new, (number, 0, 0, position, 0, 0))
                keys, values = cache[number]
                return jax.nn.dot_product_attention(
                    q,
                    keys,
                    values,
                    key_value_seq_lengths=jnp.full(self.batch, position + 1),
                    implementation=self.attention,
                )

            return (self._layer(form, x, weights, attend), cache), None

        numbers = jnp.arange(self.layers)
        layers = parameters["layers"]
        if stacking == "unrolled":
            given: Any = list(zip(layers, range(self.layers), strict=True))
        else:
            given = (layers, numbers)
        x, cache = _stack(layer, (x, cache), given, stacking)[0]
        return form.matmul(x, embedding.T), cache

    def _layer(self, form: Form, x: Any, w: Any, attend: Callable[..., Any]) -> Any:
        bias = dict.fromkeys(("q", "k", "v", "o"))
        if not self.gated:
            bias = {name: w[f"{name}_bias"] for name in bias}
        y = _normalize(x, w["norm1"])
        q, k, v = (self._heads(form.dense(y, w[name], bias[name])) for name in ("q", "k", "v"))
        mixed = attend(q, k, v).reshape(x.shape)
        x = form.dense(mixed, w["o"], bias["o"], residual=x)
        y = _normalize(x, w["norm2"])
        if self.gated:
            hidden = form.gated(y, w["gate"], w["up"], "silu")
            return form.dense(hidden, w["down"], residual=x)
        hidden = form.dense(y, w["up"], w["up_bias"], activation="gelu")
        return form.dense(hidden, w["down"], w["down_bias"], residual=x)

    def _heads(self, x: Any) -> Any:
        return x.reshape(*x.shape[:2], self.heads, self.width // self.heads)

    def _attend(self, q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(
            q, k, v, is_causal=not self.outputs, implementation=self.attention
        )


def _normalize(x: Any, scale: Any) -> Any:
    """RMS norm of one row of weights; of two, layer norm with scale and offset."""
    wide = x.astype(jnp.float32)
    if scale.ndim == 2:
        wide = wide - wide.mean(-1, keepdims=True)
    wide = wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    if scale.ndim == 2:
        return ((1 + scale[0]) * wide + scale[1]).astype(x.dtype)
    return ((1 + scale) * wide).astype(x.dtype)


def _stack(layer: Callable[..., Any], x: Any, given: Any, stacking: str) -> Any:
    if stacking == "unrolled":
        for weights in given:
            x, _ = layer(x, weights)
        return x, None
    return jax.lax.scan(jax.checkpoint(layer) if "remat" in stacking else layer, x, given)


MODELS = (
    Transformer("gpt2-124m", 768, 12, 3072, 12, 50257, batch=8, length=1024, gated=False),
    Transformer("swiglu-2048", 2048, 16, 5632, 8, 32000, batch=4, length=2048, gated=True),
    Transformer("swiglu-4096", 4096, 32, 14336, 2, 32000, batch=2, length=2048, gated=True),
    Transformer(
        "vit-1152", 1152, 16, 4304, 8, 588, batch=16, length=256, gated=False, outputs=1000
    ),
    Transformer(
        "decode-4096", 4096, 32, 14336, 4, 32000, batch=8, length=1, gated=True, cache=2048
    ),
)
