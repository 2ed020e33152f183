"""That pytest finds every test."""

from fnmatch import fnmatch
from pathlib import Path

import pytest


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
