"""`jaxbw.ragged_dot` beside `tokamax.ragged_dot`, over tokamax's own benchmark shapes, on one GPU.

    pip install tokamax xprof
    python benchmarks/ragged_tokamax.py --out results.json

tokamax as shipped, with its tuning data, and with each of the configurations here: its data have
some of these shapes, and its tuning tries these. Its rows of gpt-oss and of Qwen3 are a quarter of
tokamax's, so that the arrays fit. bf16, normal; timed as in benchmarks/ragged.py.
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
import numpy as np
import tokamax
from tokamax._src.ops.ragged_dot import base, pallas_mosaic_gpu
from tokamax._src.ops.ragged_dot.pallas_mosaic_gpu_common import Config, MatmulDimension

import jaxbw
from jaxbw._src.lab.bench import environment
from jaxbw._src.lab.bench.measure import bursts
from jaxbw._src.lab.bench.timer import Cupti, Matmul, Rotation
from measuring.environment import running_gpu

ROTATED = 300e6  # bytes
# Groups, rows, k, n; sizes are equal, or all rows in the first group.
CASES = {
    "memory_bound": (8, 8, 4096, 4096),
    "compute_bound": (8, 4096, 4096, 4096),
    "8x7b": (8, 8192, 4096, 14336),
    "gpt-oss": (128, 81920, 2880, 2880),
    "qwen3": (128, 98304, 2048, 768),
    "deepseek-v3": (256, 131072, 7168, 2048),
}
IN_ONE_GROUP = ("compute_bound",)
M, N = MatmulDimension.M, MatmulDimension.N
# block_m, block_k, stages, persistent, minor dimension of the grid, width of its tiles
CONFIGS = [
    (128, 128, 4, True, M, 8),
    (128, 128, 4, True, N, 8),
    (128, 128, 4, True, M, 1),
    (128, 128, 4, False, M, 8),
    (128, 128, 4, False, N, 4),
    (64, 128, 4, True, M, 8),
    (64, 256, 2, True, N, 8),
]


def config_of(
    block_m: int, block_k: int, stages: int, persistent: bool, minor: Any, width: int
) -> Any:
    """One that tokamax's tuning tries for 16-bit types: 64 columns."""
    return Config(
        block_m=block_m,
        block_n=64,
        block_k=block_k,
        num_stages=stages,
        split_k=1,
        persistent=persistent,
        grid_minor_dim=minor,
        grid_tile_width=width,
    )


def calls(sizes: np.ndarray[Any, Any]) -> dict[str, Any]:
    """What is timed: of lhs, rhs and sizes, which tokamax also knows ahead."""
    known = tuple(map(int, sizes))

    def tokamaxs(call: Any, lhs: Any, rhs: Any, group_sizes: Any) -> Any:
        return call(lhs, rhs, group_sizes=base.GroupSizes(group_sizes, known))

    kernel = pallas_mosaic_gpu.PallasMosaicGpuRaggedDot
    return {
        "jaxbw": partial(jaxbw.ragged_dot, implementation="kernel"),
        "tokamax": partial(tokamaxs, tokamax.ragged_dot),
        **{str(c): partial(tokamaxs, kernel(config=config_of(*c))) for c in CONFIGS},
    }


def measure(name: str, timer: Cupti, rounds: int) -> dict[str, Any]:
    """Microseconds of each, and how much slower the best of tokamax is."""
    groups, m, k, n = CASES[name]
    sizes = np.full(groups, m // groups, np.int32)
    if name in IN_ONE_GROUP:
        sizes = np.array([m] + [0] * (groups - 1), np.int32)
    count = max(1, int(ROTATED // (2 * (m * k + groups * k * n))) + 1)
    keys = jax.random.split(jax.random.key(0), (count, 2))
    shapes = ((m, k), (groups, k, n))
    sets = [
        (*map(partial(jax.random.normal, dtype=jnp.bfloat16), row, shapes), jnp.asarray(sizes))
        for row in keys
    ]
    arms = {each: Rotation(Matmul(jax.jit(call)), sets) for each, call in calls(sizes).items()}
    expected, *others = (np.asarray(arm.first()[:2048], np.float32) for arm in arms.values())
    for result in others:
        np.testing.assert_allclose(result, expected, rtol=0, atol=0.01 * np.abs(expected).max())
    us = {
        each: timing.median_us
        for each, timing in bursts(timer, arms, rounds=rounds, seed=0).items()
    }
    best = min((arm for arm in us if arm != "jaxbw"), key=us.__getitem__)
    case = {"case": name, "groups": groups, "m": m, "k": k, "n": n, "sizes": sizes.tolist()}
    return case | {"us": us, "best": best, "best_over_jaxbw": us[best] / us["jaxbw"]}


def main() -> None:
    """Parse arguments, measure, print a table, write the results file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    running_gpu(parser)
    timer = Cupti()
    described = environment.describe(0, arguments.rounds, "") | {
        "command": shlex.join(["python", *sys.argv]),
        "tokamax": tokamax.__version__,
    }
    rows = []
    for name in CASES:
        rows.append(measure(name, timer, arguments.rounds))
        print({key: rows[-1][key] for key in ("case", "us", "best_over_jaxbw")}, flush=True)
        results = {"environment": described, "rows": rows}
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
