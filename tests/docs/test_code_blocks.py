"""Every fenced block of README, CONTRIBUTING and docs/*.md is run, or compared, or checked by name.

    ```python    run on the CPU, all blocks of a page in one namespace.
    ```text      right after a python block: what that block prints, "..." standing for anything;
                 elsewhere a diagram
    ```sh        every line is a make target, an install of extras that there are, a script of the
                 repository, or pytest or python with files that exist; the arguments of
                 `python -m jaxbw` are parsed

The comment `<!-- lower for NAME -->` before a python block marks code for a GPU: the block is
traced as one function and lowered for that device, and must contain a custom call of jaxbw.
"""

import contextlib
import doctest
import io
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import pytest

import jaxbw
from jaxbw._src.lab.cli import main as cli

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OURS = re.compile(r"(?:jaxbw|\.)\[([^\]]*)\]")  # extras
SETTING = re.compile(r"^(?:\w+=\S* )*")  # of the environment, for one command
LOWER = re.compile(r"<!-- lower for (\w+) -->\s*\Z")
without_a_gpu = pytest.mark.skipif(
    "jax.default_backend() != 'cpu'",
    reason="pages show what a machine without a GPU says: set JAX_PLATFORMS=cpu",
)


@dataclass(frozen=True)
class Block:
    page: Path
    language: str
    code: str
    line: int  # of the fence
    device: str | None  # to lower for; None: run here
    between: str  # the text since the block before

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text, end = page.read_text(), 0
    for match in FENCE.finditer(text):
        between = text[end : match.start()]
        marker = LOWER.search(between)
        line = text.count("\n", 0, match.start()) + 1
        device = marker.group(1) if marker else None
        yield Block(page, match.group(1), match.group(2), line, device, between)
        end = match.end()


def run(block: Block, scope: dict[str, Any]) -> str:
    """What the block prints. Its lines stand in tracebacks as lines of its page."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * block.line + block.code, block.page, "exec"), scope)
    return printed.getvalue()


def lower(block: Block, scope: dict[str, Any]) -> str:
    """The program, for a GPU, of all arrays that the block makes."""

    def arrays() -> list[jax.Array]:
        inner = dict(scope)
        run(block, inner)
        return [v for k, v in inner.items() if isinstance(v, jax.Array) and v is not scope.get(k)]

    assert block.device
    with jaxbw.target(block.device):
        text: str = jax.jit(arrays).trace().lower(lowering_platforms=("cuda",)).as_text()
    return text


@without_a_gpu
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_do_what_the_page_says(page: Path) -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    printed: str | None = None
    for block in blocks(page):
        if block.language == "python":
            printed = None
            if block.device:
                assert "jaxbw_gemm" in lower(block, scope), block.place
            else:
                printed = run(block, scope)
        elif block.language == "text" and printed is not None and not block.between.strip():
            same = doctest.OutputChecker().check_output(block.code, printed, doctest.ELLIPSIS)
            assert same, f"{block.place}: printed\n{printed}"
            printed = None


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    kinds = {block.language for page in PAGES for block in blocks(page)}
    assert kinds <= {"python", "text", "sh"}


def test_shell_blocks_name_what_exists() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    for page in PAGES:
        for block in (b for b in blocks(page) if b.language == "sh"):
            for line in block.code.splitlines():
                command, *arguments = shlex.split(SETTING.sub("", line), comments=True)
                if command == "make":
                    assert {a for a in arguments if "=" not in a} <= targets, block.place
                elif "/" in command:
                    assert (ROOT / command).stat().st_mode & 0o100, f"{block.place}: {line}"
                elif command == "pip":
                    assert arguments[0] == "install", f"{block.place}: {line}"
                    assert set(re.findall(r"\w+", "".join(OURS.findall(line)))) <= extras, line
                else:
                    assert command in ("pytest", "python"), f"{block.place}: {line}"
                    if arguments[:2] == ["-m", "jaxbw"]:
                        cli.parser().parse_args(arguments[2:])
                    files = [a for a in arguments if a.endswith(".py") or a.startswith("tests/")]
                    if command == "python" and arguments[0] == "-m" and arguments[1] != "jaxbw":
                        files.append(arguments[1].replace(".", "/") + ".py")
                    assert all((ROOT / file).exists() for file in files), f"{block.place}: {line}"


ERRORS = {error.__name__: error for error in (NotImplementedError, TypeError, ValueError)}
ROWS = re.compile(r"^\| `([^`]*)` (?:on a CPU )?\| (\w+) \|", re.MULTILINE)


@without_a_gpu
def test_the_calls_in_the_tables_of_errors_raise_what_stands_there() -> None:
    page = ROOT / "docs" / "errors.md"
    [setup] = [block for block in blocks(page) if block.language == "python"]
    scope: dict[str, Any] = {}
    run(setup, scope)
    rows = ROWS.findall(page.read_text())
    assert len(rows) > 20
    for call, error in rows:
        with pytest.raises(ERRORS[error]) as raised:
            eval(call, scope)
        assert raised.type is ERRORS[error], call
