"""The sum of a tensor core, truncated and at once, against exact fractions."""

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from jaxbw import emulator

from .calibration import emulated
from .calibration.case import Buffer, Case
from .calibration.wgmma_cases import IMAGE, THREADS, Kernel, Operand
from .datapath_reference import SHARED_BASE, Memory, datapath, write_tile
from .mma_reference import DTYPES, LAYOUTS, Format, Swizzle, cells, instruction
from .test_umma import KINDS
from .test_wgmma import NO_REGISTERS, d_fragment, to_registers

Array = npt.NDArray[Any]
SMALLEST = {Format.F16: -14, Format.E4M3: -6, Format.E5M2: -14}  # exponents; else float32's
FORMATS = [Format.BF16, Format.F16, Format.TF32, Format.E4M3, Format.E5M2]


def wgmma(number: Any, a: Array, b: Array, initial: Array) -> Array:
    """One wgmma: float32 or float16, as `initial`, of [64, k] by [8, k]."""
    memory = Memory(np.zeros(1 << 16, np.uint8), np.zeros(1 << 16, np.uint8))
    tiles = [write_tile(memory, x, True, Swizzle.B32, at) for x, at in ((a, 0x400), (b, 0x4000))]
    op = datapath.Wgmma(
        8,
        number,
        number,
        initial.dtype == np.float32,
        tiles[0].wgmma(0),
        tiles[1].wgmma(0),
        accumulate=True,
        fused_sum=True,
    )
    d = to_registers(initial.reshape(-1)[d_fragment(8)])
    words = op.execute(memory.shared, SHARED_BASE, NO_REGISTERS, d).reshape(-1, 128).T
    out = np.empty(64 * 8, initial.dtype)
    out[d_fragment(8)] = np.ascontiguousarray(words).view(initial.dtype)
    return out.reshape(64, 8)


def umma(number: Any, a: Array, b: Array, initial: Array) -> Array:
    """One tcgen05.mma of a CTA, likewise."""
    memory = Memory(np.zeros(1 << 16, np.uint8), np.zeros(1 << 16, np.uint8))
    tiles = [write_tile(memory, x, True, Swizzle.B32, at) for x, at in ((a, 0x400), (b, 0x4000))]
    f32 = initial.dtype == np.float32
    word = instruction(number, number, 64, 8, f32_result=f32)
    kind = KINDS.get(number, datapath.UmmaKind.F8F6F4)
    operands = (tiles[0].umma(0), tiles[1].umma(0), 0)
    op = datapath.Umma(kind, word, *operands, accumulate=True, fused_sum=True)
    tmem = datapath.TensorMemory()
    _, lanes, columns = cells(LAYOUTS[64, 1], 64, 8, 0, 0)
    tmem.cells[lanes, columns] = initial.view(np.uint32 if f32 else np.uint16)
    op.execute([memory.shared], SHARED_BASE, [tmem])
    words = tmem.cells[lanes, columns]
    out: Array = words.view(np.float32) if f32 else words.astype(np.uint16).view(np.float16)
    return out


ENGINES = {"wgmma": wgmma, "tcgen05.mma": umma}


def exponent(value: float, smallest: int) -> int:
    return max(math.frexp(value)[1] - 1, smallest) if value else -126


def truncated(value: Fraction, unit: int) -> Fraction:
    return math.trunc(value * Fraction(2) ** -unit) * Fraction(2) ** unit


def reference(a: Array, b: Array, initial: float, smallest: int, bits: int) -> Fraction:
    """The sum that is rounded to the result."""
    terms = [(Fraction(initial), exponent(initial, -126))]
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        terms.append((Fraction(x) * Fraction(y), exponent(x, smallest) + exponent(y, smallest)))
    unit = max(e for _, e in terms) - bits
    return sum((truncated(term, unit) for term, _ in terms), Fraction(0))


@pytest.mark.parametrize("number", FORMATS)
@pytest.mark.parametrize("engine", ENGINES)
def test_against_fractions(engine: str, number: Any) -> None:
    rng = np.random.default_rng(int(number.value))
    k = 32 // np.dtype(DTYPES[number]).itemsize
    # Exponents far apart, so that much is lost; for fp8, subnormal numbers are among them.
    numbers = rng.normal(size=(72, k)) * 2.0 ** rng.integers(-9, 7, (72, k))
    stored = numbers.astype(DTYPES[number])
    values = stored.astype(np.float64)
    if number == Format.TF32:  # ignores the low 13 bits
        values = (stored.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)
    initial = (rng.normal(size=(64, 8)) * 2.0 ** rng.integers(-20, 20, (64, 8))).astype(np.float32)
    got = ENGINES[engine](number, stored[:64], stored[64:], initial)
    hopper_fp8 = engine == "wgmma" and number in (Format.E4M3, Format.E5M2)
    bits, result_bits = (13, 13) if hopper_fp8 else (25, 23)
    for row, column in np.ndindex(64, 8):
        exact = reference(
            values[row],
            values[64 + column],
            float(initial[row, column]),
            SMALLEST.get(number, -126),
            bits,
        )
        unit = exponent(float(exact), -126) - result_bits
        assert got[row, column] == float(truncated(exact, unit)), (row, column)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_f16_result_is_rounded_once_to_nearest_even(engine: str) -> None:
    # Half an f16 unit above 1, and what a float32 of 1 cannot hold beside it: 2^-24.
    a, b = np.zeros((64, 16), np.float16), np.zeros((8, 16), np.float16)
    a[:, 0], b[:, 0] = 2.0**-11, 1
    a[1, 1], b[:, 1] = 2.0**-12, 2.0**-12
    got = ENGINES[engine](Format.F16, a, b, np.ones((64, 8), np.float16))
    assert (got[0] == 1).all()
    assert (got[1] == 1 + 2.0**-10).all()


@pytest.mark.parametrize(
    ("factors", "engine", "expected"),
    [
        # The unit is 2^(14 - 13) = 2, so the products of 1 are lost, as an H200 was seen to do.
        ((128, 128), "wgmma", 2**14),
        ((128, 64), "wgmma", 2**13 + 31),
        ((64, 64), "wgmma", 2**12 + 31),
        ((128, 128), "tcgen05.mma", 2**14 + 31),
    ],
)
def test_thirteen_fraction_bits_by_hand(
    factors: tuple[int, int], engine: str, expected: int
) -> None:
    a, b = np.ones((64, 32)), np.ones((8, 32))
    a[:, 0], b[:, 0] = factors
    left, right = (x.astype(ml_dtypes.float8_e4m3fn) for x in (a, b))
    got = ENGINES[engine](Format.E4M3, left, right, np.zeros((64, 8), np.float32))
    assert (got == expected).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_infinities_and_nans(engine: str) -> None:
    a, b = np.ones((64, 16), np.float16), np.ones((8, 16), np.float16)
    a[0, 3], a[1, 3], a[2, 3] = np.inf, -np.inf, np.nan
    a[3, 2], a[3, 3] = np.inf, -np.inf
    got = ENGINES[engine](Format.F16, a, b, np.zeros((64, 8), np.float32))
    assert (got[0] == np.inf).all()
    assert (got[1] == -np.inf).all()
    assert (got[2:4].view(np.uint32) == 0x7FFFFFFF).all()
    assert (got[4:] == 16).all()


@pytest.mark.parametrize(("sums", "lost"), [("float32", 0), ("fused", 1)])
def test_a_launch_chooses(sums: str, lost: int) -> None:
    kernel = Kernel(8, "e4m3", "e4m3")
    tile = Operand(0, 0, 256, "32B").descriptor
    image = np.full(IMAGE, 0x7E, np.uint8)  # 448 everywhere
    ones = Buffer(np.ones(64 * 8, np.float32).view(np.uint8), result=True)
    unused = Buffer(np.zeros(16 * THREADS, np.uint8))
    arguments = (Buffer(image), tile, tile, unused, ones)
    case = Case("sums", "", kernel.name, arguments, block=THREADS, smem=IMAGE)
    header = ".version 8.0\n.target sm_90a\n.address_size 64\n"
    shared = ".extern .shared .align 1024 .b8 memory[];\n"
    loaded = emulator.Module(header + shared + kernel.ptx())
    result, findings = emulated.run(loaded, case, sums=sums)
    assert findings == []
    assert (result.view(np.float32) == 32 * 448**2 + 1 - lost).all()
