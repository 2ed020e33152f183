"""The commands, and how errors are told: with what to type instead."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, Never

from jaxbw._src.lab.cli import bench, doctor, explain, model, profile, subcommands, tune

COMMANDS = {
    "bench": bench,
    "doctor": doctor,
    "explain": explain,
    "model": model,
    "profile": profile,
    "tune": tune,
}


class Parser(argparse.ArgumentParser):
    """A parser whose help has examples, and whose errors end with a line that works."""

    def __init__(self, *, examples: Sequence[str] = explain.EXAMPLES, **options: Any) -> None:
        options["epilog"] = "\n".join(["examples:", *(f"  {example}" for example in examples)])
        options["formatter_class"] = argparse.RawDescriptionHelpFormatter
        super().__init__(**options)
        self._example = examples[0]

    def error(self, message: str) -> Never:
        """Prints what is wrong and what to type instead; exits with status 2."""
        way_out = f"For example: {self._example}\nAll options: {self.prog} -h"
        self.exit(2, f"{self.prog}: {message}\n{way_out}\n")


def parser() -> Parser:
    """The parser of all commands; `error` in what it returns is that of the command."""
    found = Parser(prog="python -m jaxbw", description="Matmuls for JAX.")
    commands = found.add_subparsers(dest="command", required=True, metavar="COMMAND")
    subcommands.add(commands, COMMANDS)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    args = parser().parse_args(arguments)
    try:
        outcome = args.run(args)
    except (ValueError, TypeError, NotImplementedError, OSError) as error:
        args.error(str(error))
    try:
        print(outcome.text, flush=True)
    except BrokenPipeError:  # of `| head`, which has read enough; Python would complain at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return int(outcome.status)
