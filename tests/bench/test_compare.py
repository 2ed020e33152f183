"""`python -m jaxbw bench compare` as a user runs it, on results that are made up."""

import copy
import json
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from jaxbw._src.lab.bench.case import Case
from jaxbw._src.lab.bench.results import ArmTimes, Results, Row
from jaxbw._src.lab.cli.main import main

CUBES = [Case("cube", size, size, size) for size in (1024, 2048, 4096)]
ENVIRONMENT: dict[str, Any] = {
    "date": "2026-11-22T00:00:00+00:00",
    "command": "python -m jaxbw bench",
    "commit": "abc",
    "gpu": {"name": "NVIDIA H200", "driver_version": "580.1", "power.limit": "700 W"},
    "versions": {"jaxbw": "0.1.0", "jax": "0.10.2", "torch": "2.9"},
    "xla_flags": "",
    "seed": 0,
    "inputs": "iid normal",
    "time": "device time (CUPTI)",
}


def results(
    path: Path,
    speeds: Mapping[str, float],
    *,
    seed: int,
    wrong: str = "",
    cases: list[Case] = CUBES,
    changed: Mapping[str, str] | None = None,
) -> Path:
    """A file in which an arm takes 100 us times its number, with a noise of 1 %."""
    environment = copy.deepcopy(ENVIRONMENT)
    for key, value in (changed or {}).items():
        part, _, name = key.partition("_")
        if name:
            environment[part][name] = value
        else:
            environment[part] = value
    noise = random.Random(seed)

    def times(name: str, speed: float) -> ArmTimes:
        rounds = [[100 * speed * noise.gauss(1, 0.01) for _ in range(8)] for _ in range(6)]
        return ArmTimes(rounds, ["kernel"], 1e-3, name != wrong)

    rows = [
        Row(case, "burst", {name: times(name, s) for name, s in speeds.items()}, {}, "session")
        for case in cases
    ]
    Results({"session": environment}, {}, rows).save(path)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    assert main(["bench", "compare", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    with pytest.raises(SystemExit) as end:
        main(["bench", "compare", *map(str, arguments)])
    assert end.value.code == 2
    return capsys.readouterr().err


def test_only_what_the_interval_shows_is_marked(tmp_path: Path) -> None:
    before = results(tmp_path / "a.json", {"jaxbw": 1.2, "xla": 1.0, "torch": 0.9}, seed=0)
    speeds = {"jaxbw": 1.0, "xla": 1.0, "torch": 0.99}
    after = results(
        tmp_path / "b.json", speeds, seed=1, changed={"commit": "def", "versions_jaxbw": "0.2.0"}
    )
    picture = tmp_path / "ratios.png"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "jaxbw", "bench", "compare", before, after, "--png", picture],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    verdicts = {"jaxbw": "faster", "xla": "-", "torch": "slower"}
    assert len(lines[1:10]) == 9
    for line in lines[1:10]:
        cells = line.split()
        assert verdicts[cells[4]] == cells[-1], line
    assert re.search(
        r"jaxbw, burst: 1\.(19|20)\d \S+ \S+ in the geometric mean of 3; 3 faster, 0 slower",
        done.stdout,
    )
    assert "Differs: commit: abc | def" in done.stdout
    assert "Differs: versions.jaxbw: 0.1.0 | 0.2.0" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_json_has_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = results(tmp_path / "a.json", {"jaxbw": 1.5, "xla": 1.0}, seed=0)
    after = results(tmp_path / "b.json", {"jaxbw": 1.0}, seed=1)
    told = json.loads(run(capsys, before, after, "--json"))
    assert told["differences"] == []
    assert [row["matmul"] for row in told["comparisons"]] == list(map(str, CUBES))
    for row in told["comparisons"]:
        assert row["verdict"] == "faster"
        assert row["ratio"]["low"] < row["first_us"] / row["second_us"] < row["ratio"]["high"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"gpu_name": "NVIDIA B200"}, "gpu.name: NVIDIA H200 | NVIDIA B200"),
        ({"gpu_power.limit": "350 W"}, "gpu.power.limit: 700 W | 350 W"),
        ({"inputs": "zeros"}, "inputs: iid normal | zeros"),
        ({"time": "host time"}, "time: device time (CUPTI) | host time"),
        ({"versions_jax": "0.12.0"}, "versions.jax: 0.10.2 | 0.12.0"),
        ({"versions_nvidia-cublas": "13.1"}, "versions.nvidia-cublas: nothing | 13.1"),
    ],
)
def test_what_cannot_be_compared_is_refused_unless_told(
    changed: dict[str, str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = results(tmp_path / "a.json", {"jaxbw": 1.0}, seed=0)
    after = results(tmp_path / "b.json", {"jaxbw": 1.0}, seed=1, changed=changed)
    message = refused(capsys, before, after)
    assert told in message
    assert "add --anyway" in message
    assert f"Differs: {told}" in run(capsys, before, after, "--anyway")


def test_an_arms_version_counts_for_that_arm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speeds = {"jaxbw": 1.0, "torch": 1.0}
    before = results(tmp_path / "a.json", speeds, seed=0)
    after = results(tmp_path / "b.json", speeds, seed=1, changed={"versions_torch": "3.0"})
    assert "versions.torch: 2.9 | 3.0" in refused(capsys, before, after)
    assert "The environments agree." in run(capsys, before, after, "--arms", "jaxbw")


def test_what_is_wrong_or_not_in_both_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speeds = {"jaxbw": 1.0, "xla": 1.0}
    before = results(tmp_path / "a.json", speeds, seed=0, wrong="xla")
    after = results(tmp_path / "b.json", speeds, seed=1, cases=CUBES[1:])
    told = run(capsys, before, after)
    assert "1024x1024" not in told
    assert "xla" not in told.replace("xla_flags", "")
    assert told.count("2048x2048x2048 nn bfloat16") == 1
    nothing = refused(capsys, before, after, "--arms", "xla")
    assert "the files have no right result of the same matmul, mode and arm" in nothing
    assert "the second 2048x2048x2048 nn bfloat16 burst (jaxbw, xla); 4096" in nothing


def test_errors_say_what_to_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = results(tmp_path / "a.json", {"jaxbw": 1.0}, seed=0)
    (tmp_path / "other.json").write_text("{}")
    for arguments, part in (
        ((there,), "the following arguments are required: B.json"),
        ((there, tmp_path / "none.json"), "is not there; name a file that --out wrote"),
        ((there, tmp_path / "other.json"), "is no results file of `python -m jaxbw bench`"),
    ):
        told = refused(capsys, *arguments)
        assert part in told
        assert "python -m jaxbw bench compare before.json after.json" in told


def test_the_committed_results_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(__file__).parents[2] / "benchmarks/results/2026-11-22_h200_bench_smoke.json"
    told = run(capsys, file, file)
    assert "The environments agree." in told
    assert " faster, 0 slower" in told.replace("0 faster", " faster")
