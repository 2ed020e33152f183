"""benchmarks/collective_matmul.py: it runs on the CPU's devices, and tells what is hidden."""

import json
import subprocess
import sys
from pathlib import Path

import collective_matmul
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "collective_matmul.py"


def test_every_arm_of_every_case_is_right(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    subprocess.run(
        [sys.executable, str(SCRIPT), "--tiny", "--devices", "2", "--out", str(out)],
        capture_output=True,
        check=True,
    )
    cases = json.loads(out.read_text())["cases"]
    assert [(case["form"], case["backward"]) for case in cases] == [
        (form, backward) for form in ("gather", "scatter") for backward in (False, True)
    ]
    for case in cases:
        assert list(case["arms"]) == list(collective_matmul.ARMS)
        assert all(arm["error"] <= 1 for arm in case["arms"].values())
        assert set(case["arms"]["jaxbw"]["collectives"]) == {"collective-permute"}
        assert "collective-permute" not in case["arms"]["collective and product"]["collectives"]
        options = {name: set(arm["options"]) for name, arm in case["arms"].items()}
        assert options["XLA as shipped"] < options["jaxbw"] < options["XLA windowed"]
        assert options["XLA windowed"] < options["XLA windowed, pipelined"]


@pytest.mark.parametrize(
    ("traffic", "work", "wanted"),
    [
        ([], [(0, 1)], 0),
        ([(0, 4)], [], 0),
        ([(0, 4)], [(4, 5)], 0),
        ([(0, 4)], [(1, 3), (2, 6)], 3),
        ([(0, 4), (6, 8)], [(7, 9), (1, 2)], 2),
    ],
)
def test_hidden(
    traffic: list[tuple[float, float]], work: list[tuple[float, float]], wanted: float
) -> None:
    assert collective_matmul.hidden(traffic, work) == wanted
