"""Grouped matmuls in block-scaled formats: bit-exact, strictly, in every schedule.

Scales are NaN for rows of no group, behind a group's end in its last tile of scales, and for the
matrices of groups without rows.
"""

from dataclasses import replace
from typing import Any

import pytest

from .mx_operands import SCHEDULES
from .ragged_launch import Ragged, check

MXFP8 = Ragged(
    (37, 0, 150, 13), k=144, format="mxfp8", dtype="e4m3", transposed=True, family="sm100"
)
MXFP4 = replace(MXFP8, format="mxfp4", dtype="e2m1", k=288)
NVFP4 = replace(MXFP4, format="nvfp4", scales=("rhs",))
LARGE: dict[str, Any] = {"sizes": (300, 1, 128, 129), "m": 600}

CASES = {
    "tails": MXFP8,
    "large": replace(MXFP8, **LARGE, n=264, k=528, stages=2, output="f32"),
    "192 columns": replace(MXFP8, **LARGE, tile=(128, 192), n=424, k=272, rhs_dtype="e5m2"),
    "256 columns": replace(MXFP8, tile=(128, 256), n=392, k=656, sm_count=2, output="f16"),
    "64 columns": replace(MXFP8, tile=(128, 64), n=200, sm_count=1, stages=None),
    "along n": replace(MXFP8, transposed=False, n=272, k=272),
    "one group": replace(MXFP8, sizes=(200,), tile=(128, 192), n=328),
    "one takes all": replace(MXFP8, sizes=(0, 0, 200, 0)),
    "all empty": replace(MXFP8, sizes=(0, 0, 0)),
    "more groups than rows": replace(MXFP8, sizes=(0, 1, 0, 0, 2, 0, 1, 0, 0, 1), m=5),
    "oversized": replace(MXFP8, sizes=(-5, 70, 2**31 - 1, 9)),
    "some groups": replace(MXFP8, sizes=(20, 131, 45, 17, 60), m=300, groups=2, offset=1),
    "offset before the first": replace(MXFP8, sizes=(70, 31, 45), groups=2, offset=-1, m=150),
    "a CTA for each tile": replace(MXFP8, scheduler="none", n=264),
    "epilogue": replace(MXFP8, bias="f32", activation="relu", alpha=-0.5, output="f32"),
    "gated": replace(MXFP8, **LARGE, gated=True, activation="relu", bias="bf16", n=200),
    "gated, wide": replace(MXFP8, gated=True, tile=(128, 256), n=264, k=272, output="f32"),
    "mxfp4": MXFP4,
    "mxfp4, large": replace(MXFP4, **LARGE, tile=(128, 192), n=264, k=544, output="f32"),
    "mxfp4, gated": replace(MXFP4, gated=True, n=136, output="f32"),
    "nvfp4": NVFP4,
    "nvfp4, large": replace(NVFP4, **LARGE, n=264, k=800, stages=2, output="f32", bias="f32"),
    "nvfp4, without global scales": replace(NVFP4, scales=(), groups=2, offset=1),
    "nvfp4, gated": replace(NVFP4, gated=True, tile=(128, 256), n=136, output="f32"),
}


@pytest.mark.sampled(len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_grouped(name: str, schedule: tuple[str, int]) -> None:
    how, seed = schedule
    check(CASES[name], schedule=how, seed=seed, checks="strict")
