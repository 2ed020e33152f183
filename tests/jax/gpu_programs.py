"""Compiles functions with matmuls in loops for an H200, by XLA's GPU compiler, without a GPU.

A program of its own, since the compiler is in JAX's CUDA plugin, which is not installed beside the
tests: tools/gpu_compilers.py puts it into a folder, with JAX where its version is another one, and
PYTHONPATH names that. Prints for each function, as JSON, how often one run of the compiled program
calls kernels, how often with XLA's dynamic-slice fusion off, and the matmuls of its jaxpr.
Arguments: names of CASES, which it does alone.
"""

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jaxbw
from jaxbw._src.lab.tuning.find import matmuls

LAYERS, ROWS, WIDTH, HIDDEN = 3, 512, 256, 1024
Step = Callable[..., Any]


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


X = array(ROWS, WIDTH)
UP, DOWN = array(LAYERS, WIDTH, HIDDEN), array(LAYERS, HIDDEN, WIDTH)


def unfused(x: Any, up: Any, down: Any) -> Any:
    """The output of the first matmul is saved for the backward pass, and read by silu."""
    return x + jaxbw.matmul(jax.nn.silu(jaxbw.matmul(x, up)), down)


def fused(x: Any, up: Any, down: Any) -> Any:
    return jaxbw.matmul(jaxbw.matmul(x, up, activation="silu"), down, residual=x)


def gated(x: Any, up: Any, down: Any) -> Any:
    return x + jaxbw.matmul(jaxbw.gated_matmul(x, up, up), down)


def plain(x: Any, up: Any, down: Any) -> Any:
    return x + jax.nn.silu(x @ up) @ down


def scanned(layer: Step) -> Step:
    def loss(x: Any, up: Any, down: Any) -> Any:
        x, _ = jax.lax.scan(lambda x, weights: (layer(x, *weights), None), x, (up, down))
        return (x.astype(jnp.float32) ** 2).mean()

    return loss


def gradient(layer: Step) -> Step:
    return jax.grad(scanned(layer), argnums=(0, 1, 2))


def shared_weights(x: Any, up: Any, down: Any) -> Any:
    """The same weights in every layer: their gradients are summed up, not stacked."""

    def loss(x: Any, up: Any, down: Any) -> Any:
        x = jax.lax.fori_loop(0, LAYERS, lambda _, x: unfused(x, up, down), x)
        return (x.astype(jnp.float32) ** 2).mean()

    return jax.grad(loss, argnums=(0, 1, 2))(x, up[0], down[0])


def carried_and_stacked(x: Any, up: Any, down: Any) -> Any:
    """The output of a matmul is both the carry and a slice of the result."""

    def layer(x: Any, weights: Any) -> Any:
        x = jaxbw.matmul(jaxbw.matmul(x, weights[0]), weights[1])
        return x, x

    return jax.lax.scan(layer, x, (up, down))


def mapped(x: Any, up: Any, down: Any) -> Any:
    return jax.lax.map(partial(jaxbw.matmul, x), up)


def stored_in_a_while_loop(x: Any, up: Any, down: Any, count: Any) -> Any:
    """The number of iterations is not known: the body counts once."""

    def body(state: Any) -> Any:
        i, x, stored = state
        hidden = jaxbw.matmul(x, up[i])
        stored = jax.lax.dynamic_update_index_in_dim(stored, hidden, i, 0)
        return i + 1, jaxbw.matmul(jax.nn.relu(hidden), down[i]), stored

    stored = jnp.zeros((LAYERS, ROWS, HIDDEN), x.dtype)
    return jax.lax.while_loop(lambda state: state[0] < count, body, (0, x, stored))


def collective(x: Any, up: Any, down: Any) -> Any:
    def layer(x: Any, weights: Any) -> Any:
        hidden = jaxbw.collective_matmul(x, weights[0], "d", gather_lhs=0)
        return jaxbw.collective_matmul(hidden, weights[1], "d", scatter=0), hidden

    return jax.lax.scan(layer, x, (up, down))


CASES: dict[str, tuple[Step, tuple[Any, ...]]] = {
    "scan": (scanned(unfused), (X, UP, DOWN)),
    "gradient": (gradient(unfused), (X, UP, DOWN)),
    "gradient, fused": (gradient(fused), (X, UP, DOWN)),
    "gradient, gated": (gradient(gated), (X, UP, DOWN)),
    "gradient, remat": (gradient(jax.checkpoint(unfused)), (X, UP, DOWN)),
    "gradient, fused, remat": (gradient(jax.checkpoint(fused)), (X, UP, DOWN)),
    "gradient, accelerated": (jaxbw.accelerate(gradient(jax.checkpoint(plain))), (X, UP, DOWN)),
    "gradient, shared weights": (shared_weights, (X, UP, DOWN)),
    "carried and stacked": (carried_and_stacked, (X, UP, DOWN)),
    "map": (mapped, (X, UP, DOWN)),
    "while": (stored_in_a_while_loop, (X, UP, DOWN, jax.ShapeDtypeStruct((), jnp.int32))),
}


def calls(hlo: str) -> int:
    """Calls of kernels in one run of a program: what is in a loop, times its iterations."""
    bodies: dict[str, list[str]] = {}
    entry, name = "", ""
    for line in hlo.splitlines():
        if header := re.match(r"(ENTRY )?%([\w.-]+) \(.*\{$", line):
            name = header[2]
            bodies[name] = []
            entry = name if header[1] else entry
        elif name:
            bodies[name].append(line)

    def count(computation: str) -> int:
        total = 0
        for line in bodies[computation]:
            total += 'custom_call_target="jaxbw_gemm' in line
            trips = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line)
            for called in re.findall(r"(?:calls|body|to_apply)=%([\w.-]+)", line):
                total += count(called) * (int(trips[1]) if trips else 1)
        return total

    return count(entry)


def compiled(function: Step, given: Any, shardings: Any, **options: bool) -> str:
    with jaxbw.target("H200"), jaxbw.implementation("kernel"):
        traced = jax.jit(function, in_shardings=shardings).trace(*given)
        lowered = traced.lower(lowering_platforms=("cuda",))
    return str(lowered.compile(compiler_options=options).as_text())


def counts(function: Step, given: Any, shardings: Any) -> dict[str, int]:
    off = compiled(function, given, shardings, xla_gpu_enable_dynamic_slice_fusion=False)
    found = {"calls": calls(compiled(function, given, shardings)), "calls, fusion off": calls(off)}
    return found | {"jaxpr": sum(each.count for each in matmuls(function, *given))}


def main() -> None:
    description = Path(__file__).with_name("h200.textproto").read_text()
    topology = topologies.get_topology_desc(
        "h200", "cuda", topology="1x1x2", target_config=description
    )
    one = Mesh(np.array(topology.devices[:1]), ("d",))
    two = Mesh(np.array(topology.devices), ("d",), axis_types=(AxisType.Auto,))
    found = {}
    for name in sys.argv[1:] or CASES:
        found[name] = counts(*CASES[name], NamedSharding(one, PartitionSpec()))
    if sys.argv[1:]:
        print(json.dumps(found))
        return
    rows, columns = PartitionSpec("d"), PartitionSpec(None, None, "d")
    specs = (rows, columns, PartitionSpec(None, "d"))
    everywhere = NamedSharding(two, PartitionSpec())
    found["gradient, partitioned"] = counts(
        gradient(unfused), (X, UP, DOWN), (NamedSharding(two, rows), everywhere, everywhere)
    )
    results = (rows, PartitionSpec(None, None, "d"))
    ring = jax.shard_map(collective, mesh=two, in_specs=specs, out_specs=results)
    shardings = tuple(NamedSharding(two, spec) for spec in specs)
    found["collective"] = counts(ring, (X, UP, DOWN), shardings)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
