"""`python -m jaxbw bench compare A.json B.json`: what became faster or slower, and how surely."""

import argparse
import json
from pathlib import Path

from jaxbw._src.lab.bench import compare
from jaxbw._src.lab.bench.results import Results
from jaxbw._src.lab.cli.outcome import Outcome

SUMMARY = "compare two results files"
EXAMPLES = (
    "python -m jaxbw bench compare before.json after.json",
    "python -m jaxbw bench compare before.json after.json --arms jaxbw --png ratios.png",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("first", type=Path, metavar="A.json", help="a results file of the bench")
    parser.add_argument("second", type=Path, metavar="B.json", help="another one")
    parser.add_argument("--arms", nargs="+", metavar="NAME", help="default all that both have")
    parser.add_argument(
        "--anyway", action="store_true", help="also where GPU, inputs or versions differ"
    )
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw the ratios")
    parser.add_argument("--json", action="store_true", help="everything, for programs")


def run(args: argparse.Namespace) -> Outcome:
    """The command's output."""
    first, second = (load(path) for path in (args.first, args.second))
    found = compare.compare(first, second, args.arms)
    differing = compare.differences(first, second, {each.arm for each in found})
    fatal = [each for each in differing if each.fatal]
    if fatal and not args.anyway:
        listed = "\n".join(f"  {each}" for each in fatal)
        raise ValueError(
            f"the files cannot be compared: they were made on\n{listed}\n"
            "Measure both alike, or add --anyway to see the ratios all the same"
        )
    if args.png is not None:
        compare.draw(found, (args.first.name, args.second.name), args.png)
    if args.json:
        return Outcome(json.dumps(compare.to_json(found, differing), indent=2))
    return Outcome(compare.text(found, differing))


def load(path: Path) -> Results:
    """A results file.

    Raises:
      ValueError: it is not there, or none.
    """
    if not path.exists():
        raise ValueError(f"{path} is not there; name a file that --out wrote")
    return Results.load(path)
