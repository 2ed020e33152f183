"""Grouped matmuls in block-scaled formats: bit-exact, strictly, in every schedule.

Scales are NaN for rows of no group, behind a group's end in its last tile of scales, and for the
matrices of groups without rows.
"""

import re
from dataclasses import replace
from typing import Any

import pytest

from jaxbw import emulator

from . import installed
from .mx_operands import SCHEDULES
from .ragged_launch import Ragged, check, launch
from .test_mx import PASSES_ON

MXFP8 = Ragged(
    (37, 0, 150, 13), k=144, format="mxfp8", dtype="e4m3", transposed=True, family="sm100"
)
MXFP4 = replace(MXFP8, format="mxfp4", dtype="e2m1", k=288)
W4A8 = replace(MXFP8, rhs_format="mxfp4", rhs_dtype="e2m1", k=256)  # weights in whole boxes
NVFP4 = replace(MXFP4, format="nvfp4", scales=("rhs",))
LARGE: dict[str, Any] = {"sizes": (300, 1, 128, 129), "m": 600}

CASES = {
    "tails": MXFP8,
    "large": replace(MXFP8, **LARGE, n=264, k=528, stages=2, output="f32"),
    "192 columns": replace(MXFP8, **LARGE, tile=(128, 192), n=424, k=272, rhs_dtype="e5m2"),
    "256 columns": replace(MXFP8, tile=(128, 256), n=392, k=656, sm_count=2, output="f16"),
    "64 columns": replace(MXFP8, tile=(128, 64), n=200, sm_count=1, stages=None),
    "96 columns": replace(MXFP8, tile=(128, 96), n=456, k=272, groups=2, offset=1),
    "224 columns": replace(MXFP8, tile=(128, 224), n=648, k=272, sm_count=2, output="f16"),
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
    "mxfp8 by mxfp4": W4A8,
    "mxfp8 by mxfp4, large": replace(W4A8, **LARGE, tile=(128, 192), n=424, k=640, output="f32"),
    "mxfp8 by mxfp4, gated": replace(W4A8, gated=True, tile=(128, 256), n=264, output="f32"),
    "mxfp8 by mxfp4, narrow": replace(W4A8, gated=True, n=136, dtype="e5m2", output="f32"),
    "mxfp4": MXFP4,
    "mxfp4, large": replace(MXFP4, **LARGE, tile=(128, 192), n=264, k=544, output="f32"),
    "mxfp4, gated": replace(MXFP4, gated=True, n=136, output="f32"),
    "mxfp4, 160 columns": replace(MXFP4, tile=(128, 160), n=648, k=544, output="f32"),
    "nvfp4": NVFP4,
    "nvfp4, 160 columns": replace(NVFP4, tile=(128, 160), n=648, k=544, sm_count=2),
    "nvfp4, large": replace(NVFP4, **LARGE, n=264, k=800, stages=2, output="f32", bias="f32"),
    "nvfp4, without global scales": replace(NVFP4, scales=(), groups=2, offset=1),
    "nvfp4, gated": replace(NVFP4, gated=True, tile=(128, 256), n=136, output="f32"),
}

# The last tile of a group has rows for both CTAs, or for one.
PAIRS = {
    name: CASES[name].on("sm100 pairs")
    for name in (
        *("tails", "large", "192 columns", "64 columns", "one group", "all empty", "along n"),
        *("more groups than rows", "oversized", "some groups", "a CTA for each tile", "epilogue"),
        *("gated, wide", "mxfp8 by mxfp4", "mxfp8 by mxfp4, large", "mxfp8 by mxfp4, gated"),
        *("96 columns", "224 columns", "mxfp4, 160 columns", "nvfp4, 160 columns"),
        *("mxfp4", "mxfp4, large", "nvfp4", "nvfp4, large", "nvfp4, gated"),
    )
} | {
    "mxfp4, gated": replace(MXFP4, gated=True, tile=(128, 256), n=264, output="f32").on(
        "sm100 pairs"
    ),
    "gated, large": replace(
        MXFP8, **LARGE, gated=True, tile=(128, 256), n=264, k=528, bias="f32", output="f32"
    ).on("sm100 pairs"),
}


EVERY = CASES | {f"pairs: {name}": case for name, case in PAIRS.items()}


@pytest.mark.sampled(len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_grouped(name: str, schedule: tuple[str, int]) -> None:
    how, seed = schedule
    check(EVERY[name], schedule=how, seed=seed, checks="strict")


@pytest.mark.parametrize("ctas", [1, 2])
@pytest.mark.parametrize(("format", "columns"), [("mxfp8", 192), ("mxfp4", 128), ("nvfp4", 128)])
def test_what_is_loaded(format: str, columns: int, ctas: int) -> None:
    """As of other formats; and scales of each CTA's rows and of all columns of its tile."""
    of_8_bits = format == "mxfp8"
    case = replace(MXFP8 if of_8_bits else MXFP4, format=format, k=512, n=2 * columns)
    case = replace(case, tile=(128, columns), sizes=(37, 0, 150, 13), sm_count=2)
    case = case if ctas == 1 else case.on("sm100 pairs")
    _, report = check(case)
    tiles = 4 if ctas == 1 else 3  # of rows
    k_bytes = case.k // (1 if of_8_bits else 2)
    lhs, rhs = 2 * sum(case.sizes) * k_bytes, 2 * tiles * columns * k_bytes
    k_tiles = case.k // (4 * case.block)
    scales = 2 * tiles * ctas * (1 + -(-columns // 128)) * k_tiles * 512
    warps = (6, 11)[ctas - 1]  # of a CTA or pair, that read the table
    table = warps * 32 * (20 * 2 * tiles + 4 * 2)
    assert report.bytes["global load"] == lhs + rhs + scales + table


@pytest.mark.parametrize("case", [CASES["large"], CASES["nvfp4"]], ids=["mxfp8", "nvfp4"])
@pytest.mark.parametrize(
    ("pattern", "by", "finding"),
    [
        (PASSES_ON, r"\1", "race"),
        (re.compile(r"tcgen05\.cp\."), "// tcgen05.cp.", "poison"),
    ],
)
def test_mutants_are_found(case: Ragged, pattern: Any, by: str, finding: str) -> None:
    mutant, count = pattern.subn(by, installed.text(case.plan().kernel))
    assert count
    *_, reports = launch(case, *case.operands(), emulator.Module(mutant), checks="strict")
    assert finding in {found.kind for found in reports[-1].findings}
