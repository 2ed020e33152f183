"""tcgen05.mma: matmuls of tiles in shared and tensor memory, against numpy."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from .datapath_reference import SHARED_BASE, Memory, datapath, swizzled, umma_descriptor, write_tile
from .mma_reference import (
    DTYPES,
    LAYOUTS,
    Format,
    Swizzle,
    bf16_instruction,
    cells,
    example,
    instruction,
    operand,
)

Kind = datapath.UmmaKind
KINDS: dict[Any, Any] = {Format.F16: Kind.F16, Format.BF16: Kind.F16, Format.TF32: Kind.TF32}


@dataclass(frozen=True)
class Case:
    a: Any
    b: Any
    m: int
    n: int
    cta_group: int = 1
    swizzle_a: Any = Swizzle.B128
    swizzle_b: Any = Swizzle.B128
    a_major: str = "k"
    b_major: str = "k"
    f32_result: bool = True
    negate_a: bool = False
    negate_b: bool = False
    lane: int = 0

    @property
    def label(self) -> str:
        names = f"{self.a.name}-{self.b.name}-{self.m}x{self.n}x{self.cta_group}cta"
        swizzles = f"{self.swizzle_a.name}{self.a_major}-{self.swizzle_b.name}{self.b_major}"
        return f"{names}-{swizzles}-{'f32' if self.f32_result else 'f16'}"


def cases() -> Iterator[Case]:
    plain = [Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128]
    shapes = [(64, 8, 1), (64, 200, 1), (128, 16, 1), (128, 256, 1), (128, 32, 2), (128, 224, 2)]
    shapes += [(256, 16, 2), (256, 256, 2)]
    for number, (m, n, group) in itertools.product([Format.BF16, Format.E4M3, Format.TF32], shapes):
        yield Case(number, number, m, n, group)
    for number in (Format.F16, Format.E5M2):
        for swizzle_a, swizzle_b, majors in itertools.product(
            plain, plain, ["kk", "km", "mk", "mm"]
        ):
            yield Case(number, number, 128, 64, 1, swizzle_a, swizzle_b, majors[0], majors[1])
    for swizzle, majors in itertools.product(plain, ["kk", "km", "mk", "mm"]):
        yield Case(Format.BF16, Format.BF16, 256, 128, 2, swizzle, swizzle, majors[0], majors[1])
        yield Case(Format.BF16, Format.BF16, 128, 96, 2, swizzle, swizzle, majors[0], majors[1])
        yield Case(Format.BF16, Format.BF16, 64, 24, 1, swizzle, swizzle, majors[0], majors[1])
    for majors in ("km", "mk", "mm"):
        a, b = (Swizzle.B128_ATOM_32B if major == "m" else Swizzle.B128 for major in majors)
        yield Case(Format.TF32, Format.TF32, 128, 64, 1, a, b, majors[0], majors[1])
        yield Case(Format.TF32, Format.TF32, 256, 64, 2, a, b, majors[0], majors[1])
    small = [Format.E4M3, Format.E5M2, Format.E2M3, Format.E3M2, Format.E2M1]
    for a, b in itertools.product(small, small):
        yield Case(a, b, 128, 32)
    for a, b in ((Format.E4M3, Format.E5M2), (Format.E5M2, Format.E4M3)):
        for majors, swizzle in itertools.product(["kk", "km", "mk", "mm"], plain):
            yield Case(a, b, 256, 64, 2, swizzle, swizzle, majors[0], majors[1])
    yield Case(Format.F16, Format.F16, 128, 64, f32_result=False)
    yield Case(Format.F16, Format.F16, 128, 64, 2, f32_result=False)
    yield Case(Format.E4M3, Format.E5M2, 64, 64, f32_result=False, negate_a=True)
    yield Case(Format.BF16, Format.BF16, 128, 64, negate_a=True)
    yield Case(Format.BF16, Format.BF16, 128, 64, negate_b=True)
    yield Case(Format.BF16, Format.BF16, 64, 64, lane=16)


def run(case: Case, k_steps: int = 2) -> None:
    size = np.dtype(DTYPES[case.a]).itemsize
    step = 32 // size
    layout = LAYOUTS[case.m, case.cta_group]
    # K-major tiles hold whole swizzle spans.
    k = max(k_steps * step, 128 // size)
    a_bits, a = operand(case.a, case.m, k, 1)
    b_bits, b = operand(case.b, case.n, k, 2)
    rows, columns = case.m // case.cta_group, case.n // case.cta_group
    memories, tiles = [], []
    for cta in range(case.cta_group):
        memory = Memory(np.zeros(1 << 18, np.uint8), np.full(3 << 16, 0xEE, np.uint8))
        a_part = a_bits[cta * rows : (cta + 1) * rows]
        b_part = b_bits[cta * columns : (cta + 1) * columns]
        a_tile = write_tile(memory, a_part, case.a_major == "k", case.swizzle_a, 0x800)
        b_tile = write_tile(memory, b_part, case.b_major == "k", case.swizzle_b, 0x18000)
        memories.append(memory)
        tiles.append((a_tile, b_tile))
    column = 512 - case.n
    tmem = [datapath.TensorMemory() for _ in memories]
    initial = np.random.default_rng(3).integers(-50, 50, (case.m, case.n)).astype(np.float32)
    cta, lanes, cols = cells(layout, case.m, case.n, column, case.lane)
    for c, memory in enumerate(tmem):
        memory.cells[:] = 0xDEADBEEF
        stored = initial if case.f32_result else initial.astype(np.float16)
        bits = stored.view(np.uint32 if case.f32_result else np.uint16)
        memory.cells[lanes[cta == c], cols[cta == c]] = bits[cta == c]
    expected = initial.astype(np.float64)
    sign = (-1 if case.negate_a else 1) * (-1 if case.negate_b else 1)
    word = instruction(
        case.a,
        case.b,
        case.m,
        case.n,
        f32_result=case.f32_result,
        transpose_a=case.a_major == "m",
        transpose_b=case.b_major == "m",
        negate_a=case.negate_a,
        negate_b=case.negate_b,
    )
    for s in range(k // step):
        op = datapath.Umma(
            KINDS.get(case.a, Kind.F8F6F4),
            word,
            tiles[0][0].umma(s),
            tiles[0][1].umma(s),
            case.lane << 16 | column,
            case.cta_group,
            accumulate=True,
        )
        op.execute([m.shared for m in memories], SHARED_BASE, tmem)
        part = slice(s * step, (s + 1) * step)
        expected += sign * a[:, part].astype(np.float64) @ b[:, part].T.astype(np.float64)
    got = np.zeros((case.m, case.n), np.float64)
    untouched = []
    for c, memory in enumerate(tmem):
        bits = memory.cells[lanes[cta == c], cols[cta == c]]
        got[cta == c] = (
            bits.view(np.float32) if case.f32_result else bits.astype(np.uint16).view(np.float16)
        )
        rest = memory.cells.copy()
        rest[lanes[cta == c], cols[cta == c]] = 0xDEADBEEF
        untouched.append((rest == 0xDEADBEEF).all())
        regions = np.zeros(rest.shape, bool)
        for r in op.d_regions():
            regions[r.lane : r.lane + r.lanes, r.column : r.column + r.columns] = True
        assert regions.sum() == (cta == c).sum()
        assert regions[lanes[cta == c], cols[cta == c]].all()
    np.testing.assert_array_equal(got, expected)
    assert all(untouched)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.label)
def test_matmul_of_tiles_that_tma_wrote(case: Case) -> None:
    run(case)


def small_matmul(**changes: Any) -> tuple[Any, npt.NDArray[np.float32], Any]:
    """Executes 128x64x16 of bf16; returns tensor memory, the matmul and shared memory."""
    memory = Memory(np.zeros(1 << 16, np.uint8), np.zeros(1 << 16, np.uint8))
    a_bits, a = operand(Format.BF16, 128, 64, 4)
    b_bits, b = operand(Format.BF16, 64, 64, 5)
    a_tile = write_tile(memory, a_bits, True, Swizzle.B128, 0x400)
    b_tile = write_tile(memory, b_bits, True, Swizzle.B128, 0x8400)
    tmem = datapath.TensorMemory()
    tmem.cells[:] = np.float32(np.nan).view(np.uint32)
    op = example(**({"a": a_tile.umma(0), "b": b_tile.umma(0)} | changes))
    tmem.cells[:, 128:192] = np.full((128, 64), 3, np.float32).view(np.uint32)
    op.execute([memory.shared], SHARED_BASE, [tmem])
    return tmem, (a[:, :16] @ b[:, :16].T), memory


def test_without_accumulation_the_old_value_is_not_read() -> None:
    tmem, expected, _ = small_matmul(accumulate=False)
    np.testing.assert_array_equal(tmem.cells[:, :64].copy().view(np.float32), expected)


def test_input_d_is_scaled_by_a_power_of_two() -> None:
    tmem, expected, _ = small_matmul(d=128, accumulate=True, scale_input_d=3)
    np.testing.assert_array_equal(tmem.cells[:, 128:192].copy().view(np.float32), expected + 0.375)


def test_disabled_lanes_keep_their_value() -> None:
    mask = [0x0000_0001, 0x8000_0000, 0, 0xFFFF_FFFF, 0xFFFF_FFFF, 0, 0, 0]
    tmem, expected, _ = small_matmul(d=128, accumulate=True, disable_output_lane=mask)
    disabled = np.array([mask[lane // 32] >> lane % 32 & 1 for lane in range(128)], bool)
    wanted = np.where(disabled[:, None], 3, expected + 3)
    np.testing.assert_array_equal(tmem.cells[:, 128:192].copy().view(np.float32), wanted)


def test_disabled_lanes_of_a_pair() -> None:
    """The first four words are the even CTA's, the others the odd one's."""
    mask = [1, 0, 0, 0, 0, 0, 0, 0x8000_0000]
    shared = np.zeros(1 << 16, np.uint8)  # a matmul of zeros
    tmem = [datapath.TensorMemory() for _ in range(2)]
    for memory in tmem:
        memory.cells[:] = 1
    op = example(instruction=bf16_instruction(m=256), cta_group=2, disable_output_lane=mask)
    op.execute([shared, shared], SHARED_BASE, tmem)
    kept = [np.flatnonzero((memory.cells[:, :64] == 1).all(1)).tolist() for memory in tmem]
    assert kept == [[0], [127]]


def test_the_chunks_are_what_is_read() -> None:
    """Bytes outside the listed chunks may change; any chunk inside makes a difference."""
    _, _, memory = small_matmul()
    op = example(
        a=umma_descriptor(0x400, 0, 1024, Swizzle.B128),
        b=umma_descriptor(0x8400, 0, 1024, Swizzle.B128),
    )
    read = np.zeros(len(memory.shared), bool)
    for chunk in op.shared_chunks():
        read[chunk - SHARED_BASE : chunk - SHARED_BASE + 16] = True
    assert read.sum() == (128 + 64) * 32

    def result(shared: Any) -> Any:
        tmem = datapath.TensorMemory()
        op.execute([shared], SHARED_BASE, [tmem])
        return tmem.cells.copy()

    before = result(memory.shared)
    np.testing.assert_array_equal(result(np.where(read, memory.shared, 0x5A)), before)
    assert (result(np.where(read, 0x40, memory.shared)) != before).any()


@pytest.mark.parametrize("number", [Format.BF16, Format.TF32, Format.E4M3])
@pytest.mark.parametrize(
    ("m", "group", "lane"), [(64, 1, 0), (64, 1, 16), (128, 1, 0), (128, 2, 0), (256, 2, 0)]
)
def test_a_in_tensor_memory(number: Any, m: int, group: int, lane: int) -> None:
    """Every lane of D is made from the same lane of A: in layout B, two lanes hold one row of A."""
    n, size = 64, np.dtype(DTYPES[number]).itemsize
    k, per_cta = 32 // size, n // group
    a_bits, a = operand(number, 128 * group, k, 6)  # a row for each lane
    b_bits, b = operand(number, n, 128 // size, 7)
    a_words = np.ascontiguousarray(a_bits).view(np.uint32)  # 8 cells a row
    tmem, shared, descriptor = [], [], 0
    for cta in range(group):
        memory = Memory(np.zeros(1 << 16, np.uint8), np.zeros(1 << 16, np.uint8))
        part = b_bits[cta * per_cta : (cta + 1) * per_cta]
        descriptor = write_tile(memory, part, True, Swizzle.B128, 0x400).umma(0)
        shared.append(memory.shared)
        tmem.append(datapath.TensorMemory())
        tmem[cta].cells[:, 100:108] = a_words[128 * cta : 128 * cta + 128]
    op = datapath.Umma(
        KINDS.get(number, Kind.F8F6F4),
        instruction(number, number, m, n),
        lane << 16 | 100,
        descriptor,
        lane << 16 | 200,
        group,
        a_in_tmem=True,
    )
    assert sum(r.lanes * r.columns for r in op.a_regions()) == 8 * max(m // group, 64 * group)
    op.execute(shared, SHARED_BASE, tmem)
    cta_of, lane_of, column_of = cells(LAYOUTS[m, group], m, n, 200, lane)
    got = np.stack([t.cells for t in tmem])[cta_of, lane_of, column_of].view(np.float32)
    expected = np.einsum("mnk,nk->mn", a[128 * cta_of + lane_of], b[:, :k])
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("rows_off", range(8))
def test_base_offset_anchors_the_pattern_elsewhere(rows_off: int) -> None:
    """The pattern starts `rows_off` lines into its alignment unit, and the descriptor says so.

    Our reading of PTX 9.7.16.4.1; nothing independent confirms it.
    """
    bits, values = operand(Format.BF16, 128, 64, 8)
    b_bits, b = operand(Format.BF16, 64, 64, 9)
    memory = Memory(np.zeros(1 << 16, np.uint8), np.zeros(1 << 16, np.uint8))
    b_tile = write_tile(memory, b_bits, True, Swizzle.B128, 0x8000)
    start = 0x800 + 128 * rows_off
    pattern = swizzled(np.ascontiguousarray(bits).reshape(-1).view(np.uint8), Swizzle.B128)
    memory.shared[start - SHARED_BASE :][: len(pattern)] = pattern
    tmem = datapath.TensorMemory()
    for s in range(4):
        a = umma_descriptor(start + 32 * s, 0, 1024, Swizzle.B128, base_offset=rows_off)
        op = example(a=a, b=b_tile.umma(s), accumulate=s > 0)
        op.execute([memory.shared], SHARED_BASE, [tmem])
    np.testing.assert_array_equal(tmem.cells[:, :64].copy().view(np.float32), values @ b.T)


def test_normal_values_within_the_bound_of_float32_sums() -> None:
    random = np.random.default_rng(10)
    a, b = (random.standard_normal((rows, 64)).astype(ml_dtypes.bfloat16) for rows in (128, 64))
    memory = Memory(np.zeros(1 << 16, np.uint8), np.zeros(1 << 16, np.uint8))
    a_tile = write_tile(memory, a, True, Swizzle.B128, 0x400)
    b_tile = write_tile(memory, b, True, Swizzle.B128, 0x8400)
    tmem = datapath.TensorMemory()
    for s in range(4):
        op = example(a=a_tile.umma(s), b=b_tile.umma(s), accumulate=s > 0)
        op.execute([memory.shared], SHARED_BASE, [tmem])
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    bound = 64 * 2.0**-24 * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64).T)
    got = tmem.cells[:, :64].copy().view(np.float32)
    assert (np.abs(got - exact) <= bound).all()
