"""Cycles and instructions of single launches, ours beside cuBLAS's: what a start and a block cost.

    python benchmarks/cycles.py --out cycles.json

Nsight Compute counts one launch of each, bf16, row-major, operands warm in L2, clocks as they are.
cuBLAS is what torch.mm takes. The difference of two lengths of K is what their blocks cost, and
the shortest is nearly all start and end.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jaxbw import GemmConfig
from measuring.counters import METRICS, Counted, calls
from measuring.environment import environment, running_gpu

LAUNCHES = 2  # of each call, the last of which counts
KERNELS = "regex:jaxbw_sm90_|nvjet|gemm|cutlass|splitK"
SMALL = (
    GemmConfig(block_m=128, block_n=64),
    GemmConfig(block_m=128, block_n=64, cluster=(1, 2)),
    GemmConfig(block_m=64, block_n=128, pingpong=True),
    GemmConfig(block_m=64, block_n=128, pingpong=True, cluster=(1, 2)),
    GemmConfig(block_m=64, block_n=128, pingpong=True, cluster=(2, 1)),
)
LARGE = (
    GemmConfig(block_m=256, block_n=128, cluster=(1, 2)),
    GemmConfig(block_m=128, block_n=256, cluster=(2, 1)),
)
# Rows, columns, and lengths of K, as in hopper-peers.md.
TABLE = (
    (1024, 1024, (64, 1024, 2048), SMALL),
    (2048, 2048, (64, 2048), LARGE),
    (4096, 4096, (64, 1024), LARGE),
    (128, 7168, (512, 8192), SMALL[::2]),
)


def cases() -> Iterator[tuple[int, int, int, GemmConfig]]:
    """Every matmul with every configuration."""
    for m, n, lengths, configs in TABLE:
        for config in configs:
            for k in lengths:
                yield m, n, k, config


def launch() -> None:
    """Launches all, ours and cuBLAS's in turns; what `ncu` watches."""
    import jax
    import jax.numpy as jnp
    import torch

    import jaxbw

    for m, n, k, config in cases():
        keys = jax.random.split(jax.random.key(0))
        lhs = jax.random.normal(keys[0], (m, k), jnp.bfloat16)
        rhs = jax.random.normal(keys[1], (k, n), jnp.bfloat16)
        a, b = (torch.randn(*of.shape, device="cuda").bfloat16() for of in (lhs, rhs))
        for _ in range(LAUNCHES):
            jaxbw.matmul(lhs, rhs, config=config).block_until_ready()
        for _ in range(LAUNCHES):
            torch.mm(a, b)
        torch.cuda.synchronize()


def count() -> list[tuple[tuple[int, int, int, GemmConfig], Counted, Counted]]:
    """Each case, with what was counted of ours and of cuBLAS's.

    Raises:
      RuntimeError: `ncu` failed, or counted other calls than were made.
    """
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "ncu.csv"
        settings = ["--clock-control", "none", "--cache-control", "none", "--csv", "--page", "raw"]
        chosen = ["--metrics", ",".join(METRICS), "--kernel-name", KERNELS, "--log-file", str(log)]
        done = subprocess.run(
            ["ncu", *settings, *chosen, sys.executable, __file__, "--launch"],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(f"ncu:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        counted = calls(log.read_text(), LAUNCHES)
    made = list(cases())
    if len(counted) != 2 * len(made):
        raise RuntimeError(f"{2 * len(made)} calls were made, {len(counted)} were counted")
    return list(zip(made, counted[::2], counted[1::2], strict=True))


def main() -> None:
    """Parses arguments; launches under `ncu`, or has it done and writes what was counted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--launch", action="store_true", help="what this script starts under ncu")
    arguments = parser.parse_args()
    if arguments.launch:
        launch()
        return
    if arguments.out is None:
        parser.error("--out is missing")
    here = environment(running_gpu(parser), "counters of Nsight Compute, one launch, operands warm")
    rows = []
    for (m, n, k, config), ours, theirs in count():
        rows.append(
            {"m": m, "n": n, "k": k, "config": str(config)}
            | {"jaxbw": ours.to_json(), "cublas": theirs.to_json()}
        )
        print(
            f"{m}x{n}x{k}: active {ours.active:.0f} / {theirs.active:.0f}, elapsed "
            f"{ours.elapsed:.0f} / {theirs.elapsed:.0f}, instructions "
            f"{ours.instructions / 1e6:.2f} / {theirs.instructions / 1e6:.2f} M; {config}"
        )
    arguments.out.write_text(json.dumps({"environment": here, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
