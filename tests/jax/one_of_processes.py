"""What each process of test_processes.py runs, process NUMBER of COUNT.

    python one_of_processes.py COORDINATOR COUNT NUMBER

It is what one process of as many devices would run; the first call of `main` is about several.
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxbw

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import sharded_training

STEPS = {"width": 32, "hidden": 64, "depth": 1, "batch": 32, "steps": 2}


def gradients() -> None:
    """The sharded training: a gradient with the bits of one device's."""
    with jaxbw.implementation("emulator"):
        wanted = sharded_training.exact_gradient("data", 1)
        for layout in sharded_training.LAYOUTS:
            sharded_training.check(layout, jax.device_count(), wanted)


def train() -> None:
    """Layouts with equal losses."""
    losses = [
        sharded_training.train(argparse.Namespace(**STEPS), layout, jax.device_count())["losses"]
        for layout in sharded_training.LAYOUTS
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=2**-6)


def collective(gathered: bool, overlap: bool) -> None:
    """A collective_matmul over all devices, of integers, against NumPy's."""
    devices = jax.device_count()
    mesh = jax.make_mesh((devices,), ("model",), (AxisType.Auto,))
    generator = np.random.default_rng(0)
    x, w = (generator.integers(-2, 3, (64, 64)).astype(np.float32) for _ in range(2))
    rows, columns = P("model"), P(None, "model")
    specs = (rows, columns, columns) if gathered else (columns, rows, rows)
    how: dict[str, Any] = {"gather_lhs": 0} if gathered else {"scatter": 0}
    matmul = partial(jaxbw.collective_matmul, axis_name="model", overlap=overlap, **how)
    mapped = jax.shard_map(matmul, mesh=mesh, in_specs=specs[:2], out_specs=specs[2])
    # Each process gives its own part, as it would from its own files.
    parts = []
    for array, spec in zip((x, w), specs[:2], strict=True):
        sharding = NamedSharding(mesh, spec)
        own = sharding.addressable_devices_indices_map(array.shape).values()
        bounds = [
            slice(min(i.start or 0 for i in dims), max(i.stop or array.shape[d] for i in dims))
            for d, dims in enumerate(zip(*own, strict=True))
        ]
        part = array[tuple(bounds)].astype(jnp.bfloat16)
        parts.append(jax.make_array_from_process_local_data(sharding, part, array.shape))
    found = sharded_training.whole(jax.jit(mapped)(*parts))
    np.testing.assert_array_equal(found.astype(np.float32), x @ w)


def main() -> None:
    """Everything, in an order that all processes have."""
    coordinator, count, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    jax.distributed.initialize(coordinator, count, number)
    assert jax.process_count() == count
    assert jax.device_count() > jax.local_device_count()
    gradients()
    # Each process compiles all of it: what more processes would only repeat is for two.
    if count == 2:
        train()
    for gathered in (True, False):
        for overlap in (True, False) if count == 2 else (True,):
            collective(gathered, overlap)
    print("done", jax.process_count(), jax.device_count())
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
