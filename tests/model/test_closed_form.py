"""The selection's closed form against the replay: on both families the same pipeline."""

import time
from dataclasses import replace

import numpy as np
import pytest

from jaxbw._native import DataType, Major
from jaxbw._src.lab.model.machine import replayed
from jaxbw._src.lab.model.modelled import run
from jaxbw._src.lab.model.ours import kernel_of, raster_of
from jaxbw._src.lab.model.schedule import Raster, Shape
from jaxbw._src.selection.candidates import Candidates, candidates
from jaxbw._src.selection.cost_model import evaluate
from jaxbw._src.selection.machine import Machine, machines
from tests.selection.workloads import ranking, workload

BANDS = 4
# As the replay has it: nothing is lost where loads and matmuls contend.
MACHINES = {
    "B200": machines()["B200"],
    "H200": replace(machines()["H200"], overlap_exponent=machines()["B200"].overlap_exponent),
}
SHAPES = [
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (512, 8192, 5376),
    (4096, 8192, 4096),
    (2048, 2048, 2048),
]


def tables(family: str) -> Candidates:
    """Every unsplit tile and cluster; the replay has no kernels of few rows."""
    found = candidates(
        family, Major.K, Major.K, DataType.BF16, gated=False, swap_ab=False, whole=True
    )
    found = found.take((found.cluster_k == 1) & ((family == "sm100") | (found.block_m > 32)))
    return replace(found, accumulators=np.full(len(found), 2 if family == "sm100" else 1))


def replayed_us(
    machine: Machine, table: Candidates, row: int, shape: tuple[int, int, int]
) -> float:
    config = replace(table.config(row, 2, swap_ab=False), accumulators=2)
    kernel = kernel_of(config, family=machine.family)
    return run(replayed(machine.name), kernel, Shape(*shape), Raster("m", BANDS)).us


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", MACHINES)
def test_it_agrees_with_the_replay(name: str, shape: tuple[int, int, int]) -> None:
    machine, table = MACHINES[name], tables(machines()[name].family)
    order = np.zeros(len(table), np.int64), np.full(len(table), BANDS)
    found = evaluate(workload(*shape), machine, table, order)
    us = found.total / 1000
    replayable = np.flatnonzero(found.waves < 40)  # of more the replay takes seconds
    others = np.random.default_rng(0).choice(replayable, 8, replace=False)

    def errors(rows: object) -> list[float]:
        picked = [int(row) for row in np.asarray(rows)]
        return [abs(us[row] / replayed_us(machine, table, row, shape) - 1) for row in picked]

    assert max(errors(np.argsort(us)[:10])) <= 0.03
    assert max(errors(others)) <= 0.08  # far from the best they only have to stay there


def test_contention_takes_time_on_hopper() -> None:
    table = tables("sm90")
    work = workload(4096, 4096, 4096)
    contended, alone = (evaluate(work, m, table) for m in (machines()["H200"], MACHINES["H200"]))
    assert np.all(contended.total >= alone.total)


def test_a_search_takes_less_than_50_ms() -> None:
    for name in ("B200", "H200"):
        ranking(name, 4096, 4096, 4096)
        times = []
        for k in range(6):
            begin = time.perf_counter()
            ranking(name, 4096, 4096, 4096 + 64 * (k + 1))
            times.append(time.perf_counter() - begin)
        assert min(times) < 0.05


def test_a_replay_of_4096_takes_less_than_5_s() -> None:
    table = tables("sm100")
    begin = time.perf_counter()
    replayed_us(machines()["B200"], table, 0, (4096, 4096, 4096))
    assert time.perf_counter() - begin < 5


def test_the_search_finds_what_was_published() -> None:
    found = min(ranking("B200", 4096, 4096, 4096, kept=64), key=lambda each: each.cost.total)
    assert (found.config.tile, found.config.cta_group) == ((256, 128), 2)
    best = ranking("B200", 512, 8192, 5376)[0]
    assert (best.config.tile, best.config.cta_group) == ((256, 224), 2)
    assert raster_of(best.config).width == best.config.swizzle
    assert 25 < best.cost.total < 45
