"""A campaign on the fake driver: real launches in one step, and a report of all."""

import json
from pathlib import Path

import gpu_campaign
import pytest

from measuring.campaign_steps import STEPS, Step

ROOT = Path(__file__).parents[3]
FUZZ = next(step for step in STEPS if step.name == "fuzz_direct").command


def test_a_fuzzer_is_run_and_left_out_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where steps run there are the tests, but no jaxbw in place of the installed one."""
    workplace = tmp_path / "workplace"
    workplace.mkdir()
    (workplace / "tests").symlink_to(ROOT / "tests")
    monkeypatch.setattr(gpu_campaign, "ROOT", workplace)
    monkeypatch.delenv("PYTHONSAFEPATH")
    command = FUZZ + " --cases 2 --jobs 1"
    steps = [Step("fuzz_direct", "launches", command, 100, "fuzz_direct*.json", ("cuda",))]
    out, send = tmp_path / "out", tmp_path / "send"
    arguments = ["--minutes", "4", "--out", str(out), "--send", str(send)]
    assert gpu_campaign.main(arguments, steps) == 0, (send / "report.txt").read_text()
    (record,) = out.glob("*/h200_fuzz_direct_*.json")
    found = json.loads(record.read_text())
    assert (found["cases"], found["faults"]) == (2, [])
    assert "h200, 4 minutes" in json.loads((send / "report.json").read_text())["about"]
    capsys.readouterr()
    assert gpu_campaign.main(arguments, steps) == 0
    assert capsys.readouterr().out == "0 of 240 s are planned:\n"
