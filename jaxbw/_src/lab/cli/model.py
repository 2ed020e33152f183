"""`python -m jaxbw model M N K`: what a matmul would take on a Blackwell GPU. Modelled.

With --groups it is a grouped one, on any GPU: model_grouped.py.

It runs on any machine, and measures nothing: docs/blackwell-model.md says from which constants the
times come, and how far the model is off where others have measured.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp

import jaxbw
from jaxbw._src.lab.cli import model_grouped, timeline_picture
from jaxbw._src.lab.cli.operands import LAYOUTS, add_groups, add_sizes, extent, operands
from jaxbw._src.lab.cli.outcome import Outcome
from jaxbw._src.lab.model import report
from jaxbw._src.lab.model.clock import DATA, fixed
from jaxbw._src.lab.model.machine import replayed
from jaxbw._src.lab.model.modelled import Replay
from jaxbw._src.lab.model.modelled import run as replay
from jaxbw._src.lab.model.ours import kernel_of, raster_of, refusal
from jaxbw._src.lab.model.schedule import Shape
from jaxbw._src.problem import reduce_dot_general
from jaxbw._src.selection.candidates import Candidates
from jaxbw._src.selection.choice import Choice
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.cost_model.grid import grid
from jaxbw._src.selection.devices import TARGETS
from jaxbw._src.selection.workload import Workload, workload

SUMMARY = "model what a matmul would take on a Blackwell GPU, or with groups on any"
EXAMPLES = (
    "python -m jaxbw model 4096 4096 4096 --device B200",
    "python -m jaxbw model 4096 4096 4096 --device B200 --trace out.json --png out.png",
    "python -m jaxbw model 512 8192 5376 --device B200 --layout nt --clock 1.5 --json",
    "python -m jaxbw model 4096 14336 4096 --groups 8 --group-sizes zipf --device H100",
)
DEVICES = tuple(name for name, device in TARGETS.items() if device.family == report.FAMILY)
DTYPES = {"bf16": jnp.bfloat16, "f16": jnp.float16}
CAVEAT = (
    "Modelled, not measured: no Blackwell GPU has run these kernels. Configurations whose modelled "
    "times are within 10 % are undecided between."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add_sizes(parser)
    parser.add_argument(
        "--device",
        type=_device,
        default=DEVICES[0],
        help=f"{', '.join(DEVICES)}; with --groups one of {', '.join(TARGETS)}",
    )
    add_groups(parser)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="of operands and result")
    parser.add_argument("--layout", choices=LAYOUTS, default="nn", help="as of explain")
    parser.add_argument(
        "--clock", type=_clock, help="a fixed clock in GHz; default: the throttle law"
    )
    parser.add_argument(
        "--data", choices=DATA, default=DATA[0], help="what the throttle law supposes"
    )
    parser.add_argument("--top", type=extent, default=6, help="configurations to show")
    parser.add_argument("--json", action="store_true", help="everything, for programs")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write the first tiles for ui.perfetto.dev"
    )
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw them, and the roofline")


def run(args: argparse.Namespace) -> Outcome:
    """The command's output.

    Raises:
      ValueError: the configuration that jaxbw takes is not modelled.
    """
    if args.groups is not None:
        return model_grouped.run(args, DTYPES[args.dtype])
    if args.device not in DEVICES:
        raise ValueError(
            f"{args.device!r} is not modelled; type one of {', '.join(DEVICES)}. For Hopper "
            "explain has the modelled time"
        )
    machine = replayed(args.device)
    shape = Shape(args.M, args.N, args.K)
    choice, config = _chosen(args)
    draws = args.trace is not None or args.png is not None
    clock = fixed(args.clock, args.data) if args.clock else args.data
    itemsize = jnp.dtype(DTYPES[args.dtype]).itemsize
    work = _work(args)
    [columns] = grid(work, machine.shared, Candidates.of([config], report.FAMILY, itemsize)).columns
    kernel = kernel_of(config, itemsize, itemsize, loaded_columns=int(columns))
    found = replay(machine, kernel, shape, raster_of(config), clock, record=draws)
    estimate = report.estimated(machine.shared, work, config, found.clock)
    estimate = dataclasses.replace(
        estimate,
        us=found.us,
        low_us=found.us * report.INTERVAL[0],
        high_us=found.us * report.INTERVAL[1],
        tflops=found.tflops,
    )
    others = _others(choice, args.top)
    if args.trace is not None:
        args.trace.write_text(json.dumps(timeline_picture.chrome(found)))
    if args.png is not None:
        timeline_picture.draw(found, f"{args.M}x{args.N}x{args.K} on {args.device}", args.png)
    if args.json:
        answer = {
            "device": args.device,
            "config": dataclasses.asdict(config),
            "estimate": dataclasses.asdict(estimate),
            "busy": _busy(found),
            "candidates": others,
            "caveat": CAVEAT,
        }
        return Outcome(json.dumps(answer, indent=2))
    return Outcome("\n".join(_text(args, config, estimate, found, others)))


def _chosen(args: argparse.Namespace) -> tuple[Choice, GemmConfig]:
    """What jaxbw would launch."""
    lhs, rhs, dims = operands((args.M, args.N, args.K), args.layout, DTYPES[args.dtype])
    choice = jaxbw.explain(
        lhs,
        rhs,
        dimension_numbers=dims,
        implementation=report.FAMILY,
        device=args.device,
    )
    assert choice.config is not None
    reason = refusal(choice.config)
    if reason is None and choice.repacked:
        reason = "operands are repacked first, which is not modelled"
    if reason is not None:
        raise ValueError(f"this matmul takes {choice.config}: {reason}")
    return choice, choice.config


def _work(args: argparse.Namespace) -> Workload:
    """The matmul as the selection sees it."""
    lhs, rhs, dims = operands((args.M, args.N, args.K), args.layout, DTYPES[args.dtype])
    problem = reduce_dot_general(lhs, rhs, dims, lhs.dtype).problem
    return workload(problem, "sm100", swapped=False)


def _others(choice: Choice, top: int) -> list[dict[str, Any]]:
    """The best configurations, with whether they differ enough to say so."""
    best = choice.candidates[0].cost.total
    return [
        {
            "config": str(each.config),
            "us": each.cost.total,
            "undecided": each.cost.total / best - 1 < report.UNDECIDED,
        }
        for each in choice.candidates[:top]
    ]


def _busy(found: Replay) -> dict[str, float]:
    return {name: time / found.outcome.time for name, time in found.outcome.busy.items()}


def _text(
    args: argparse.Namespace,
    config: GemmConfig,
    estimate: Any,
    found: Replay,
    others: Sequence[dict[str, Any]],
) -> list[str]:
    busy = ", ".join(f"{name} {part:.0%}" for name, part in _busy(found).items() if part >= 0.05)
    lines = [
        f"{args.M}x{args.N}x{args.K} {args.dtype} on {args.device}",
        f"  config       {config}",
        f"  {estimate}",
        f"  busy         {busy}",
        "  assumed constants, and the time with 30 % less and more of each:",
    ]
    lines += [
        f"    {s.constant:24s} {s.less:+7.1%} {s.more:+7.1%}   {s.source}"
        for s in estimate.sensitivity[:6]
    ]
    lines.append("  the best by the closed form, normal data:")
    lines += [
        f"    {o['us']:9.1f} us{'  undecided' if o['undecided'] else '           '}  {o['config']}"
        for o in others
    ]
    return [*lines, CAVEAT]


def _clock(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.2 <= value <= 3.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no clock; type GHz, from 0.2 to 3")
    return value


def _device(text: str) -> str:
    for name in TARGETS:
        if name.lower() == text.lower():
            return name
    raise argparse.ArgumentTypeError(f"{text!r} is not known; type one of {', '.join(TARGETS)}")
