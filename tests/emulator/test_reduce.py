"""The parts of split tiles, added up by a launch behind the matmul's (sm90_reduce.cuh)."""

import re
from dataclasses import replace
from typing import Any

import pytest

from jaxbw import emulator

from . import gemm_cases, gemm_launch
from .gemm_cases import Case
from .installed import load, text

REDUCE = "jaxbw_sm90_reduce_f32"
ALL: dict[str, Any] = dict(
    c="f32", bias="bf16", residual="f16", save=True, alpha=0.5, activation="relu"
)
HOPPER: dict[str, Any] = dict(family="sm90", output="bf16", stages=3)
NARROW: dict[str, Any] = HOPPER | dict(block_n=64)

# What the parts of a tile can be, a launch for each.
CASES = {
    "12 parts": Case(200, 200, 850, **HOPPER, split_k=12),
    "17 parts": Case(136, 72, 1160, **NARROW, split_k=17),
    "64 parts": Case(72, 40, 4200, **NARROW, split_k=64),
    "odd rows": Case(200, 133, 850, **HOPPER, split_k=13),
    "rows of vectors": Case(200, 136, 850, **HOPPER | dict(output="f32"), split_k=13),
    "batch": Case(72, 70, 850, batch=3, **NARROW, split_k=12),
    "epilogue": Case(200, 136, 850, **NARROW, **ALL, split_k=14),
    "epilogue of odd rows": Case(100, 77, 850, **NARROW, **ALL, split_k=12),
    "in place": Case(100, 72, 850, **NARROW, c="bf16", in_place=True, bias="f32", split_k=12),
    "gated": Case(200, 120, 850, **HOPPER, gated=True, activation="relu", save=True, split_k=12),
    "gated, odd rows": Case(72, 45, 850, **HOPPER, gated=True, bias="f32", split_k=12),
    "pingpong": Case(200, 136, 850, **NARROW, block_m=64, pingpong=True, split_k=12),
    "two m64": Case(300, 200, 850, **HOPPER, block_m=256, split_k=12, save=True),
    "two m64, pingpong": Case(
        200, 136, 850, **HOPPER, block_m=128, pingpong=True, split_k=12, gated=True
    ),
    "swapped": Case(16, 264, 850, **HOPPER, block_n=32, swap_ab=True, split_k=12),
    "swapped, odd rows": Case(5, 131, 850, **HOPPER, block_n=32, swap_ab=True, split_k=13, **ALL),
    "2x1": Case(520, 136, 850, **NARROW, cluster=(2, 1), split_k=12, swizzle=2),
    "2x2, along n": Case(520, 392, 850, **NARROW, cluster=(2, 2), split_k=12, raster="n"),
    "clusters of parts": Case(136, 72, 2200, **NARROW, cluster_k=2, split_k=12),
    "clusters of parts, gated": Case(
        136, 72, 3200, **HOPPER | dict(stages=None), cluster_k=4, split_k=12, gated=True, save=True
    ),
    "clusters of parts, swapped": Case(
        16, 200, 2200, **HOPPER | ALL, block_n=32, cluster=(2, 1), cluster_k=2, split_k=12,
        swap_ab=True,
    ),
    "split tail": Case(600, 300, 850, **HOPPER, split_k=12, split_tail=True),
    "split tail of clusters": Case(
        136, 392, 1600, **HOPPER | dict(stages=None), cluster_k=2, split_k=12, split_tail=True
    ),
    "no tail": Case(256, 256, 850, **HOPPER, split_k=12, split_tail=True),
}  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize("schedule", [("eager", 0), ("latest", 0), ("random", 1)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_the_parts_are_added_up(name: str, schedule: tuple[str, int]) -> None:
    case = CASES[name]
    gemm_cases.check(load(case.kernel), case, *schedule)


def run(case: Case, counted: bool = False, **options: Any) -> gemm_launch.Outcome:
    return gemm_launch.launch(
        load(case.kernel),
        replace(case.config(), counted=counted),
        case.matmul(),
        sm_count=case.sm_count,
        **options,
    )


# Not the whole epilogue: two compilations of its formula may fuse different operations.
@pytest.mark.parametrize("name", ["17 parts", "gated, odd rows", "two m64", "clusters of parts"])
def test_the_last_of_a_tile_would_add_up_the_same_bits(name: str) -> None:
    case = replace(CASES[name], integers=False)
    outcomes = [run(case, counted=counted) for counted in (True, False)]
    counted, apart = ([x.tobytes() for x in (o.d, *o.saved)] for o in outcomes)
    assert all(outcome.report.findings == [] for outcome in outcomes)
    assert counted == apart


@pytest.mark.parametrize("sm_count", [1, 3, 60])
def test_any_number_of_blocks(sm_count: int) -> None:
    case = CASES["epilogue of odd rows"]
    outcome = gemm_launch.launch(
        load(case.kernel), case.config(), case.matmul(), sm_count=sm_count, schedule="random"
    )
    gemm_cases.verify(case, case.matmul(), outcome)


def test_every_barrier_is_needed() -> None:
    ptx = text(REDUCE)
    barriers = [match.span() for match in re.finditer(r"barrier\.cta\.sync\S* .*?;", ptx)]
    assert len(barriers) >= 2
    case = CASES["epilogue of odd rows"]
    for first, end in barriers:
        mutant = emulator.Module(ptx[:first] + ptx[end:], "mutant.ptx")
        found = [
            run(case, reduce=mutant, schedule=schedule, seed=seed).report.findings
            for schedule, seed in (("latest", 0), ("random", 1), ("pct", 1))
        ]
        assert any(found), ptx[first:end]
