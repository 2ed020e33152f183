"""MXFP4 beside MXFP8 on the kernels of 8 bits: scaled integers bit by bit, strictly."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from . import installed, mx_operands
from .gemm_launch import BF16, E2M1, SM100, Config, Matmul, integers, launch, plan_of, scale_tiles
from .mx_operands import E4M3, SCHEDULES, drawn

Array = npt.NDArray[Any]
F32, E5M2 = np.dtype(np.float32), np.dtype(ml_dtypes.float8_e5m2)
NT = Config(SM100, 128, 128, rhs_major=0, output=F32)
PAIR = replace(NT, block_m=256, cta_group=2, cluster=(2, 1))


def check(config: Config, matmul: Matmul, expected: Array, schedules: Any = SCHEDULES) -> None:
    assert plan_of(config, matmul).kernel == f"jaxbw_sm100_8bit_mx_{config.cta_group}cta"
    mx_operands.check(config, matmul, expected, schedules=schedules)


def mixed(shape: tuple[int, int, int], fp4: str, **options: Any) -> tuple[Matmul, Array]:
    """A matmul one of whose operands has 4 bits, lhs or rhs, and its product."""
    name, other = ("mxfp8", E2M1) if fp4 == "rhs" else ("mxfp4", E4M3)
    gated, expected, _ = drawn(shape, name, rhs_dtype=other, **options)
    return replace(gated, rhs_up=None, rhs_up_scale=None), expected


@pytest.mark.sampled(4 * len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("fp4", ["lhs", "rhs"])
@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (NT, (200, 150, 384)),
        (NT, (1, 150, 256)),
        (replace(NT, block_n=64), (130, 200, 160)),  # rows of 80 bytes are copied to 128
        (replace(NT, block_n=192, stages=4), (128, 400, 320)),
        (replace(NT, block_n=256, accumulators=1), (100, 300, 640)),
        (replace(NT, block_n=64, k_spans=2, stages=2), (128, 136, 640)),
        (replace(NT, cluster=(2, 2)), (300, 300, 288)),
        (PAIR, (300, 140, 384)),
        (replace(PAIR, block_n=64), (1, 200, 96)),
        (replace(PAIR, block_n=192), (200, 400, 320)),
        (replace(PAIR, block_n=256, accumulators=1, stages=4), (512, 300, 640)),
        (replace(PAIR, cluster=(4, 2), block_n=64), (600, 250, 288)),
    ],
    ids=str,
)
def test_shapes_with_tails(
    config: Config, shape: tuple[int, int, int], fp4: str, schedule: tuple[str, int]
) -> None:
    """Of k parts of a box of 128 numbers, whose rest the other operand multiplies by zeros."""
    matmul, expected = mixed(shape, fp4)
    check(config, matmul, expected, [schedule])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fp4", ["lhs", "rhs"])
@pytest.mark.parametrize(
    ("config", "options"),
    [
        (replace(PAIR, scheduler="static", raster="n", swizzle=2), {}),
        (replace(NT, split_k=3), {}),
        (replace(PAIR, split_k=2, block_n=64), {"batch": (2, 1)}),
        (replace(NT, swap_ab=True, block_n=64), {}),
        (replace(NT, swap_ab=True, cluster=(2, 1)), {"batch": (2, 2)}),
        (replace(NT, activation=1), {"alpha": 2.0, "bias": True}),
        (replace(PAIR, activation=1, output=BF16), {"batch": (1, 2), "bias": True}),
    ],
    ids=str,
)
def test_what_the_kernels_can_do(config: Config, options: dict[str, Any], fp4: str) -> None:
    m, n, k = 300, 208, 544
    bias = integers(np.random.default_rng(1), n) if options.get("bias") else None
    matmul, expected = mixed((m, n, k), fp4, **options | {"bias": bias})
    if bias is not None:
        expected = np.maximum(matmul.alpha * expected + bias, 0)
    check(config, matmul, expected, SCHEDULES[1::2])


@pytest.mark.parametrize(
    "config",
    [NT, replace(NT, block_n=256, accumulators=1), replace(PAIR, block_n=256, accumulators=1)],
    ids=str,
)
def test_gated(config: Config) -> None:
    config = replace(config, activation=1)
    matmul, gate, up = drawn((140, 136, 288), rhs_dtype=E2M1, alpha=0.5)
    check(config, matmul, np.maximum(0.5 * gate, 0) * (0.5 * up), SCHEDULES[1::2])


def test_the_other_operand_in_any_layout_and_of_either_type() -> None:
    for lhs_dtype, config in (
        (E4M3, replace(NT, lhs_major=1)),
        (E5M2, PAIR),
    ):
        matmul, expected = mixed((260, 140, 320), "rhs")
        check(config, replace(matmul, dtype=lhs_dtype), expected, SCHEDULES[2:3])


def test_every_number() -> None:
    """Of e2m1, times every scale of whose products sums are exact."""
    rng = np.random.default_rng(6)
    numbers = np.arange(16, dtype=np.uint8).view(E2M1).astype(np.float32)
    right = rng.permuted(np.tile(numbers, (1, 128, 8)), axis=2)
    left = np.zeros((1, 128, 128), np.float32)
    left[0, np.arange(128), np.arange(128)] = 448
    codes = rng.integers(16, 239, (1, 128, 4))
    ones = scale_tiles(np.zeros((1, 128, 4), int))
    matmul = Matmul(
        left,
        right.swapaxes(1, 2),
        E4M3,
        E2M1,
        lhs_scale=ones,
        rhs_scale=scale_tiles(codes - 127),
    )
    scaled = right * np.exp2(codes.astype(np.float64) - 127).repeat(32, axis=2)
    check(NT, matmul, (448 * scaled).astype(np.float32).swapaxes(1, 2), SCHEDULES[:1])


def test_a_nan_among_scales_reaches_its_column_alone() -> None:
    """Also where the numbers of its block are zeros."""
    matmul, _ = mixed((128, 128, 128), "rhs")
    assert matmul.rhs_scale is not None
    matmul.rhs_scale[0, 0, 0, 5 * 16 + 1 * 4 + 2] = 255  # column 37, block 2
    matmul.rhs[0, 64:96, 37] = 0
    found = launch(installed.load(plan_of(NT, matmul).kernel), NT, matmul)
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(found.d[0]).any(0)), [37])
    assert np.isnan(found.d[0, :, 37]).all()


@pytest.mark.parametrize("swap_ab", [False, True])
@pytest.mark.parametrize("config", [replace(NT, cluster=(2, 2)), PAIR], ids=str)
def test_bytes_of_numbers_of_4_bits(config: Config, swap_ab: bool) -> None:
    """Half of those of 8 bits: of memory, and of what barriers count, or no stage were full."""
    config = replace(config, swap_ab=swap_ab)
    k, ctas = 512, config.clusters
    rows = config.cluster[0] * config.block_m // config.cta_group
    columns = config.cluster[1] * config.block_n
    matmul, _ = mixed((columns, rows, k) if swap_ab else (rows, columns, k), "rhs")
    report = launch(installed.load(plan_of(config, matmul).kernel), config, matmul).report
    scales = ctas * (1 + config.block_n // 128) * k // 128 * 512
    a, b = (k // 2, k) if swap_ab else (k, k // 2)  # bytes of a row, as the kernel sees them
    loaded = ctas * (a * config.block_m + b * config.block_n) // config.cta_group
    assert report.bytes["tma load"] == loaded + scales
    assert report.bytes["global load"] == a * rows + b * columns + scales
