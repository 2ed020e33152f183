"""benchmarks/model_error.py: a results file against the model, and constants fitted to it."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

from jaxbw.selection.config import GemmConfig
from jaxbw.selection.machine import machines
from jaxbw.selection.search import price

from .workloads import workload

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "model_error.py"


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False
    )


def test_it_finds_the_machine_that_made_the_times(tmp_path: Path) -> None:
    """Times of the model itself, on a machine with another clock, give that clock back."""
    machine = dataclasses.replace(machines()["H200"], clock_ghz=1.4)
    config = GemmConfig(128, 256, cluster=(2, 1))
    rows = [
        {
            **dict(zip("mnk", shape, strict=True)),
            **{"layout": "nn", "dtype": "bfloat16", "fields": dataclasses.asdict(config)},
            "median_us": price("sm90", machine, workload(*shape, "nn"), config).cost.total,
        }
        for shape in ((4096, 4096, 4096), (2048, 2048, 2048))
    ]
    results = tmp_path / "results.json"
    results.write_text(json.dumps({"rows": rows}))
    told = run(str(results)).stdout.splitlines()
    assert len(told) == 3
    assert float(told[-1].split()[-1]) > 0.1
    *_, least, clock = run(str(results), "--fit", "clock_ghz").stdout.splitlines()
    assert float(least.split()[-1]) < 0.005
    assert abs(float(clock.split()[2]) - 1.4) < 0.01


def test_a_file_without_configurations_is_refused(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    results.write_text('{"rows": [{"arm": "xla"}]}')
    done = run(str(results))
    assert done.returncode == 2
    assert "run compare_xla.py again" in done.stderr
