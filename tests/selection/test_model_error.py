"""benchmarks/model_error.py: measured times against the model, and constants fitted to them."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import model_error
import pytest
from measure_configs import to_json
from products import Product

from jaxbw.selection.config import GemmConfig
from jaxbw.selection.machine import machines
from jaxbw.selection.search import price
from jaxbw.selection.workload import workload
from jaxbw.tuning.measure import Measured

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "model_error.py"
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
        # As for a user, who starts it without PYTHONSAFEPATH: it imports the scripts beside it.
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
        product = Product(m, n, k)
        measured = []
        for config in CONFIGS:
            work = workload(product.problem, swapped=config.swap_ab)
            total = price("sm90", machine, work, config).cost.total
            memset = machine.memset_ns / 1000 if config.split_k > 1 else 0.0
            measured.append(Measured(config, total - memset, total))
        entries = [to_json(each) for each in measured]
        lines.append(json.dumps({**dataclasses.asdict(product), "measured": entries}))
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
    (first, *_) = model_error.read(results, H200)
    assert first.regret(H200) == 1.0
    slow = dataclasses.replace(first, slower=first.slower * 1.25)
    assert slow.regret(H200) == 1.25


def test_a_file_without_products_is_refused(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    results.write_text("")
    done = run(str(results))
    assert done.returncode == 2
    assert "measure_configs.py writes them" in done.stderr
