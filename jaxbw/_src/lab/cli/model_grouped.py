"""`python -m jaxbw model M N K --groups G`: what a grouped matmul would take. Modelled.

By the closed form of the selection's cost model, for Hopper's GPUs as well: lab/model/grouped.py.
"""

import argparse
import dataclasses
import json
from typing import Any

import numpy as np

from jaxbw._src.lab import explain_grouped, group_sizes
from jaxbw._src.lab.cli.operands import grouped
from jaxbw._src.lab.cli.outcome import Outcome
from jaxbw._src.lab.model.grouped import GroupedTime, modelled
from jaxbw._src.selection import ragged
from jaxbw._src.selection.choice import Refusal
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.devices import TARGETS

CAVEAT = (
    "Modelled, not measured, for sizes of groups that are made up. On an H100 the model was 9 % "
    "off in the mean, and up to 34 % too fast where groups are unequal."
)


def run(args: argparse.Namespace, dtype: Any) -> Outcome:
    """The command's output.

    Raises:
      ValueError: no kernel takes the matmul, or an argument is not for grouped ones.
    """
    for name in ("clock", "trace", "png"):
        if getattr(args, name) is not None:
            raise ValueError(f"--{name} is for matmuls without groups; leave it or --groups out")
    shape, device = (args.M, args.N, args.K), TARGETS[args.device]
    lhs, rhs, dims = grouped(shape, args.layout, dtype, args.groups)
    choice, problem, _ = explain_grouped.examined(
        "jaxbw model",
        lhs,
        rhs,
        groups=args.groups,
        dimension_numbers=dims,
        device=args.device,
    )
    if isinstance(choice, Refusal):
        raise ValueError(f"no kernel serves this matmul: {choice.reason}")
    sizes = group_sizes.of_problem(problem, args.group_sizes)
    time = modelled(problem, choice.config, device.machine, sizes)
    every = ragged.candidates(problem, device.family or "", device.sm_count)
    others = {each: modelled(problem, each, device.machine, sizes) for each in every}
    of_tiles: dict[str, GroupedTime] = {}
    for config, its_time in sorted(others.items(), key=lambda item: item[1].total_us):
        of_tiles.setdefault(_tile(config), its_time)
    best = [*of_tiles.items()][: args.top]
    if args.json:
        answer = {
            "device": args.device,
            "matmul": str(problem),
            "sizes": sizes[0].tolist(),
            "config": dataclasses.asdict(choice.config),
            "time": dataclasses.asdict(time),
            "candidates": [{"tile": tile, "us": t.total_us} for tile, t in best],
            "caveat": CAVEAT,
        }
        return Outcome(json.dumps(answer, indent=2))
    least, median, most = (int(x) for x in np.quantile(sizes[0], (0, 0.5, 1)))
    lines = [
        f"{problem} on {args.device}",
        f"  sizes        {args.group_sizes}: {least}, {median}, {most} rows, least, median, most",
        f"  config       {choice.config}: {choice.reason}",
        f"  {time}",
        f"  {_rate(problem, sizes, time)}",
        "  the best by the model:",
        *(f"    {t.total_us:9.1f} us  {tile}, {t.waves:.2f} waves" for tile, t in best),
        CAVEAT,
    ]
    return Outcome("\n".join(lines))


def _rate(problem: Any, sizes: group_sizes.Sizes, time: GroupedTime) -> str:
    rows = int(np.minimum(sizes.sum(axis=1), problem.m).sum())
    flops = 2.0 * rows * problem.k * problem.n
    return f"{flops / time.total_us / 1e6:.0f} TFLOP/s of what has to be multiplied"


def _tile(c: GemmConfig) -> str:
    """What the model tells apart: bands of tiles are nearly alike to it."""
    ways = ["in turns"] * c.pingpong + ["by pairs"] * (c.cta_group == 2)
    ways += [f"{c.split_k} parts of the last tiles"] * (c.split_k > 1)
    return ", ".join([f"{c.block_m}x{c.block_n}", *ways])
