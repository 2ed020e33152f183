"""`python -m jaxbw explain M N K`: which kernel serves a matmul, in which configuration, and why.

It runs on any machine: the choice is a pure function of problem and device.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp

import jaxbw
from jaxbw._src.lab.cli import wave_map
from jaxbw._src.lab.cli.operands import LAYOUTS, add_config, add_sizes, extent, operands
from jaxbw._src.lab.cli.outcome import Outcome
from jaxbw._src.lab.cli.wave_map import WaveMap
from jaxbw._src.lab.explain import examined
from jaxbw._src.selection.choice import Choice
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.devices import TARGETS, for_family, running_device
from jaxbw._src.selection.implementations import EMULATED, NAMES
from jaxbw._src.selection.machine import Machine
from jaxbw._src.selection.search import Ranked

SUMMARY = "say which kernel serves a matmul, in which configuration, and why"
EXAMPLES = (
    "python -m jaxbw explain 4096 4096 4096 --device B200",
    "python -m jaxbw explain 16 4096 4096 --device H200 --json",
    "python -m jaxbw explain 4096 4096 4096 --device B200 --png waves.png",
    "python -m jaxbw explain 4096 4096 4096 --device B200 --config block_m=256 block_n=256 "
    "cta_group=2 cluster=2,1 swizzle=4 --png waves.png",
)
DTYPES = {"bf16": jnp.bfloat16, "f16": jnp.float16, "f32": jnp.float32}
UNDECIDED = 0.1  # docs/selection.md: a modelled difference below this says nothing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add_sizes(parser)
    parser.add_argument(
        "--device", type=_device, help=f"{', '.join(TARGETS)}; default this machine's GPU"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="of the operands")
    parser.add_argument("--out", choices=DTYPES, help="dtype of the result; default --dtype")
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        default="nn",
        help="of lhs [m, k] and rhs [k, n] in memory: n as written, t transposed",
    )
    parser.add_argument("--batch", type=extent, default=1, help="matmuls in one call")
    parser.add_argument("--gated", action="store_true", help="with a second right operand")
    parser.add_argument("--activation", help="relu, silu, gelu or gelu_exact")
    parser.add_argument("--implementation", choices=NAMES, help="default: jaxbw chooses")
    parser.add_argument(
        "--batch-invariant", action="store_true", help="the same configuration for every M"
    )
    add_config(parser, "fields of a jaxbw.GemmConfig to look at instead of the chosen one")
    parser.add_argument("--top", type=extent, default=8, help="candidates to show")
    parser.add_argument("--json", action="store_true", help="everything, for programs")
    parser.add_argument(
        "--png",
        type=Path,
        metavar="FILE",
        help="draw which cluster computes what, in which wave",
    )


def run(args: argparse.Namespace) -> Outcome:
    """The command's output."""
    left, right, options = _asked(args)
    choice = jaxbw.explain(left, right, **options)
    if args.png is not None:
        _, problem, _ = examined("jaxbw.explain", left, right, **options)
        found = WaveMap.of(choice, _machine(args, choice), problem)
        wave_map.draw(found, f"{choice.problem}\n{choice.kernel}: {choice.config}", args.png)
    if args.json:
        return Outcome(json.dumps(dataclasses.asdict(choice), indent=2))
    parts = [str(choice)]
    if args.png is not None:
        parts += ["", f"{found.caption()}\ndrawn: {args.png}"]
    if choice.candidates:
        shown = choice.candidates[: args.top]
        parts += ["", _table(shown), "", _caveat(choice.candidates)]
    return Outcome("\n".join(parts))


def _asked(args: argparse.Namespace) -> tuple[Any, Any, dict[str, Any]]:
    """The operands and the other arguments of `jaxbw.explain`."""
    device = args.device
    if device is None and running_device() is None:
        raise ValueError(
            f"there is no CUDA GPU on this machine; name one with --device {next(iter(TARGETS))}"
        )
    batch = (args.batch,) * (args.batch > 1)
    left, right, dims = operands((args.M, args.N, args.K), args.layout, DTYPES[args.dtype], batch)
    options: dict[str, Any] = {
        "device": device,
        "dimension_numbers": dims,
        "activation": args.activation,
        "preferred_element_type": DTYPES[args.out or args.dtype],
        "implementation": args.implementation,
        "config": _config(args),
    }
    if args.gated:
        options["rhs_up"] = right
    return left, right, options


def _config(args: argparse.Namespace) -> GemmConfig | None:
    """The configuration that is asked about; None to have one chosen."""
    fields = dict(args.config or ())
    if args.batch_invariant:
        fields["batch_invariant"] = True
    return GemmConfig(**fields) if fields else None


def _machine(args: argparse.Namespace, choice: Choice) -> Machine:
    """What a choice is for."""
    device = TARGETS[args.device] if args.device is not None else running_device()
    if choice.implementation in EMULATED:
        device = for_family(device, EMULATED[choice.implementation])
    assert device is not None
    return device.machine


_COLUMNS = (
    *("tile", "cluster", "group", "stages", "split", "swap", "bands", "waves", "filled %"),
    *("mma", "loads", "main loop", "epilogue", "fixed", "split us", "repack", "tuned", "total us"),
)


def _cells(ranked: Ranked) -> tuple[str, ...]:
    c, cost = ranked.config, ranked.cost
    times = [cost.mma, cost.loads, cost.main_loop, cost.epilogue, cost.fixed]
    times += [cost.split, cost.repack, cost.tuned, cost.total]
    return (
        f"{c.block_m}x{c.block_n}x{c.block_k}",
        f"{c.cluster[0]}x{c.cluster[1]}",
        str(c.cta_group),
        str(c.stages),
        f"{c.split_k}{' tail' if c.split_tail else ''}",
        "yes" if c.swap_ab else "no",
        f"{c.swizzle} along {c.raster}",
        str(cost.waves),
        f"{100 * cost.efficiency:.1f}",
        *(f"{time:.2f}" for time in times),
    )


def _table(shown: Sequence[Ranked]) -> str:
    rows = [_COLUMNS, *map(_cells, shown)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def _caveat(candidates: Sequence[Ranked]) -> str:
    best = candidates[0].cost.total
    close = sum(each.cost.total < best * (1 + UNDECIDED) for each in candidates[1:])
    return (
        "Times are modelled, in microseconds, not measured. Below 10 % a difference says nothing: "
        f"{close} of the next {len(candidates) - 1} candidates are that close."
    )


def _device(text: str) -> str:
    for name in TARGETS:
        if name.lower() == text.lower():
            return name
    raise argparse.ArgumentTypeError(f"{text!r} is not known; type one of {', '.join(TARGETS)}")
