"""benchmarks/: commands, each by itself, over what they share in benchmarks/measuring."""

import ast
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.glob("*.py"))
LIBRARY = sorted((BENCHMARKS / "measuring").glob("*.py"))


def imported(path: Path) -> set[str]:
    """The first words of what a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return {name.split(".")[0] for name in found}


def test_nothing_imports_a_script() -> None:
    scripts = {"benchmarks", *(path.stem for path in SCRIPTS)}
    assert {path.name: names for path in LIBRARY if (names := imported(path) & scripts)} == {}
    assert {path.name: names for path in SCRIPTS if (names := imported(path) & scripts)} == {}
    assert any("measuring" in imported(path) for path in SCRIPTS)


def test_what_is_no_command_stands_in_the_library() -> None:
    entry = '__name__ == "__main__"'
    commands = [path for path in [*SCRIPTS, *LIBRARY] if entry in path.read_text()]
    assert commands == SCRIPTS
