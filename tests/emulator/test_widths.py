"""Tiles of every width where B is MN-major: whole swizzle spans are loaded, not all multiplied."""

from typing import Any

import pytest

from jaxbw._native import Violation

from . import gemm_cases, gemm_launch
from .gemm_cases import Case
from .gemm_launch import ceil_div
from .installed import load
from .test_gemm_kernels import SCHEDULES

SPAN = 64  # columns of 16 bits
ONE: dict[str, Any] = dict(output="bf16", stages=3)
PAIR: dict[str, Any] = dict(ONE, block_m=256, cta_group=2, cluster=(2, 1))


def check(case: Case, schedule: str = "eager", seed: int = 0) -> gemm_launch.Outcome:
    outcome: gemm_launch.Outcome = gemm_cases.check(load(case.kernel), case, schedule, seed)
    return outcome


# Of each width the last tile of a row lacks columns: some, its whole padding, or half of a pair's.
WIDTHS = {
    "pair 224": Case(500, 440, 136, **PAIR, block_n=224),
    "pair 224, tn": Case(264, 256, 200, **PAIR, block_n=224, layout="tn"),
    "pair 192": Case(256, 576, 72, **PAIR, block_n=192),
    "pair 160": Case(300, 168, 136, **PAIR, block_n=160),
    "pair 80": Case(256, 152, 136, **PAIR, block_n=80, layout="tn", dtype="f16"),
    "pair 16": Case(256, 40, 72, **PAIR, block_n=16),
    "pairs 4x2 of 224": Case(520, 900, 136, **PAIR | dict(cluster=(4, 2)), block_n=224),
    "128 rows of a pair, 160": Case(200, 328, 136, **PAIR | dict(block_m=128), block_n=160),
    "full TMEM of pairs, 224": Case(600, 448, 136, **PAIR | dict(block_m=512), block_n=224),
    "224": Case(200, 440, 136, **ONE, block_n=224),
    "112, tn": Case(136, 232, 136, **ONE, block_n=112, layout="tn"),
    "96 in 2x2": Case(300, 392, 136, **ONE, block_n=96, cluster=(2, 2)),
    "80": Case(128, 168, 200, **ONE, block_n=80),
    "two MMA tiles of 160": Case(300, 320, 136, **ONE, block_m=256, block_n=160),
    "64 rows, 8 columns": Case(72, 40, 72, **ONE, block_m=64, block_n=8),
    "two spans of K": Case(200, 240, 300, **ONE | dict(stages=2), block_n=112, k_spans=2),
    "split": Case(300, 232, 500, **PAIR, block_n=224, split_k=3),
    "swapped, tt": Case(33, 200, 136, **ONE, block_n=48, layout="tt", swap_ab=True),
    "gated pair": Case(300, 240, 136, **PAIR, block_n=224, gated=True, activation="relu"),
}


@pytest.mark.sampled(len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("name", WIDTHS)
def test_results(name: str, schedule: tuple[str, int]) -> None:
    check(WIDTHS[name], *schedule)


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize(("group", "block_n"), [(1, 112), (2, 224), (2, 160)])
def test_bytes(group: int, block_n: int, layout: str) -> None:
    """What is loaded, from memory and into shared memory, and what is multiplied."""
    tiles, k = 2, 128
    kind = PAIR if group == 2 else ONE
    case = Case(128 * group, tiles * block_n, k, layout=layout, block_n=block_n, **kind)
    report = check(case).report
    columns = block_n // group
    loaded = ceil_div(columns, SPAN) * SPAN if layout == "nn" else columns
    rows = tiles * group * 128  # of all CTAs
    assert report.bytes["tma load"] == 2 * k * (rows + tiles * group * loaded)
    # The last tile has no columns beside it, and reads none.
    read = (tiles * group - 1) * loaded + columns
    assert report.bytes["global load"] == 2 * k * (rows + read)
    assert report.bytes["mma operands"] == 2 * k * tiles * (128 * group + block_n)
    assert case.plan().loaded_columns == loaded


def test_the_ring_has_room_for_what_is_loaded() -> None:
    """As many stages fit as fit, by the sizes: 80 columns of a CTA take 128 columns' place."""
    stages = {}
    for layout in ("nn", "nt"):
        case = Case(256, 320, 640, layout=layout, **PAIR | dict(stages=None), block_n=160)
        stages[layout] = case.plan().stages
        check(case)
        deeper = Case(**vars(case) | {"stages": stages[layout] + 1}).planned()
        assert isinstance(deeper, Violation)
        assert deeper.rule == "stages"
    free = 232448 - 1024 - 32768  # of control block and staging
    assert stages == {"nn": free // (256 * 128), "nt": free // (208 * 128)}
