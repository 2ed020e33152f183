"""The runner of transformed matmuls: here its slices, on the CPU, and a sample on the GPU."""

import json
from pathlib import Path

import pytest

from . import campaign
from . import property as transformed


def test_slices_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        transformed,
        "attempt",
        lambda seed, number: campaign.Outcome(number, "x" * (number == 3)),
    )
    monkeypatch.setattr(campaign, "run", lambda attempt, numbers, **_: map(attempt, numbers))
    out = tmp_path / "property.json"
    wanted = ["--cases", "200", "--out", str(out)]
    assert transformed.main(["--slice", "1/2", *wanted]) == 0
    assert json.loads(out.read_text())["cases"] == 100
    assert transformed.main(["--slice", "1/2", *wanted]) == 0
    assert transformed.main(["--slice", "2/2", *wanted]) == 1
    report = json.loads(out.read_text())
    assert report["cases"] == 200
    (fault,) = report["faults"]
    assert fault["reproduce"].endswith("--seed 1 --only 3")


def test_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformed, "TOGETHER", 3)
    assert transformed.attempt(1, 0).fault == ""


@pytest.mark.gpu
def test_a_sample() -> None:
    assert transformed.attempt(0, 0).fault == ""
