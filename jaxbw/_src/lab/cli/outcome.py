"""What a command has to say, and its exit status."""

from typing import NamedTuple


class Outcome(NamedTuple):
    """The text that a command prints, and the status that it exits with."""

    text: str
    status: int = 0
