"""Block-scaled tiles whose columns are multiples of 32, not of 64: bit by bit, strictly.

Such a tile starts at any of the four columns of Tensor Memory that a tile of rhs's scales has: one
of 96 or 160 columns touches two, of 224 three.
"""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from . import mx_operands
from .gemm_launch import BF16, E2M1, ROWS, SM100, Config, Matmul, integers

E4M3, E5M2 = mx_operands.E4M3, np.dtype(ml_dtypes.float8_e5m2)
F32 = np.dtype(np.float32)
NT = Config(SM100, 128, 160, rhs_major=0, output=F32)
PAIR = replace(NT, block_m=256, cta_group=2, cluster=(2, 1))
WIDTHS = (32, 96, 160, 224)


def drawn(shape: tuple[int, int, int], name: str, **options: Any) -> tuple[Matmul, Any]:
    matmul, expected, _ = mx_operands.drawn(shape, name, **options)
    return replace(matmul, rhs_up=None, rhs_up_scale=None), expected


def of_width(config: Config, width: int, name: str) -> Config:
    """As many accumulators as are chosen."""
    many = width < 160 or (width == 160 and name != "nvfp4")
    return replace(config, block_n=width, accumulators=2 if many else 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", mx_operands.FORMATS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("config", [NT, PAIR], ids=["alone", "pair"])
def test_each_start_in_a_tile_of_scales(config: Config, width: int, name: str) -> None:
    """Five tiles, the last of which is ragged; so is k."""
    starts = {place * width % ROWS for place in range(5)}
    assert starts == {0, 32, 64, 96}
    config = of_width(config, width, name)
    n, k = 5 * width - 24, 272 if name == "mxfp8" else 544
    mx_operands.check(config, *drawn((config.block_m + 40, n, k), name))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("config", "options"),
    [
        (replace(NT, lhs_major=1, rhs_major=1), {}),
        (replace(PAIR, lhs_major=1, rhs_major=1), {"rhs_dtype": E5M2}),
        (replace(PAIR, rhs_major=1, block_n=96), {}),
        (replace(PAIR, block_n=224, accumulators=1, scheduler="static", raster="n"), {}),
        (replace(PAIR, cluster=(2, 2)), {"batch": (2, 1)}),
        (replace(PAIR, cluster=(4, 1), block_n=96), {"batch": (2, 2)}),
        (replace(NT, split_k=3), {"batch": (1, 2)}),
        (replace(PAIR, split_k=2, block_n=224, accumulators=1), {}),
        (replace(NT, swap_ab=True, block_n=32), {"batch": (2, 2)}),
        (replace(NT, swap_ab=True, block_n=96), {"rhs_dtype": E5M2}),
        (replace(NT, k_spans=2, block_n=32, stages=2), {"rhs_dtype": E2M1}),
        (replace(NT, output=E4M3, block_n=96), {"alpha": 0.25}),
        (replace(PAIR, output=BF16, activation=1), {"alpha": 2.0, "bias": True}),
        (replace(PAIR, output=BF16, block_n=224, accumulators=1), {"residual": True}),
    ],
    ids=str,
)
def test_what_other_widths_can_do(config: Config, options: dict[str, Any]) -> None:
    m, n, k = 300, 456, 528 if options.get("rhs_dtype") is not E2M1 else 640
    rng = np.random.default_rng(1)
    shapes = {"bias": (n,), "residual": (1, m, n)}
    arrays = {name: integers(rng, *shape) for name, shape in shapes.items() if name in options}
    matmul, expected = drawn((m, n, k), "mxfp8", **options | arrays)
    expected = matmul.alpha * expected + arrays.get("bias", 0)
    expected = np.maximum(expected, 0) if config.activation else expected
    expected = expected + arrays.get("residual", 0)
    mx_operands.check(config, matmul, expected, schedules=(("latest", 0), ("random", 1)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("output", [BF16, F32], ids=str)
@pytest.mark.parametrize(
    ("name", "width", "stages"),
    [("mxfp8", 224, 6), ("mxfp4", 224, 5), ("nvfp4", 224, 4), ("nvfp4", 160, 6)],
)
def test_tiles_take_turns(name: str, width: int, stages: int, output: Any) -> None:
    """One accumulator at either end of what scales leave: they share 32, 96, 192 and 96 columns."""
    config = replace(PAIR, block_n=width, accumulators=1, stages=stages, output=output)
    matmul, expected = drawn((config.block_m + 40, 4 * width + 96, 544), name)
    mx_operands.check(config, matmul, expected, sm_count=2)
