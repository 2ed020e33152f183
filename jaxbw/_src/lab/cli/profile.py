"""`python -m jaxbw profile M N K`: what every warp of a kernel did when, in one launch.

On a GPU by a build of the kernel that stamps what it does, with --emulate in the emulator.
docs/profile.md reads one of each.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp

import jaxbw
from jaxbw._src.lab import group_sizes
from jaxbw._src.lab.cli.operands import (
    LAYOUTS,
    add_config,
    add_groups,
    add_sizes,
    extent,
    grouped,
    operands,
)
from jaxbw._src.lab.cli.outcome import Outcome
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.implementations import EMULATED

SUMMARY = "profile one launch: what every warp did when, for ui.perfetto.dev"
EXAMPLES = (
    "python -m jaxbw profile 256 256 512 --emulate --out trace.json",
    "python -m jaxbw profile 4096 4096 4096 --out trace.json",
    "python -m jaxbw profile 256 256 512 --emulate sm100 --layout nt --json",
    "python -m jaxbw profile 4096 14336 4096 --groups 8 --group-sizes zipf --out trace.json",
    "python -m jaxbw profile 256 256 512 --emulate --config block_m=128 block_n=64 stages=4",
)
DTYPES = {"bf16": jnp.bfloat16, "f16": jnp.float16}
FAMILIES = {family: name for name, family in EMULATED.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add_sizes(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the trace")
    parser.add_argument(
        "--emulate",
        nargs="?",
        const="sm90",
        choices=sorted(FAMILIES),
        help="in the emulator: the Hopper kernel, or the one named; else on this machine's GPU",
    )
    parser.add_argument(
        "--sms", type=extent, help="of the emulated GPU; default two clusters' CTAs"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="of operands and result")
    parser.add_argument("--layout", choices=LAYOUTS, default="nn", help="as of explain")
    parser.add_argument("--batch", type=extent, default=1, help="matmuls in one call")
    add_groups(parser)
    add_config(parser, "fields of a jaxbw.GemmConfig; default chosen")
    parser.add_argument(
        "--ctas", type=int, nargs="+", metavar="CTA", help="in the trace; default the first ones"
    )
    parser.add_argument("--json", action="store_true", help="the table, for programs")


def run(args: argparse.Namespace) -> Outcome:
    """The command's output.

    Raises:
      ValueError: there is nothing to profile, or no profiling build.
    """
    batch = (args.batch,) * (args.batch > 1)
    shape, sizes = (args.M, args.N, args.K), None
    dims: Any
    if args.groups is None:
        lhs, rhs, dims = operands(shape, args.layout, DTYPES[args.dtype], batch)
    elif batch:
        raise ValueError("--batch is not for a grouped matmul; leave --groups or --batch out")
    else:
        lhs, rhs, dims = grouped(shape, args.layout, DTYPES[args.dtype], args.groups)
        rows = args.K if args.layout == "tn" else args.M
        sizes = group_sizes.drawn(args.group_sizes, args.groups, rows)
    fields: dict[str, Any] = dict(args.config or ())
    try:
        found = jaxbw.profile(
            lhs,
            rhs,
            dimension_numbers=dims,
            group_sizes=sizes,
            path=args.out,
            ctas=args.ctas,
            sm_count=args.sms,
            implementation=FAMILIES.get(args.emulate),
            config=GemmConfig(**fields) if fields else None,
        )
    except RuntimeError as error:  # of the profiling build, with a way out
        raise ValueError(str(error)) from error
    if args.json:
        return Outcome(json.dumps(found.to_json(), indent=1))
    written = [f"  written: {args.out}; open it in https://ui.perfetto.dev"] if args.out else []
    return Outcome("\n".join([str(found), *written]))
