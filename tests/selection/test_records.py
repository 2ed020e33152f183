"""benchmarks/measuring/records.py: our times in what other benchmarks wrote."""

import json
from pathlib import Path

import pytest

from jaxbw._src.selection.config import GemmConfig
from measuring import configurations
from measuring.matmuls import Matmul
from measuring.records import config_of, read

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize(
    "config",
    [
        GemmConfig(128, 256, cluster=(2, 1), swizzle=8),
        GemmConfig(256, 128, cluster=(1, 2), swizzle=4, raster="n", split_k=4, split_tail=True),
        GemmConfig(128, 128, pingpong=True),
        GemmConfig(128, 32, swap_ab=True, cluster_k=2, stages=5),
    ],
    ids=str,
)
def test_a_configuration_s_text_is_read(config: GemmConfig) -> None:
    assert config_of(str(config)) == config


def test_of_a_record_of_arms_the_last_times_of_ours_count(tmp_path: Path) -> None:
    rows = [
        {"m": 64, "n": 64, "k": 64, "layout": "nn", "arm": arm, "median_us": us}
        for arm, us in (
            ("xla", 1.0),
            (str(GemmConfig(128, 64)), 3.0),
            (str(GemmConfig(128, 128)), 4.0),
            (str(GemmConfig(128, 64)), 5.0),
        )
    ]
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"rows": rows}))
    assert read(record) == {
        Matmul(64, 64, 64): [(GemmConfig(128, 128), 4.0), (GemmConfig(128, 64), 5.0)]
    }


def test_a_suite_s_record_has_the_choices_and_their_times() -> None:
    found = read(RESULTS / "2026-11-22_h200_bench_smoke.json")
    # Those with an epilogue, and those that were sustained, are others.
    assert set(found) == {
        Matmul(1024, 1024, 1024),
        Matmul(777, 2048, 3333),
        Matmul(16, 4096, 4096),
        Matmul(2048, 2048, 2048, "nt"),
        Matmul(2048, 2048, 2048),
    }
    ((config, us),) = found[Matmul(1024, 1024, 1024)]
    assert (config.tile, config.cluster, config.stages) == ((128, 64), (1, 2), 8)
    assert us == pytest.approx(7.26, abs=0.05)


def test_a_record_is_read_like_a_results_file() -> None:
    found = configurations.read(RESULTS / "2026-11-22_h200_configurations.json")
    assert (len(found), sum(map(len, found.values()))) == (13, 126)
    best = found[Matmul(4096, 4096, 4096)][0]
    assert (best.config.tile, best.microseconds) == ((128, 256), 171.86)
