"""The kernels of sm100 of 4 bits, MXFP4 and NVFP4: scaled integers bit by bit, strictly."""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from jaxbw import emulator

from . import installed
from .gemm_launch import (
    BF16,
    BLOCKS,
    E2M1,
    ROWS,
    SM100,
    Config,
    Matmul,
    integers,
    launch,
    plan_of,
    scale_tiles,
)
from .mx_operands import SCHEDULES, check, operand

Array = npt.NDArray[Any]
F32 = np.dtype(np.float32)
MX, NV = 32, 16  # numbers that share a scale


def drawn(
    shape: tuple[int, int, int], block: int, batch: tuple[int, int] = (1, 1), **epilogue: Any
) -> tuple[Matmul, Array]:
    """A matmul, and its product."""
    m, n, k = shape
    rng = np.random.default_rng(m * 7 + n * 5 + k)
    left, left_scales, a = operand(rng, batch[0], m, k, block)
    right, right_scales, b = operand(rng, batch[1], n, k, block)
    right = right.swapaxes(1, 2)
    matmul = Matmul(left, right, E2M1, lhs_scale=left_scales, rhs_scale=right_scales, **epilogue)
    return matmul, a @ b.swapaxes(1, 2)


NT = Config(SM100, 128, 128, rhs_major=0, output=F32)
PAIR = replace(NT, block_m=256, cta_group=2, cluster=(2, 1))


@pytest.mark.sampled(2 * len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("block", [MX, NV])
@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (NT, (200, 150, 800)),
        (replace(NT, block_n=64), (130, 200, 352)),
        (replace(NT, block_n=192, accumulators=1), (128, 400, 608)),
        (replace(NT, block_n=256, accumulators=1), (100, 300, 1312)),
        (replace(NT, block_n=64, k_spans=2, stages=2), (128, 136, 1312)),
        (replace(NT, cluster=(2, 2)), (300, 300, 544)),
        (PAIR, (300, 140, 800)),
        (replace(PAIR, block_n=64), (260, 200, 544)),
        (replace(PAIR, block_n=192, accumulators=1), (200, 400, 608)),
        (replace(PAIR, block_n=256, accumulators=1), (512, 300, 1312)),
        (replace(PAIR, cluster=(4, 2), block_n=64), (600, 250, 544)),
    ],
    ids=str,
)
def test_shapes_with_tails(
    config: Config, shape: tuple[int, int, int], block: int, schedule: tuple[str, int]
) -> None:
    """Of k parts of a span, of a tile of scales, and of an instruction's 64 numbers."""
    check(config, *drawn(shape, block), schedules=[schedule])


@pytest.mark.sampled(2 * len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
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
@pytest.mark.parametrize("block", [MX, NV])
def test_what_the_other_kernels_can_do(
    config: Config, options: dict[str, Any], block: int, schedule: tuple[str, int]
) -> None:
    m, n, k = 300, 208, 1056
    bias = integers(np.random.default_rng(1), n) if options.get("bias") else None
    matmul, expected = drawn((m, n, k), block, **options | {"bias": bias})
    if bias is not None:
        expected = np.maximum(matmul.alpha * expected + bias, 0)
    check(config, matmul, expected, schedules=[schedule])


@pytest.mark.parametrize("block", [MX, NV])
def test_every_number(block: int) -> None:
    """Of e2m1, both of a byte, times every scale of whose products sums are exact."""
    rng = np.random.default_rng(6)
    numbers = np.arange(16, dtype=np.uint8).view(E2M1).astype(np.float32)
    left = rng.permuted(np.tile(numbers, (1, 128, 8)), axis=2)
    right = np.zeros((1, 128, 128), np.float32)
    right[0, np.arange(128), np.arange(128)] = 1
    blocks = 128 // block
    if block == MX:
        codes = rng.integers(1, 251, (1, 128, blocks)).astype(np.uint8)
        factors = np.exp2(codes.astype(np.float64) - 127)
    else:
        codes = rng.integers(0, 0x7F, (1, 128, blocks)).astype(np.uint8)
        factors = codes.view(np.dtype("float8_e4m3fn")).astype(np.float64)
    tiles = scale_tiles(np.zeros((1, 128, blocks), int), block)
    ones = tiles.copy()
    row, column = np.indices((128, blocks))
    tiles.view(np.uint8)[
        0, 0, column // BLOCKS, row % 32 * 16 + row // 32 * 4 + column % BLOCKS
    ] = codes[0]
    matmul = Matmul(left, right.swapaxes(1, 2), E2M1, lhs_scale=tiles, rhs_scale=ones)
    expected = (left * factors.repeat(block, axis=2)).astype(np.float32)
    check(NT, matmul, expected, schedules=SCHEDULES[:1])


@pytest.mark.parametrize("block", [MX, NV])
def test_a_nan_among_scales_reaches_its_row_alone(block: int) -> None:
    matmul, _ = drawn((128, 128, 256), block)
    assert matmul.lhs_scale is not None
    place = 5 * 16 + 1 * 4 + 2  # row 37, block 2
    matmul.lhs_scale.view(np.uint8)[0, 0, 0, place] = 0xFF if block == MX else 0x7F
    matmul.lhs[0, 37] = 0
    found = launch(installed.load(plan_of(NT, matmul).kernel), NT, matmul)
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(found.d[0]).any(1)), [37])
    assert np.isnan(found.d[0, 37]).all()


# What the load role says to the multiply role: that the columns of a stage are free.
PASSES_ON = re.compile(
    r"tcgen05\.fence::after_thread_sync;(\s*// end inline asm\s*// begin inline asm\s*)"
    r"tcgen05\.fence::before_thread_sync;"
)


@pytest.mark.parametrize(
    ("pattern", "by", "finding"),
    [
        (PASSES_ON, r"\1", "race"),
        (re.compile(r"tcgen05\.cp\."), "// tcgen05.cp.", "poison"),
    ],
)
def test_mutants_are_found(pattern: re.Pattern[str], by: str, finding: str) -> None:
    matmul, _ = drawn((300, 130, 1024), NV)
    mutant, count = pattern.subn(by, installed.text(plan_of(PAIR, matmul).kernel))
    assert count
    report = launch(emulator.Module(mutant), PAIR, matmul, checks="strict").report
    assert finding in {found.kind for found in report.findings}


# Of the MMAs of a span of MXFP4 the instruction descriptor, in which two differ by the id of their
# scales; of NVFP4 each MMA has a tile of scales of its own.
MMA = re.compile(
    r"(tcgen05\.mma\.\S*block_scale\.block(\d\d) \[%r\d+\], %rd\d+, %rd\d+, )(%r\d+)(, \[)(%r\d+)"
)


@pytest.mark.parametrize("config", [replace(NT, block_n=64), PAIR], ids=str)
@pytest.mark.parametrize("block", [MX, NV])
def test_each_scale_matters(config: Config, block: int) -> None:
    """With that of the first block in its place the result is another one."""
    matmul, expected = drawn((64, 64, 256), block)
    text = installed.text(plan_of(config, matmul).kernel)
    mmas = [each for each in MMA.finditer(text) if int(each[2]) == block]
    scales = Counter((each[3], each[5]) for each in mmas)  # shared by two of a narrow gated tile
    mmas = [each for each in mmas if scales[each[3], each[5]] == 1]
    assert len(mmas) == 4  # of a span
    ids, tiles = ({each[group] for each in mmas} for group in (3, 5))
    assert (len(ids), len(tiles)) == ((2, 2) if block == MX else (1, 4))
    for each in mmas[1:]:
        group = 3 if each[3] != mmas[0][3] else 5
        mutant = f"{text[: each.start(group)]}{mmas[0][group]}{text[each.end(group) :]}"
        found = launch(emulator.Module(mutant), config, matmul)
        assert (found.d != expected).any()


@pytest.mark.parametrize("config", [NT, replace(PAIR, block_n=256, accumulators=1)], ids=str)
@pytest.mark.parametrize("block", [MX, NV])
def test_bytes(config: Config, block: int) -> None:
    """Half a byte a number, and a byte for each scale."""
    k, ctas = 1024, config.cluster[0]
    rows, columns = ctas * ROWS, config.block_n
    matmul, _ = drawn((rows, columns, k), block)
    report = launch(installed.load(plan_of(config, matmul).kernel), config, matmul).report
    scales = ctas * (ROWS + -(-columns // ROWS) * ROWS) * (k // block)
    data = ctas * k * (config.block_m + config.block_n) // config.cta_group // 2
    assert report.bytes["tma load"] == data + scales
    assert report.bytes["global load"] == k * (rows + columns) // 2 + scales
