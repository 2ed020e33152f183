"""Plain JAX: a classifier of handwritten digits whose parameters are a list of arrays.

    python examples/plain.py

Where `jax.nn.relu(x @ w + b)` stood, `jaxbw.matmul` does all three; `jax.grad`, `jax.jit` and the
rest go on as before.
"""

import jax
import jax.numpy as jnp
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxbw

SIZES = (64, 256, 256, 10)
STEPS, LEARNING_RATE, MOMENTUM = 150, 0.1, 0.9

Parameters = list[tuple[jax.Array, jax.Array]]  # the weights and the bias of each layer, float32


def initialize(key: jax.Array) -> Parameters:
    """He's initial values."""
    keys = jax.random.split(key, len(SIZES) - 1)
    shapes = zip(keys, SIZES[:-1], SIZES[1:], strict=True)
    return [
        (jax.random.normal(key, (inputs, outputs)) * (2 / inputs) ** 0.5, jnp.zeros(outputs))
        for key, inputs, outputs in shapes
    ]


def classify(parameters: Parameters, pixels: jax.Array) -> jax.Array:
    """Pixels `[batch, 64]` to logits `[batch, 10]`, in bf16."""
    x = pixels.astype(jnp.bfloat16)
    *hidden, (w, b) = parameters
    for weights, bias in hidden:
        x = jaxbw.matmul(x, weights.astype(jnp.bfloat16), bias=bias, activation="relu")
    logits: jax.Array = jaxbw.matmul(x, w.astype(jnp.bfloat16), bias=b)
    return logits


def loss(parameters: Parameters, pixels: jax.Array, digits: jax.Array) -> jax.Array:
    """The mean cross entropy."""
    logits = classify(parameters, pixels).astype(jnp.float32)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), digits[:, None], axis=1).mean()


@jax.jit
def step(
    parameters: Parameters, velocity: Parameters, pixels: jax.Array, digits: jax.Array
) -> tuple[Parameters, Parameters]:
    """Gradient descent with momentum, over all images at once."""
    gradient = jax.grad(loss)(parameters, pixels, digits)
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v - LEARNING_RATE * g, velocity, gradient)
    return jax.tree.map(jnp.add, parameters, velocity), velocity


def main() -> None:
    """Trains, and prints the accuracy on the images that were held out."""
    images, digits = load_digits(return_X_y=True)
    split = train_test_split(images / 16, digits, test_size=0.2, random_state=0, stratify=digits)
    train_x, test_x, train_y, test_y = map(jnp.asarray, split)
    parameters = initialize(jax.random.key(0))
    velocity = jax.tree.map(jnp.zeros_like, parameters)
    for _ in range(STEPS):
        parameters, velocity = step(parameters, velocity, train_x, train_y)
    right = classify(parameters, test_x).argmax(axis=1) == test_y
    print(f"accuracy {right.mean():.1%} on {len(test_y)} held-out digits")


if __name__ == "__main__":
    main()
