"""How a command is put below another one."""

from collections.abc import Mapping
from typing import Any


def add(parsers: Any, commands: Mapping[str, Any]) -> None:
    """Adds commands, each a module with SUMMARY, EXAMPLES, `add_arguments` and `run`.

    Args:
      parsers: what `add_subparsers` of a `main.Parser` gave.
    """
    for name, command in commands.items():
        each = parsers.add_parser(
            name,
            help=command.SUMMARY,
            description=command.SUMMARY + ".",
            examples=command.EXAMPLES,
        )
        command.add_arguments(each)
        each.set_defaults(run=command.run, error=each.error)
