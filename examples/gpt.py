"""Trains a character-level GPT on the manual that comes with Python, its matmuls on jaxbw.

    python examples/gpt.py

It computes in bf16, on all devices that JAX has: each takes its part of every batch, and runs its
own matmuls, on kernels where it is a GPU that jaxbw has them for. By default the model is small
enough for a CPU. For GPUs there is more of everything:

    python examples/gpt.py --width 768 --heads 12 --layers 12 --length 512 --batch 64 --steps 3000

At the end it prints the loss on text that it has not seen, beside the best that can be done without
looking at any context, and writes some text. The loss on the way is drawn into gpt.png.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from pydoc_data import topics
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from jax.sharding import PartitionSpec
from numpy.typing import NDArray

from jaxbw.flax.nnx import MLP, Linear, swap_layers

COMPUTE_DTYPE = jnp.bfloat16
PEAK_LEARNING_RATE = 3e-3
PROMPT = "The "
# Steps given to the devices before they are done: enough to keep them busy. XLA's CPU devices take
# 32 programs each, and a loop that runs further ahead can stop for good: one device waits for room,
# the other for the first one's part of a collective.
STEPS_AHEAD = 8


class Text(NamedTuple):
    """A text as numbers, each an index into its characters."""

    characters: str
    train: NDArray[np.int32]
    held_out: NDArray[np.int32]

    @classmethod
    def of_the_manual(cls) -> "Text":
        """What `help("while")` and the like show; every tenth paragraph is held out."""
        manual = "\n\n".join(topics.topics[name] for name in sorted(topics.topics))
        # Some stand in several places: those would be held out and trained on.
        unique = {" ".join(paragraph.split()): paragraph for paragraph in manual.split("\n\n")}
        parts: list[list[str]] = [[], []]
        for i, paragraph in enumerate(unique.values()):
            parts[i % 10 == 9].append(paragraph)
        characters = "".join(sorted(set(manual)))
        train, held_out = (encode(characters, "\n\n".join(part)) for part in parts)
        return cls(characters, train, held_out)

    def loss_without_context(self) -> float:
        """The cross entropy of the held-out characters by how frequent each is: no model's."""
        counts = np.bincount(self.held_out, minlength=len(self.characters))
        frequency = counts[counts > 0] / counts.sum()
        return float(-(frequency * np.log(frequency)).sum())


def encode(characters: str, text: str) -> NDArray[np.int32]:
    """A text as numbers, the characters being sorted."""
    return np.searchsorted(list(characters), list(text)).astype(np.int32)


class Block(nnx.Module):
    """Attention and the feed-forward block, each behind a norm and beside the residual stream."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        layer: dict[str, Any] = {"dtype": COMPUTE_DTYPE, "rngs": rngs}
        self.norms = nnx.List([nnx.LayerNorm(width, **layer) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, **layer)
        self.mlp: Callable[[jax.Array], jax.Array] = MLP(
            width, 4 * width, activation="gelu", **layer
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """The residual stream behind this block, `[batch, length, width]`."""
        x = x + self.attention(self.norms[0](x), is_causal=True)
        return x + self.mlp(self.norms[1](x))


class GPT(nnx.Module):
    """Characters `[batch, length]` to logits of the next ones, `[batch, length, characters]`."""

    def __init__(
        self, characters: int, length: int, width: int, heads: int, layers: int, seed: int
    ) -> None:
        rngs = nnx.Rngs(seed)
        self.characters = nnx.Embed(characters, width, dtype=COMPUTE_DTYPE, rngs=rngs)
        self.positions = nnx.Embed(length, width, dtype=COMPUTE_DTYPE, rngs=rngs)
        self.blocks = nnx.List([Block(width, heads, rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(width, dtype=COMPUTE_DTYPE, rngs=rngs)
        self.head = Linear(width, characters, dtype=COMPUTE_DTYPE, rngs=rngs)
        swap_layers(self)  # the projections of Flax's attention

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """The logits, float32."""
        x = self.characters(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return jnp.asarray(self.head(self.norm(x)), jnp.float32)


def windows(text: NDArray[np.int32], length: int, count: int, seed: int) -> Iterator[Any]:
    """Endless batches `[count, length + 1]` of pieces of the text."""
    generator = np.random.default_rng(seed)
    while True:
        starts = generator.integers(0, len(text) - length, count)
        yield text[starts[:, None] + np.arange(length + 1)]


def loss(model: GPT, tokens: jax.Array) -> jax.Array:
    """The mean cross entropy of each character after those before it, in nats."""
    logits = model(tokens[:, :-1])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    return jnp.mean(losses)


def training_step(definition: Any, optimizer: Any) -> Callable[..., Any]:
    """One step, on a mesh of all devices: each has the whole model, and its part of a batch."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), (jax.sharding.AxisType.Auto,))
    everywhere, parts = PartitionSpec(), PartitionSpec("data")

    @partial(jax.jit, donate_argnums=(0, 1))
    @partial(
        jax.shard_map, mesh=mesh, in_specs=(everywhere, everywhere, parts), out_specs=everywhere
    )
    def step(parameters: Any, state: Any, tokens: jax.Array) -> Any:
        def mean_loss(parameters: Any) -> jax.Array:
            mean: jax.Array = jax.lax.pmean(loss(nnx.merge(definition, parameters), tokens), "data")
            return mean

        value, gradient = jax.value_and_grad(mean_loss)(parameters)
        updates, state = optimizer.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    return step


def optimizer_for(steps: int) -> Any:
    """AdamW, whose learning rate rises for a tenth of the steps, and then falls."""
    schedule = optax.warmup_cosine_decay_schedule(0, PEAK_LEARNING_RATE, steps // 10, steps)
    return optax.chain(optax.clip_by_global_norm(1), optax.adamw(schedule))


def run(
    step: Callable[..., Any], parameters: Any, state: Any, batches: Iterator[Any], steps: int
) -> tuple[Any, list[float]]:
    """The trained parameters; the loss of each step's batch, before the step."""
    losses: list[jax.Array] = []
    for _, tokens in zip(range(steps), batches, strict=False):
        parameters, state, value = step(parameters, state, tokens)
        losses.append(value)
        if len(losses) > STEPS_AHEAD:
            losses[-1 - STEPS_AHEAD].block_until_ready()
    return parameters, [float(value) for value in losses]


def train(model: GPT, text: Text, length: int, batch: int, steps: int, seed: int) -> list[float]:
    """Trains the model in place; the loss of each step's batch, before the step."""
    optimizer = optimizer_for(steps)
    definition, parameters = nnx.split(model)
    step = training_step(definition, optimizer)
    batches = windows(text.train, length, batch, seed)
    parameters, losses = run(step, parameters, optimizer.init(parameters), batches, steps)
    nnx.update(model, parameters)
    return losses


def held_out_loss(model: GPT, text: Text, length: int, batch: int) -> float:
    """The loss on pieces of the text that it has not been trained on."""
    batches = windows(text.held_out, length, batch, seed=1)
    measure = nnx.jit(loss)
    return float(np.mean([measure(model, next(batches)) for _ in range(8)]))


def write(model: GPT, text: Text, prompt: str, count: int, length: int, seed: int) -> str:
    """The prompt, and characters drawn one by one from what the model expects next."""

    @nnx.jit
    def draw(model: GPT, window: Any, last: Any, key: jax.Array) -> jax.Array:
        return jax.random.categorical(key, model(window[None])[0, last] / 0.7)

    tokens = encode(text.characters, prompt).tolist()
    for key in jax.random.split(jax.random.key(seed), count):
        recent = tokens[-length:]
        window = np.zeros(length, np.int32)  # what is behind the last character is not looked at
        window[: len(recent)] = recent
        tokens.append(int(draw(model, window, len(recent) - 1, key)))
    return "".join(text.characters[token] for token in tokens)


def plot(losses: list[float], held_out: float, path: Path) -> None:
    """The loss on the way."""
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.plot(losses, label="training")
    axes.axhline(held_out, color="C1", label="held out, at the end")
    axes.set(xlabel="step", ylabel="cross entropy, nats per character", ylim=(0, None))
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def parser_of(description: str) -> argparse.ArgumentParser:
    """The arguments that the examples of a GPT share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=16, help="a multiple of the devices")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def main() -> None:
    """Trains, prints the losses and some text, and draws the curve."""
    parser = parser_of("A character-level GPT on jaxbw's matmuls.")
    parser.add_argument("--write", type=int, default=300, help="characters of text to write")
    recipes = ("fp8_current", "mxfp8", "nvfp4")
    parser.add_argument("--recipe", choices=recipes, help="of the blocks' matmuls; default bf16")
    parser.add_argument("--png", type=Path, default=Path("gpt.png"))
    given = parser.parse_args()

    text = Text.of_the_manual()
    model = GPT(
        len(text.characters), given.length, given.width, given.heads, given.layers, given.seed
    )
    if given.recipe is not None:
        swap_layers(model.blocks, given.recipe)
    devices = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    count = sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))
    print(f"{len(text.train):,} characters, {count:,} parameters, {devices}")

    before = held_out_loss(model, text, given.length, given.batch)
    start = time.perf_counter()
    losses = train(model, text, given.length, given.batch, given.steps, given.seed)
    seconds = time.perf_counter() - start
    after = held_out_loss(model, text, given.length, given.batch)
    print(f"{given.steps} steps in {seconds:.0f} s")
    print(f"held-out loss {before:.3f} before, {after:.3f} after training")
    print(f"without any context {text.loss_without_context():.3f}\n")
    print(write(model, text, PROMPT, given.write, given.length, given.seed))
    plot(losses, after, given.png)


if __name__ == "__main__":
    main()
