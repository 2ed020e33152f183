"""Trains a Flax MLP over several devices, and compares it with one device: results and time.

    python benchmarks/sharded_training.py --devices 1 2 4 --out results.json

Data-parallel, the batch is divided; tensor-parallel, the columns of each first layer and the rows
of each second one. In either layout

- one gradient of integers, of which every sum is exact, must have the bits of one device's;
- training steps are timed, on GPUs: on a CPU, whose emulated devices share its cores, a time says
  nothing, and the file says so.

Without a GPU there are eight emulated devices, and the matmuls are XLA's unless
`--implementation emulator` has the kernels' code run on them: a matter of small sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxbw
from jaxbw._src.lab.bench import environment
from jaxbw._src.primitives.gemm import TARGET

EMULATED_DEVICES = 8
LAYOUTS = ("data", "tensor")
LEARNING_RATE = 1e-3
EXACT_SIZE = 64  # of every dimension, where sums are to be exact in bfloat16
LARGEST_EXACT = 256

Parameters = dict[str, Any]


class Block(nn.Module):
    """Two layers and what is carried past them: `[batch, width]` to the same."""

    width: int
    hidden: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """The block's output, in bfloat16."""
        dense = functools.partial(nn.Dense, dtype=jnp.bfloat16, dot_general=jaxbw.dot_general)
        out: jax.Array = x + dense(self.width, name="second")(
            nn.relu(dense(self.hidden, name="first")(x))
        )
        return out


class Model(nn.Module):
    """Blocks on top of each other."""

    width: int
    hidden: int
    depth: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """As a block."""
        for number in range(self.depth):
            x = Block(self.width, self.hidden, name=f"block{number}")(x)
        return x


SPECS = {
    ("first", "kernel"): P(None, "model"),
    ("first", "bias"): P("model"),
    ("second", "kernel"): P("model"),
    ("second", "bias"): P(),
}


def mesh_of(layout: str, devices: int) -> jax.sharding.Mesh:
    """A mesh of all devices along one of its two axes."""
    shape = (devices, 1) if layout == "data" else (1, devices)
    kinds = (AxisType.Auto,) * 2
    # One device is this process's own, of several.
    chosen = jax.devices()[:devices] if devices > 1 else jax.local_devices()[:1]
    return jax.make_mesh(shape, ("data", "model"), kinds, devices=chosen)


def shardings(mesh: jax.sharding.Mesh, parameters: Parameters) -> Parameters:
    """Where each of the parameters belongs."""

    def place(path: Any, _: Any) -> NamedSharding:
        layer, name = (key.key for key in path[-2:])
        return NamedSharding(mesh, SPECS[layer, name])

    everywhere: Parameters = jax.tree_util.tree_map_with_path(place, parameters)
    return everywhere


def rows(mesh: jax.sharding.Mesh, x: Any) -> jax.Array:
    """A batch, divided."""
    array: jax.Array = jax.device_put(x, NamedSharding(mesh, P("data")))
    return array


# The gradient of integers


def exact_inputs() -> tuple[Model, Parameters, Any]:
    """A model of small integers, and a batch of them."""
    model = Model(EXACT_SIZE, EXACT_SIZE, depth=1)
    generator = np.random.default_rng(0)
    batch = generator.integers(-1, 2, (EXACT_SIZE, EXACT_SIZE)).astype(jnp.bfloat16)
    shapes = jax.eval_shape(model.init, jax.random.key(0), batch)

    def few(leaf: Any) -> Any:
        signs = generator.integers(-1, 2, leaf.shape)
        return (signs * (generator.random(leaf.shape) < 0.25)).astype(leaf.dtype)

    return model, jax.tree.map(few, shapes), batch


def exact_gradient(layout: str, devices: int) -> list[Any]:
    """The output, and the gradient of its sum, as NumPy arrays."""
    model, parameters, batch = exact_inputs()
    mesh = mesh_of(layout, devices)

    def loss(parameters: Parameters, batch: Any) -> tuple[Any, Any]:
        out: Any = model.apply(parameters, batch)
        return out.astype(jnp.float32).sum(), out

    placed = jax.device_put(parameters, shardings(mesh, parameters))
    gradient, out = jax.jit(jax.grad(loss, has_aux=True))(placed, rows(mesh, batch))
    return [whole(x).astype(np.float64) for x in (out, *jax.tree.leaves(gradient))]


def whole(x: jax.Array) -> Any:
    """An array, as NumPy's, also where other processes have parts of it."""
    if x.is_fully_addressable:
        return np.asarray(x)
    return multihost_utils.process_allgather(x, tiled=True)


def check(layout: str, devices: int, wanted: Sequence[Any]) -> None:
    """Compares the gradient with one device's.

    Raises:
      AssertionError: a bit is another.
    """
    assert all(np.abs(x).max() <= LARGEST_EXACT for x in wanted), "sums are rounded"
    for got, one in zip(exact_gradient(layout, devices), wanted, strict=True):
        np.testing.assert_array_equal(got, one, f"{layout}-parallel on {devices} devices")


# Training


def train(args: argparse.Namespace, layout: str, devices: int) -> dict[str, Any]:
    """A row of the results: times of steps, and the loss before each."""
    mesh = mesh_of(layout, devices)
    model = Model(args.width, args.hidden, args.depth)
    keys = jax.random.split(jax.random.key(0), 3)
    shape = (args.batch, args.width)
    inputs, targets = (rows(mesh, jax.random.normal(key, shape, jnp.bfloat16)) for key in keys[:2])
    # Compiled, so that nothing is multiplied for it, and each device draws what it keeps.
    example = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    where = shardings(mesh, jax.eval_shape(model.init, keys[2], example))
    initialise = jax.jit(
        lambda key: model.init(key, jnp.ones(shape, jnp.bfloat16)), out_shardings=where
    )
    parameters: Parameters = initialise(keys[2])

    def loss(parameters: Parameters, inputs: Any, targets: Any) -> Any:
        out: Any = model.apply(parameters, inputs)
        error = out.astype(jnp.float32) - targets
        return (error**2).mean()

    def step(parameters: Parameters, inputs: Any, targets: Any) -> tuple[Parameters, Any]:
        value, gradient = jax.value_and_grad(loss)(parameters, inputs, targets)
        return jax.tree.map(lambda x, g: x - LEARNING_RATE * g, parameters, gradient), value

    jitted = jax.jit(step, donate_argnums=0)
    program = jitted.lower(parameters, inputs, targets).compile()
    losses, seconds = [], []
    for _ in range(args.steps):
        start = time.perf_counter()
        parameters, value = jax.block_until_ready(program(parameters, inputs, targets))
        seconds.append(time.perf_counter() - start)
        losses.append(float(value))
    # Of each layer the result and two gradients; but nobody asks for that of the inputs.
    matmuls = 3 * 2 * args.depth - 1
    operations = matmuls * 2 * args.batch * args.width * args.hidden
    median = statistics.median(seconds[1:] or seconds)
    return {
        **{"layout": layout, "devices": devices, "losses": losses},
        **{"kernels": (program.as_text() or "").count(f'custom_call_target="{TARGET}"')},
        **{"seconds": seconds, "median_s": median, "tflops": operations / median / 1e12},
    }


def compared(row: dict[str, Any], one: dict[str, Any]) -> dict[str, Any]:
    """A row with what it gains on one of fewer devices, and how far its losses are from its."""
    losses = zip(row["losses"], one["losses"], strict=True)
    return row | {
        "speedup": one["median_s"] / row["median_s"],
        "loss_difference": max(abs(x - y) / y for x, y in losses),
    }


def line(row: dict[str, Any], on_gpu: bool) -> str:
    """A row as text; without times where they say nothing."""
    what = f"{row['layout']}-parallel on {row['devices']}: {row['kernels']} kernels in a step"
    if not on_gpu:
        return what
    milliseconds, speedup = row["median_s"] * 1e3, row["speedup"]
    return (
        f"{what}, {milliseconds:.2f} ms, {row['tflops']:.0f} TFLOP/s, {speedup:.2f}x of the first"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--devices", type=int, nargs="+", help="numbers of them; default 1, 2, 4 ..."
    )
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--hidden", type=int, default=32768)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--implementation", help="strict; default None")
    parser.add_argument("--out", type=pathlib.Path, help="results, JSON")
    args = parser.parse_args(arguments)
    available = len(jax.devices())
    counts = args.devices or [n for n in (1, 2, 4, 8) if n <= available]
    if max(counts) > available:
        parser.error(f"there are {available} devices")

    on_gpu = jax.default_backend() == "gpu"
    note = "training steps" if on_gpu else "emulated devices share a CPU: times say nothing"
    results: dict[str, list[dict[str, Any]]] = {layout: [] for layout in LAYOUTS}
    written = {
        "environment": environment.describe(seed=0, rounds=args.steps, note=note)
        | {
            "command": " ".join(["python", *sys.argv]),
            "devices": [str(device.device_kind) for device in jax.devices()],
            "inputs": "iid normal",
            "time": "wall time of a step, to the end of all devices' work",
        },
        "sizes": {name: getattr(args, name) for name in ("width", "hidden", "depth", "batch")},
        "implementation": args.implementation,
        "results": results,
    }
    named = jaxbw.implementation(args.implementation) if args.implementation else None
    with named or contextlib.nullcontext():
        wanted = exact_gradient("data", 1)
        for count in counts:
            for layout in LAYOUTS:
                check(layout, count, wanted)
                print(f"{layout}-parallel on {count}: the bits of one device", flush=True)
        for layout, count in itertools.product(LAYOUTS, counts):
            rows_so_far = results[layout]
            row = train(args, layout, count)
            rows_so_far.append(compared(row, (rows_so_far or [row])[0]))
            print(line(rows_so_far[-1], on_gpu), flush=True)
            if args.out:
                args.out.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", EMULATED_DEVICES)
    main()
