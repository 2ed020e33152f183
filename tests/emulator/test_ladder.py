"""Every step of the ladder runs: kernels of its own, and the shipping one through the library."""

from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from ladder import own_kernels
from ladder import run as ladder
from ladder.rungs import RUNGS, Rung

import jaxbw
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.planner import config_refusal

from . import gemm_launch

SCHEDULES = [("eager", 0), ("latest", 0), ("random", 1), ("hold", 0), ("pct", 2)]
OWN = [rung for rung in RUNGS if isinstance(rung.kernel, str)]
SHIPPING = [rung for rung in RUNGS if isinstance(rung.kernel, GemmConfig)]


def operands(m: int, n: int, k: int) -> Any:
    rng = np.random.default_rng(0)
    return gemm_launch.integers(rng, m, k), gemm_launch.integers(rng, n, k)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_a_step_is_right_in_every_order(rung: Rung, schedule: str, seed: int) -> None:
    # Less than a cluster tile, and a cluster more.
    rows, columns = (16, 64) if rung.kernel == "naive" else rung.cluster_tile
    lhs, rhs = operands(rows + 136, columns - 56, 136)
    result, report = ladder.launch(rung, lhs, rhs, schedule=schedule, seed=seed, checks="strict")
    assert report.findings == [], report.summary()
    ladder.check(rung, result, lhs, rhs)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rung", OWN, ids=lambda rung: rung.name)
@pytest.mark.parametrize("sizes", [(1, 8, 8), (128, 256, 64), (129, 264, 72), (260, 264, 72)])
def test_a_kernel_of_its_own_at_every_edge(rung: Rung, sizes: tuple[int, int, int]) -> None:
    lhs, rhs = operands(*sizes)
    result, report = ladder.launch(rung, lhs, rhs, schedule="random")
    assert report.findings == []
    ladder.check(rung, result, lhs, rhs)


@pytest.mark.parametrize("rung", OWN, ids=lambda rung: rung.name)
def test_a_kernel_of_its_own_is_a_lesson(rung: Rung) -> None:
    text = (own_kernels.HERE / f"{rung.kernel}.cu").read_text()
    assert len(text.splitlines()) <= 150
    included = [line for line in text.splitlines() if line.startswith("#include")]
    assert included
    assert all(line.startswith('#include "ptx/') for line in included)


def test_every_kernel_of_the_folder_is_a_rung() -> None:
    assert {path.stem for path in own_kernels.HERE.glob("*.cu")} == {rung.kernel for rung in OWN}


@pytest.mark.parametrize(("name", "boxes"), [("tensor_cores", 16), ("swizzle", 2)])
def test_the_swizzle_loads_whole_rows(name: str, boxes: int) -> None:
    lhs, rhs = operands(128, 256, 128)
    _, report = own_kernels.launch(name, lhs, rhs)
    loads = sum(
        count
        for role in report.roles
        for opcode, count in role.operations.items()
        if opcode.startswith("cp.async.bulk.tensor")
    )
    assert loads == 2 * boxes  # of two stages


def test_the_tma_store_writes_the_result_once() -> None:
    lhs, rhs = operands(128, 256, 64)
    _, report = own_kernels.launch("tma_store", lhs, rhs)
    assert report.bytes["tma store"] == 128 * 256 * 2
    _, report = own_kernels.launch("swizzle", lhs, rhs)
    assert "tma store" not in report.bytes


@pytest.mark.parametrize("rung", SHIPPING, ids=lambda rung: rung.name)
def test_a_step_through_the_library(rung: Rung) -> None:
    rng = np.random.default_rng(0)
    lhs, rhs = (jnp.asarray(rng.integers(-3, 4, (136, 136)), jnp.bfloat16) for _ in range(2))
    assert isinstance(rung.kernel, GemmConfig)
    out = jaxbw.dot_general(
        lhs,
        rhs,
        (((1,), (1,)), ((), ())),
        config=rung.kernel,
        implementation="emulator",
    )
    expected = (np.asarray(lhs, np.float32) @ np.asarray(rhs, np.float32).T).astype(jnp.bfloat16)
    assert (np.asarray(out) == expected).all()


@pytest.mark.parametrize("rung", SHIPPING, ids=lambda rung: rung.name)
def test_a_step_is_a_configuration_that_selection_takes(rung: Rung) -> None:
    assert isinstance(rung.kernel, GemmConfig)
    assert config_refusal(rung.kernel, "sm100") is None


def test_each_step_adds_one_thing() -> None:
    assert len({rung.name for rung in RUNGS}) == len(RUNGS)
    for below, above in pairwise(RUNGS):
        assert below.kernel != above.kernel
    for rung in SHIPPING:
        assert isinstance(rung.kernel, GemmConfig)
        # Work of a CTA is the same from the first to the last.
        assert rung.kernel.tile[0] // rung.kernel.cta_group * rung.kernel.tile[1] == 128 * 256


def test_the_naive_kernel_loads_two_elements_for_each_multiply_add() -> None:
    lhs, rhs = operands(16, 32, 24)
    _, report = own_kernels.launch("naive", lhs, rhs)
    assert report.bytes["global load"] == RUNGS[0].bytes_loaded(16, 32, 24)
