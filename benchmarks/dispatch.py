"""What a call costs the host: jaxbw.matmul beside jnp.dot and jnp.matmul, on one GPU.

    python benchmarks/dispatch.py --out results.json

A matmul of 128^3, whose kernels take a few microseconds, so that the clock sees the way to them:

- jitted, per call: until the call returns, until the last of many is done, and waiting for each;
- eager, likewise;
- a chain: 64 matmuls in one program, each the next one's operand, with XLA's command buffers (CUDA
  graphs) and without. A profile of each chain says how it was launched.

Arms of a group take turns in random order. A number is the median over rounds; a difference has the
95 % bootstrap interval of the median of the rounds' differences.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxbw
from jaxbw._src.lab.bench import environment
from jaxbw._src.lab.interleaving import interleaved

EDGE = 128
CHAIN = 64
NO_COMMAND_BUFFERS: dict[str, str | bool] = {"xla_gpu_enable_command_buffer": ""}
Call = Callable[[], Any]
Samples = dict[str, list[float]]  # by measure, a number of each round


def sample(call: Call, calls: int) -> dict[str, float]:
    """Microseconds of a call: `returns`, `done` and `waited` as the module says."""
    jax.block_until_ready(call())
    start = time.perf_counter()
    for _ in range(calls):
        result = call()
    returned = time.perf_counter()
    jax.block_until_ready(result)
    done = time.perf_counter()
    waits = []
    for _ in range(calls // 2):
        before = time.perf_counter()
        jax.block_until_ready(call())
        waits.append(time.perf_counter() - before)
    return {
        "returns": (returned - start) / calls * 1e6,
        "done": (done - start) / calls * 1e6,
        "waited": float(np.median(waits)) * 1e6,
    }


def measure(arms: dict[str, Call], rounds: int, calls: int) -> dict[str, Samples]:
    """Samples of every arm; the order of the arms is drawn anew in each round."""
    samples: dict[str, Samples] = {name: collections.defaultdict(list) for name in arms}
    for call in arms.values():
        sample(call, calls)  # compiles, loads, warms up
    for name in interleaved(arms, rounds, seed=0):
        for measure, value in sample(arms[name], calls).items():
            samples[name][measure].append(value)
    return samples


def interval(differences: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The 95 % bootstrap interval of a median."""
    draws = np.random.default_rng(0).choice(differences, (2000, len(differences)))
    low, high = np.percentile(np.median(draws, axis=1), (2.5, 97.5))
    return float(low), float(high)


def summary(samples: dict[str, Samples], baseline: str) -> dict[str, Any]:
    """Of each arm the medians, and how they differ from the baseline's."""
    rows: dict[str, Any] = {}
    for name, measures in samples.items():
        rows[name] = {}
        for measure, values in measures.items():
            row: dict[str, Any] = {"median_us": float(np.median(values)), "rounds_us": values}
            if name != baseline:
                differences = np.subtract(values, samples[baseline][measure])
                row["minus_baseline_us"] = float(np.median(differences))
                row["interval_us"] = interval(differences)
            rows[name][measure] = row
    return rows


def chain(matmul: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """64 dependent matmuls."""

    def chained(x: Any, w: Any) -> Any:
        for _ in range(CHAIN):
            x = matmul(x, w)
        return x

    return chained


def launches(call: Call) -> dict[str, Any]:
    """How one call is launched, and how long the device is at it, from JAX's profiler."""
    jax.block_until_ready(call())
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(call())
        (file,) = pathlib.Path(folder).rglob("*.xplane.pb")
        profile = jax.profiler.ProfileData.from_file(str(file))
        events = [
            (plane.name, event)
            for plane in profile.planes
            for line in plane.lines
            if line.name.startswith("Stream") or not plane.name.startswith("/device")
            for event in line.events
        ]
        # "cuGraphLaunch (CudaGraph:2)"
        counts = collections.Counter(
            event.name.split(" ")[0]
            for _, event in events
            if event.name.startswith("cu") and "Launch" in event.name
        )
        device = [event for plane, event in events if plane.startswith("/device:GPU")]
        busy = sum(event.duration_ns for event in device)
        start = min((event.start_ns for event in device), default=0)
        end = max((event.end_ns for event in device), default=0)
    return {
        "driver_calls": dict(counts),
        "device_events": len(device),
        "busy_us_per_matmul": busy / 1e3 / CHAIN,
        "first_to_last_us_per_matmul": (end - start) / 1e3 / CHAIN,
    }


def operands() -> tuple[jax.Array, jax.Array]:
    """x, and w of orthonormal rows, so that a long chain keeps its scale."""
    x, w = np.random.default_rng(0).standard_normal((2, EDGE, EDGE))
    return jnp.asarray(x, jnp.bfloat16), jnp.asarray(np.linalg.qr(w)[0], jnp.bfloat16)


def run(rounds: int, calls: int) -> dict[str, Any]:
    """All groups."""
    x, w = operands()
    jitted = {"jnp.dot": jax.jit(jnp.dot), "jaxbw.matmul": jax.jit(jaxbw.matmul)}
    eager = {"jnp.matmul": jnp.matmul, "jaxbw.matmul": jaxbw.matmul}
    choice = jaxbw.explain(x, w)
    results: dict[str, Any] = {"kernel": choice.kernel, "config": str(choice.config)}

    def arms(functions: dict[str, Any]) -> dict[str, Call]:
        return {name: partial(function, x, w) for name, function in functions.items()}

    results["jitted"] = summary(measure(arms(jitted), rounds, calls), "jnp.dot")
    results["eager"] = summary(measure(arms(eager), rounds, calls // 4), "jnp.matmul")

    chains = {}
    for name, matmul in (("jnp.dot", jnp.dot), ("jaxbw.matmul", jaxbw.matmul)):
        lowered = jax.jit(chain(matmul)).lower(x, w)
        chains[name] = lowered.compile()
        chains[f"{name}, no command buffer"] = lowered.compile(compiler_options=NO_COMMAND_BUFFERS)
    results["launches"] = {name: launches(call) for name, call in arms(chains).items()}
    samples = measure(arms(chains), rounds, calls // 20)
    of_matmul = {
        name: {m: [us / CHAIN for us in values] for m, values in measures.items()}
        for name, measures in samples.items()
    }
    results["chain, per matmul"] = summary(of_matmul, "jnp.dot")
    return results


def text(results: dict[str, Any]) -> str:
    """The results as a table."""
    lines = [f"{results['kernel']}, {results['config']}"]
    for group in ("jitted", "eager", "chain, per matmul"):
        lines.append(f"{group}, us")
        for name, measures in results[group].items():
            cells = []
            for measure, row in measures.items():
                cell = f"{measure} {row['median_us']:7.2f}"
                if "interval_us" in row:
                    low, high = row["interval_us"]
                    cell += f" ({row['minus_baseline_us']:+6.2f} [{low:+.2f}, {high:+.2f}])"
                cells.append(f"{cell:36}")
            lines.append(f"  {name:34} {' '.join(cells)}")
    lines += [f"one chain, {name}: {found}" for name, found in results["launches"].items()]
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, measure, print a table, write the results file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=1000, help="of a jitted function in a round")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    described = environment.describe(0, arguments.rounds, "") | {
        "command": shlex.join(["python", *sys.argv]),
        "inputs": "iid normal, and orthonormal: one pair of operands",
        "time": "host time (perf_counter) in one process, arms in random order",
    }
    results = {"environment": described, **run(arguments.rounds, arguments.calls)}
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(text(results))


if __name__ == "__main__":
    main()
