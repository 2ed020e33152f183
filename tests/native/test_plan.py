"""The planner: plans that were worked out by hand, and every rule that a GemmConfig can break."""

import re
from typing import Any

import numpy as np
import pytest

from jaxbw import GemmConfig, _native
from jaxbw._native import DataType, Grouped, Major, Plan, Problem, Violation
from jaxbw._src.selection import planner

from ..emulator.gemm_cases import for_all
from .conftest import ROOT

EIGHT_BITS = {"lhs": DataType.E4M3, "rhs": DataType.E5M2}
FOUR_BITS = {"lhs": DataType.E2M1, "rhs": DataType.E2M1, "rhs_major": Major.K}

PLANS: dict[str, tuple[str, dict[str, Any], GemmConfig, int, dict[str, Any]]] = {
    # 4 x 4 cluster tiles of 256 x 256. A stage has 128 rows of A and 256 of B, of 128 bytes each;
    # staging takes 8 warps * 16 rows * 128 bytes * 2 buffers, barriers 1 KB.
    "cooperative": (
        "sm90",
        dict(m=1000, n=1000, k=4096),
        GemmConfig(128, 256, cluster=(2, 1)),
        66,
        dict(
            kernel="jaxbw_sm90_plain_bf16_nn_64x256",
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
            workspace_bytes=12 * 2 * 4 * 2 * 32 * 128 * 4,
            counters=12 * 2 * 4,
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
            kernel="jaxbw_sm90_cast_bf16_tt_64x32",
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
    # Of two saved results of 16 bits, too; of float32 the general way stores them.
    "a gate saved by TMA": (
        "sm90",
        dict(m=512, n=512, k=512, gated=True, save=True),
        GemmConfig(128, 256),
        132,
        dict(formula="elementwise", store_path="tma"),
    ),
    "float32 saved": (
        "sm90",
        dict(m=512, n=512, k=512, output=DataType.F32, save=True),
        GemmConfig(128, 128),
        132,
        dict(formula="general", store_path="rows"),
    ),
    # Four groups and what is behind them waste a tile each, but for a row; 16 bytes describe one,
    # and four its place in a band.
    "rows in groups": (
        "sm90",
        dict(m=1000, n=512, k=512, grouped=Grouped.ROWS, groups=4, total_groups=4),
        GemmConfig(128, 128),
        132,
        dict(kernel="jaxbw_sm90_grouped_bf16_nn_64x128", tiles_m=12, tiles_n=4, items=48)
        | dict(clusters=48, workspace_bytes=256 + 256 + 256, store_path="tma", formula="cast"),
    ),
    # Columns with scales are stored as they leave the registers; 128 of K are a block.
    "rows in groups of 8 bits": (
        "sm90",
        dict(m=1000, n=512, k=512, grouped=Grouped.ROWS, groups=4, total_groups=4)
        | dict(lhs=DataType.E4M3, rhs=DataType.E5M2, rhs_major=Major.K, promoted=True)
        | dict(lhs_scale=True, rhs_scale=True),
        GemmConfig(64, 128, pingpong=True),
        132,
        dict(kernel="jaxbw_sm90_grouped_8bit_promoted_nt_64x128", tiles_m=20, tiles_n=4, items=80)
        | dict(workspace_bytes=512 + 256 + 256, store_path="tma", formula="elementwise"),
    ),
    "a contraction in groups": (
        "sm90",
        dict(m=512, n=512, k=1000, lhs_major=Major.MN, batch=3)
        | dict(grouped=Grouped.CONTRACTION, groups=4, total_groups=9),
        GemmConfig(128, 256),
        132,
        dict(kernel="jaxbw_sm90_grouped_bf16_tn_64x256", tiles_m=4, tiles_n=2, items=96)
        | dict(workspace_bytes=256 + 256),
    ),
    # Of the 8 tiles of a matrix 2 are behind a wave of 6; 8 warps leave sums of 16 rows of each.
    "a contraction of which a group may have most": (
        "sm90",
        dict(m=512, n=512, k=1000, lhs_major=Major.MN, batch=3)
        | dict(grouped=Grouped.CONTRACTION, groups=4, total_groups=9),
        GemmConfig(128, 256, split_k=2, split_tail=True),
        6,
        dict(kernel="jaxbw_sm90_grouped_bf16_tn_64x256", items=96 + 2, clusters=6)
        | dict(workspace_bytes=2 * 2 * 128 * 256 * 4 + 256 + 256, counters=2 * 8),
    ),
    "rows in groups of sm100, which nobody asks for": (
        "sm100",
        dict(m=1000, n=512, k=512, grouped=Grouped.ROWS, groups=4, total_groups=4),
        GemmConfig(64, 96),
        148,
        dict(kernel="jaxbw_sm100_grouped_16bit_1cta", tiles_m=20, tiles_n=6, items=120)
        | dict(clusters=120, workspace_bytes=512 + 256 + 256, store_path="tma"),
    ),
    "rows in groups of pairs": (
        "sm100",
        dict(m=1000, n=512, k=512, grouped=Grouped.ROWS, groups=4, total_groups=4),
        GemmConfig(256, 192, cta_group=2, cluster=(2, 1)),
        74,
        dict(kernel="jaxbw_sm100_grouped_16bit_2cta", tiles_m=8, tiles_n=3, items=24)
        | dict(clusters=24, workspace_bytes=256 + 256 + 256, store_path="tma"),
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
    named = [_native.kernel_names()[place] for place in many["kernel"]]
    assert named == [for_all(plan.kernel)] * 3
    for field in ("stages", "tiles_m", "tiles_n", "tiles", "whole_tiles", "parts", "items"):
        expected = getattr(plan, field) if field != "parts" else plan.items - plan.whole_tiles
        assert many[field].tolist() == [expected] * 3, field
    waves = many["whole_waves"] + many["part_waves"]
    assert waves.tolist() == [plan.waves] * 3
    assert many["general"].tolist() == [plan.formula == "general"] * 3
    assert (many["gathered"] == 2).tolist() == [plan.reduces_apart] * 3


@pytest.mark.parametrize(
    ("problem", "tile", "stages", "held"),
    [
        # 512 columns less 256 and 5 * 12 of scales are 196: 3 spans of 64 apart.
        ({"mx": 32}, {}, 5, 64),
        ({"mx": 32, "output": DataType.F32, "bias": DataType.F32}, {}, 5, 64),
        ({"mx": 32, "rhs_major": Major.K}, {"block_n": 192}, 6, 0),  # two accumulators
        ({"mx": 32, "gated": True}, {}, 4, 0),  # finished as columns of gate and up
        ({"mx": 32, "n": 1001}, {}, 5, 0),  # rows that TMA cannot store
        (FOUR_BITS | {"mx": 32}, {}, 5, 128),
        (FOUR_BITS | {"mx": 16}, {}, 4, 192),
        (FOUR_BITS | {"mx": 16}, {}, 5, 256),  # 16 columns are left
        # Boxes of 32 columns, and of rhs's scales three tiles.
        ({"mx": 32, "rhs_major": Major.K}, {"block_n": 224}, 6, 32),
        (FOUR_BITS | {"mx": 16}, {"block_n": 224}, 4, 192),
        (FOUR_BITS | {"mx": 16}, {"block_n": 160}, 6, 96),
        (FOUR_BITS | {"mx": 32}, {"block_n": 160}, 6, 0),  # two accumulators
    ],
    ids=str,
)
def test_columns_that_the_next_tile_waits_for(
    problem: dict[str, Any], tile: dict[str, int], stages: int, held: int
) -> None:
    shape = {"m": 4096, "n": 4096, "k": 4096, "batch": 1}
    pair = {"block_m": 256, "block_n": 256, "cta_group": 2, "cluster_m": 2, "accumulators": 0}
    columns = {
        name: np.full(1, value) for name, value in (pair | tile | {"stages": stages}).items()
    }
    many = _native.plan_many(
        "sm100",
        Problem(**shape | EIGHT_BITS | problem),
        columns,
        swap_ab=False,
        resident=[74] * 17,
    )
    assert many["legal"].tolist() == [1]
    assert many["held_columns"].tolist() == [held]


# --- launches on made-up addresses

FIELDS = _native.gemm_params_fields()
TensorMapFields = _native.emulator.datapath.TensorMapFields
WORKSPACE, COUNTERS = 1 << 32, 1 << 40


def launches(family: str, problem: dict[str, Any], config: GemmConfig, *more: str) -> Any:
    plan = _native.plan(family, Problem(**{"batch": 1} | problem), config, resident=132)
    assert isinstance(plan, Plan), str(plan)
    names = ("lhs", "rhs", *more, "result")
    arrays = {name: place << 24 for place, name in enumerate(names, 1)}
    if plan.workspace_bytes:
        arrays["workspace"] = WORKSPACE
    if plan.counters:
        arrays["counters"] = COUNTERS
    return plan, _native.emulated_launches(plan, arrays, sm_count=132)


@pytest.mark.parametrize(
    ("block_n", "serves"),
    [(128, "jaxbw_sm90_cast_bf16_nn_64x128"), (192, "jaxbw_sm90_bf16_nn_64x192")],
)
def test_a_result_that_tma_cannot_store_takes_another_kernel(block_n: int, serves: str) -> None:
    """The plan takes addresses for multiples of 16 bytes.

    A tile that has no kernel for casts alone kept the one of the plan, which stores by TMA, and
    there was no tensor map.
    """
    given = Problem(batch=1, m=200, n=264, k=72)
    plan = _native.plan("sm90", given, GemmConfig(128, block_n), resident=132)
    assert isinstance(plan, Plan)
    assert plan.kernel == f"jaxbw_sm90_plain_bf16_nn_64x{block_n}"
    for offset, kernel in ((0, plan.kernel), (2, serves)):
        arrays = {"lhs": 1 << 24, "rhs": 2 << 24, "result": (3 << 24) + offset}
        _, launch, _ = _native.emulated_launches(plan, arrays, sm_count=132)
        assert launch.kernel == kernel


def field(parameters: bytes, name: str) -> bytes:
    offset, size = FIELDS[name]
    return parameters[offset : offset + size]


def number(parameters: bytes, name: str) -> int:
    return int.from_bytes(field(parameters, name), "little")


def tensor_map(parameters: bytes, name: str) -> Any:
    found = TensorMapFields.decode(field(parameters, name))
    return found.type.name, found.extents, found.strides, found.box, found.swizzle.name


# A is shared by one column of CTAs, B by two rows, which load half of its box each.
A_K = [72, 136, 1], [144, 144 * 136], [64, 128, 1]
A_M = [136, 72, 1], [272, 272 * 72], [64, 64, 1]
B_K = [72, 264, 1], [144, 144 * 264], [64, 64, 1]
B_N = [264, 72, 1], [528, 528 * 72], [64, 32, 1]
MAPS = {"nn": (A_K, B_N), "nt": (A_K, B_K), "tn": (A_M, B_N), "tt": (A_M, B_K)}


@pytest.mark.parametrize("layout", MAPS)
def test_tensor_maps_of_the_emulator(layout: str) -> None:
    majors = dict(
        lhs_major=Major.K if layout[0] == "n" else Major.MN,
        rhs_major=Major.MN if layout[1] == "n" else Major.K,
    )
    _, (repack, gemm, reduce) = launches(
        "sm100",
        dict(m=136, n=264, k=72, lhs=DataType.F16, rhs=DataType.F16, output=DataType.F32) | majors,
        GemmConfig(128, 128, cluster=(2, 1)),
    )
    assert repack is None
    assert reduce is None
    a, b = MAPS[layout]
    assert tensor_map(gemm.parameters, "a") == ("FLOAT16", *a, "B128")
    assert tensor_map(gemm.parameters, "b") == ("FLOAT16", *b, "B128")
    d = [264, 136, 1], [1056, 1056 * 136], [32, 32, 1]
    assert tensor_map(gemm.parameters, "d") == ("FLOAT32", *d, "B128")
    # A pair of CTAs for each of 3 columns of tiles; six stages of 256 rows of 128 bytes.
    assert (gemm.blocks, gemm.cluster_ctas, gemm.threads) == (2 * 3, 2, 256)
    assert gemm.shared_memory == 6 * 256 * 128 + 32768 + 1024


@pytest.mark.parametrize(
    ("block_n", "output", "store", "residual"),
    [
        (128, DataType.BF16, ([64, 16, 1], "B128"), ([64, 128, 1], "B128")),
        (128, DataType.F32, ([32, 16, 1], "B128"), ([64, 128, 1], "B128")),
        (96, DataType.BF16, ([32, 16, 1], "B64"), ([32, 128, 1], "B64")),
    ],
)
def test_boxes_of_a_result_and_of_a_residual_in_the_ring(
    block_n: int, output: DataType, store: Any, residual: Any
) -> None:
    # A warp stores 16 rows of a span, or of half of one; a residual comes with all rows of a tile.
    problem = dict(m=256, n=256, k=512, output=output, residual=DataType.F16)
    _, (_, gemm, _) = launches("sm90", problem, GemmConfig(128, block_n), "residual")
    assert tensor_map(gemm.parameters, "d")[3:] == store
    rows = "FLOAT16", [256, 256, 1], [512, 512 * 256]
    assert tensor_map(gemm.parameters, "residual") == (*rows, *residual)


def test_a_workspace_of_copies_and_parts_for_a_launch_behind() -> None:
    # Rows of 1,700 and 266 bytes are copied to 1,792 and 384, lines of 128.
    plan, (repack, gemm, reduce) = launches(
        "sm90", dict(m=200, n=133, k=850), GemmConfig(128, 128, stages=3, split_k=12)
    )
    a, b = 200 * 1792, 850 * 384
    # Of each of 4 tiles in 12 parts, 8 warps have 16 x 128 sums.
    parts = 4 * 12 * 8 * 16 * 128 * 4
    offsets = plan.workspace_offsets
    assert (offsets["a"], offsets["b"], offsets["partials"]) == (0, a, a + b)
    assert plan.workspace_bytes == a + b + parts
    p = gemm.parameters
    assert number(p, "partials") == WORKSPACE + a + b
    assert number(p, "counters") == plan.counters == 0
    assert tensor_map(p, "a")[1:3] == ([850, 200, 1], [1792, a])
    assert tensor_map(p, "b")[1:3] == ([133, 850, 1], [384, b])
    addresses = [TensorMapFields.decode(field(p, name)).address for name in ("a", "b")]
    assert addresses == [WORKSPACE, WORKSPACE + a]
    assert (repack.kernel, repack.threads) == ("jaxbw_sm90_repack_16bit", 256)
    assert (gemm.blocks, gemm.threads) == (4 * 12, 384)
    # Slices of 16 rows and 32 columns of each tile; no more blocks than SMs.
    assert (reduce.kernel, reduce.blocks) == ("jaxbw_sm90_reduce_f32", 4 * 8 * 4)
    assert (reduce.threads, reduce.parameters) == (512, p)


def test_a_workspace_of_two_right_operands_and_counters() -> None:
    plan, (_, gemm, reduce) = launches(
        "sm100",
        dict(m=200, n=133, k=128, gated=True),
        GemmConfig(128, 128, split_k=2),
        "rhs_up",
    )
    b = 128 * 384
    # 2 x 3 tiles of 64 columns of either; of each part four warps have 32 x 128 sums.
    parts = 6 * 2 * 4 * 32 * 128 * 4
    assert plan.workspace_offsets == {
        "a": 0,
        "b": 0,
        "b_up": b,
        "partials": 2 * b,
    }
    assert plan.workspace_bytes == 2 * b + parts
    assert plan.counters == 6 * 4
    maps = {name: field(gemm.parameters, name) for name in ("a", "b", "b_up")}
    addresses = {name: TensorMapFields.decode(map_).address for name, map_ in maps.items()}
    assert addresses == {"a": 1 << 24, "b": WORKSPACE, "b_up": WORKSPACE + b}
    assert number(gemm.parameters, "counters") == COUNTERS
    assert reduce is None


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (dict(lhs=16, rhs=16), "result is missing"),
        (dict(lhs=16, rhs=16, result=16, bias=16), "4 arrays; this call has 3"),
        (dict(lhs=8, rhs=16, result=16), "lhs is at address 8; it needs a multiple of 16"),
    ],
)
def test_arrays_that_a_launch_does_not_take(arrays: dict[str, int], message: str) -> None:
    plan = _native.plan("sm90", Problem(batch=1, m=64, n=64, k=64), GemmConfig(128, 64))
    assert isinstance(plan, Plan)
    with pytest.raises(ValueError, match=message):
        _native.emulated_launches(plan, arrays, sm_count=1)


# --- rules

SIZES = {"batch": 1, "m": 1024, "n": 1024, "k": 1024}
HUGE = {"m": 2**19, "n": 2**19, "k": 128}
PAIR = {"cta_group": 2, "cluster": (2, 1)}
ROWS = {"grouped": Grouped.ROWS, "groups": 4, "total_groups": 4}
MIXED = {"lhs": DataType.E4M3, "rhs": DataType.E2M1, "mx": 32}
MIXED_LHS = {"lhs": DataType.E2M1, "rhs": DataType.E5M2, "mx": 32}
IN_MXFP8 = EIGHT_BITS | {"mx": 32, "out_mx": True, "output": DataType.E4M3}
BLOCKS = {"promoted": True, "lhs_blocks": 1, "rhs_blocks": 128}
BROKEN: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "empty": ("sm100", {"m": 0}, {}),
    "gated_c": ("sm100", {"gated": True, "c": DataType.F32}, {}),
    "out_scale": ("sm100", {"out_scale": True}, {}),
    "block_scales_sm100": ("sm100", EIGHT_BITS | BLOCKS, {}),
    "block_scales_8bit": ("sm90", BLOCKS, {}),
    "block_scales_gated": ("sm90", EIGHT_BITS | BLOCKS | {"gated": True}, {}),
    "block_scales_columns": ("sm90", EIGHT_BITS | BLOCKS | {"rhs_blocks": 1}, {}),
    "block_scales_swap": ("sm90", EIGHT_BITS | BLOCKS, {"swap_ab": True}),
    "mx": ("sm100", {"mx": 32}, {}),
    "mx_block": ("sm100", EIGHT_BITS | {"mx": 16}, {}),
    "mx_4bit": ("sm100", FOUR_BITS | {"mx": 16, "k": 80}, {}),
    # Beside 8 bits, too: K-major, in either place, and with scales, of 32 only.
    "mx_4bit, MN-major": ("sm100", MIXED | {"rhs_major": Major.MN}, {}),
    "mx_4bit, lhs": ("sm100", MIXED_LHS | {"k": 80}, {}),
    "mx_4bit, no scales": ("sm100", MIXED | {"mx": 0}, {}),
    "mx_block, 4 bits beside 8": ("sm100", MIXED | {"mx": 16}, {}),
    "mx_gated": ("sm100", EIGHT_BITS | {"mx": 32, "gated": True}, {"block_n": 64}),
    "mx_rows": ("sm100", EIGHT_BITS | {"mx": 32}, {"block_m": 64}),
    "mx_columns": ("sm100", EIGHT_BITS | {"mx": 32}, {"block_n": 80}),
    "mx_accumulators": (
        "sm100",
        EIGHT_BITS | {"mx": 32},
        {"block_n": 256, "accumulators": 2},
    ),
    "mx_cluster_k": (
        "sm100",
        EIGHT_BITS | {"mx": 32},
        {"cluster_k": 2, "swap_ab": True, "block_n": 64},
    ),
    "out_mx": ("sm100", EIGHT_BITS | {"out_mx": True, "output": DataType.E4M3}, {}),
    "out_mx_swap": ("sm100", IN_MXFP8, {"swap_ab": True}),
    "out_mx_columns": ("sm100", IN_MXFP8, {"block_n": 192}),
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
    "cluster_k_sm100": ("sm100", {}, {"cluster_k": 2}),
    "cluster_sums_sm100": ("sm100", {}, {"block_n": 16, "cluster_k": 9, "swap_ab": True}),
    "stages": ("sm90", {}, {"stages": 1}),
    "stage": ("sm100", {}, {"block_m": 256, "block_n": 256, "block_k": 256}),
    "no_kernel": ("sm90", {"lhs": DataType.F32, "rhs": DataType.F32}, {"block_m": 256}),
    "block_n_of_operands": ("sm90", EIGHT_BITS | {"promoted": True}, {"block_n": 256}),
    "whole_tiles": (
        "sm90",
        {"rhs_major": Major.MN, "c": DataType.F32},
        {"block_m": 192, "block_n": 192},
    ),
    "skinny": ("sm90", {}, {"block_m": 16, "split_k": 2}),
    "skinny, cluster": ("sm90", {}, {"block_m": 16, "cluster": (1, 2)}),
    "skinny_epilogue": ("sm90", {"save": True}, {"block_m": 16}),
    "gated_columns_sm90, few rows": ("sm90", {"gated": True}, {"block_m": 16, "block_n": 64}),
    "skinny_epilogue, c": ("sm90", {"c": DataType.F32}, {"block_m": 16}),
    "skinny_epilogue, 8 bits": ("sm90", {"output": DataType.E4M3}, {"block_m": 16}),
    "skinny_row": ("sm90", {"m": 1, "k": 65}, {"block_m": 16}),
    "block_k_sm90, few rows": ("sm90", {}, {"block_m": 16, "block_n": 64, "block_k": 64}),
    "no_kernel, few rows": ("sm90", {"lhs_major": Major.MN}, {"block_m": 16}),
    "gated_swap": ("sm100", {"gated": True}, {"swap_ab": True}),
    "grouped_epilogue": ("sm90", ROWS | {"residual": DataType.F32}, {}),
    "grouped_8bit_major": ("sm90", ROWS | EIGHT_BITS | {"rhs_major": Major.MN}, {}),
    "grouped_alignment": ("sm90", ROWS | {"k": 1004}, {}),
    "gathered": ("sm90", ROWS | {"source_rows": 9, "batch": 2}, {}),
    "grouped_mx": ("sm100", ROWS | EIGHT_BITS | {"mx": 32, "batch": 2}, {}),
    "grouped_rows": ("sm90", ROWS | {"m": 2**30, "n": 64, "k": 64, "batch": 2}, {}),
    "grouped_config": ("sm90", ROWS, {"cluster": (1, 2)}),
    "grouped_config_sm100": ("sm100", ROWS, {"scheduler": "clc"}),
    "gated_columns": ("sm100", {"gated": True}, {"block_n": 144}),
    "gated_columns_sm90": ("sm90", {"gated": True}, {"block_n": 192}),
    "gated_pair": ("sm100", {"gated": True}, PAIR),
    "columns": ("sm100", {"rhs_major": Major.MN, "gated": True}, {"block_n": 96}),
    "columns_8bit": ("sm100", EIGHT_BITS | {"rhs_major": Major.MN}, {"block_n": 72, "block_m": 64}),
    "columns_of_result": (
        "sm100",
        {"output": DataType.E4M3},
        {"block_n": 24, "block_m": 64},
    ),
    "shares": ("sm100", {}, {"block_n": 96, "cluster": (8, 1)}),
    "box_rows": ("sm90", {}, {"block_n": 320}),
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
    assert found.rule == rule.split(",")[0]
    assert "?" not in str(found)
    words = planner.message(found, family, config)
    assert not re.search(r"[{}]|None;", words)


OF_GROUPS = ROWS | {"grouped": Grouped.CONTRACTION, "lhs_major": Major.MN, "rhs_major": Major.MN}
BLACKWELL_LEAVES_OUT: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "scales of a contraction": ("grouped_epilogue", OF_GROUPS | {"lhs_scale": True}, {}),
    "half a span of rows": ("columns", OF_GROUPS, {"block_m": 64}),
    "half a span of gate": ("columns", ROWS | {"rhs_major": Major.MN, "gated": True}, {}),
    "blocks of a contraction": ("grouped_mx", OF_GROUPS | {"mx": 32}, {}),
    "blocks of gathered rows": ("grouped_mx", ROWS | {"mx": 32, "source_rows": 9}, {}),
    "blocks of 4 and 8 bits": ("grouped_mx", ROWS | {"mx": 32, "lhs": DataType.E2M1}, {}),
    "half boxes of 4 bits": (
        "grouped_alignment",
        ROWS | {"mx": 32, "rhs": DataType.E2M1, "k": 192},
        {},
    ),
    "scales of columns, too": ("mx", ROWS | {"mx": 32, "rhs_scale": True}, {}),
    "64 rows": ("mx_rows", ROWS | {"mx": 32}, {"block_m": 64}),
}


@pytest.mark.parametrize("name", BLACKWELL_LEAVES_OUT)
def test_what_groups_of_8_bits_leave_out_on_blackwell(name: str) -> None:
    rule, problem, changes = BLACKWELL_LEAVES_OUT[name]
    given = Problem(**SIZES | EIGHT_BITS | {"rhs_major": Major.K} | problem)
    found = _native.plan("sm100", given, GemmConfig(**{"block_m": 128, "block_n": 128} | changes))
    assert isinstance(found, Violation)
    assert found.rule == rule


@pytest.mark.parametrize("name", ["groups", "total_groups"])
def test_without_groups_there_is_nothing_to_launch(name: str) -> None:
    given = Problem(**{**SIZES, **ROWS, name: 0})  # type: ignore[arg-type]
    found = _native.plan("sm90", given, GemmConfig(128, 128))
    assert isinstance(found, Violation)
    assert found.rule == "empty"


def test_these_are_all_rules_that_a_configuration_can_break() -> None:
    without_a_problem = {"block_k_of_any"}
    broken = {rule.split(",")[0] for rule in BROKEN}
    assert broken | without_a_problem == set(planner.MESSAGES)


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
    r"\bhas_out_scale\b.*[\s\S]{0,40}\bout_mx\b.*[\s\S]{0,40}\bgated\b.*[\s\S]{0,40}\bsave\b": {
        "cuda/host/gemm_call.h",
        "cuda/host/gemm_call.cc",
        "jaxbw/_native.pyi",
    },
    # constants of a machine; between the two tables, tests/model/test_machine.py
    r"(_ghz|_ns|_cycles|_per_cycle)(: float)?\s*=\s*[1-9{]": {"jaxbw/_src/selection/machines.toml"},
    # the law of the clock
    r"throttle_exponent\b.*\*\*|\*\*.*throttle_exponent": {"jaxbw/_src/selection/machine.py"},
    # the timer of kernels
    r"\bstart_kernel_times\(": {
        "cuda/host/kernel_times.cc",
        "cuda/host/kernel_times.h",
        "cuda/host/module.cc",
        "jaxbw/_native.pyi",
        "jaxbw/_src/lab/cupti.py",
    },
    # the order in which what is compared takes turns
    r"\.(sample|shuffle|permutation)\(.*(arms|each|launches|programs|names|calls)": {
        "jaxbw/_src/lab/interleaving.py"
    },
}


SOURCES = {
    "cuda": ("*.cc", "*.h", "*.cuh"),
    "jaxbw": ("*.py", "*.pyi", "*.toml"),
    "benchmarks": ("*.py",),
}


@pytest.mark.parametrize("pattern", ONE_PLACE)
def test_it_stands_in_one_place(pattern: str) -> None:
    """In what ships and what measures it; the laboratory's replay has names of its own."""
    sources = [
        path
        for folder, kinds in SOURCES.items()
        for kind in kinds
        for path in (ROOT / folder).rglob(kind)
        if "lab/model" not in path.as_posix()
    ]
    found = {path for path in sources if re.search(pattern, path.read_text())}
    assert {path.relative_to(ROOT).as_posix() for path in found} == ONE_PLACE[pattern]
