"""The runner of the GPU tests, with a pytest that is made up. Needs no GPU."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxbw import _native

from . import environment, run_all


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was run, on a machine of four GPUs; what needs two GPUs fails."""
    found: list[dict[str, Any]] = []

    def run(command: list[str], **options: Any) -> Any:
        if "pytest" not in command:
            return subprocess.CompletedProcess(command, 0, "version 1")
        marks = command[command.index("-m", 3) + 1]
        found.append({"marks": marks, "command": command, "env": options["env"]})
        failed = int(marks == "gpus")
        return subprocess.CompletedProcess(command, failed, f"ran {marks}\n", f"why {marks}\n")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(_native, "devices", lambda: [None] * 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return found


def test_every_mark_is_run_and_a_failure_is_told(
    started: list[dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "tests.txt"
    assert run_all.main(["--out", str(out)]) == 1
    assert [each["marks"] for each in started] == ["gpu and not alone", "gpu and alone", "gpus"]
    workers = [each["command"][-3] for each in started[:2]]
    assert workers == ["16", "4"]
    assert [each["env"].get("JAXBW_TEST_GPUS") for each in started] == ["0,1,2,3", "0,1,2,3", None]
    said = out.read_text()
    assert all(f"ran {each['marks']}" in said for each in started)
    assert [f"why {each['marks']}" in said for each in started] == [False, False, True]
    assert "commit: " in said


def test_one_gpu(started: list[dict[str, Any]], tmp_path: Path) -> None:
    """Here, all that is run succeeds."""
    assert run_all.main(["--gpus", "1", "--out", str(tmp_path / "tests.txt")]) == 0
    assert [each["env"]["CUDA_VISIBLE_DEVICES"] for each in started] == ["0", "0"]


def test_only_visible_gpus_are_used(
    started: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    out = ["--out", str(tmp_path / "tests.txt")]
    assert run_all.main(out) == 1
    assert started[0]["env"]["JAXBW_TEST_GPUS"] == "5,7"
    with pytest.raises(SystemExit):
        run_all.main(["--gpus", "3", *out])


@pytest.mark.parametrize(("worker", "gpu"), [("gw0", "5"), ("gw1", "7"), ("gw12", "5")])
def test_a_worker_sees_one_gpu(worker: str, gpu: str) -> None:
    code = "import os, tests.conftest; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    variables = {"JAXBW_TEST_GPUS": "5,7", "PYTEST_XDIST_WORKER": worker}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=environment.ROOT,
        env=os.environ | variables | {"PYTHONSAFEPATH": "", "PYTHONPATH": str(environment.ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == gpu
