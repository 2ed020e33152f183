"""Equinox: the linear layers of a model that is there already, replaced by jaxbw's.

    python examples/equinox_mlp.py

An Equinox model is a tree, so its layers can be exchanged from outside; and it is written for one
example, so that `jax.vmap` makes the batch. Vector times matrix then becomes one matmul of
matrices, in one kernel with bias and activation.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxbw

STEPS = 100


class Linear(eqx.Module):
    """`eqx.nn.Linear` and the activation behind it, in bf16."""

    weight: jax.Array
    bias: jax.Array | None
    activation: str | None = eqx.field(static=True)

    def __call__(self, x: jax.Array, *, key: None = None) -> jax.Array:
        """`[in]` to `[out]`."""
        del key
        x, weight = x.astype(jnp.bfloat16), self.weight.astype(jnp.bfloat16)
        out: jax.Array = jaxbw.matmul(x, weight.T, bias=self.bias, activation=self.activation)
        return out


def on_jaxbw(model: eqx.nn.MLP, activation: str) -> eqx.nn.MLP:
    """The model with its layers replaced, and its activation in those that have one behind them."""
    *hidden, last = model.layers
    layers = tuple(Linear(layer.weight, layer.bias, activation) for layer in hidden)
    layers += (Linear(last.weight, last.bias, None),)
    changed: eqx.nn.MLP = eqx.tree_at(
        lambda m: (m.layers, m.activation), model, (layers, eqx.nn.Identity())
    )
    return changed


def loss(model: eqx.nn.MLP, pixels: jax.Array, digits: jax.Array) -> jax.Array:
    """The mean cross entropy of a batch."""
    logits = jax.vmap(model)(pixels).astype(jnp.float32)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, digits))


def main() -> None:
    """Trains, and prints the accuracy on the images that were held out."""
    images, digits = load_digits(return_X_y=True)
    split = train_test_split(images / 16, digits, test_size=0.2, random_state=0, stratify=digits)
    train_x, test_x, train_y, test_y = map(jnp.asarray, split)
    model = on_jaxbw(eqx.nn.MLP(64, 10, 256, 2, key=jax.random.key(0)), "relu")
    optimizer = optax.adam(2e-3)
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def step(model: eqx.nn.MLP, state: optax.OptState) -> tuple[eqx.nn.MLP, optax.OptState]:
        gradient = eqx.filter_grad(loss)(model, train_x, train_y)
        updates, state = optimizer.update(gradient, state)
        return eqx.apply_updates(model, updates), state

    for _ in range(STEPS):
        model, state = step(model, state)
    right = jax.vmap(model)(test_x).argmax(axis=1) == test_y
    print(f"accuracy {right.mean():.1%} on {len(test_y)} held-out digits")


if __name__ == "__main__":
    main()
