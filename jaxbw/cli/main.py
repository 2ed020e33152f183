"""The commands, and how errors are told: with what to type instead."""

import argparse
from collections.abc import Sequence
from typing import Never

from jaxbw.cli import bench, explain

COMMANDS = {"bench": bench, "explain": explain}
EXAMPLES = {
    "bench": "python -m jaxbw bench --group cube --out results.json",
    "explain": "python -m jaxbw explain 4096 4096 4096 --device B200",
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors end with a line that works."""

    def error(self, message: str) -> Never:
        """Prints what is wrong and what to type instead; exits with status 2."""
        command = self.prog.split()[-1]
        example = EXAMPLES.get(command, EXAMPLES["explain"])
        way_out = f"For example: {example}\nAll options: {self.prog} -h"
        self.exit(2, f"{self.prog}: {message}\n{way_out}\n")


def parser() -> Parser:
    """The parser of all commands; `error` in what it returns is that of the command."""
    found = Parser(prog="python -m jaxbw", description="Matrix products for JAX.")
    commands = found.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        each = commands.add_parser(name, help=command.SUMMARY, description=command.SUMMARY + ".")
        command.add_arguments(each)
        each.set_defaults(run=command.run, error=each.error)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    args = parser().parse_args(arguments)
    try:
        print(args.run(args))
    except (ValueError, TypeError, NotImplementedError) as error:
        args.error(str(error))
    return 0
