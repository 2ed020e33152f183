"""Grouped matmuls by the kernels that ship, run as PTX: bit-exact, in every schedule, no finding.

Every row that belongs to no group is NaN, and so is the result before the launch. Sizes are no
multiples of anything.
"""

import random
from dataclasses import replace

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from jaxbw._src.selection.kernel_table import Kernel

from . import ragged_draw
from .ragged_launch import Ragged, check, launch

FAMILIES = ["sm90", "sm100"]
KERNELS = [*FAMILIES, "sm100 pairs"]
SCHEDULES = [("eager", 0), ("latest", 0), ("random", 1), ("pct", 3)]
BATCH = ((37, 90, 50), (0, 130, 70), (200, 0, 0))

# Rows are grouped. There are 200 of them, and tiles of 128 or 64.
ROWS = {
    "a tail": Ragged((37, 90, 50)),
    "no tail": Ragged((37, 90, 73), transposed=True),
    "one group": Ragged((200,), tile=(128, 256), n=264),
    "one takes all": Ragged((0, 0, 200, 0), transposed=True, k=136),
    "all empty": Ragged((0, 0, 0)),
    "a row each, and nothing": Ragged((1, 0, 1, 0, 0, 1), m=3, dtype="f16", output="f16"),
    "more groups than rows": Ragged(
        (0, 1, 0, 0, 2, 0, 1, 0, 0, 1), m=5, tile=(64, 128), pingpong=True
    ),
    "more groups than threads": Ragged((0, 0, 1) * 250, m=240, groups=3, offset=700, k=8, n=8),
    "negative sizes": Ragged((-5, 70, -(2**31), 60, -1)),
    "oversized": Ragged((70, 2**31 - 1, 9, 2**31 - 1), output="f32"),
    "some groups": Ragged((20, 31, 45, 17, 60), groups=2, offset=2),
    "offset before the first": Ragged((70, 31, 45), groups=2, offset=-1, m=150),
    "offset behind the last": Ragged((70, 31), groups=3, offset=2**31 - 1, m=150),
    "offset, and no group of them": Ragged((70, 31), groups=1, offset=-(2**31), m=150),
    "64 rows": Ragged((37, 90, 50), tile=(64, 128), pingpong=True, transposed=True),
    "64 rows, wide": Ragged((37, 90, 50), tile=(64, 256), pingpong=True, n=264, output="f32"),
    "128 rows in turns": Ragged((70, 0, 101), tile=(64, 256), pingpong=True, k=264, sm_count=1),
    "staggered": Ragged((5, 120, 33), tile=(128, 256), k=328, n=520, swizzle=1, dtype="f16"),
    "results of f32": Ragged((37, 90, 50), tile=(128, 256), n=260, output="f32", transposed=True),
    "a CTA for each tile": Ragged((37, 0, 90, 50), scheduler="none"),
    "batch": Ragged(BATCH),
    "batch, one rhs": Ragged(BATCH, shared=("rhs",), transposed=True),
    "batch, one lhs": Ragged(BATCH, shared=("lhs",), groups=2, offset=1),
    "batch, one of both": Ragged(BATCH, shared=("lhs", "rhs")),
}
# The contraction is: groups of any size next to blocks of 64.
CONTRACTION = {
    "plain": Ragged((37, 90, 50)),
    "whole blocks": Ragged((64, 128, 0, 8), k=136),
    "one group": Ragged((200,), tile=(128, 256), n=264),
    "one takes all": Ragged((0, 0, 200, 0), k=136),
    "all empty": Ragged((0, 0, 0), output="f32"),
    "more groups than rows": Ragged((0, 1, 0, 0, 2, 0, 1, 0, 0, 1), m=5, dtype="f16"),
    "more groups than threads": Ragged((0, 0, 1) * 250, m=240, groups=3, offset=700, k=8, n=8),
    "negative and oversized": Ragged((-5, 70, -(2**31), 2**31 - 1, 7), output="f32"),
    "some groups": Ragged((20, 31, 45, 17, 60), groups=2, offset=2),
    "offset before the first": Ragged((70, 31, 45), groups=2, offset=-1),
    "offset behind the last": Ragged((70, 31), groups=3, offset=1),
    "wide": Ragged((37, 0, 90, 73), tile=(128, 256), k=264, n=520),
    "in any order": Ragged((9, 0, 64, 1, 9, 0, 70, 3, 2, 0, 40), n=16, output="f32"),
    "in turns": Ragged((37, 0, 90, 73), tile=(64, 128), pingpong=True, sm_count=1),
    "in turns, wide": Ragged(
        (300, 0, 9), m=320, tile=(64, 256), pingpong=True, n=264, output="f32"
    ),
    "a CTA for each tile": Ragged((37, 0, 90, 50), k=264, scheduler="none"),
    "staggered": Ragged((320, 257), m=600, tile=(128, 256), k=264, n=264, swizzle=1),
    "batch": Ragged(BATCH),
    "batch, one rhs": Ragged(BATCH, shared=("rhs",), groups=2, offset=1),
    "batch, one lhs": Ragged(BATCH, shared=("lhs",)),
}
# A group has most of the rows: the tiles behind whole waves of CTAs are split.
PARTS = {
    "one takes all": Ragged((0, 0, 200, 0), n=264, k=136, split=2, sm_count=4),
    "most": Ragged((40, 9, 120, 31), n=264, k=136, split=2, sm_count=4, dtype="f16", output="f16"),
    "half is not": Ragged((100, 9, 60, 31), n=264, k=136, split=2, sm_count=4),
    "fewer blocks than parts": Ragged((0, 60, 3), m=70, n=264, k=136, split=2, sm_count=4),
    "three, wide": Ragged((3, 500, 9), m=600, tile=(128, 256), n=520, k=264, split=3, sm_count=7),
    "fewer tiles than CTAs": Ragged((3, 0, 300, 9), m=312, n=264, k=136, split=2, sm_count=9),
    "in turns": Ragged(
        (3, 0, 190, 7), tile=(64, 128), pingpong=True, n=264, k=136, split=4, sm_count=5
    ),
    "a CTA for each tile": Ragged((7, 193), n=264, k=136, split=2, sm_count=4, scheduler="none"),
    "c": Ragged(
        (0, 150, 50), n=264, k=136, split=2, sm_count=4, adds=True, output="f32", alpha=0.5
    ),
    "batch": Ragged(((37, 0, 50), (10, 20, 500)), m=600, n=264, k=136, split=2, sm_count=8),
    "some groups": Ragged((9, 150, 0, 40), groups=2, offset=1, n=264, k=136, split=2, sm_count=4),
    "of others": Ragged((150, 9, 0, 40), groups=2, offset=1, n=264, k=136, split=2, sm_count=4),
}
# What is done on the way out. Rows of no group are zeros, whatever that is.
EPILOGUES = {
    "bias": Ragged((37, 0, 90, 50), bias="f32", alpha=-0.5, output="f32"),
    "relu": Ragged((37, 0, 90, 73), bias="bf16", activation="relu", transposed=True, n=264),
    "wide": Ragged((70, 31, 0), bias="f16", activation="relu", dtype="f16", tile=(128, 256), n=520),
    "silu": Ragged((37, 90, 50), activation="silu", alpha=0.125, tile=(128, 256), k=264, n=264),
    "64 rows": Ragged((37, 90, 5), bias="f32", activation="relu", tile=(64, 128), pingpong=True),
    "in turns": Ragged(
        (70, 0, 101), bias="bf16", tile=(64, 256), pingpong=True, k=264, n=264, sm_count=1
    ),
    "gated": Ragged((37, 90, 50), gated=True, activation="relu", alpha=0.5, output="f32"),
    "gated, wide": Ragged(
        (37, 0, 90, 50), gated=True, bias="f32", tile=(128, 256), n=328, k=264, transposed=True
    ),
    "gated, in turns": Ragged((9, 90, 50), gated=True, tile=(64, 256), pingpong=True, n=264),
    "gated, some groups": Ragged((20, 31, 45, 17), groups=2, offset=1, gated=True, bias="f32"),
    "batch": Ragged(BATCH, bias="f32", gated=True, activation="relu"),
    "batch, one rhs": Ragged(BATCH, shared=("rhs",), bias="bf16", offset=1, groups=2),
    "a CTA for each tile": Ragged((37, 0, 90), bias="f32", gated=True, scheduler="none"),
}
# Indices choose the rows; NaN is in those that none chooses for a group, and some lie beyond lhs.
GATHERED = {
    "fewer than m": Ragged((37, 90, 50), source_rows=70),
    "more than m": Ragged((37, 90, 73), source_rows=1000, transposed=True),
    "one": Ragged((37, 90, 50), source_rows=1, output="f32"),
    "beyond": Ragged(
        (9, 30, 1), m=64, source_rows=40, indices=(-(2**31), 2**31 - 1, -1, 40, 41, 39, 0)
    ),
    "a row each, and nothing": Ragged((1, 0, 1, 0, 0, 1), m=3, dtype="f16", source_rows=9),
    "more groups than rows": Ragged(
        (0, 1, 0, 0, 2, 0, 1), m=5, tile=(64, 128), pingpong=True, source_rows=3
    ),
    "all empty": Ragged((0, 0, 0), source_rows=50),
    "negative and oversized": Ragged((-5, 70, -(2**31), 2**31 - 1, 7), source_rows=50),
    "some groups": Ragged((20, 31, 45, 17, 60), groups=2, offset=2, source_rows=50),
    "wide": Ragged((37, 90, 50), tile=(128, 256), n=520, k=264, source_rows=50, swizzle=1),
    "staggered": Ragged((5, 120, 33), tile=(128, 256), k=328, n=520, dtype="f16", source_rows=64),
    "64 rows, wide": Ragged(
        (37, 90, 50), tile=(64, 256), pingpong=True, n=264, output="f32", source_rows=64
    ),
    "in turns": Ragged(
        (70, 0, 101), tile=(64, 256), pingpong=True, k=264, sm_count=1, source_rows=64
    ),
    "gated": Ragged(
        (37, 0, 90, 50),
        gated=True,
        bias="f32",
        tile=(128, 256),
        n=328,
        k=264,
        transposed=True,
        source_rows=31,
    ),
    "relu": Ragged((37, 0, 90, 73), bias="bf16", activation="relu", transposed=True, source_rows=9),
    "a CTA for each tile": Ragged((37, 0, 90, 50), scheduler="none", source_rows=31),
}
SUMS = {
    "c": Ragged((37, 0, 90, 50), output="f32", adds=True),
    "c, wide": Ragged((37, 0, 90, 73), tile=(128, 256), k=264, n=520, adds=True, output="f32"),
    "c, in turns": Ragged(
        (0, 130, 0), tile=(64, 128), pingpong=True, adds=True, output="f32", alpha=0.5
    ),
    "c, all empty": Ragged((0, 0), output="f32", adds=True, groups=3, offset=-1),
    "c, batch": Ragged(BATCH, shared=("rhs",), output="f32", adds=True),
    "alpha": Ragged((37, 0, 90, 50), alpha=-2.0),
}
# Operands of 8 bits, and what scales their sums.
BOTH = ("lhs", "rhs")
FLOAT8 = {
    "a tail": Ragged((37, 90, 50), output="f32"),
    "no tail": Ragged((37, 90, 73), scales=BOTH, rhs_dtype="e5m2", tile=(128, 256), n=264),
    "rows have scales": Ragged((0, 70, 0, 101), scales=("lhs",), dtype="e5m2", k=272, output="f16"),
    "columns have": Ragged((200,), scales=("rhs",), tile=(128, 256), k=272, n=328, output="f32"),
    "all empty": Ragged((0, 0, 0), scales=BOTH),
    "one takes all": Ragged((0, 0, 200, 0), scales=BOTH, k=144, n=8),
    "64 rows": Ragged((37, 90, 5), scales=BOTH, tile=(64, 128), pingpong=True, output="f16"),
    "in turns": Ragged(
        (70, 0, 101), scales=BOTH, tile=(64, 256), pingpong=True, k=528, n=264, sm_count=1
    ),
    "staggered": Ragged(
        (5, 120, 33), scales=BOTH, tile=(128, 256), k=656, n=520, swizzle=1, bias="bf16"
    ),
    "some groups": Ragged((20, 31, 45, 17, 60), groups=2, offset=2, scales=BOTH, output="f32"),
    "oversized": Ragged((70, 2**31 - 1, 9), scales=BOTH, bias="f32", activation="relu", alpha=-0.5),
    "batch": Ragged(BATCH, scales=BOTH),
    "batch, one rhs": Ragged(BATCH, shared=("rhs",), scales=BOTH, bias="f16", output="f16"),
    "batch, one lhs": Ragged(BATCH, shared=("lhs",), groups=2, offset=1, scales=BOTH),
    "gated": Ragged((37, 90, 50), gated=True, scales=BOTH, activation="relu", output="f32"),
    "gated, wide": Ragged(
        (37, 0, 90, 50), gated=True, scales=BOTH, bias="f32", tile=(128, 256), n=328, k=272
    ),
    "promoted": Ragged((37, 90, 50), promoted=True, k=144),
    "promoted, one block": Ragged((37, 90, 73), promoted=True, scales=BOTH, rhs_dtype="e5m2"),
    "promoted, in turns": Ragged(
        (70, 0, 101), promoted=True, scales=BOTH, tile=(64, 128), pingpong=True, k=528, gated=True
    ),
    "promoted, staggered": Ragged(
        (120, 33), promoted=True, scales=BOTH, k=656, n=520, sm_count=1, bias="bf16", output="f32"
    ),
    "promoted, wide": Ragged(
        (37, 0, 90, 70), promoted=True, scales=BOTH, tile=(128, 192), k=144, n=392, sm_count=2
    ),
    "promoted, wide, one block": Ragged(
        (37, 90), promoted=True, tile=(128, 192), k=64, n=200, output="f32"
    ),
    "promoted, wide, staggered": Ragged(
        (120, 33), promoted=True, scales=BOTH, tile=(128, 192), k=656, n=584, bias="f32"
    ),
    "promoted, wide, in turns": Ragged(
        (70, 0, 101), promoted=True, tile=(64, 192), pingpong=True, k=528, n=200, output="f16"
    ),
}
# Rows along n, which Blackwell takes: a span of them has 128, of which a gate takes half a tile.
ALONG_N = {
    **{name: ROWS[name] for name in ("a tail", "one group", "some groups", "batch, one rhs")},
    **{name: ROWS[name] for name in ("more groups than rows", "64 rows, wide")},
    "scales": Ragged((37, 0, 90, 50), scales=BOTH, rhs_dtype="e5m2", k=264, bias="f32"),
    "narrow": Ragged((70, 31, 45), tile=(128, 32), n=80, k=264, dtype="e5m2"),
    "gated": Ragged(
        (37, 0, 90, 50), gated=True, scales=BOTH, bias="f32", tile=(128, 256), n=328, k=272
    ),
} | {
    f"contraction: {name}": replace(case, contraction=True)
    for name, case in (
        CONTRACTION
        | SUMS
        | {"mixed": Ragged((130, 0, 257, 13), m=420, rhs_dtype="e5m2", output="f32")}
    ).items()
    if "in turns" not in name  # of 64 rows, half a span
}
FLOAT8 = {f"float8: {name}": case.of_8_bits() for name, case in FLOAT8.items()}
OF_FAMILIES = {
    f"{family}, {name}": case.on(family) for family in FAMILIES for name, case in FLOAT8.items()
} | {
    f"sm100, float8 along n: {name}": case.of_8_bits(transposed=False).on("sm100")
    for name, case in ALONG_N.items()
}
CASES = {f"rows: {name}": case for name, case in (ROWS | EPILOGUES).items()}
CASES |= {f"gathered: {name}": case for name, case in GATHERED.items()}
# More rows than a pair has of a tile; the last tile of a group in both CTAs, or in one.
PAIRS = {
    "both": Ragged((300, 0, 263, 40), m=620, n=264, tile=(256, 256), k=200),
    "one": Ragged((257, 1, 128, 129), m=540, n=392, transposed=True, stages=2, output="f32"),
    "half spans": Ragged((300, 37), m=400, tile=(256, 96), n=200, k=264, dtype="f16"),
    "gated": Ragged((300, 0, 130), m=440, gated=True, bias="f32", activation="relu", n=264),
    "gated, wide": Ragged(
        (37, 390), m=440, tile=(256, 256), gated=True, n=328, transposed=True, output="f32"
    ),
    "one pair": Ragged((300, 37, 150), m=500, tile=(256, 256), n=520, k=328, sm_count=1, swizzle=1),
    "a pair for each tile": Ragged((37, 0, 390), m=440, n=264, scheduler="none"),
    "batch": Ragged(((300, 90), (17, 0), (0, 370)), m=400, shared=("rhs",), bias="bf16"),
}
OF_PAIRS = {f"rows: {name}": case for name, case in PAIRS.items()} | {
    "contraction: both": Ragged((37, 0, 90, 73), contraction=True, k=520, n=264, tile=(256, 256)),
    "contraction: one": Ragged(
        (9, 300), m=320, contraction=True, k=328, n=392, adds=True, output="f32"
    ),
    "contraction: half spans": Ragged((70, 101), contraction=True, k=264, n=200, tile=(256, 96)),
}
CASES |= {
    f"contraction: {name}": replace(case, contraction=True)
    for name, case in (
        CONTRACTION | SUMS | {f"parts: {name}": case for name, case in PARTS.items()}
    ).items()
}


def _has(kernel: str, case: Ragged) -> bool:
    """Pairs do not gather."""
    return kernel in FAMILIES or case.source_rows is None


# The families share what a case is about: each on one or two of them.
@pytest.mark.sampled(2 * len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize(
    ("name", "kernel"),
    [(name, kernel) for kernel in KERNELS for name in CASES if _has(kernel, CASES[name])],
)
def test_grouped(name: str, kernel: str, schedule: tuple[str, int]) -> None:
    how, seed = schedule
    check(CASES[name].on(kernel), schedule=how, seed=seed)


@pytest.mark.sampled(len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("name", OF_PAIRS)
def test_pairs(name: str, schedule: tuple[str, int]) -> None:
    how, seed = schedule
    check(OF_PAIRS[name].on("sm100 pairs"), schedule=how, seed=seed)


@pytest.mark.sampled(len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("name", OF_FAMILIES)
def test_float8(name: str, schedule: tuple[str, int]) -> None:
    how, seed = schedule
    check(OF_FAMILIES[name], schedule=how, seed=seed)


def test_promoted_sums() -> None:
    """Hopper's 13 fraction bits hold what a block of K sums up to, and not what all of it does."""
    case = Ragged((5, 0, 3), m=8, k=2048, n=8, output="f32", promoted=True).of_8_bits()
    lhs, rhs = np.full(case.problem.lhs_shape, 1.125), np.ones(case.problem.rhs_shape)
    exact, *_ = launch(case, lhs, rhs, sums="fused")
    np.testing.assert_array_equal(exact, 1.125 * case.k)
    short, *_ = launch(replace(case, promoted=False), lhs, rhs, sums="fused")
    assert (short < exact).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_gathered(family: str) -> None:
    """The chosen rows of groups alone, once for each column of tiles, and so their indices."""
    case = Ragged((37, 0, 90, 50), n=520, tile=(128, 256), sm_count=2, source_rows=31).on(family)
    _, report = check(case)
    rows, columns, tiles = sum(case.sizes), 3, 3 * 3
    lanes, warps = {"sm90": (8, 12), "sm100": (1, 6)}[family]  # that read an index, and the table
    lhs, indices = rows * columns * case.k * 2, rows * columns * lanes * 4
    rhs = 3 * case.k * case.n * 2
    # Warps of each CTA read 20 bytes of the table for an item, of which one is zeros in each
    # column, and the number of items.
    table = warps * 32 * (20 * (tiles + columns) + 4 * case.sm_count)
    assert report.bytes["global load"] == lhs + indices + rhs + table


@pytest.mark.parametrize("contraction", [False, True], ids=["rows", "contraction"])
def test_what_a_pair_loads(contraction: bool) -> None:
    """Rows of groups and columns of weights alone, once for each tile of 256 rows."""
    case = Ragged((300, 0, 90, 150), m=600, k=264, n=264, tile=(128, 256), contraction=contraction)
    case = case.on("sm100 pairs")
    _, report = check(case)
    rows = sum(case.sizes)
    lhs, rhs = 2 * rows * case.k, rows * 2 * case.n  # two columns of tiles, and two rows of them
    if not contraction:
        rhs = 4 * case.k * case.n  # tiles of rows that are not zeros: 2 and 0, 1, 1
    # Eleven warps of a pair read the table, see below: of the odd CTA none multiplies.
    items, warps, pairs = 2 * (3 * 2 if contraction else 5), 11, case.sm_count // 2
    entry, numbers = (16, 2) if contraction else (20, 1)
    table = warps * 32 * (entry * items + 4 * numbers * pairs)
    if contraction:
        chunks = -(-case.k * case.n * 2 // (16 * 1024))
        table += 32 * (chunks * 16 + 5 * 2 * 4 * case.sm_count)
    assert report.bytes["global load"] == (lhs + rhs) * 2 + table


@pytest.mark.parametrize(("family", "itemsize"), [("sm90", 2), ("sm100", 2), ("sm100", 1)], ids=str)
@pytest.mark.parametrize("contraction", [False, True], ids=["rows", "contraction"])
def test_what_is_loaded(contraction: bool, family: str, itemsize: int) -> None:
    """Rows of groups alone, once for each tile; of a tile of zeros nothing."""
    case = Ragged((37, 0, 90, 50), n=264, tile=(128, 256), sm_count=2, contraction=contraction)
    case = (case if itemsize == 2 else case.of_8_bits(transposed=False)).on(family)
    _, report = check(case)
    rows = sum(case.sizes)
    lhs = rows * case.k * 2  # tiles of 256 columns
    rhs = (rows if contraction else case.k * 3) * case.n  # three tiles of rows that are not zeros
    # Nine warps of each CTA, or six, read 20 bytes of the table for an item, and the number of
    # items. Of a contraction that is 16 bytes and two numbers, and nine or five warps clear what
    # the empty group has, three chunks: they read two more, and its entry for each chunk.
    items, warps = 2 * (3 if contraction else 4), {"sm90": 9, "sm100": 6}[family]
    entry, numbers = (16, 2) if contraction else (20, 1)
    table = warps * 32 * (entry * items + 4 * numbers * case.sm_count)
    if contraction:
        table += 32 * (3 * 16 + {"sm90": 9, "sm100": 5}[family] * 2 * 4 * case.sm_count)
    assert report.bytes["global load"] == (lhs + rhs) * itemsize + table


def test_bands_end_with_groups() -> None:
    """Each group's rows of tiles in bands that are as equal as can be, of at most `swizzle`."""
    sizes = (70, 0, 64 * 9, 1)
    case = Ragged(sizes, m=64 * 13, k=8, n=8, tile=(64, 256), pingpong=True, swizzle=4)
    _, workspace, _ = launch(case, *case.operands())
    places = workspace[case.plan().workspace_offsets["group_places"] :].view(np.uint32)[:15]
    bands = (2, 3, 3, 3, 1, 3)  # the last one is of rows of no group
    assert [*places >> 16] == [entries for entries in bands for _ in range(entries)]
    assert [*places & 0xFFFF] == [index for entries in bands for index in range(entries)]


def test_the_order_of_groups() -> None:
    """Of a contraction: as given, but empty ones last."""
    case = Ragged((9, 0, 64, 1, 9, 0, 70, 3, 2, 0), k=8, n=8, contraction=True, groups=9, offset=-1)
    _, workspace, _ = launch(case, *case.operands())
    offsets, matrices = case.plan().workspace_offsets, 9
    table = workspace[offsets["group_table"] :][: 16 * matrices].view(np.uint32).reshape(-1, 4)
    assert workspace[offsets["group_counts"] :][:4].view(np.uint32) == [6]
    assert [*table[:6, 3]] == [1, 3, 4, 5, 7, 8]
    assert [*table[:6, 0]] == [9, 64, 1, 9, 70, 3]
    assert {*table[6:, 3]} == {0, 2, 6}
    assert not table[6:, 0].any()


def test_the_longest_group_is_last() -> None:
    """Of those that have rows, if its tiles are split. The one tile there is has two parts."""
    case = Ragged((9, 0, 140, 1, 9), k=8, n=8, contraction=True, split=2)
    _, workspace, _ = launch(case, *case.operands())
    offsets = case.plan().workspace_offsets
    table = workspace[offsets["group_table"] :][: 16 * 5].view(np.uint32).reshape(-1, 4)
    assert [*table[:, 3]] == [0, 3, 4, 2, 1]
    counts = workspace[offsets["group_counts"] :][:12].view(np.uint32)
    assert [*counts] == [4, 1, 1]  # entries, split tiles, empty groups


@hypothesis.given(
    st.randoms(use_true_random=False),
    st.sampled_from(ragged_draw.kernels()),
    st.sampled_from(SCHEDULES),
)
@hypothesis.settings(max_examples=140)
def test_whatever_is_legal(rng: random.Random, kernel: Kernel, schedule: tuple[str, int]) -> None:
    how, seed = schedule
    check(ragged_draw.draw_case(rng, kernel), schedule=how, seed=seed, checks="strict")
