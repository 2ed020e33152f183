"""The planner: plans that were worked out by hand, and every rule that a GemmConfig can break."""

import re
from typing import Any

import numpy as np
import pytest

from jaxbw import GemmConfig, _native
from jaxbw._native import DataType, Major, Plan, Problem, Violation
from jaxbw._src.selection import planner

from .conftest import ROOT

PLANS: dict[str, tuple[str, dict[str, Any], GemmConfig, int, dict[str, Any]]] = {
    # 4 x 4 cluster tiles of 256 x 256. A stage has 128 rows of A and 256 of B, of 128 bytes each;
    # staging takes 8 warps * 16 rows * 128 bytes * 2 buffers, barriers 1 KB.
    "cooperative": (
        "sm90",
        dict(m=1000, n=1000, k=4096),
        GemmConfig(128, 256, cluster=(2, 1)),
        66,
        dict(
            kernel="jaxbw_sm90_bf16_nn_64x256",
            tiles_m=4,
            tiles_n=4,
            whole_tiles=16,
            items=16,
            waves=1,
            clusters=16,
            stages=4,
            shared_memory=4 * 384 * 128 + 32768 + 1024,
            scheduler="static",
            formula="cast",
            store_path="tma",
            workspace_bytes=0,
            repacked=(),
        ),
    ),
    # 5 * 4 * 8 tiles: two waves of 74 are whole, 12 tiles are split. Of each, two CTAs have four
    # slices of 32 x 128 floats in two parts, and a counter.
    "the last wave is split": (
        "sm100",
        dict(batch=5, m=1000, n=1000, k=4096),
        GemmConfig(256, 128, cta_group=2, cluster=(2, 1), split_k=2, split_tail=True),
        74,
        dict(
            kernel="jaxbw_sm100_16bit_2cta",
            tiles=160,
            whole_tiles=148,
            split_tiles=12,
            parts=24,
            items=172,
            waves=3,
            clusters=172,
            stages=8,
            accumulators=2,
            scheduler="clc",
            formula="general",
            workspace_bytes=12 * 2 * 4 * 2 * 32 * 128 * 4 + 512,
            reduces_apart=False,
        ),
    ),
    # The transpose is 1001 x 24. Both operands have odd rows, copied to multiples of 128 bytes.
    "swapped and repacked": (
        "sm90",
        dict(m=24, n=1001, k=999),
        GemmConfig(128, 32, swap_ab=True),
        132,
        dict(
            kernel="jaxbw_sm90_bf16_tt_64x32",
            tiles_m=8,
            tiles_n=1,
            repacked=("lhs", "rhs"),
            store_path="columns",
            workspace_bytes=999 * 2048 + 24 * 2048,
        ),
    ),
    # Eight warps have 16 x 128 floats of each part; nobody counts.
    "many parts": (
        "sm90",
        dict(m=128, n=128, k=64 * 24),
        GemmConfig(128, 128, split_k=12),
        132,
        dict(items=12, waves=1, reduces_apart=True, workspace_bytes=8 * 12 * 16 * 128 * 4),
    ),
    # 256 columns of a residual of 16 bits are four boxes of 16 KB; a stage of 48 KB holds three.
    "a residual in the ring": (
        "sm90",
        dict(m=512, n=512, k=512, residual=DataType.BF16),
        GemmConfig(128, 256),
        132,
        dict(residual_stages=2, formula="elementwise", store_path="tma"),
    ),
    "results that TMA cannot store": (
        "sm100",
        dict(m=512, n=500, k=512, save=True),
        GemmConfig(128, 64),
        148,
        dict(formula="general", store_path="rows", repacked=("rhs",)),
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_that_was_worked_out_by_hand(name: str) -> None:
    family, problem, config, resident, expected = PLANS[name]
    plan = _native.plan(family, Problem(**{"batch": 1} | problem), config, resident)
    assert isinstance(plan, Plan), str(plan)
    assert {field: getattr(plan, field) for field in expected} == expected


@pytest.mark.parametrize("name", PLANS)
def test_many_plans_are_those_of_one(name: str) -> None:
    family, problem, config, resident, _ = PLANS[name]
    given = Problem(**{"batch": 1} | problem)
    plan = _native.plan(family, given, config, resident)
    assert isinstance(plan, Plan)
    columns = {
        name: np.full(3, value)
        for name, value in plan.attributes.items()
        if name in {"block_m", "block_n", "cluster_m", "cluster_n", "cta_group", "k_spans"}
        or name in {"split_k", "split_tail", "pingpong", "cluster_k"}
    }
    many = _native.plan_many(
        family, given, columns, swap_ab=config.swap_ab, resident=[resident] * 17
    )
    assert many["legal"].tolist() == [1] * 3
    assert [_native.kernel_names()[place] for place in many["kernel"]] == [plan.kernel] * 3
    for field in ("stages", "tiles_m", "tiles_n", "tiles", "whole_tiles", "parts", "items"):
        expected = getattr(plan, field) if field != "parts" else plan.items - plan.whole_tiles
        assert many[field].tolist() == [expected] * 3, field
    waves = many["whole_waves"] + many["part_waves"]
    assert waves.tolist() == [plan.waves] * 3
    assert many["general"].tolist() == [plan.formula == "general"] * 3
    assert (many["gathered"] == 2).tolist() == [plan.reduces_apart] * 3


SIZES = {"batch": 1, "m": 1024, "n": 1024, "k": 1024}
HUGE = {"m": 2**19, "n": 2**19, "k": 128}
PAIR = {"cta_group": 2, "cluster": (2, 1)}
BROKEN: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "empty": ("sm100", {"m": 0}, {}),
    "gated_c": ("sm100", {"gated": True, "c": DataType.F32}, {}),
    "extent": ("sm100", {"m": 2**31}, {}),
    "stride": ("sm100", {"m": 2**20, "n": 2**20}, {}),
    "address_space": ("sm100", HUGE | {"batch": 2**18}, {}),
    "block_k": ("sm100", {}, {"block_k": 96}),
    "block_k_sm90": ("sm90", {}, {"block_k": 128}),
    "pingpong_sm100": ("sm100", {}, {"pingpong": True}),
    "swizzle": ("sm90", {}, {"swizzle": 17}),
    "split_k": ("sm90", {}, {"split_k": 65}),
    "split_tail_whole": ("sm90", {}, {"split_tail": True}),
    "batch_invariant_tail": (
        "sm90",
        {},
        {"split_k": 2, "split_tail": True, "batch_invariant": True},
    ),
    "accumulators": ("sm100", {}, {"accumulators": 3}),
    "accumulators_sm90": ("sm90", {}, {"accumulators": 2}),
    "accumulators_full": ("sm100", {}, {"block_m": 256, "accumulators": 1}),
    "scheduler_clc": ("sm90", {}, {"scheduler": "clc"}),
    "cta_group_sm90": ("sm90", {}, PAIR),
    "block_m_sm90": ("sm90", {}, {"block_m": 64}),
    "block_n_sm90": ("sm90", {}, {"block_n": 80}),
    "cta_group": ("sm100", {}, {"cta_group": 3}),
    "block_m": ("sm100", {}, {"block_m": -64}),
    "block_n": ("sm100", {}, {"block_n": 10**30}),
    "cluster": ("sm100", {}, {"cluster": (17, 1)}),
    "cluster_group": ("sm100", {}, {"cta_group": 2}),
    "cluster_k": ("sm90", {}, {"cluster_k": 3}),
    "cluster_size": ("sm90", {}, {"cluster": (4, 1), "cluster_k": 4}),
    "cluster_slices": ("sm90", {}, {"block_m": 64, "pingpong": True, "cluster_k": 8}),
    "cluster_sums": ("sm90", {}, {"block_n": 192, "cluster_k": 2}),
    "stages": ("sm90", {}, {"stages": 1}),
    "stage": ("sm100", {}, {"block_m": 256, "block_n": 256, "block_k": 256}),
    "no_kernel": ("sm90", {"input": DataType.F32}, {}),
    "gated_swap": ("sm100", {"gated": True}, {"swap_ab": True}),
    "gated_columns": ("sm100", {"gated": True}, {"block_n": 144}),
    "gated_columns_sm90": ("sm90", {"gated": True}, {"block_n": 192}),
    "gated_pair": ("sm100", {"gated": True}, PAIR),
    "columns": ("sm100", {"rhs_major": Major.MN}, {"block_n": 96}),
    "shares": ("sm100", {}, {"block_n": 96, "cluster": (8, 1)}),
    "parts": ("sm100", {"k": 64}, {"split_k": 2}),
    "parts_of_cluster": ("sm90", {"k": 64}, {"cluster_k": 2}),
    "grid": ("sm100", HUGE | {"batch": 16}, {"block_m": 64, "block_n": 8}),
    "slices": ("sm100", HUGE, {"block_m": 64, "block_n": 8, "split_k": 2}),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_every_rule(rule: str) -> None:
    """Each is told in the runtime's words and in a user's, none of whose numbers is missing."""
    family, problem, changes = BROKEN[rule]
    given = Problem(**SIZES | {"rhs_major": Major.K} | problem)
    config = GemmConfig(**{"block_m": 128, "block_n": 128} | changes)
    found = _native.plan(family, given, config)
    assert isinstance(found, Violation)
    assert found.rule == rule
    assert "?" not in str(found)
    words = planner.message(found, family, config)
    assert not re.search(r"[{}]|None;", words)


def test_these_are_all_rules_that_a_configuration_can_break() -> None:
    without_a_problem = {"block_k_of_any"}
    assert set(BROKEN) | without_a_problem == set(planner.MESSAGES)


# --- one place each

ONE_PLACE = {
    # legality: the texts of the rules, by their numbers
    r"cannot load equal parts": {"cuda/host/rules.h", "jaxbw/_src/selection/planner.py"},
    # thresholds
    r"kMinReducedParts = |min_reduced_parts = ": {"cuda/host/gemm.h"},
    r"kMinSharedParts = |min_shared_parts = ": {"cuda/gemm/reduce.h"},
    # launch geometry: cluster tiles of a matrix
    r"tiles_m = ceil|tiles_m = -\(-|tiles_m=-\(-|tiles_m, tiles_n = _ceil": {
        "cuda/host/gemm_plan.cc"
    },
    # names of kernels
    r'f"jaxbw_(\{self\.family\}|sm90|sm100)|concat\("jaxbw_': {
        "jaxbw/_src/selection/kernel_table.py"
    },
    # attributes of the custom call
    r"\bhas_residual\b.*[\s\S]{0,40}\bgated\b.*[\s\S]{0,40}\bsave\b": {
        "cuda/host/gemm_call.h",
        "cuda/host/gemm_call.cc",
        "jaxbw/_native.pyi",
    },
}


@pytest.mark.parametrize("pattern", ONE_PLACE)
def test_it_stands_in_one_place(pattern: str) -> None:
    """In what ships; what of it the laboratory's replay models has names of its own."""
    sources = [
        path
        for folder, kinds in (("cuda", ("*.cc", "*.h", "*.cuh")), ("jaxbw", ("*.py", "*.pyi")))
        for kind in kinds
        for path in (ROOT / folder).rglob(kind)
        if "lab/model" not in path.as_posix()
    ]
    found = {path for path in sources if re.search(pattern, path.read_text())}
    assert {path.relative_to(ROOT).as_posix() for path in found} == ONE_PLACE[pattern]
