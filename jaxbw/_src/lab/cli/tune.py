"""`python -m jaxbw tune`: measures matmuls on this machine's GPU, and stores what is fastest.

What is stored counts where JAXBW_TUNED or `jaxbw.use_tuned` names the file.
"""

import argparse
import importlib
import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import jaxbw
from jaxbw._src.lab.bench import progress
from jaxbw._src.lab.bench.case import parse_shape
from jaxbw._src.lab.cli.explain import DTYPES
from jaxbw._src.lab.cli.operands import LAYOUTS, add_groups, grouped, operands
from jaxbw._src.lab.cli.outcome import Outcome
from jaxbw._src.lab.tuning import find, session
from jaxbw._src.lab.tuning.autotune import gpu, measurable_device
from jaxbw._src.lab.tuning.find import Found
from jaxbw._src.lab.tuning.launching import Matmul
from jaxbw._src.lab.tuning.measure import Effort

SUMMARY = "measure matmuls on this GPU and store the fastest configurations"
EXAMPLES = (
    "python -m jaxbw tune 4096x4096x4096 16x4096x7168 --layouts nn nt --table tuned.json",
    "python -m jaxbw tune 4096x14336x4096 --groups 8 --layouts nn nt --table tuned.json",
    "python -m jaxbw tune --from-jaxpr train:step --args train:example_args --table tuned.json",
    "python -m jaxbw tune --from-jaxpr train:step --args train:example_args --list",
)
INTERRUPTED = 130  # a shell's status for Ctrl-C


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    which = parser.add_argument_group("matmuls: of sizes, or those of a function of yours")
    which.add_argument("shapes", nargs="*", type=_shape, metavar="MxNxK")
    which.add_argument(
        "--layouts",
        nargs="+",
        choices=LAYOUTS,
        default=["nn"],
        help="of lhs [m, k] and rhs [k, n] in memory: n as written, t transposed",
    )
    add_groups(which)
    which.add_argument("--dtype", choices=DTYPES, default="bf16", help="of the operands")
    which.add_argument("--out", choices=DTYPES, help="dtype of the result; default --dtype")
    which.add_argument(
        "--from-jaxpr",
        metavar="MODULE:FUNCTION",
        help="the matmuls of a function, which is traced, not run; of a training step for those "
        "of its gradients",
    )
    which.add_argument(
        "--args",
        metavar="MODULE:NAME",
        help="the function's arguments, a tuple of arrays or ShapeDtypeStructs, or what returns it",
    )
    which.add_argument("--lax", action="store_true", help="also lax.dot_general's matmuls")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--table",
        type=Path,
        default=Path("tuned.json"),
        metavar="FILE",
        help="where it is stored; what is there is not measured again. Default tuned.json",
    )
    how.add_argument(
        "--configurations",
        type=_count,
        default=Effort.count,
        metavar="COUNT",
        help=f"to try for each matmul; default {Effort.count}",
    )
    how.add_argument(
        "--budget", type=float, default=math.inf, metavar="SECONDS", help="stop in time"
    )
    how.add_argument("--list", action="store_true", help="show the matmuls, measure nothing")


def run(args: argparse.Namespace) -> Outcome:
    """The command's output; its status is 130 where it was interrupted."""
    folder = args.table.parent
    if not args.list and not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise ValueError(
            f"{folder} is no folder that can be written to; name another file by --table"
        )
    found = _matmuls(args)
    if args.list:
        return Outcome("\n".join(f"{each.count:6} times {each.problem}" for each in found))
    device = measurable_device()
    problems = [each.problem for each in found]
    wanted = session.missing(problems, device, args.table)
    there = len(problems) - len(wanted)
    left, status = 0, 0
    if wanted:
        measuring = gpu(args.group_sizes)
        effort = Effort(count=args.configurations)
        with progress.bar(len(wanted)) as advance:
            measure = partial(session.run, effort=effort, budget_s=args.budget)
            try:
                left = measure(
                    problems, device, measuring, args.table, report=lambda done: advance(str(done))
                )
            except KeyboardInterrupt:
                left, status = len(session.missing(problems, device, args.table)), INTERRUPTED
            except RuntimeError as error:  # of the driver, or of what measures
                raise ValueError(str(error)) from error
    lines = [f"{there} of {len(problems)} matmuls were there already."] if there else []
    if left:
        lines += [f"Stopped: {left} matmuls are left. The same command goes on with them."]
    if args.table.exists():
        lines += [f"To use it: JAXBW_TUNED={args.table}, or jaxbw.use_tuned({str(args.table)!r})."]
    return Outcome("\n".join(lines), status)


def _matmuls(args: argparse.Namespace) -> list[Found[Matmul]]:
    """What is to be measured."""
    if bool(args.shapes) == bool(args.from_jaxpr):
        raise ValueError("type sizes, as 4096x4096x4096, or --from-jaxpr module:function")
    if args.from_jaxpr is None:
        return [_of_shape(args, shape, layout) for layout in args.layouts for shape in args.shapes]
    function, given = _named(args.from_jaxpr), ()
    if args.args is not None:
        given = _named(args.args)
        given = given() if callable(given) else given
        if not isinstance(given, tuple):
            raise TypeError(f"--args is a {type(given).__name__}; it names a tuple of arguments")
    try:
        found = find.matmuls(function, *given, lax=args.lax)
    except TypeError as error:
        raise TypeError(
            f"{error}\nThe function was called with {len(given)} arguments: name a tuple of them "
            "by --args module:example_args"
        ) from error
    if not found:
        more = "" if args.lax else "; --lax also takes those of jax.lax and jax.numpy"
        raise ValueError(f"the function has no matmul of jaxbw's{more}")
    return found


def _of_shape(args: argparse.Namespace, shape: tuple[int, int, int], layout: str) -> Found[Matmul]:
    dtype, out = DTYPES[args.dtype], DTYPES[args.out or args.dtype]
    if args.groups is None:
        lhs, rhs, dims = operands(shape, layout, dtype)
        matmul = partial(jaxbw.dot_general, dimension_numbers=dims, preferred_element_type=out)
        return find.matmuls(matmul, lhs, rhs)[0]
    lhs, rhs, numbers = grouped(shape, layout, dtype, args.groups)
    sizes = jax.ShapeDtypeStruct((args.groups,), jnp.int32)
    ragged = partial(
        jaxbw.ragged_dot_general,
        ragged_dot_dimension_numbers=numbers,
        preferred_element_type=out,
    )
    return find.matmuls(ragged, lhs, rhs, sizes)[0]


def _named(text: str) -> Any:
    """What stands under a name in a module.

    Raises:
      ValueError: there is no such thing.
    """
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise ValueError(f"{text!r} is no function; type module:name, as in train:step")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"{module!r} cannot be imported ({error}); type this in its folder, or set PYTHONPATH"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            names = ", ".join(each for each in vars(found) if not each.startswith("_"))
            raise ValueError(f"{module!r} has no {part!r}; type one of {names}")
        found = getattr(found, part)
    return found


def _shape(text: str) -> tuple[int, int, int]:
    try:
        return parse_shape(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: type a whole number from 1 on")
    return int(text)
