"""benchmarks/sharded_training.py on emulated devices: what it computes, not how fast."""

import json
from pathlib import Path

import pytest

pytest.importorskip("flax", reason="the model is of Flax, which is missing")

import sharded_training

SMALL = ["--width", "64", "--hidden", "128", "--batch", "64", "--depth", "1", "--steps", "2"]


def test_layouts_agree_and_results_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.json"
    options = ["--devices", "1", "2", "--implementation", "emulator", "--out", str(out)]
    sharded_training.main([*SMALL, *options])
    assert capsys.readouterr().out.count("the bits of one device") == 4
    written = json.loads(out.read_text())
    assert "say nothing" in written["environment"]["note"]
    for rows in written["results"].values():
        assert [row["devices"] for row in rows] == [1, 2]
        # Two layers forward, and backward all matmuls but that for the inputs: the rate counted it.
        assert {row["kernels"] for row in rows} == {5}
        for row in rows:
            operations = row["tflops"] * 1e12 * row["median_s"]
            assert operations == pytest.approx(5 * 2 * 64 * 64 * 128, rel=1e-12)
        assert all(row["loss_difference"] < 2.0**-6 for row in rows)


def test_a_wrong_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = sharded_training.exact_gradient("data", 1)
    wanted[1] = wanted[1] + 1
    with pytest.raises(AssertionError, match="tensor-parallel on 2 devices"):
        sharded_training.check("tensor", 2, wanted)


def test_more_devices_than_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        sharded_training.main([*SMALL, "--devices", "1024"])
    assert "there are 8 devices" in capsys.readouterr().err
