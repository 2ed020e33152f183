"""jaxbw.matmul against XLA's own product, device time, on one GPU.

    python benchmarks/compare_xla.py --shapes 4096,4096,4096 8192,8192,8192 --out results.json

Baselines: `jax.jit(jnp.dot)` as shipped, and the same with XLA's Triton GEMM off, since neither is
best everywhere. Inputs are iid normal and rotate through sets of at least twice the L2. Each arm's
result is checked in the same run. With --sweep every launch configuration of our kernels is an arm,
with --candidates N the N that the cost model finds best; model_error.py compares it with the times.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import json
import math
import pathlib
import platform
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import device_time
import jax
import jax.numpy as jnp
import numpy as np

import jaxbw

INPUT_BYTES = 400e6  # of all input sets together: over twice the L2 of any supported GPU
CHECKED_ROWS = 64
TRITON_OFF: dict[str, str | bool] = {"xla_gpu_enable_triton_gemm": False}
CONTRACTING = {"nn": ((1,), (0,)), "nt": ((1,), (1,)), "tn": ((0,), (0,)), "tt": ((0,), (1,))}


def parse_shape(text: str) -> tuple[int, int, int]:
    """'m,n,k' to a triple."""
    m, n, k = (int(part) for part in text.split(","))
    return m, n, k


def input_sets(
    m: int, n: int, k: int, layout: str, dtype: Any
) -> list[tuple[jax.Array, jax.Array]]:
    """Rotating iid normal operands; layout 'n' is row-major [m, k] or [k, n], 't' its transpose."""
    count = min(48, max(2, math.ceil(INPUT_BYTES / (2 * (m * k + k * n + m * n)))))
    lhs_shape = (m, k) if layout[0] == "n" else (k, m)
    rhs_shape = (k, n) if layout[1] == "n" else (n, k)
    keys = jax.random.split(jax.random.key(0), 2 * count)
    draw = jax.jit(jax.random.normal, static_argnums=(1, 2))
    return [
        (draw(keys[2 * i], lhs_shape, dtype), draw(keys[2 * i + 1], rhs_shape, dtype))
        for i in range(count)
    ]


def relative_error(result: jax.Array, lhs: jax.Array, rhs: jax.Array, layout: str) -> float:
    """The error's norm over the float64 product's, on the first rows; inf where not finite."""
    a = np.asarray(lhs, np.float64)
    a = (a if layout[0] == "n" else a.T)[:CHECKED_ROWS]
    b = np.asarray(rhs, np.float64)
    expected = a @ (b if layout[1] == "n" else b.T)
    error = np.asarray(result[:CHECKED_ROWS], np.float64) - expected
    relative = float(np.linalg.norm(error) / np.linalg.norm(expected))
    return relative if math.isfinite(relative) else math.inf


def sweep_configs(m: int, n: int) -> Iterator[jaxbw.GemmConfig]:
    """Launch configurations of the Hopper kernels that may suit an m x n product."""
    for block_n in (64, 128, 192, 256):
        for cluster in ((1, 1), (2, 1), (1, 2), (2, 2)):
            for swizzle in (1, 4, 8, 16):
                if swizzle <= max(1, m // (128 * cluster[0])) and n >= block_n:
                    yield jaxbw.GemmConfig(
                        block_m=128, block_n=block_n, cluster=cluster, swizzle=swizzle
                    )


def environment() -> dict[str, Any]:
    """What a reader needs to repeat the run."""
    query = "name,driver_version,clocks.max.sm,power.limit"
    gpu = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", *sys.argv]),
        "gpu": dict(
            zip(query.split(","), gpu.stdout.strip().splitlines()[0].split(", "), strict=True)
        ),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxbw": jaxbw.__version__,
        "inputs": "iid normal, sets rotating over at least 400 MB",
        "time": "device time (CUPTI) of all kernels of a call; bursts after idle, random order",
    }


def compare(
    m: int, n: int, k: int, layout: str, dtype: Any, *, sweep: bool, candidates: int, rounds: int
) -> Iterator[dict[str, Any]]:
    """Measure one shape; yields a row for each arm, XLA as shipped first."""
    sets = input_sets(m, n, k, layout, dtype)
    dims = (CONTRACTING[layout], ((), ()))
    xla = jax.jit(lambda a, b: jax.lax.dot_general(a, b, dims)).lower(*sets[0])
    compiled = {
        "xla": xla.compile(),
        "xla, triton off": xla.compile(compiler_options=TRITON_OFF),
    }
    chosen = {}
    configs = {"jaxbw": None, **({str(c): c for c in sweep_configs(m, n)} if sweep else {})}
    best = jaxbw.explain(*sets[0], dimension_numbers=dims, implementation="sm90").candidates
    configs |= {str(ranked.config): ranked.config for ranked in best[1 : 1 + candidates]}
    for name, config in configs.items():
        ours = functools.partial(
            jaxbw.dot_general, dimension_numbers=dims, implementation="sm90", config=config
        )
        try:
            compiled[name] = jax.jit(ours).lower(*sets[0]).compile()
        except NotImplementedError as refusal:
            print(f"  {name}: {refusal}", flush=True)
            continue
        choice = jaxbw.explain(
            *sets[0], dimension_numbers=dims, implementation="sm90", config=config
        )
        assert choice.config is not None
        assert choice.cost is not None
        chosen[name] = {
            "kernel": choice.kernel,
            "config": str(choice.config),
            "fields": dataclasses.asdict(choice.config),
            "modelled_us": choice.cost.total,
        }

    def rotate(product: Any) -> device_time.Call:
        return lambda i: product(*sets[i % len(sets)])

    timings = device_time.measure({name: rotate(f) for name, f in compiled.items()}, rounds=rounds)
    for name, timing in timings.items():
        yield {
            **{"m": m, "n": n, "k": k, "layout": layout, "dtype": jnp.dtype(dtype).name},
            "arm": name,
            **chosen.get(name, {}),
            "median_us": timing.median,
            "p10_us": timing.percentile(10),
            "p90_us": timing.percentile(90),
            "calls": len(timing.microseconds),
            "tflops": 2 * m * n * k / timing.median / 1e6,
            "ratio_to_xla": timings["xla"].median / timing.median,
            "relative_error": relative_error(compiled[name](*sets[0]), *sets[0], layout),
            "kernels": list(timing.kernels),
        }


def line(row: dict[str, Any]) -> str:
    """A row of the printed table."""
    shape = f"{row['m']:6}x{row['n']:6}x{row['k']:6} {row['layout']}"
    time = f"{row['median_us']:9.1f} us {row['tflops']:6.0f} TFLOP/s {row['ratio_to_xla']:5.2f}x"
    return f"{shape} {row['arm']:60} {time}  error {row['relative_error']:.1e}"


def main() -> None:
    """Parse arguments, measure, print a table, write the results file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", type=parse_shape, required=True, metavar="M,N,K")
    parser.add_argument("--layouts", nargs="+", choices=CONTRACTING, default=["nn"])
    parser.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--sweep", action="store_true", help="every launch configuration as an arm")
    parser.add_argument("--candidates", type=int, default=0, help="how many more of the model's")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    rows = []
    for m, n, k in arguments.shapes:
        for layout in arguments.layouts:
            dtype = jnp.dtype(arguments.dtype)
            for row in compare(
                m,
                n,
                k,
                layout,
                dtype,
                sweep=arguments.sweep,
                candidates=arguments.candidates,
                rounds=arguments.rounds,
            ):
                rows.append(row)
                print(line(row), flush=True)
            results = {"environment": environment(), "rows": rows}
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
