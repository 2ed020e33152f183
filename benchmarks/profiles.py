"""Profiles of some products on this machine's GPU: jaxbw.profile's tables, in one results file.

    python benchmarks/profiles.py --out results.json --traces DIR

It also writes a trace of each, of a few CTAs. Kernels are chosen as always, or given below.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import jaxbw
from jaxbw.bench import environment

CTAS = range(4)  # in a trace
CLUSTER_K = jaxbw.GemmConfig(block_m=128, block_n=128, cluster_k=4)
PRODUCTS: dict[str, tuple[tuple[int, int, int], jaxbw.GemmConfig | None]] = {
    "square-1024": ((1024, 1024, 1024), None),
    "square-4096": ((4096, 4096, 4096), None),
    "pingpong-4096": ((4096, 4096, 4096), jaxbw.GemmConfig(block_m=64, block_n=256, pingpong=True)),
    "decode-16": ((16, 4096, 4096), None),
    "tall-k": ((512, 512, 16384), None),
    "cluster-k": ((512, 512, 16384), CLUSTER_K),
}


def main() -> None:
    """Parse arguments, profile, print the tables, write the results file and the traces."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--traces", type=Path, required=True)
    args = parser.parse_args()
    args.traces.mkdir(parents=True, exist_ok=True)
    described = environment.describe(0, 1, "") | {"command": shlex.join(["python", *sys.argv])}
    profiles: dict[str, Any] = {}
    for name, ((m, n, k), config) in PRODUCTS.items():
        lhs = jax.ShapeDtypeStruct((m, k), jnp.bfloat16)
        rhs = jax.ShapeDtypeStruct((k, n), jnp.bfloat16)
        found = jaxbw.profile(lhs, rhs, config=config)
        print(f"{name}\n{found}\n", flush=True)
        found.write(args.traces / f"{name}.json", ctas=CTAS)
        profiles[name] = found.to_json()
        # After each: what has been profiled is not lost with what fails.
        args.out.write_text(
            json.dumps({"environment": described, "profiles": profiles}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
