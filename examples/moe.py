"""Trains a character-level GPT with a mixture of experts in each block, its matmuls on jaxbw.

    python examples/moe.py

As gpt.py, whose text and attention these are; but each character goes through the likeliest two of
many feed-forward blocks. None is dropped: grouped matmuls compute them all, on a kernel where it is
a Hopper GPU. With several devices each has its part of every batch and of the experts. For GPUs
there is more of everything:

    python examples/moe.py --width 768 --heads 12 --layers 12 --length 512 --batch 64 --experts 64

At the end it prints the loss on text that it has not seen, beside the best that can be done
without looking at any context.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gpt
import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxbw.flax.nnx import MoE

AXIS = "expert"
EXPERTS = ("gate", "up", "down")  # parameters of MoE, a matrix of each for each expert


class MoEGPT(gpt.GPT):
    """A GPT of gpt.py with experts in place of each block's feed-forward layer."""

    def __init__(
        self,
        characters: int,
        length: int,
        width: int,
        heads: int,
        layers: int,
        experts: int,
        seed: int,
        dispatch: str = "all_gather",
    ) -> None:
        super().__init__(characters, length, width, heads, layers, seed)
        options: dict[str, Any] = {"dtype": gpt.COMPUTE_DTYPE, "rngs": nnx.Rngs(seed + 1)}
        options |= {"num_experts": experts, "expert_axis": AXIS, "dispatch": dispatch}
        for block in self.blocks:
            block.mlp = MoE(width, 2 * width, **options)


def placement(parameters: Any) -> Any:
    """Which dimension of each parameter the devices divide: experts', and of no other."""

    def of(path: Any, _: Any) -> PartitionSpec:
        names = {getattr(key, "key", None) for key in path}
        return PartitionSpec(AXIS) if names.intersection(EXPERTS) else PartitionSpec()

    return jax.tree_util.tree_map_with_path(of, parameters)


def placed(parameters: Any, mesh: Mesh) -> Any:
    """The parameters, or a state of an optimizer that has as many, on the devices of a mesh."""
    shardings = jax.tree.map(partial(NamedSharding, mesh), placement(parameters))
    return jax.device_put(parameters, shardings)


def mean_loss(definition: Any, parameters: Any, mesh: Mesh) -> Callable[[Any, Any], jax.Array]:
    """The loss of such parameters and of tokens, which the devices compute together."""
    parts = placement(parameters), PartitionSpec(AXIS)

    @partial(jax.shard_map, mesh=mesh, in_specs=parts, out_specs=PartitionSpec())
    def mean(parameters: Any, tokens: jax.Array) -> jax.Array:
        loss = gpt.loss(nnx.merge(definition, parameters), tokens)
        of_batch: jax.Array = jax.lax.pmean(loss, AXIS)
        return of_batch

    of_all: Callable[[Any, Any], jax.Array] = mean
    return of_all


def training_step(loss: Callable[[Any, Any], jax.Array], optimizer: Any) -> Callable[..., Any]:
    """One step. The optimizer is XLA's to divide: the norm of a gradient is that of all experts."""

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(parameters: Any, state: Any, tokens: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(loss)(parameters, tokens)
        updates, state = optimizer.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    return step


def main() -> None:
    """Trains, and prints the losses."""
    parser = gpt.parser_of("A GPT with experts, on jaxbw's grouped matmuls.")
    parser.add_argument("--experts", type=int, default=8, help="a multiple of the devices")
    parser.add_argument(
        "--dispatch", choices=("all_gather", "all_to_all"), default="all_gather", help="as of MoE"
    )
    given = parser.parse_args()

    text = gpt.Text.of_the_manual()
    sizes = given.length, given.width, given.heads, given.layers, given.experts
    model = MoEGPT(len(text.characters), *sizes, given.seed, given.dispatch)
    definition, parameters = nnx.split(model)
    mesh = jax.make_mesh((jax.device_count(),), (AXIS,), (AxisType.Auto,))
    parameters = placed(parameters, mesh)
    loss = mean_loss(definition, parameters, mesh)
    devices = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    count = sum(x.size for x in jax.tree.leaves(parameters))
    print(f"{len(text.train):,} characters, {count:,} parameters, {devices}")

    measure = jax.jit(loss)

    def held_out_loss(parameters: Any) -> float:
        batches = gpt.windows(text.held_out, given.length, given.batch, seed=1)
        return float(np.mean([measure(parameters, next(batches)) for _ in range(8)]))

    before = held_out_loss(parameters)
    start = time.perf_counter()
    optimizer = gpt.optimizer_for(given.steps)
    state = placed(optimizer.init(parameters), mesh)  # where a step leaves it: compiled once
    batches = gpt.windows(text.train, given.length, given.batch, given.seed)
    step = training_step(loss, optimizer)
    parameters, _ = gpt.run(step, parameters, state, batches, given.steps)
    seconds = time.perf_counter() - start
    print(f"{given.steps} steps in {seconds:.0f} s")
    print(f"held-out loss {before:.3f} before, {held_out_loss(parameters):.3f} after training")
    print(f"without any context {text.loss_without_context():.3f}")


if __name__ == "__main__":
    main()
