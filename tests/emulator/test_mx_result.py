"""Results in MXFP8: the bytes of `jaxbw.quantize` of the float32 result, and padding, strictly."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import jaxbw
from jaxbw._native import Violation

from ..quantized import untiled
from . import installed
from .gemm_cases import Case
from .gemm_launch import (
    ACTIVATIONS,
    SM100,
    Config,
    Matmul,
    Outcome,
    integers,
    launch,
    plan_of,
)
from .mx_operands import FORMATS, drawn, operand

Array = npt.NDArray[Any]
E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
SCHEDULES = (("eager", 0), ("latest", 0), ("random", 1), ("pct", 2), ("hold", 3))

ALONE = Config(SM100, 128, 128, rhs_major=0, output=E4M3)
WIDE = replace(ALONE, block_n=256, accumulators=1)
PAIR = replace(ALONE, block_m=256, cta_group=2, cluster=(2, 1))
WIDE_PAIR = replace(PAIR, block_n=256, accumulators=1)


def check(
    config: Config, matmul: Matmul, exact: Array, schedules: Sequence[Any] = SCHEDULES
) -> Outcome:
    wanted = jaxbw.quantize(exact, "mxfp8")
    data, tiles = (np.asarray(x).view(np.uint8) for x in (wanted.data, wanted.scale))
    kernel = installed.load(plan_of(config, matmul).kernel)
    for schedule, seed in schedules:
        found = launch(kernel, config, matmul, schedule=schedule, seed=seed, checks="strict")
        assert found.report.findings == [], (schedule, seed, found.report.summary())
        np.testing.assert_array_equal(found.d.view(np.uint8), data)
        np.testing.assert_array_equal(found.tiles, tiles)
    return found


def plain(
    shape: tuple[int, int, int],
    name: str = "mxfp8",
    batch: tuple[int, int] = (1, 1),
    rhs_dtype: Any = None,
    **epilogue: Any,
) -> tuple[Matmul, Array]:
    """A matmul, and what it multiplies to. Rows, and blocks of columns, differ in magnitude."""
    m, n, k = shape
    dtype, block = FORMATS[name]
    rng = np.random.default_rng(m * 7 + n * 5 + k)
    left, left_scales, a = operand(rng, batch[0], m, k, block)
    right, right_scales, b = operand(rng, batch[1], n, k, block)
    left[:, 3 % m], a[:, 3 % m] = 0, 0
    scales: Any = {"lhs_scale": left_scales, "rhs_scale": right_scales}
    matmul = Matmul(left, right.swapaxes(1, 2), dtype, rhs_dtype, **scales, **epilogue, out_mx=True)
    return matmul, a @ b.swapaxes(1, 2)


@pytest.mark.sampled(len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (ALONE, (200, 150, 400)),
        (WIDE, (100, 300, 656)),
        (WIDE, (300, 500, 272)),
        (replace(ALONE, cluster=(2, 2)), (300, 300, 272)),
        (replace(ALONE, cluster=(2, 2)), (130, 140, 272)),
        (PAIR, (300, 140, 400)),
        (WIDE_PAIR, (512, 300, 656)),
        (replace(PAIR, cluster=(4, 2)), (600, 270, 272)),
        (ALONE, (1, 1, 16)),
        (PAIR, (129, 33, 48)),
    ],
    ids=str,
)
def test_shapes_with_tails(
    config: Config, shape: tuple[int, int, int], schedule: tuple[str, int]
) -> None:
    check(config, *plain(shape), [schedule])


RELU, SILU = map(ACTIVATIONS.index, ("relu", "silu"))


@pytest.mark.sampled(len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize(
    ("config", "options"),
    [
        (replace(WIDE, lhs_major=1, rhs_major=1), {}),
        (replace(PAIR, scheduler="static", raster="n", swizzle=2), {"rhs_dtype": E5M2}),
        (replace(ALONE, split_k=3), {"batch": (2, 2)}),
        (replace(WIDE_PAIR, split_k=2), {"batch": (2, 1)}),
        (replace(ALONE, k_spans=2, stages=2), {"batch": (1, 2)}),
        (ALONE, {"name": "mxfp4"}),
        (PAIR, {"name": "nvfp4"}),
    ],
    ids=str,
)
def test_what_the_other_results_can_do(
    config: Config, options: dict[str, Any], schedule: tuple[str, int]
) -> None:
    check(config, *plain((300, 208, 544), **options), [schedule])


@pytest.mark.parametrize("config", [ALONE, WIDE_PAIR], ids=str)
def test_the_formula_comes_first(config: Config) -> None:
    rng = np.random.default_rng(1)
    m, n, k = 200, 150, 400
    bias, residual, c = integers(rng, n), integers(rng, 1, m, n), integers(rng, 1, m, n)
    matmul, exact = plain((m, n, k), alpha=0.5, beta=2.0, bias=bias, residual=residual, c=c)
    d = np.maximum(0.5 * exact + 2 * c + bias, 0) + residual
    check(replace(config, activation=RELU), matmul, d, SCHEDULES[1:3])
    # A bias makes of what tiles have behind the last row something large.
    along_m = plain((m, n, k), bias=integers(rng, m), bias_along_m=True)
    assert along_m[0].bias is not None
    check(config, along_m[0], along_m[1] + along_m[0].bias[:, None], SCHEDULES[1:3])


@pytest.mark.sampled(2 * len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("config", [WIDE, replace(WIDE, cluster=(2, 2)), WIDE_PAIR], ids=str)
@pytest.mark.parametrize("shape", [(200, 150, 416), (260, 256, 288)], ids=str)
def test_gated(config: Config, shape: tuple[int, int, int], schedule: tuple[str, int]) -> None:
    matmul, gate, up = drawn(shape, out_mx=True)
    check(replace(config, activation=RELU), matmul, np.maximum(gate, 0) * up, [schedule])


def test_the_kernels_own_float32_of_an_activation_that_rounds() -> None:
    matmul, _, _ = drawn((200, 150, 416), alpha=0.01)
    config = replace(WIDE_PAIR, activation=SILU)
    wide = replace(config, output=np.dtype(np.float32))
    exact = launch(installed.load(plan_of(wide, matmul).kernel), wide, matmul).d
    assert np.abs(np.log2(np.abs(exact)[exact != 0])).max() > 10
    check(config, replace(matmul, out_mx=True), exact, SCHEDULES[:1])


def test_special_values() -> None:
    """Through a residual: what no sum gives. A block with NaN or an infinity is NaN as a whole."""
    rng = np.random.default_rng(2)
    m, n, k = 140, 200, 32
    matmul, _ = plain((m, n, k))
    residual = rng.standard_normal((1, m, n)).astype(np.float32)
    residual *= np.exp2(rng.integers(-140, 120, (1, m, n))).astype(np.float32)
    largest = np.float32(448)
    powers = np.exp2(np.arange(-150, 119)[:m]).astype(np.float32)
    matmul.lhs[...] = 0
    residual[0, :, 0:32] = 0
    residual[0, :, 5] = powers * largest  # all scales, just reached
    residual[0, :, 32:64] = 0
    residual[0, :, 40] = np.nextafter(powers * largest, np.float32(np.inf))  # and just not
    residual[0, :4, 64:200:9] = np.array([np.nan, np.inf, -np.inf, -np.nan])[:, None]
    residual[0, 5] = -np.float32(0.0)
    residual[0, 6] = np.finfo(np.float32).max
    residual[0, 7] = -np.finfo(np.float32).tiny / 2
    check(PAIR, replace(matmul, residual=residual), residual + np.float32(0), SCHEDULES[:1])


def test_an_operand_of_nan_does_not_reach_the_padding() -> None:
    matmul, exact = plain((40, 40, 64))
    matmul.lhs[0, 7, 9] = np.nan
    exact[0, 7] = np.nan
    check(ALONE, matmul, exact, SCHEDULES[:1])


def test_what_there_is_no_kernel_for() -> None:
    case = Case(128, 128, 128, dtype="e4m3", output="e4m3", mx=32, out_mx=True, stages=2)

    def refused(**changed: Any) -> str:
        found = replace(case, **changed).planned()
        assert isinstance(found, Violation)
        return str(found)

    assert not isinstance(case.planned(), Violation)
    assert "of a result in MXFP8 it is a multiple of 128" in refused(block_n=64)
    assert "swap_ab does not go with a result in MXFP8" in refused(swap_ab=True)
    for changed in ({"mx": 0}, {"output": "bf16"}, {"save": True}, {"out_scale": 2.0}):
        assert "a result in MXFP8 is e4m3, of operands of MX formats, and alone" in refused(
            **changed
        )


@pytest.mark.parametrize("config", [WIDE, replace(WIDE_PAIR, cluster=(2, 2))], ids=str)
def test_what_a_feed_forward_block_writes(config: Config) -> None:
    """`down(swiglu(x))`: of the hidden layer a byte an element, and a tile of scales for 128x128.

    Nothing in between: the second matmul reads these two arrays as they are.
    """
    m, hidden, k, out = 300, 384, 160, 130
    up, _, _ = drawn((m, hidden, k), alpha=2.0**-6, out_mx=True)
    up_config = replace(config, activation=SILU)
    first = launch(installed.load(plan_of(up_config, up).kernel), up_config, up)
    assert first.tiles is not None
    tiles = 3 * 3 * 512
    assert first.tiles.nbytes == tiles
    assert first.report.bytes["global store"] == m * hidden + tiles

    right, right_scales, w = operand(np.random.default_rng(5), 1, out, hidden, 32)
    values = first.d.astype(np.float32)
    down = Matmul(values, right.swapaxes(1, 2), E4M3, lhs_scale=first.tiles, rhs_scale=right_scales)
    down_config = replace(config, output=np.dtype(ml_dtypes.bfloat16))
    second = launch(installed.load(plan_of(down_config, down).kernel), down_config, down)
    assert second.report.bytes["global store"] == 2 * m * out
    scales = untiled(first.tiles, m, hidden // 32).astype(np.float32)
    wanted = (values * np.exp2(scales - 127).repeat(32, 2)) @ w.swapaxes(1, 2)
    assert (np.abs(second.d.astype(np.float32) - wanted) <= 2.0**-7 * np.abs(wanted).max()).all()
