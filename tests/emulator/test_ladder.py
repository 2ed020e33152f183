"""Every step of the ladder runs, alone and through the library."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw
from jaxbw.ladder import RUNGS, Rung
from jaxbw.selection.config import refusal

from . import gemm_cases, gemm_launch
from .gemm_cases import Case
from .gemm_launch import SM100, Config
from .installed import load

NAIVE = "jaxbw_sm100_naive_16bit"
SCHEDULES = [("eager", 0), ("latest", 0), ("random", 1), ("pct", 2)]
TENSOR_CORES = RUNGS[1:]


@pytest.mark.parametrize("rung", TENSOR_CORES, ids=lambda rung: rung.name)
def test_a_step_is_right_in_every_order(rung: Rung) -> None:
    assert rung.config is not None
    config = gemm_launch.from_gemm_config(rung.config, 0, 0, gemm_launch.BF16)
    kernel = load(f"jaxbw_sm100_16bit_{config.cta_group}cta")
    # Less than a cluster tile, and a cluster more.
    rows, columns = rung.cluster_tile
    case = Case(rows + 136, columns - 56, 136, layout="nt", output="bf16")
    product = case.product()
    for schedule, seed in SCHEDULES:
        outcome = gemm_launch.launch(
            kernel, config, product, sm_count=16, schedule=schedule, seed=seed
        )
        gemm_cases.verify(case, product, outcome)


@pytest.mark.parametrize("rung", TENSOR_CORES, ids=lambda rung: rung.name)
def test_a_step_through_the_library(rung: Rung) -> None:
    rng = np.random.default_rng(0)
    lhs, rhs = (jnp.asarray(rng.integers(-3, 4, (136, 136)), jnp.bfloat16) for _ in range(2))
    # Without a swizzle the right operand is K-major: transposed.
    out = jaxbw.dot_general(
        lhs,
        rhs,
        (((1,), (1,)), ((), ())),
        config=rung.config,
        implementation="emulator",
    )
    expected = (np.asarray(lhs, np.float32) @ np.asarray(rhs, np.float32).T).astype(jnp.bfloat16)
    assert (np.asarray(out) == expected).all()


@pytest.mark.parametrize("rung", TENSOR_CORES, ids=lambda rung: rung.name)
def test_a_step_is_a_configuration_that_selection_takes(rung: Rung) -> None:
    assert rung.config is not None
    assert refusal(rung.config, "sm100") is None


def test_each_step_adds_one_thing() -> None:
    assert len({rung.name for rung in RUNGS}) == len(RUNGS)
    for below, above in pairwise(TENSOR_CORES):
        assert below.config is not None
        assert above.config is not None
        assert above.config != below.config
        # Work of a CTA is the same from the first to the last.
        assert above.config.cta_rows * above.config.tile[1] == 128 * 256


# --- the first step


CASES = [
    Case(40, 72, 24, layout="nn", output="bf16"),
    Case(9, 33, 17, layout="nt", dtype="f16", output="f16", bias="f32"),
    Case(7, 65, 3, layout="tn", batch=3, shared=("rhs",), bias="bf16", bias_along_m=True),
    Case(1, 1, 1, layout="tt", activation="silu", alpha=0.5),
    Case(20, 40, 50, batch=2, c="bf16", residual="f16", activation="relu"),
    Case(20, 40, 50, activation="gelu_exact", c="f32", in_place=True, integers=False),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_naive_kernel(case: Case) -> None:
    config = replace(case.config(), scheduler="static")
    kernel = load(NAIVE)
    for sms in (1, 3):  # any grid
        product = case.product()
        outcome = gemm_launch.launch(kernel, config, product, sm_count=sms)
        gemm_cases.verify(case, product, outcome)


def test_the_naive_kernel_loads_two_elements_for_each_multiply_add() -> None:
    case: Any = Case(16, 32, 24, layout="nt", output="bf16")
    config = Config(SM100, 128, 128, rhs_major=0, scheduler="static")
    product = case.product()
    outcome = gemm_launch.launch(load(NAIVE), config, product)
    gemm_cases.verify(case, product, outcome)
    assert outcome.report.bytes["global load"] == RUNGS[0].bytes_loaded(16, 32, 24)
