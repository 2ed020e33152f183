"""Block-scaled tiles of one accumulator, which lie in turns at either end of what scales leave.

The MMAs of a tile begin when what it shares with the tile before has been read: were that told too
early, or of other columns, there would be a race of MMAs and reads in Tensor Memory.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from . import mx_operands
from .gemm_launch import BF16, SM100, Config, Matmul, integers
from .mx_operands import SCHEDULES

F32 = np.dtype(np.float32)
ALONE = Config(SM100, 128, 256, rhs_major=0, accumulators=1)
PAIR = replace(ALONE, block_m=256, cta_group=2, cluster=(2, 1))
SMS = 2  # each CTA or pair has all tiles of a row, or half of them
# Spans of 64 columns that two tiles share: by the stages, 5 of a pair for whose scales 60, 120 or
# 240 columns are left.
SHARED = {("mxfp8", 5): 1, ("mxfp4", 5): 2, ("nvfp4", 4): 3, ("nvfp4", 5): 4}


def drawn(shape: tuple[int, int, int], name: str, **epilogue: Any) -> tuple[Matmul, Any]:
    matmul, expected, _ = mx_operands.drawn(shape, name, **epilogue)
    return replace(matmul, rhs_up=None, rhs_up_scale=None), expected


@pytest.mark.sampled(2 * len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("output", [BF16, F32], ids=str)
@pytest.mark.parametrize(("name", "stages"), SHARED)
@pytest.mark.parametrize("config", [ALONE, PAIR], ids=["alone", "pair"])
def test_tiles_take_turns(
    config: Config, name: str, stages: int, output: Any, schedule: tuple[str, int]
) -> None:
    """Casts to 16 bits, and others, by TMA; the last tile has a span and a half of the matrix."""
    config = replace(config, stages=stages if config is PAIR else 3, output=output)
    matmul, expected = drawn((config.block_m + 40, 4 * 256 + 96, 544), name)
    mx_operands.check(config, matmul, expected, schedules=[schedule], sm_count=SMS)


@pytest.mark.sampled(len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("config", [ALONE, PAIR], ids=["alone", "pair"])
@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_a_bias_and_an_activation(config: Config, name: str, schedule: tuple[str, int]) -> None:
    config = replace(config, stages=4 if config is PAIR else 3, output=BF16, activation=1)
    n = 3 * 256 + 200
    bias = integers(np.random.default_rng(1), n)
    matmul, expected = drawn((config.block_m, n, 544), name, alpha=2.0, bias=bias)
    expected = np.maximum(2 * expected + bias, 0)
    mx_operands.check(config, matmul, expected, schedules=[schedule], sm_count=SMS)
