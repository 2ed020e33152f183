"""The help of every command, and the examples in it."""

import shlex
import subprocess
import sys

import pytest

from jaxbw._src.lab.cli import bench_model, compare
from jaxbw._src.lab.cli.main import COMMANDS, main, parser

BELOW = {"bench compare": compare, "bench model": bench_model}
EXAMPLES = [line for each in (COMMANDS | BELOW).values() for line in each.EXAMPLES]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_what_can_be_typed(example: str) -> None:
    python, *arguments = shlex.split(example)
    assert (python, *arguments[:2]) == ("python", "-m", "jaxbw")
    parser().parse_args(arguments[2:])


@pytest.mark.parametrize("command", [*COMMANDS, *BELOW])
def test_the_help_of_a_command_has_examples(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "-h"])
    assert end.value.code == 0
    told = capsys.readouterr().out
    assert f"examples:\n  python -m jaxbw {command}" in told


def test_the_help_lists_the_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "jaxbw", "-h"], capture_output=True, text=True, check=True
    )
    for name, command in COMMANDS.items():
        assert name in done.stdout
        assert command.SUMMARY[:40] in " ".join(done.stdout.split())


def test_a_reader_that_has_read_enough_ends_it_quietly() -> None:
    """`python -m jaxbw explain ... | head -1` ended with a traceback."""
    python = shlex.quote(sys.executable)
    command = f"{{ {python} -P -m jaxbw explain 512 512 512 --device H200; echo $? >&2; }} | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == "0\n"
