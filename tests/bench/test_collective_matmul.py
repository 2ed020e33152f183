"""benchmarks/collective_matmul.py: it runs on the CPU's devices, and tells what is hidden."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import collective_matmul
import jax
import jax.numpy as jnp
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
        (form, backward) for backward in (False, True) for form in ("gather", "scatter")
    ]
    for case in cases:
        assert list(case["arms"]) == list(collective_matmul.ARMS)
        assert all(arm["error"] <= 1 for arm in case["arms"].values())
        assert set(case["arms"]["ring"]["collectives"]) == {"collective-permute"}
        assert "collective-permute" not in case["arms"]["collective and product"]["collectives"]
        default = case["arms"]["jaxbw"]["collectives"]
        assert default == case["arms"]["collective and product"]["collectives"]
        options = {name: set(arm["options"]) for name, arm in case["arms"].items()}
        assert options["XLA as shipped"] < options["jaxbw"] < options["XLA windowed"]
        assert options["XLA windowed"] < options["XLA windowed, pipelined"]


def test_some_arms_without_profiles(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    given = ["--tiny", "--devices", "2", "--no-profile", "--out", str(out), "--forms", "scatter"]
    given.append("--arms")
    names = ["jaxbw", "collective and product"]
    printed = subprocess.run(
        [sys.executable, str(SCRIPT), *given, *names], capture_output=True, check=True, text=True
    ).stdout
    assert "times as fast" in printed
    assert "hidden" not in printed
    for case in json.loads(out.read_text())["cases"]:
        assert case["form"] == "scatter"
        assert list(case["arms"]) == names
        assert all("devices" not in row for row in case["arms"].values())
    refused = subprocess.run(
        [sys.executable, str(SCRIPT), *given, "ring"], capture_output=True, text=True
    )
    assert "jaxbw, which is not among them" in refused.stderr


def test_forward_cases_come_first() -> None:
    found = list(collective_matmul.cases(collective_matmul.SHAPES[:2]))
    assert [case.backward for case in found] == [False] * 4 + [True] * 4
    assert [case.m for case in found] == [8192, 8192, 4096, 4096] * 2


def refused_by_xla(mesh: jax.sharding.Mesh, form: str) -> collective_matmul.Matmul:
    """A matmul that can be lowered, and not compiled: nobody has such a custom call."""

    def matmul(x: Any, w: Any) -> Any:
        out = jax.eval_shape(jnp.matmul, x, w)
        call: Any = jax.ffi.ffi_call("a_call_of_nobody", out)
        return call(x, w)

    return matmul


def measured(monkeypatch: pytest.MonkeyPatch, folder: Path, **arms: Any) -> tuple[Any, Any]:
    """A small case of these arms, and their rows."""
    monkeypatch.setattr(collective_matmul, "ARMS", arms)
    mesh = jax.sharding.Mesh(jax.devices()[:2], (collective_matmul.AXIS,))
    case = collective_matmul.Case("gather", False, 16, 32, 64)
    return case, collective_matmul.measure(case, mesh, 2, 1, folder)


def test_what_xla_refuses_is_noted_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On H200s XLA could not compile its own windowed einsum of 8192^3, scattering, backward."""
    arm = collective_matmul.Arm
    case, rows = measured(
        monkeypatch,
        tmp_path,
        jaxbw=arm(collective_matmul.ours(None, None), {}, is_ours=True),
        windowed=arm(refused_by_xla, {}),
        shipped=arm(collective_matmul.partitioned, {}),
    )
    assert list(rows) == ["jaxbw", "windowed", "shipped"]
    assert set(rows["windowed"]) == {"options", "refused"}
    reason = rows["windowed"]["refused"]
    assert "a_call_of_nobody" in reason
    assert "\n" not in reason
    assert len(rows["jaxbw"]["rounds_us"]) == len(rows["shipped"]["rounds_us"]) == 2
    assert rows["shipped"]["speedup_of_jaxbw"]["value"] > 0
    text = collective_matmul.line(case, rows).splitlines()
    assert [f"refused: {reason}" in each for each in text] == [False, False, True, False]


def test_our_own_failure_stops_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ours = collective_matmul.Arm(refused_by_xla, {}, is_ours=True)
    with pytest.raises(jax.errors.JaxRuntimeError, match="a_call_of_nobody"):
        measured(monkeypatch, tmp_path, jaxbw=ours)


def wrong(mesh: jax.sharding.Mesh, form: str) -> collective_matmul.Matmul:
    """As XLA's windowed einsum was on four H200s; one of nothing but nan is wrong, too."""
    return lambda x, w: (x @ w).at[0].set(jnp.nan)


def test_a_wrong_result_is_no_peer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arm = collective_matmul.Arm
    case, rows = measured(
        monkeypatch,
        tmp_path,
        jaxbw=arm(collective_matmul.ours(None, None), {}, is_ours=True),
        windowed=arm(wrong, {}),
        shipped=arm(collective_matmul.partitioned, {}),
    )
    assert "speedup_of_jaxbw" not in rows["windowed"]
    assert rows["shipped"]["speedup_of_jaxbw"]["value"] > 0
    text = collective_matmul.line(case, rows).splitlines()
    assert ["wrong, and no peer" in each for each in text] == [False, False, True, False]
    assert ["times as fast" in each for each in text] == [False, True, False, True]


def test_our_own_wrong_result_stops_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ours = collective_matmul.Arm(wrong, {}, is_ours=True)
    with pytest.raises(collective_matmul.WrongResultError, match=r"jaxbw, Case.*: error nan"):
        measured(monkeypatch, tmp_path, jaxbw=ours)


def test_who_is_ours() -> None:
    """A refusal of these is no note."""
    ours = {name for name, arm in collective_matmul.ARMS.items() if arm.is_ours}
    assert ours == {
        "jaxbw",
        "one collective",
        "one collective, static",
        "one collective, dynamic",
        "ring",
        "ring, static",
        "ring, matmuls by XLA",
    }


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


def test_what_hides_the_traffic() -> None:
    """Per call, of two; a copy between GPUs is traffic, and what ran alone hides nothing."""
    events = [
        ("ncclDevKernel_SendRecv", (0.0, 4.0)),
        ("MemcpyP2P", (10.0, 14.0)),
        ("jaxbw_sm90_bf16_nn_64x256", (2.0, 12.0)),
        ("loop_add", (3.0, 4.0)),
        ("loop_multiply", (20.0, 30.0)),
    ]
    assert collective_matmul.overlap(events, 2) == {
        "traffic_us": 4.0,
        "hidden_us": 2.0,
        "work_us": 10.5,
        "hidden_by_us": {"jaxbw_sm90_bf16_nn_64x256": 2.0, "loop_add": 0.5},
    }


def test_an_error_is_a_part_of_what_rounding_explains() -> None:
    mesh = jax.sharding.Mesh(jax.devices()[:2], (collective_matmul.AXIS,))
    case = collective_matmul.Case("gather", False, 96, 80, 64)
    x, w = collective_matmul.operands(case, mesh)
    oracle = collective_matmul.Oracle(case, [x, w])
    right = jnp.matmul(x, w)
    assert 0 < oracle.error(right) <= 1
    assert oracle.error(right.at[:, 40:].mul(1.5)) > 1
