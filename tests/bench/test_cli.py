"""`python -m jaxbw bench` as a user runs it, with arms and a timer that need no GPU."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxbw._src.lab.bench import arms, inputs, measure, share
from jaxbw._src.lab.bench.arms.arm import Arm
from jaxbw._src.lab.bench.results import Results
from jaxbw._src.lab.bench.session import Plan
from jaxbw._src.lab.cli import bench
from jaxbw._src.lab.cli.main import main

from .fakes import FakeArm, FakeTimer

SHAPES = ("64x96x32", "40x24x72")


@pytest.fixture
def competitors(monkeypatch: pytest.MonkeyPatch) -> dict[str, Arm]:
    """Who competes in the place of the arms."""
    found: dict[str, Arm] = {
        "jaxbw": FakeArm("jaxbw", candidate_us={"": 100.0}),
        "xla": FakeArm("xla", candidate_us={"": 150.0}),
        "pallas": FakeArm(
            "pallas",
            candidate_us={"large": 140.0, "small": 125.0, "huge": 1.0},
            variation_us={"small, other order": 120.0},
            fails="huge",
        ),
        "torch": FakeArm("torch", candidate_us={"": 90.0}, refuses="torch is not installed"),
        "wrong": FakeArm("wrong", candidate_us={"": 50.0}, off_by=1.0),
    }
    monkeypatch.setattr(arms, "ARMS", tuple(found.values()))
    monkeypatch.setattr(bench, "Cupti", FakeTimer)
    monkeypatch.setattr(inputs, "MOST_SETS", 2)
    return found


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    assert main(["bench", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    with pytest.raises(SystemExit) as end:
        main(["bench", *map(str, arguments)])
    assert end.value.code == 2
    return capsys.readouterr().err


@pytest.mark.usefixtures("competitors")
def test_the_best_peer_is_the_fastest_that_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.json"
    told = run(capsys, "--shapes", *SHAPES, "--out", out, "--note", "a trial")
    rows = Results.load(out).rows
    assert [str(row.case) for row in rows] == [f"{shape} nn bfloat16" for shape in SHAPES]
    for row in rows:
        assert row.best_peer == "pallas"
        assert not row.arms["wrong"].correct
        assert row.arms["xla"].relative_error < 3e-3
        assert row.absent == {"torch": "torch is not installed"}
        assert len(row.arms["jaxbw"].rounds) == bench.FEWEST_ROUNDS
        speedup = row.against("pallas")
        assert speedup is not None
        assert 1.18 < speedup.low < speedup.value < speedup.high < 1.22
    assert "[2/2] 40x24x72 nn" in told
    assert "torch is absent: torch is not installed (2 of the rows)" in told
    assert "wrong is wrong for 64x96x32 nn bfloat16: relative error" in told
    assert "other  burst     2  1." in told


@pytest.mark.usefixtures("competitors")
def test_a_results_file_says_how_to_repeat_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.json"
    run(capsys, "--shapes", SHAPES[0], "--out", out, "--seed", 3, "--note", "a trial")
    (session,) = json.loads(out.read_text())["sessions"].values()
    assert session["command"].startswith("python -m jaxbw")
    assert session["seed"] == 3
    assert session["note"] == "a trial"
    assert {"jax", "jaxlib", "numpy"} <= session["versions"].keys()
    assert {"date", "commit", "gpu", "python"} <= session.keys()


def test_a_peer_is_tuned_once(
    competitors: dict[str, Arm], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The best configuration is stored, and taken from there by this file and by others."""
    out, other = tmp_path / "results.json", tmp_path / "other.json"
    pallas = competitors["pallas"]
    assert isinstance(pallas, FakeArm)
    run(capsys, "--shapes", SHAPES[0], "--out", out)
    assert sorted(pallas.prepared) == ["large", "small", "small, other order"]
    (found,) = Results.load(out).tuned["pallas"].values()
    assert found["config"] == {"tile": "small, other order"}
    assert len(found["tried"]) == 3
    pallas.prepared.clear()
    run(capsys, "--shapes", SHAPES[0], "--out", out, "--sustained")
    run(capsys, "--shapes", SHAPES[0], "--out", other, "--tuned", out)
    assert pallas.prepared == ["small, other order"] * 2


@pytest.mark.usefixtures("competitors")
def test_a_slice_stops_in_time_and_the_next_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.json"
    arguments = ("--shapes", *SHAPES, "--out", out)
    assert "2 cases are left. The same command" in run(capsys, *arguments, "--budget", 0)
    assert not out.exists()
    run(capsys, "--shapes", SHAPES[0], "--out", out)
    first = Results.load(out).rows[0]
    assert "[1/1] 40x24x72" in run(capsys, *arguments)
    assert Results.load(out).rows[0] == first
    assert "[" not in run(capsys, *arguments).splitlines()[0]


@pytest.mark.usefixtures("competitors")
def test_files_are_merged_and_shown_without_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [tmp_path / "0.json", tmp_path / "1.json"]
    for part, shape in zip(parts, SHAPES, strict=True):
        run(capsys, "--shapes", shape, "--out", part)
    monkeypatch.delattr(bench, "Cupti")
    out, pictures = tmp_path / "all.json", tmp_path / "pictures"
    told = run(capsys, "--merge", *parts, "--out", out)
    assert len(Results.load(out).rows) == 2
    assert set(Results.load(out).tuned["pallas"]) == {f"{shape} nn bfloat16" for shape in SHAPES}
    assert run(capsys, "--report", "--out", out, "--plots", pictures) == told
    for name in ("speed_burst.png", "speedup_burst.png"):
        assert (pictures / name).read_bytes().startswith(b"\x89PNG")


class InTurn:
    """Stands for a process of share.py; number 1 dies behind its first case."""

    def __init__(self, gpu: str, measure: share.Measure, plan: Plan, found: Results) -> None:
        self.exitcode = -11 if gpu == "1" else 0
        cases = plan.cases[:1] if self.exitcode else plan.cases
        measure(dataclasses.replace(plan, cases=cases), found)

    def join(self) -> None:
        """Nothing is left to do."""


@pytest.mark.usefixtures("competitors")
def test_gpus_share_the_cases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "visible", lambda: ["0", "1", "2"])
    monkeypatch.setattr(share, "_start", InTurn)
    out, shapes = tmp_path / "results.json", ["8x8x8", "48x8x8", "24x8x8", "32x8x8", "16x8x8"]
    arguments = ["--shapes", *shapes, "--gpus", "2", "--out", str(out)]
    run(capsys, "--shapes", "24x8x8", "--out", out)
    assert main(["bench", *arguments]) == 1
    told = capsys.readouterr().out
    assert "the process of GPU 1 ended with exit code -11" in told
    assert "1 cases are left" in told
    # Of the sizes that were missing each GPU had every other one; the smallest is left.
    assert [row.case.m for row in Results.load(out).rows] == [48, 24, 32, 16]
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
    assert len(Results.load(out).sessions) == 3
    assert "torch is absent: torch is not installed (3 of the rows)" in told
    assert "[1/1] 8x8x8" in run(capsys, *arguments)
    assert [row.case.m for row in Results.load(out).rows] == [8, 48, 24, 32, 16]
    assert "--gpus 4: there are 3" in refused(capsys, "--gpus", 4, "--out", out)


@pytest.mark.usefixtures("competitors")
def test_what_a_killed_session_left_is_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "visible", lambda: ["0", "2"])
    monkeypatch.setattr(share, "_start", InTurn)
    out, part = tmp_path / "results.json", tmp_path / "results.json.parts" / "2.json"
    part.parent.mkdir()
    run(capsys, "--shapes", SHAPES[0], "--out", part)
    (left,) = Results.load(part).rows
    told = run(capsys, "--shapes", *SHAPES, "--gpus", "2", "--out", out)
    assert "[1/1] 40x24x72" in told
    rows = Results.load(out).rows
    assert rows[0] == left
    assert [row.case.m for row in rows] == [64, 40]
    assert not part.parent.exists()


@pytest.mark.usefixtures("competitors")
def test_a_case_that_fails_is_named_and_the_others_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_once(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setitem(measure.MODES, "burst", measure.bursts)
        raise RuntimeError("CUPTI saw 5 kernels in 4 calls")

    monkeypatch.setitem(measure.MODES, "burst", fails_once)
    out = tmp_path / "results.json"
    told = run(capsys, "--shapes", *SHAPES, "--out", out)
    assert "64x96x32 nn bfloat16: RuntimeError: CUPTI saw 5 kernels in 4 calls; the same" in told
    assert [row.case.m for row in Results.load(out).rows] == [40]


@pytest.mark.usefixtures("competitors")
def test_errors_say_what_to_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.json"
    for arguments, part in (
        (("--shapes", "64x64"), "type three sizes, as in 4096x4096x4096"),
        (("--shapes", "0x64x64"), "type three sizes"),
        (("--rounds", "3"), "type 6 or more"),
        (("--group", "cubes"), "invalid choice"),
        (("--epilogue", "swiglu", "--layouts", "nt"), "leave --layouts out"),
        (("--report",), "measure first, without --report"),
        (("--merge", tmp_path / "none.json"), "name a file that --out wrote"),
    ):
        told = refused(capsys, *arguments, "--out", out)
        assert part in told
        assert "python -m jaxbw bench --group cube --out results.json" in told
    out.write_text("{}")
    assert "is no results file" in refused(capsys, "--report", "--out", out)


def test_processes_that_see_no_gpu_say_so(tmp_path: Path) -> None:
    """They are started, with all that they need; that there are GPUs is made up."""
    command = [sys.executable, "-m", "jaxbw", "bench", "--group", "cube", "--gpus", "2"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "results.json")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"JAX_PLATFORMS": "cpu", "PATH": "", "CUDA_VISIBLE_DEVICES": "3,5"},
    )
    assert done.returncode == 1
    assert done.stderr.count("there is no GPU that JAX can use") == 2
    for gpu in (3, 5):
        assert f"the process of GPU {gpu} ended with exit code 1" in done.stdout
    assert "4 cases are left" in done.stdout


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jaxbw", "bench", "--out", str(tmp_path / "results.json")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,  # where no source tree stands in for the installed package
        env={"JAX_PLATFORMS": "cpu", "PATH": ""},
    )
    assert done.returncode == 2
    assert "there is no GPU that JAX can use" in done.stderr
