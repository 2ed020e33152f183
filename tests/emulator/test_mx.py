"""The MXFP8 kernels of sm100: scaled integers bit by bit, over shapes with tails, strictly."""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from jaxbw import emulator

from . import installed, mx_operands
from .gemm_launch import BLOCKS, ROWS, SM100, Config, Matmul, integers, launch, plan_of
from .mx_operands import SCHEDULES

Array = npt.NDArray[Any]
E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
BLOCK = 32
F32, BF16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)


def operand(rng: np.random.Generator, batch: int, rows: int, k: int) -> tuple[Array, Array, Array]:
    return mx_operands.operand(rng, batch, rows, k, BLOCK)


def check(
    config: Config,
    shape: tuple[int, int, int],
    batch: tuple[int, int] = (1, 1),
    rhs_dtype: Any = None,
    schedules: Any = SCHEDULES,
    **epilogue: Any,
) -> None:
    m, n, k = shape
    rng = np.random.default_rng(m * 7 + n * 5 + k)
    left, left_scales, a = operand(rng, batch[0], m, k)
    right, right_scales, b = operand(rng, batch[1], n, k)
    matmul = Matmul(
        left,
        right.swapaxes(1, 2),
        E4M3,
        rhs_dtype,
        lhs_scale=left_scales,
        rhs_scale=right_scales,
        **epilogue,
    )
    expected = a @ b.swapaxes(1, 2)
    if matmul.bias is not None:
        expected = np.maximum(matmul.alpha * expected + matmul.bias, 0)
    mx_operands.check(config, matmul, expected, schedules=schedules)


NT = Config(SM100, 128, 128, rhs_major=0, output=F32)
PAIR = replace(NT, block_m=256, cta_group=2, cluster=(2, 1))


@pytest.mark.sampled(len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (NT, (200, 150, 400)),
        (replace(NT, block_n=64), (130, 200, 176)),
        (replace(NT, block_n=192, stages=4), (128, 400, 304)),
        (replace(NT, block_n=256, accumulators=1), (100, 300, 656)),
        (replace(NT, block_n=64, k_spans=2, stages=2), (128, 136, 656)),
        (replace(NT, cluster=(2, 2)), (300, 300, 272)),
        (PAIR, (300, 140, 400)),
        (replace(PAIR, block_n=64), (260, 200, 272)),
        (replace(PAIR, block_n=192), (200, 400, 304)),
        (replace(PAIR, block_n=256, accumulators=1, stages=4), (512, 300, 656)),
        (replace(PAIR, cluster=(4, 2), block_n=64), (600, 250, 272)),
    ],
    ids=str,
)
def test_shapes_with_tails(
    config: Config, shape: tuple[int, int, int], schedule: tuple[str, int]
) -> None:
    check(config, shape, schedules=[schedule])


@pytest.mark.sampled(len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize(
    ("config", "options"),
    [
        (replace(NT, lhs_major=1, rhs_major=1), {}),
        (replace(PAIR, lhs_major=1, rhs_major=1, block_n=256, accumulators=1), {}),
        (replace(PAIR, scheduler="static", raster="n", swizzle=2), {"rhs_dtype": E5M2}),
        (replace(NT, split_k=3), {}),
        (replace(PAIR, split_k=2, block_n=64), {"batch": (2, 1)}),
        (replace(NT, swap_ab=True, block_n=64), {}),
        (replace(NT, swap_ab=True, cluster=(2, 1)), {"batch": (2, 2), "rhs_dtype": E5M2}),
        (replace(NT, activation=1), {"alpha": 2.0, "bias": True}),
        (replace(PAIR, activation=1, output=BF16), {"batch": (1, 2), "bias": True}),
    ],
    ids=str,
)
def test_what_the_other_kernels_can_do(
    config: Config, options: dict[str, Any], schedule: tuple[str, int]
) -> None:
    m, n, k = 300, 208, 528
    if options.get("bias"):
        options = options | {"bias": integers(np.random.default_rng(1), n)}
    check(config, (m, n, k), schedules=[schedule], **options)


def test_a_nan_among_scales_reaches_its_row_alone() -> None:
    rng = np.random.default_rng(2)
    left, left_scales, _ = operand(rng, 1, 128, 128)
    right, right_scales, _ = operand(rng, 1, 128, 128)
    left_scales[0, 0, 0, 5 * 16 + 1 * 4 + 2] = 255  # row 37, block 2
    left[0, 37] = 0
    matmul = Matmul(left, right.swapaxes(1, 2), E4M3, lhs_scale=left_scales, rhs_scale=right_scales)
    found = launch(installed.load(plan_of(NT, matmul).kernel), NT, matmul)
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(found.d[0]).any(1)), [37])
    assert np.isnan(found.d[0, 37]).all()


# What the load role says to the multiply role: that the columns of a stage are free.
PASSES_ON = re.compile(
    r"tcgen05\.fence::after_thread_sync;(\s*// end inline asm\s*// begin inline asm\s*)"
    r"tcgen05\.fence::before_thread_sync;"
)


@pytest.mark.parametrize("config", [replace(NT, block_n=64), PAIR], ids=str)
@pytest.mark.parametrize(
    ("pattern", "by", "finding"),
    [
        (PASSES_ON, r"\1", "race"),
        (re.compile(r"tcgen05\.cp\."), "// tcgen05.cp.", "poison"),
    ],
)
def test_mutants_are_found(config: Config, pattern: re.Pattern[str], by: str, finding: str) -> None:
    rng = np.random.default_rng(3)
    left, left_scales, _ = operand(rng, 1, 300, 1000)
    right, right_scales, _ = operand(rng, 1, 130, 1000)
    matmul = Matmul(left, right.swapaxes(1, 2), E4M3, lhs_scale=left_scales, rhs_scale=right_scales)
    mutant, count = pattern.subn(by, installed.text(plan_of(config, matmul).kernel))
    assert count
    report = launch(emulator.Module(mutant), config, matmul, checks="strict").report
    assert finding in {found.kind for found in report.findings}


@pytest.mark.parametrize(
    "config",
    [
        replace(NT, block_n=192, stages=2),
        replace(NT, cluster=(2, 2)),
        PAIR,
        replace(PAIR, block_n=256, accumulators=1, cluster=(4, 2)),
    ],
    ids=str,
)
def test_bytes_of_scales(config: Config) -> None:
    """A CTA loads those of its rows, and of all columns of its tile: 1/32 of an operand's bytes."""
    (cluster_m, cluster_n), k = config.cluster, 512
    ctas, rows = cluster_m * cluster_n, cluster_m * config.block_m // config.cta_group
    columns = cluster_n * config.block_n
    rng = np.random.default_rng(4)
    left, left_scales, _ = operand(rng, 1, rows, k)
    right, right_scales, _ = operand(rng, 1, columns, k)
    matmul = Matmul(left, right.swapaxes(1, 2), E4M3, lhs_scale=left_scales, rhs_scale=right_scales)
    report = launch(installed.load(plan_of(config, matmul).kernel), config, matmul).report
    tiles = 1 + -(-config.block_n // ROWS)
    scales = ctas * tiles * (k // (BLOCK * BLOCKS)) * ROWS * BLOCKS
    data = ctas * k * (config.block_m + config.block_n) // config.cta_group
    assert report.bytes["tma load"] == data + scales
    # Data is read once by a cluster, scales by each of its CTAs.
    assert report.bytes["global load"] == k * (rows + columns) + scales


# Of the MMAs of a span the instruction descriptor, in which they differ by the id of their scales.
IDS = re.compile(r"(tcgen05\.mma\.[^;]*block_scale\S* \[%r\d+\], %rd\d+, %rd\d+, )(%r\d+)")


@pytest.mark.parametrize("config", [replace(NT, block_n=64), PAIR], ids=str)
def test_each_scale_id_matters(config: Config) -> None:
    """With that of the first block in its place the result is another one."""
    rng = np.random.default_rng(5)
    left, left_scales, a = operand(rng, 1, 64, 128)
    right, right_scales, b = operand(rng, 1, 64, 128)
    matmul = Matmul(left, right.swapaxes(1, 2), E4M3, lhs_scale=left_scales, rhs_scale=right_scales)
    text = installed.text(plan_of(config, matmul).kernel)
    found = [*IDS.finditer(text)]
    ids = Counter(each[2] for each in found)  # shared by two of a narrow gated tile
    first, *others = (each for each in found if ids[each[2]] == 1)
    assert len({first[2], *(each[2] for each in others)}) == BLOCKS
    for each in others:
        mutant = f"{text[: each.start(2)]}{first[2]}{text[each.end(2) :]}"
        outcome = launch(emulator.Module(mutant), config, matmul)
        assert (outcome.d != a @ b.swapaxes(1, 2)).any()
