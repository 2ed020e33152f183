"""`python -m jaxbw model` as a user runs it."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxbw
from jaxbw._src.lab.cli.main import main


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["model", *arguments]) == 0
    return capsys.readouterr().out


def test_it_says_what_is_modelled(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "512", "8192", "5376", "--device", "b200", "--layout", "nt")
    for part in (
        "block 256x224x64, cluster 2x1",
        "  modelled 3",
        "GHz (throttle, normal data), bound by ",
        "1 wave, 98.8 % filled",
        "launch_ns",
        "undecided",
        "Modelled, not measured: no Blackwell GPU has run these kernels.",
    ):
        assert part in text


def test_json_has_interval_and_sensitivities(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(shown(capsys, "8192", "8192", "8192", "--clock", "1.5", "--json"))
    estimate = answer["estimate"]
    assert estimate["low_us"] < estimate["us"] < estimate["high_us"]
    assert estimate["ghz"] == 1.5
    assert estimate["clock"] == "1.500 GHz (fixed, normal data)"
    assert {s["confidence"] for s in estimate["sensitivity"]} == {"L"}
    assert len(answer["candidates"]) > 1
    assert all(0 <= part <= 1 for part in answer["busy"].values())


def test_a_small_matmul_is_bound_by_what_is_fixed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "bound by launch, set-up, " in shown(capsys, "1024", "1024", "512")
    assert "bound by tensor cores" in shown(capsys, "8192", "8192", "8192")


def test_trace_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws it, and is missing")
    trace, png = tmp_path / "out.json", tmp_path / "out.png"
    shown(capsys, "1024", "1024", "512", "--trace", str(trace), "--png", str(png))
    events = json.loads(trace.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"load", "multiply", "epilogue 0", "tensor cores", "L2"} <= names
    bars = [e for e in events if e["ph"] == "X"]
    assert {"load", "MMA", "TMEM load", "store", "waits"} <= {e["name"] for e in bars}
    assert all(e["dur"] >= 0 for e in bars)
    assert png.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("4096", "4096", "4096", "--device", "H200"), "'H200' is not modelled; type one of B200"),
        (("4096", "4096", "4096", "--clock", "15"), "'15' is no clock; type GHz, from 0.2 to 3"),
        (("0", "4096", "4096"), "'0' is no size; type a whole number from 1 on"),
        (("16", "4096", "4096"), "are not modelled"),
        (("64", "64", "64", "--groups", "4", "--clock", "1.5"), "--clock is for matmuls without"),
        (("64", "60", "64", "--groups", "4"), "no kernel serves this matmul: rhs has rows of 120"),
        (("64", "64", "64", "--device", "A100"), "'A100' is not known; type one of B200"),
    ],
)
def test_errors_say_what_to_type(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["model", *arguments])
    error = capsys.readouterr().err
    assert message in error
    assert "For example: python -m jaxbw model" in error


def test_a_grouped_matmul_has_tiles_of_its_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("4096", "14336", "4096", "--groups", "8", "--device", "h100")
    text = shown(capsys, *given, "--group-sizes", "zipf", "--top", "2")
    for part in (
        "ragged bf16[1,4096,4096] @ bf16[1,8,4096,14336] -> bf16[1,4096,14336] on H100",
        "zipf: 161, 324, 1571 rows, least, median, most",
        "2 to 13 tiles of rows in each of 8 groups that have rows, 2016 tiles in 15.27 waves",
        "11.1 % of them empty",
        "128x256, 15.27 waves",
        "Modelled, not measured",
    ):
        assert part in text
    answer = json.loads(shown(capsys, *given, "--layout", "tn", "--json"))
    assert answer["sizes"] == [512] * 8
    assert answer["time"]["of_group"] == [8, 8]
    assert answer["time"]["total_us"] == answer["candidates"][0]["us"]


# --- jaxbw.explain


def explained(m: int, n: int, k: int, **options: Any) -> Any:
    x, w = jax.ShapeDtypeStruct((m, k), jnp.bfloat16), jax.ShapeDtypeStruct((k, n), jnp.bfloat16)
    return jaxbw.explain(x, w, **options)


def test_explain_has_the_estimate_on_blackwell_only() -> None:
    choice = explained(8192, 8192, 8192, device="B200")
    assert choice.estimate.low_us < choice.estimate.us < choice.estimate.high_us
    assert "pipeline model  modelled " in str(choice)
    assert explained(4096, 4096, 4096, device="H200").estimate is None
    assert explained(4096, 4096, 4096, device="B200").estimate is None  # parts of K
    assert explained(16, 4096, 4096, device="B200").estimate is None  # exchanged operands
    assert explained(8192, 8192, 8192, device="B200", activation="relu").estimate is None


def test_explain_and_the_command_agree(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(shown(capsys, "8192", "8192", "8192", "--json"))
    estimate = explained(8192, 8192, 8192, device="B200").estimate
    assert estimate.us == pytest.approx(answer["estimate"]["us"], rel=0.03)
