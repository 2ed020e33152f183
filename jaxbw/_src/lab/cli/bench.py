"""`python -m jaxbw bench`: times jaxbw beside everything that a JAX user could pick instead.

It needs a GPU, but for what reads results that are there: --merge and --report.
"""

import argparse
from collections import Counter
from pathlib import Path

from jaxbw._src.lab.bench import arms, case, progress, report, results, session, share
from jaxbw._src.lab.bench.timer import Cupti
from jaxbw._src.lab.cli import bench_model, compare, subcommands
from jaxbw._src.lab.cli.compare import load
from jaxbw._src.lab.cli.outcome import Outcome

SUMMARY = "time jaxbw beside everything that a JAX user could pick instead"
EXAMPLES = (
    "python -m jaxbw bench --group cube --out results.json",
    "python -m jaxbw bench --shapes 4096x4096x4096 --layouts nn nt --out results.json",
    "python -m jaxbw bench --gpus 4 --out results.json",
    "python -m jaxbw bench --out results.json --report --plots pictures",
    "python -m jaxbw bench compare before.json after.json",
    "python -m jaxbw bench model --out models.json",
)
FEWEST_ROUNDS = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command, and the commands below it."""
    parts = parser.add_subparsers(metavar="COMMAND", title="other commands")
    subcommands.add(parts, {"compare": compare, "model": bench_model})
    which = parser.add_argument_group("what is measured; default the whole suite, layout nn")
    which.add_argument("--group", nargs="+", choices=case.groups(), default=[])
    which.add_argument("--shapes", nargs="+", type=_shape, default=[], metavar="MxNxK")
    which.add_argument(
        "--layouts",
        nargs="+",
        choices=case.LAYOUTS,
        default=["nn"],
        help="of lhs and rhs, n as written, t transposed; dlhs and drhs: gradients, as jax.grad",
    )
    which.add_argument("--dtype", nargs="+", choices=case.DTYPES, default=["bf16"])
    which.add_argument(
        "--precise", action="store_true", help="sums of fp8 as accurate as float32's"
    )
    which.add_argument("--epilogue", nargs="+", choices=case.EPILOGUES, default=["none"])
    names = [arm.name for arm in arms.ARMS]
    which.add_argument("--arms", nargs="+", choices=names, default=names)
    how = parser.add_argument_group("how")
    how.add_argument("--sustained", action="store_true", help="at the power limit, not in bursts")
    how.add_argument("--rounds", type=_rounds, default=FEWEST_ROUNDS, help="of each arm, 6 or more")
    how.add_argument("--seed", type=int, default=0, help="of operands and order")
    how.add_argument("--gpus", type=int, default=1, help="so many share the cases out; default 1")
    how.add_argument(
        "--budget", type=float, default=float("inf"), metavar="SECONDS", help="stop in time"
    )
    files = parser.add_argument_group("files")
    files.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="results, always to be named; rows that are there, with these arms, are not repeated",
    )
    files.add_argument(
        "--tuned", type=Path, metavar="FILE", help="take the peers' configurations from there"
    )
    files.add_argument(
        "--merge", nargs="+", type=Path, metavar="FILE", help="measure nothing: join files into out"
    )
    files.add_argument("--report", action="store_true", help="measure nothing: show what is there")
    files.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the results, as PNG")
    files.add_argument("--note", default="", help="stored with the results")


def run(args: argparse.Namespace) -> Outcome:
    """The command's output."""
    if args.out is None:
        raise ValueError("the following arguments are required: --out")
    found, problems, left = _results(args), list[str](), 0
    if args.merge:
        found.save(args.out)
    elif not args.report:
        plan, known = _plan(args), set(found.sessions)
        found, problems = _measure_all(plan, found, args.gpus)
        new = [row for row in found.rows if row.session not in known]
        for absence, count in Counter(text for row in new for text in report.absences(row)).items():
            print(f"{absence} ({count} of the rows)")
        left = len(plan.missing(found))
    if args.plots:
        from jaxbw._src.lab.bench import plots

        plots.draw(found, args.plots)
    parts = [report.table(found), "", report.summary(found), *problems]
    if left:
        parts += ["", f"{left} cases are left. The same command goes on with them."]
    return Outcome("\n".join(parts), int(bool(problems)))


def _results(args: argparse.Namespace) -> results.Results:
    if args.merge:
        return results.merge([load(path) for path in args.merge])
    if args.report and not args.out.exists():
        raise ValueError(f"{args.out} is not there; measure first, without --report")
    found = load(args.out) if args.out.exists() else results.Results()
    if args.tuned:
        found.tuned = results.merge([load(args.tuned), found]).tuned
    return found


def _plan(args: argparse.Namespace) -> session.Plan:
    return session.Plan(
        cases=case.select(
            groups=args.group,
            shapes=args.shapes,
            layouts=args.layouts,
            dtypes=args.dtype,
            epilogues=args.epilogue,
            precise=args.precise,
        ),
        mode="sustained" if args.sustained else "burst",
        arms=[arm for arm in arms.ARMS if arm.name in args.arms],
        rounds=args.rounds,
        seed=args.seed,
        budget_s=args.budget,
        out=args.out,
        note=args.note,
    )


def _measure_all(
    plan: session.Plan, found: results.Results, gpus: int
) -> tuple[results.Results, list[str]]:
    """What is there in the end, and which processes failed."""
    if gpus == 1:
        _measure(plan, found)
        return found, []
    visible = share.visible()
    if not 0 < gpus <= len(visible):
        raise ValueError(f"--gpus {gpus}: there are {len(visible)} to be seen")
    return share.measure_on(visible[:gpus], _measure, plan, found)


def _measure(plan: session.Plan, found: results.Results) -> None:
    """What one process does."""
    timer = Cupti()
    with progress.bar(len(plan.missing(found))) as advance:
        session.Session(plan, found, timer).run(lambda row: advance(report.line(row)), advance)


def _shape(text: str) -> tuple[int, int, int]:
    try:
        return case.parse_shape(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < FEWEST_ROUNDS:
        raise argparse.ArgumentTypeError(f"{text!r}: type {FEWEST_ROUNDS} or more")
    return int(text)
