"""That pytest finds every test, and the fast tier each of its own."""

from fnmatch import fnmatch
from pathlib import Path

import pytest

from .conftest import FAST, REACHED_BY


def test_no_folder_is_passed_by(pytestconfig: pytest.Config) -> None:
    """pytest passes by folders named build unless told otherwise: CI had never run tests/build."""
    tests = Path(__file__).parent
    folders = {file.parent.relative_to(tests) for file in tests.rglob("test_*.py")}
    patterns = pytestconfig.getini("norecursedirs")
    passed_by = [
        folder
        for folder in folders
        if any(fnmatch(part, pattern) for part in folder.parts for pattern in patterns)
    ]
    assert passed_by == []


@pytest.mark.parametrize("tier", [FAST, REACHED_BY], ids=["fast", "other Python"])
def test_every_name_of_a_tier_is_that_of_a_test(tier: dict[str, tuple[str, ...]]) -> None:
    tests = Path(__file__).parent
    for file, names in tier.items():
        text = (tests / file).read_text()
        for name in names:
            assert f"def {name.partition('[')[0]}" in text, f"{file}: {name}"


def test_the_fast_tier_is_there_in_every_folder() -> None:
    rooms = {"bench", "build", "cli", "docs", "emulator", "flax", "jax", "model", "native"}
    assert {file.partition("/")[0] for file in FAST} >= {*rooms, "selection"}
