"""The commands, and how errors are told: with what to type instead."""

import argparse
from collections.abc import Sequence
from typing import Never

from jaxbw.cli import explain

EXAMPLE = "python -m jaxbw explain 4096 4096 4096 --device B200"


class Parser(argparse.ArgumentParser):
    """A parser whose errors end with a line that works."""

    def error(self, message: str) -> Never:
        """Prints what is wrong and what to type instead; exits with status 2."""
        way_out = f"For example: {EXAMPLE}\nAll options: {self.prog} -h"
        self.exit(2, f"{self.prog}: {message}\n{way_out}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    parser = Parser(prog="python -m jaxbw", description="Matrix products for JAX.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser(
        "explain", help=explain.SUMMARY, description=explain.SUMMARY + "."
    )
    explain.add_arguments(command)
    args = parser.parse_args(arguments)
    try:
        print(explain.run(args))
    except (ValueError, TypeError, NotImplementedError) as error:
        command.error(str(error))
    return 0
