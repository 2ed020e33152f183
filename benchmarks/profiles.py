"""Profiles of some matmuls on this machine's GPU: jaxbw.profile's tables, in one results file.

    python benchmarks/profiles.py --out results.json --traces DIR

It also writes a trace of each, of a few CTAs. Kernels are chosen as always, or given below. With
--compile it measures nothing, on any machine: it makes the profiling builds that an H200 will
want, which JAXBW_PROFILE_CACHE carries to a machine without a compiler.
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
from jaxbw._src.lab.bench import environment
from jaxbw._src.lab.profiling import build

CTAS = range(4)  # in a trace
PINGPONG = jaxbw.GemmConfig(block_m=64, block_n=256, pingpong=True)
SPLIT = jaxbw.GemmConfig(block_m=128, block_n=128, split_k=4)
MATMULS: dict[str, tuple[tuple[int, int, int], jaxbw.GemmConfig | None]] = {
    "square-1024": ((1024, 1024, 1024), None),
    "square-4096": ((4096, 4096, 4096), None),
    "pingpong-4096": ((4096, 4096, 4096), PINGPONG),
    "decode-16": ((16, 4096, 4096), None),
    "tall-k": ((512, 512, 16384), None),
    "tall-k-split": ((512, 512, 16384), SPLIT),
}
COMPILED_FOR = "H200"

Types = tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]


def types(m: int, n: int, k: int) -> Types:
    """The operands of a matmul."""
    return jax.ShapeDtypeStruct((m, k), jnp.bfloat16), jax.ShapeDtypeStruct((k, n), jnp.bfloat16)


def compile_builds() -> None:
    """The profiling builds of all matmuls."""
    for name, (shape, config) in MATMULS.items():
        choice = jaxbw.explain(*types(*shape), config=config, device=COMPILED_FOR)
        assert choice.kernel is not None
        print(name, build.compiled(choice.kernel) / choice.kernel)


def measure(out: Path, traces: Path) -> None:
    """Profiles, prints the tables, writes the results file and the traces."""
    traces.mkdir(parents=True, exist_ok=True)
    described = environment.describe(0, 1, "") | {"command": shlex.join(["python", *sys.argv])}
    profiles: dict[str, Any] = {}
    for name, (shape, config) in MATMULS.items():
        found = jaxbw.profile(*types(*shape), config=config)
        print(f"{name}\n{found}\n", flush=True)
        found.write(traces / f"{name}.json", ctas=CTAS)
        profiles[name] = found.to_json()
        # After each: what has been profiled is not lost with what fails.
        out.write_text(
            json.dumps({"environment": described, "profiles": profiles}, indent=1) + "\n"
        )


def main() -> None:
    """Parse arguments; compile or measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--traces", type=Path)
    args = parser.parse_args()
    if args.compile:
        compile_builds()
    elif args.out is None or args.traces is None:
        parser.error("it takes --compile, or --out and --traces")
    else:
        measure(args.out, args.traces)


if __name__ == "__main__":
    main()
