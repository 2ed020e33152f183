"""wgmma: matmuls of tiles in shared memory and registers, against numpy."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxbw import emulator

from .datapath_reference import (
    SHARED_BASE,
    Memory,
    datapath,
    swizzled,
    wgmma_descriptor,
    write_tile,
)
from .mma_reference import DTYPES, Format, Swizzle, operand
from .ptx import module

Major = datapath.OperandMajor
NO_REGISTERS = np.zeros(0, np.uint32)


def d_fragment(n: int) -> npt.NDArray[np.int64]:
    """Element of D, row * n + column, by (thread, index within the thread): figures 149, 151, 153.

    Warp w has rows 16w to 16w + 15. An 8x8 block of D gives two neighbours to every thread: the
    thread's group of four has the row, its place in the group the columns. A thread's elements
    run over the two blocks of its 16 rows, then along the columns.
    """
    blocks = np.arange(64 * n).reshape(4, 2, 8, n // 8, 4, 2)  # warp, block, row, block, pair, half
    return blocks.transpose(0, 2, 4, 3, 1, 5).reshape(128, n // 2)


def a_fragment(k: int) -> npt.NDArray[np.int64]:
    """Element of A, row * k + column, likewise: figures 148, 150, 152."""
    blocks = np.arange(64 * k).reshape(
        4, 2, 8, 2, 4, k // 8
    )  # warp, block, row, half, place, 4 bytes
    return blocks.transpose(0, 2, 4, 3, 1, 5).reshape(128, k // 2)


def to_registers(elements: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Elements of (thread, index) as 32-bit registers, [register * 128 + thread]."""
    words = np.ascontiguousarray(elements).view(np.uint32).reshape(128, -1)
    return np.ascontiguousarray(words.T).reshape(-1)


@dataclass(frozen=True)
class Case:
    a: Any
    b: Any
    n: int
    swizzle: Any = Swizzle.B128
    a_major: str = "k"
    b_major: str = "k"
    f32_result: bool = True
    a_in_registers: bool = False
    negate_a: bool = False
    negate_b: bool = False

    @property
    def label(self) -> str:
        majors = f"{'r' if self.a_in_registers else self.a_major}{self.b_major}"
        result = "f32" if self.f32_result else "f16"
        return f"{self.a.name}-{self.b.name}-n{self.n}-{self.swizzle.name}-{majors}-{result}"


def cases() -> Iterator[Case]:
    swizzles = [Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128]
    for number, swizzle, majors in itertools.product(
        [Format.BF16, Format.F16], swizzles, ["kk", "km", "mk", "mm"]
    ):
        yield Case(number, number, 64, swizzle, majors[0], majors[1])
        yield Case(number, number, 200, swizzle, majors[0], majors[1])
    for number, n in itertools.product([Format.TF32, Format.E4M3, Format.E5M2], [8, 136, 256]):
        for swizzle in swizzles:
            yield Case(number, number, n, swizzle)
        yield Case(number, number, n, a_in_registers=True)
    for swizzle in swizzles:
        yield Case(Format.E4M3, Format.E5M2, 136, swizzle)
        yield Case(Format.E5M2, Format.E4M3, 136, swizzle)
    for number, majors in itertools.product([Format.BF16, Format.F16], ["kk", "km"]):
        yield Case(number, number, 256, b_major=majors[1], a_in_registers=True)
    yield Case(Format.F16, Format.F16, 72, f32_result=False)
    yield Case(Format.F16, Format.F16, 72, f32_result=False, a_in_registers=True)
    yield Case(Format.E5M2, Format.E4M3, 8, f32_result=False)
    yield Case(Format.E4M3, Format.E5M2, 64, negate_a=True)
    yield Case(Format.BF16, Format.BF16, 64, negate_b=True, a_in_registers=True)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.label)
def test_matmul(case: Case) -> None:
    size = np.dtype(DTYPES[case.a]).itemsize
    step, k = 32 // size, 128 // size
    a_bits, a = operand(case.a, 64, k, 1)
    b_bits, b = operand(case.b, case.n, k, 2)
    memory = Memory(np.zeros(1 << 18, np.uint8), np.full(1 << 17, 0xEE, np.uint8))
    a_tile = write_tile(memory, a_bits, case.a_major == "k", case.swizzle, 0x400)
    b_tile = write_tile(memory, b_bits, case.b_major == "k", case.swizzle, 0x8000)
    initial = np.random.default_rng(3).integers(-50, 50, (64, case.n)).astype(np.float32)
    stored = initial if case.f32_result else initial.astype(np.float16)
    d = to_registers(stored.reshape(-1)[d_fragment(case.n)])
    for s in range(k // step):
        op = datapath.Wgmma(
            case.n,
            case.a,
            case.b,
            case.f32_result,
            None if case.a_in_registers else a_tile.wgmma(s),
            b_tile.wgmma(s),
            a_major=Major.K if case.a_major == "k" else Major.MN,
            b_major=Major.K if case.b_major == "k" else Major.MN,
            negate_a=case.negate_a,
            negate_b=case.negate_b,
            accumulate=True,
        )
        registers = NO_REGISTERS
        if case.a_in_registers:
            part = np.ascontiguousarray(a_bits[:, s * step : (s + 1) * step]).reshape(-1)
            registers = to_registers(part[a_fragment(step)])
        d = op.execute(memory.shared, SHARED_BASE, registers, d)
        assert op.d_registers() * 128 == len(d)
    words = np.ascontiguousarray(d.reshape(-1, 128).T)
    elements = words.view(np.float32 if case.f32_result else np.float16)
    got = np.empty(64 * case.n, elements.dtype)
    got[d_fragment(case.n)] = elements
    sign = -1 if case.negate_a != case.negate_b else 1
    np.testing.assert_array_equal(got.reshape(64, case.n), initial + sign * (a @ b.T))


def test_without_accumulation_the_old_value_is_not_read() -> None:
    memory = Memory(np.zeros(1 << 16, np.uint8), np.zeros(1 << 16, np.uint8))
    bits, values = operand(Format.BF16, 64, 64, 4)
    tile = write_tile(memory, bits, True, Swizzle.B128, 0x400)
    op = datapath.Wgmma(64, Format.BF16, Format.BF16, True, tile.wgmma(1), tile.wgmma(1))
    nan = np.full(32 * 128, np.nan, np.float32).view(np.uint32)
    d = op.execute(memory.shared, SHARED_BASE, NO_REGISTERS, nan)
    got = np.empty(64 * 64, np.float32)
    got[d_fragment(64)] = np.ascontiguousarray(d.reshape(-1, 128).T).view(np.float32)
    part = values[:, 16:32]
    np.testing.assert_array_equal(got.reshape(64, 64), part @ part.T)


@pytest.mark.parametrize("lines", range(8))
def test_base_offset_anchors_the_pattern_elsewhere(lines: int) -> None:
    """As for tcgen05.mma; here a GPU at hand can confirm it."""
    bits, values = operand(Format.BF16, 64, 64, 5)
    start = 0x800 + 128 * lines
    memory = np.zeros(1 << 16, np.uint8)
    pattern = swizzled(bits.reshape(-1).view(np.uint8), Swizzle.B128)
    memory[start - SHARED_BASE :][: len(pattern)] = pattern
    descriptor = wgmma_descriptor(start, 0, 1024, Swizzle.B128, base_offset=lines)
    op = datapath.Wgmma(64, Format.BF16, Format.BF16, True, descriptor, descriptor)
    d = op.execute(memory, SHARED_BASE, NO_REGISTERS, np.zeros(32 * 128, np.uint32))
    got = np.empty(64 * 64, np.float32)
    got[d_fragment(64)] = np.ascontiguousarray(d.reshape(-1, 128).T).view(np.float32)
    part = values[:, :16]
    np.testing.assert_array_equal(got.reshape(64, 64), part @ part.T)


@pytest.mark.parametrize("bit", [14, 30, 46, 48, 52, 61])
def test_refuses_bits_of_no_field(bit: int) -> None:
    descriptor = wgmma_descriptor(0x400, 0, 1024, Swizzle.B128) | 1 << bit
    with pytest.raises(RuntimeError, match="belong to no field"):
        datapath.Wgmma(64, Format.BF16, Format.BF16, True, descriptor, descriptor)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"n": 0}, "N must be a multiple of 8 up to 256"),
        ({"n": 12}, "N must be a multiple of 8 up to 256"),
        ({"n": 264}, "N must be a multiple of 8 up to 256"),
        ({"b_format": Format.F16}, "A and B must have the same type unless both are fp8"),
        ({"f32_result": False}, "an f16 D needs f16 or fp8 operands"),
        ({"a_format": Format.E2M1, "b_format": Format.E2M1}, "6- and 4-bit formats"),
        (
            {"a_format": Format.TF32, "b_format": Format.TF32, "b_major": Major.MN},
            "only f16 and bf16 operands can be transposed",
        ),
        ({"a": None, "a_major": Major.MN}, "A in registers cannot be transposed"),
    ],
)
def test_refuses_illegal_combinations(changes: dict[str, Any], rule: str) -> None:
    descriptor = wgmma_descriptor(0x400, 0, 1024, Swizzle.B128)
    arguments: dict[str, Any] = {
        "n": 64,
        "a_format": Format.BF16,
        "b_format": Format.BF16,
        "f32_result": True,
        "a": descriptor,
        "b": descriptor,
    }
    with pytest.raises(RuntimeError, match=rule):
        datapath.Wgmma(**(arguments | changes)).check()


@pytest.mark.parametrize("types", ["e4m3.e4m3", "e4m3.e5m2", "e5m2.e4m3", "e5m2.e5m2", "tf32.tf32"])
@pytest.mark.parametrize("trans", [0, 1])
def test_eight_bits_and_tf32_are_k_major_only(types: str, trans: int) -> None:
    k = 8 if types.startswith("tf32") else 32
    body = (
        ".reg .b32 %d<4>; mov.b64 %rd0, 0;"
        f"wgmma.mma_async.sync.aligned.m64n8k{k}.f32.{types} {{%d0, %d1, %d2, %d3}}, %rd0, %rd0, "
        f"0, 1, 1, {trans}, {trans};"
    )
    loaded = module(body)
    with pytest.raises(emulator.EmulatorError, match="its operands are K-major, as all but f16"):
        loaded.launch("kernel", grid=1, block=128, args=[emulator.empty(4, np.uint32)])


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 33),
    st.sampled_from(list(DTYPES)),
    st.sampled_from(list(Major)),
)
def test_any_operands_execute_or_are_refused(
    a: int, b: int, n: int, number: Any, major: Any
) -> None:
    mask = ~(0b11 << 14 | 0b11 << 30 | 0b111 << 46 | 0x3FF << 52)
    shared = np.zeros(232448, np.uint8)
    try:
        op = datapath.Wgmma(8 * n, number, number, True, a & mask, b & mask, a_major=major)
        op.execute(shared, SHARED_BASE, NO_REGISTERS, np.zeros(512 * n, np.uint32))
    except RuntimeError:
        return
    assert op.shared_chunks()
