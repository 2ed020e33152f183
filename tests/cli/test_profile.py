"""`python -m jaxbw profile` as a user runs it, in the emulator."""

import json
from pathlib import Path

import jax
import pytest

from jaxbw._src.lab.cli.main import main
from jaxbw._src.lab.profiling.profile import MOMENTS

SIZES = ("128", "128", "256")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["profile", *SIZES, *arguments]) == 0
    return capsys.readouterr().out


def test_it_writes_a_trace_and_shows_a_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    tile = ("--config", "block_m=128", "block_n=64")  # one whose results TMA stores
    text = shown(capsys, "--emulate", "--out", str(path), "--ctas", "0", *tile)
    for part in (*MOMENTS, "jaxbw_sm90_plain_bf16_nn_", "order, not time", f"written: {path}"):
        assert part in text
    trace = json.loads(path.read_text())
    assert {event["pid"] for event in trace["traceEvents"]} == {0}
    assert trace["otherData"]["time"] == "emulated steps: order, not time"


def test_family_layout_and_configuration_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--layout", "nt", "--batch", "2", "--dtype", "f16", "--sms", "1", "--json")
    given = ("--config", "block_m=128", "block_n=64", "cta_group=1")
    answer = json.loads(shown(capsys, "--emulate", "sm100", *options, *given))
    assert answer["matmul"] == "f16[2,128,256] @ f16[2,128,256]^T -> f16[2,128,128]"
    assert "block 128x64x" in answer["config"]
    assert (answer["unit"], answer["overhead"]) == ("steps", None)
    assert list(answer["moments"]) == list(MOMENTS)
    for found in answer["moments"].values():
        assert found["least"] <= found["median"] <= found["most"]


def test_a_grouped_matmul_has_sizes_of_a_kind(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--groups", "4", "--group-sizes", "zipf", "--layout", "tn", "--json")
    answer = json.loads(shown(capsys, "--emulate", *given))
    assert answer["matmul"] == "ragged bf16[1,256,128]^T @ bf16[1,256,128] -> bf16[1,4,128,128]"
    assert answer["kernel"] == "jaxbw_sm90_grouped_bf16_tn_64x128"
    with pytest.raises(SystemExit):
        main(["profile", *SIZES, "--emulate", "--groups", "4", "--batch", "2"])
    assert "--batch is not for a grouped matmul" in capsys.readouterr().err


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="there is a GPU")
def test_without_a_gpu_it_says_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["profile", *SIZES])
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert 'implementation="emulator-sm90" on a machine without a GPU' in told
    assert "For example: python -m jaxbw profile 256 256 512 --emulate --out trace.json" in told
