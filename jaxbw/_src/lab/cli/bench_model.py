"""`python -m jaxbw bench model`: training and decoding steps of whole models beside plain XLA."""

import argparse
from pathlib import Path

from jaxbw._src.lab.bench import progress
from jaxbw._src.lab.bench.models import report, session
from jaxbw._src.lab.bench.models.transformer import MODELS, STACKINGS
from jaxbw._src.lab.bench.timer import require_gpu
from jaxbw._src.lab.cli.outcome import Outcome

SUMMARY = "time whole training and decoding steps beside plain XLA"
EXAMPLES = (
    "python -m jaxbw bench model --out models.json",
    "python -m jaxbw bench model --models gpt2-124m --layers scanned --out models.json",
    "python -m jaxbw bench model --out models.json --report --png models.png",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    names = [model.name for model in MODELS]
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--layers", nargs="+", choices=STACKINGS, default=list(STACKINGS))
    parser.add_argument("--seed", type=int, default=0, help="of arguments and order")
    parser.add_argument(
        "--budget", type=float, default=float("inf"), metavar="SECONDS", help="stop in time"
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="results; models that are there are not repeated",
    )
    parser.add_argument("--report", action="store_true", help="measure nothing: show what is there")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw where the time goes")
    parser.add_argument("--note", default="", help="stored with the results")


def run(args: argparse.Namespace) -> Outcome:
    """The command's output."""
    if args.report and not args.out.exists():
        raise ValueError(f"{args.out} is not there; measure first, without --report")
    found = session.Results.load(args.out) if args.out.exists() else session.Results()
    cases = [
        (model, stacking)
        for stacking in args.layers
        for model in MODELS
        if model.name in args.models and stacking in model.stackings
    ]
    plan = session.Plan(cases, args.seed, args.budget, args.out, args.note)
    if not args.report:
        require_gpu()
        with progress.bar(len(plan.missing(found))) as advance:
            session.run(plan, found, lambda row: advance(report.summary(row)))
    if args.png:
        report.draw(found, args.png)
    parts = [report.table(found)]
    if not args.report and (left := len(plan.missing(found))):
        parts += ["", f"{left} cases are left. The same command goes on with them."]
    return Outcome("\n".join(parts))
