"""benchmarks/model_error.py: measured times against the model, and constants fitted to them."""

import dataclasses
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Literal

import model_error
import pytest

from jaxbw._src.lab.tuning.measure import Measured
from jaxbw._src.selection.candidates import Candidates
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.cost_model import evaluate
from jaxbw._src.selection.machine import machines
from jaxbw._src.selection.search import price
from jaxbw._src.selection.workload import workload
from measuring.configurations import to_json
from measuring.matmuls import Matmul
from measuring.measurements import Measurements, geometric_mean, read

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "model_error.py"
RECORD = SCRIPT.parent / "results" / "2026-11-22_h200_configurations.json"
H200 = machines()["H200"]
CONFIGS = [
    GemmConfig(128, 256, cluster=(2, 1)),
    GemmConfig(128, 128),
    GemmConfig(128, 128, split_k=4),
    GemmConfig(128, 64, swap_ab=True, swizzle=4, raster="n"),
]


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        # As for a user, who starts it without PYTHONSAFEPATH: it imports what is beside it.
        env=os.environ | {"PYTHONPATH": str(SCRIPT.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


def made_up(path: Path, l2_bytes_per_ns: float) -> None:
    """Times of the model itself, on a machine with another L2."""
    machine = dataclasses.replace(H200, l2_bytes_per_ns=l2_bytes_per_ns)
    lines = []
    for m, n, k in ((4096, 4096, 4096), (2048, 2048, 2048), (16, 4096, 4096)):
        matmul = Matmul(m, n, k)
        measured = []
        for config in CONFIGS:
            work = workload(matmul.problem, "sm90", swapped=config.swap_ab)
            total = price("sm90", machine, work, config).cost.total
            measured.append(Measured(config, total, total))
        entries = [to_json(each) for each in measured]
        lines.append(json.dumps({**dataclasses.asdict(matmul), "measured": entries}))
    path.write_text("\n".join(lines) + "\n")


def test_it_finds_the_machine_that_made_the_times(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    made_up(results, l2_bytes_per_ns=7000)
    assert float(run(str(results)).stdout.splitlines()[-2].split()[-1]) > 0.05
    *_, least, choices, rate = run(str(results), "--fit", "l2_bytes_per_ns").stdout.splitlines()
    assert float(least.split()[-1]) < 0.005
    assert choices == "the model's choices: 1.000 of the best, at most 1.000"
    assert float(rate.split()[2]) == pytest.approx(7000, rel=0.01)


def test_what_a_choice_loses(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    made_up(results, l2_bytes_per_ns=H200.l2_bytes_per_ns)
    (first, *_) = read(results, H200)
    assert first.regret(H200) == 1.0
    slow = dataclasses.replace(first, slower=first.slower * 1.25)
    assert slow.regret(H200) == 1.25


def test_only_the_order_of_tiles_that_would_be_chosen_counts() -> None:
    """Of a configuration that was measured in several, beyond one wave."""
    large, small = Matmul(4096, 4096, 4096), Matmul(512, 512, 512)
    narrow = dataclasses.replace(CONFIGS[1], swizzle=1, raster="m")
    alone = dataclasses.replace(CONFIGS[0], swizzle=1, raster="m")  # in no other order
    table = Candidates.of([narrow], "sm90", 2)
    chosen = evaluate(workload(large.problem, "sm90", swapped=False), H200, table)
    raster: Literal["m", "n"] = "n" if chosen.band_along_n[0] else "m"
    best = dataclasses.replace(narrow, swizzle=int(chosen.swizzle[0]), raster=raster)
    assert best != narrow
    measured = [Measured(config, 100.0 + i, 1.0) for i, config in enumerate((narrow, best, alone))]
    found = Measurements.of(large, measured, H200)
    assert list(found.in_order(H200)) == [False, True, True]
    assert found.lost_by(H200, found.microseconds) == pytest.approx(1.01)
    whole = Measurements.of(small, measured, H200)
    assert list(whole.in_order(H200)) == [True, True, True]


def test_what_the_fit_has_not_seen_is_told_apart(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    made_up(results, l2_bytes_per_ns=7000)
    matmuls = read(results, H200)
    unseen, seen = model_error.divided(matmuls, 0.4)
    assert (len(unseen), len(seen)) == (1, 2)
    assert {each.matmul for each in [*unseen, *seen]} == {each.matmul for each in matmuls}
    assert model_error.divided(matmuls[::-1], 0.4) == (unseen, seen)
    told = run(str(results), "--fit", "l2_bytes_per_ns", "--unseen", "0.4").stdout
    assert "seen by the fit: 2 matmuls, median error 0.000, choices 1.000 of the best" in told
    assert "not seen: 1 matmuls, median error 0.000, choices 1.000 of the best" in told


def test_what_was_fitted_goes_into_the_table() -> None:
    table = model_error.TABLE.read_text()
    fitted = dataclasses.replace(H200, l2_bytes_per_ns=12345.6, split_ns=7.0)
    names = ("l2_bytes_per_ns", "split_ns")
    now = tomllib.loads(model_error.written(table, fitted, names, "fitted: 3 matmuls of x.jsonl"))
    before = tomllib.loads(table)
    entry = {"value": 12350.0, "confidence": "M", "source": "fitted: 3 matmuls of x.jsonl"}
    assert now["H200"].pop("l2_bytes_per_ns") == entry
    assert now["H200"].pop("split_ns") == {**entry, "value": 7.0}
    for name in names:
        del before["H200"][name]
    assert now == before
    with pytest.raises(ValueError, match="H100 has no constant split_ns of its own"):
        model_error.written(table, machines()["H100"], ("split_ns",), "")


def test_constants_that_are_fitted_are_the_machine_s() -> None:
    assert set(model_error.FITTED) <= {field.name for field in dataclasses.fields(H200)}


def test_the_record_of_configurations_is_modelled_within_a_tenth() -> None:
    """Issue 8's bars, on times that were measured: matmuls that constants were fitted to, too."""
    matmuls = read(RECORD, H200)
    unseen, _ = model_error.divided(matmuls, 0.5)
    for part in (matmuls, unseen):
        assert model_error.median_error(H200, part) <= 0.10
        regrets = [each.regret(H200) for each in part]
        assert geometric_mean(regrets) <= 1.05


def test_a_file_without_matmuls_is_refused(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    results.write_text("")
    done = run(str(results))
    assert done.returncode == 2
    assert "measure_configs.py writes them" in done.stderr
