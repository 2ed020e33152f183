"""Trains a small classifier of handwritten digits whose matmuls all go through jaxbw.

    python examples/digits.py

It computes in bf16. On a GPU that jaxbw has kernels for, all matmuls run on them: also those with
the logits of the ten classes, whose rows TMA cannot address. On a CPU everything goes to XLA. What
served which matmul, and why, is printed behind the accuracy.

Then the held-out digits go through the code of the Blackwell kernels, instruction by instruction on
the CPU: the answers beside XLA's, what the kernels issued, and a picture of one tile's way.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxbw

PIXELS, HIDDEN, CLASSES = 64, (256, 256, 256), 10
BATCH = 128
LEARNING_RATE = 2e-3
COMPUTE_DTYPE = jnp.bfloat16


class Classifier(nn.Module):
    """Pixels `[batch, 64]` to logits `[batch, 10]`, both float32."""

    @nn.compact
    def __call__(self, pixels: jax.Array) -> jax.Array:
        """The logits of a batch of images."""
        dense = partial(nn.Dense, dtype=COMPUTE_DTYPE, dot_general=jaxbw.dot_general)
        for features in HIDDEN:
            pixels = nn.relu(dense(features)(pixels))
        return dense(CLASSES)(pixels).astype(jnp.float32)


class Split(NamedTuple):
    """Images `[count, 64]` with values in 0..1, and their digits `[count]`."""

    images: NDArray[np.float32]
    digits: NDArray[np.int32]

    def batches(self, rng: np.random.Generator) -> Iterator["Split"]:
        """One epoch in random order, without the last, smaller batch."""
        order = rng.permutation(len(self.digits))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            yield Split(self.images[chosen], self.digits[chosen])


def load_splits(seed: int) -> tuple[Split, Split]:
    """Scikit-learn's digits, four fifths to train on and one fifth to test on."""
    images, digits = load_digits(return_X_y=True)
    pixels = (images / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(
        pixels, digits.astype(np.int32), test_size=0.2, random_state=seed, stratify=digits
    )
    return Split(train_x, train_y), Split(test_x, test_y)


def loss(parameters: Any, batch: Split) -> jax.Array:
    """The mean cross entropy of a batch."""
    logits = Classifier().apply(parameters, batch.images)
    mean: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, batch.digits).mean()
    return mean


def train(data: Split, epochs: int, seed: int) -> Any:
    """The parameters of a trained classifier."""
    optimizer = optax.adam(LEARNING_RATE)

    @jax.jit
    def step(parameters: Any, state: Any, batch: Split) -> tuple[Any, Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(parameters, batch)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(parameters, updates), state, value

    parameters = Classifier().init(jax.random.key(seed), data.images[:1])
    state = optimizer.init(parameters)
    rng = np.random.default_rng(seed)
    for epoch in range(1, epochs + 1):
        for batch in data.batches(rng):
            parameters, state, value = step(parameters, state, batch)
        if epoch % 10 == 0 or epoch == epochs:
            print(f"epoch {epoch:3}  loss {value:.4f}")
    return parameters


def accuracy(parameters: Any, data: Split) -> float:
    """The fraction of images that are recognised."""
    logits = jax.jit(Classifier().apply)(parameters, data.images)
    return float((np.asarray(logits).argmax(-1) == data.digits).mean())


class Matmul(NamedTuple):
    """One matmul of a training step."""

    name: str
    lhs: tuple[int, int]
    rhs: tuple[int, int]
    contracting: tuple[int, int]  # the dimension of lhs and that of rhs which are summed over

    def explain(self) -> str:
        """Which implementation serves the matmul, and why, on one line."""
        choice = jaxbw.explain(
            jax.ShapeDtypeStruct(self.lhs, COMPUTE_DTYPE),
            jax.ShapeDtypeStruct(self.rhs, COMPUTE_DTYPE),
            dimension_numbers=((self.contracting[:1], self.contracting[1:]), ((), ())),
        )
        why = choice.kernel or "; ".join(map(str, choice.refused)) or choice.reason
        return f"{choice.implementation:5} {why}"


def matmuls() -> Iterator[Matmul]:
    """What a training step multiplies, layer by layer."""
    for layer, (inputs, outputs) in enumerate(pairwise((PIXELS, *HIDDEN, CLASSES))):
        x, w, y = (BATCH, inputs), (inputs, outputs), (BATCH, outputs)
        yield Matmul(f"Dense_{layer} forward", x, w, (1, 0))
        yield Matmul(f"Dense_{layer} weights' gradient", x, y, (0, 0))
        if layer > 0:  # nobody asks for the gradient of the pixels
            yield Matmul(f"Dense_{layer} inputs' gradient", y, w, (1, 1))


def emulate(parameters: Any, data: Split, picture: str) -> None:
    """Prints what the Blackwell kernels answer, in the emulator; draws a tile of one."""
    images = jnp.asarray(data.images)
    by_xla = np.asarray(jax.jit(Classifier().apply)(parameters, images))
    start = time.perf_counter()
    with jaxbw.target("B200"), jaxbw.implementation("emulator"):
        logits = np.asarray(jax.jit(Classifier().apply)(parameters, images))
    seconds = time.perf_counter() - start
    count = len(data.digits)
    same = int((logits.argmax(-1) == by_xla.argmax(-1)).sum())
    right = (logits.argmax(-1) == data.digits).mean()
    print(f"\nthe {count} held-out digits through the Blackwell kernels, emulated on this CPU:")
    print(f"  {same} answers as by XLA, accuracy {right:.1%}, in {seconds:.1f} s")

    # The same launches once more, on one SM, which tells what it issued and when.
    print(f"\n  {'':7} {'kernel':22} {'tiles':>5}  {'TMA':>4}  {'tcgen05.mma':>11}  tcgen05.commit")
    for layer, (inputs, outputs) in enumerate(pairwise((PIXELS, *HIDDEN, CLASSES))):
        x, w = (
            jax.ShapeDtypeStruct(shape, COMPUTE_DTYPE)
            for shape in ((count, inputs), (inputs, outputs))
        )
        with jaxbw.target("B200"):
            traced = jaxbw.profile(x, w, implementation="emulator", sm_count=1)
        report = traced.report
        assert report is not None
        issued = sum((Counter(role.operations) for role in report.roles), Counter())
        tma, mma, commit = (
            sum(number for opcode, number in issued.items() if opcode.startswith(name))
            for name in ("cp.async.bulk", "tcgen05.mma", "tcgen05.commit")
        )
        tiles = report.clusters_started + report.clusters_cancelled
        counts = f"{tiles:5}  {tma:4}  {mma:11}  {commit:14}"
        print(f"  Dense_{layer} {traced.choice.kernel:22} {counts}")
        if layer == 1:
            report.timeline(png=picture, window=(0, 2 * report.steps // tiles))
    print(f"\n  {picture}: the first tile of Dense_1 on its way through warps, engines, barriers")


def main() -> None:
    """Trains, prints the accuracy, what served each matmul, and what the emulated kernels say."""
    parser = argparse.ArgumentParser(description="A Flax classifier of digits on jaxbw's matmuls.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", default="digits.png", help="the file that is drawn")
    arguments = parser.parse_args()

    training, held_out = load_splits(arguments.seed)
    parameters = train(training, arguments.epochs, arguments.seed)
    count = len(held_out.digits)
    print(f"accuracy {accuracy(parameters, held_out):.1%} on {count} held-out digits")

    print(f"\nserved on {jax.devices()[0].device_kind}:")
    for matmul in matmuls():
        print(f"  {matmul.name:26} {matmul.explain()}")
    with jax.default_device(jax.devices("cpu")[0]):  # where the emulator runs
        emulate(parameters, held_out, arguments.picture)


if __name__ == "__main__":
    main()
