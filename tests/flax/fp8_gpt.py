"""examples/gpt.py trained in bf16 and by the recipes of low precision, on one device.

python -m tests.flax.fp8_gpt --steps 200     # the losses side by side
"""

import argparse
from typing import Any

import numpy as np
import optax
from flax import nnx

from jaxbw.flax.nnx import TRAINED, Optimizer, swap_layers

from ..examples.loading import load

WITH_KEYS = "nvfp4 with keys"
RECIPES = (None, "fp8_delayed", "fp8_current", "mxfp8", "nvfp4", WITH_KEYS)


def losses(recipe: str | None, steps: int, **sizes: int) -> list[float]:
    """The loss of each step; of the model the blocks are in low precision, its head is not."""
    gpt = load("gpt")
    text = gpt.Text.of_the_manual()
    length, batch = sizes.pop("length"), sizes.pop("batch")
    model = gpt.GPT(len(text.characters), length, **sizes, seed=0)
    if recipe == WITH_KEYS:
        swap_layers(model.blocks, "nvfp4", rngs=nnx.Rngs(0))
    elif recipe is not None:
        swap_layers(model.blocks, recipe)
    schedule = optax.warmup_cosine_decay_schedule(0, gpt.PEAK_LEARNING_RATE, steps // 10, steps)
    tx = optax.chain(optax.clip_by_global_norm(1), optax.adamw(schedule))
    optimizer = Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any, tokens: Any) -> Any:
        value, gradients = nnx.value_and_grad(gpt.loss, argnums=nnx.DiffState(0, TRAINED))(
            model, tokens
        )
        optimizer.update(model, gradients)
        return value

    batches = gpt.windows(text.train, length, batch, 0)
    return [float(step(model, optimizer, next(batches))) for _ in range(steps)]


def main() -> None:
    """Prints the loss of some steps, and the mean of the last twenty."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    sizes = {"width": 128, "heads": 4, "layers": 2, "length": 64, "batch": 16}
    columns = [losses(recipe, steps, **sizes) for recipe in RECIPES]
    print("step", *(recipe or "bf16" for recipe in RECIPES), sep="\t")
    for i in sorted({0, 1, 2, 5, 10, *range(20, steps, 20), steps - 1}):
        print(i + 1, *(f"{column[i]:.4f}" for column in columns), sep="\t")
    print("last 20", *(f"{np.mean(column[-20:]):.4f}" for column in columns), sep="\t")


if __name__ == "__main__":
    main()
