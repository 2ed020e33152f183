"""What scales cost a float8 matmul on one GPU: of rows and columns, and of blocks of 128.

    python benchmarks/scales.py --out results.json

e4m3, both operands K-major, bf16 results. "fast" sums are the tensor cores' own, "promoted" ones
float32's (precision "highest"); each without scales, and with one of each row of lhs and column of
rhs. "blocks" has 1x128 and 128x128 scales, which promoted sums take. Device time by CUPTI, in
bursts, arms in random order, arrays rotating over 400 MB; a number is the median over all calls.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shlex
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import jaxbw
from jaxbw._src.lab.bench import environment
from jaxbw._src.lab.bench.measure import bursts
from jaxbw._src.lab.bench.timer import Cupti, Matmul, Rotation, require_gpu

ROTATED = 400e6  # bytes
SIZES = (  # m, n, k
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (4096, 7168, 2048),
    (128, 7168, 2048),
    (4096, 2112, 7168),
    (16384, 14336, 4096),
    (131072, 2048, 7168),
)


def operands(m: int, n: int, k: int, seed: int) -> tuple[Any, ...]:
    """float8 arrays, scales of rows and columns, and those of blocks."""
    keys = jax.random.split(jax.random.key(seed), 6)
    x, w = (
        jax.random.normal(key, (rows, k), jnp.bfloat16).astype(jnp.float8_e4m3fn)
        for key, rows in zip(keys, (m, n), strict=False)
    )
    shapes = ((m, 1), (n, 1), (m, k // 128), (-(-n // 128), k // 128))
    scales = (
        jax.random.uniform(key, shape, jnp.float32, 0.5, 2.0)
        for key, shape in zip(keys[2:], shapes, strict=True)
    )
    return x, w, *scales


def product(precision: str | None, first_scale: int | None, *arrays: Any) -> Any:
    """The matmul; `first_scale`: where its two scales are among the arrays."""
    x, w = arrays[:2]
    scales = (None, None) if first_scale is None else arrays[first_scale : first_scale + 2]
    return jaxbw.dot_general(
        x,
        w,
        (((1,), (1,)), ((), ())),
        lhs_scale=scales[0],
        rhs_scale=scales[1],
        precision=precision,
        preferred_element_type=jnp.bfloat16,
        implementation="sm90",
    )


ARMS = {
    "fast": partial(product, None, None),
    "fast, scales": partial(product, None, 2),
    "promoted": partial(product, "highest", None),
    "promoted, scales": partial(product, "highest", 2),
    "blocks": partial(product, "highest", 4),
}


def main() -> None:
    """Parse arguments, measure, print a table, write the results file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    require_gpu()
    timer = Cupti()
    described = environment.describe(0, arguments.rounds, "") | {
        "command": shlex.join(["python", *sys.argv]),
    }
    rows = []
    for m, n, k in SIZES:
        count = max(2, int(ROTATED // (m * k + n * k)) + 1)
        arrays = [operands(m, n, k, seed) for seed in range(count)]
        calls = {name: Rotation(Matmul(jax.jit(call)), arrays) for name, call in ARMS.items()}
        timings = bursts(timer, calls, rounds=arguments.rounds, seed=0)
        arms = {
            name: {"us": each.median_us, "kernels": each.kernels, "rounds_us": each.rounds}
            for name, each in timings.items()
        }
        rows.append({"m": m, "n": n, "k": k, "arms": arms})
        cells = [f"{name} {arm['us']:8.2f} us" for name, arm in arms.items()]
        print(f"{m} x {n} x {k}: {'  '.join(cells)}", flush=True)
        arguments.out.write_text(json.dumps({"environment": described, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
