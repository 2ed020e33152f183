"""`python -m jaxbw bench` on a GPU: every arm whose package is installed runs, and is right."""

import importlib.util
from pathlib import Path

import pytest

from jaxbw._src.lab.bench import arms
from jaxbw._src.lab.bench.results import Results
from jaxbw._src.lab.cli.main import main

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


def test_every_arm_that_is_installed(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    shapes = ["1024x1024x1024", "100x132x70"]
    assert main(["bench", "--shapes", *shapes, "--out", str(out)]) == 0
    installed = {arm.name for arm in arms.ARMS if importlib.util.find_spec(arm.package)}
    if "torch" not in installed:
        installed.discard("triton")
    for row in Results.load(out).rows:
        assert {name for name, times in row.arms.items() if times.correct} == installed
        assert all(1 < us < 1000 for us in (times.median for times in row.arms.values()))
        assert row.clocks["clocks.sm"][1] > 0
    assert {"pallas"} <= set(Results.load(out).tuned)
