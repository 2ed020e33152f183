"""What a session says of its machine, with an nvidia-smi that is made up."""

import gc
import os
import time
import warnings
from pathlib import Path

import pytest

from jaxbw._src.lab.bench.environment import Monitor

SMI = """#!/bin/sh
while true; do echo '1980, 3201, 600.5, 40'; echo '1000, 3201, [N/A], 40'; sleep 0.01; done
"""


@pytest.fixture
def _smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("_smi")
def test_what_was_read_meanwhile() -> None:
    start = time.monotonic()
    with Monitor() as monitor:
        while not monitor.since(start):
            assert time.monotonic() - start < 30
            time.sleep(0.01)
    found = monitor.since(start)
    assert (found["clocks.sm"], found["power.draw"]) == ([1980] * 3, [600.5] * 3)
    assert monitor.since(time.monotonic()) == {}


@pytest.mark.usefixtures("_smi")
def test_nothing_is_left_open() -> None:
    """A pipe that was not closed failed the test that happened to run when it was collected."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Monitor():
            pass
        gc.collect()
    assert [str(each.message) for each in caught] == []


def test_without_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with Monitor() as monitor:
        pass
    assert monitor.since(0) == {}
