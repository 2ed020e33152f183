"""Operands and descriptors for the tests of tcgen05.mma and wgmma, from PTX's tables."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from .datapath_reference import datapath, umma_descriptor

Format, Swizzle = datapath.NumberFormat, datapath.Swizzle
DTYPES: dict[Any, Any] = {
    Format.F16: np.float16,
    Format.BF16: ml_dtypes.bfloat16,
    Format.TF32: np.float32,
    Format.E4M3: ml_dtypes.float8_e4m3fn,
    Format.E5M2: ml_dtypes.float8_e5m2,
    Format.E2M3: ml_dtypes.float6_e2m3fn,
    Format.E3M2: ml_dtypes.float6_e3m2fn,
    Format.E2M1: ml_dtypes.float4_e2m1fn,
}
CODES: dict[Any, int] = {  # PTX table 42
    Format.F16: 0,
    Format.BF16: 1,
    Format.TF32: 2,
    Format.E4M3: 0,
    Format.E5M2: 1,
    Format.E2M3: 3,
    Format.E3M2: 4,
    Format.E2M1: 5,
}
WIDTHS: dict[Any, int] = {Format.E2M3: 6, Format.E3M2: 6, Format.E2M1: 4}


def pack(bits: npt.NDArray[np.integer[Any]], width: int) -> npt.NDArray[np.uint8]:
    """Chunks of 16 bytes: 8 elements of 16 bits, else 16 packed ones and zeros behind them."""
    elements = bits.reshape(-1, 8 if width == 16 else 16)
    ones = (elements[..., None] >> np.arange(width) & 1).astype(np.uint8).reshape(len(elements), -1)
    out = np.zeros((len(elements), 16), np.uint8)
    packed = np.packbits(ones, axis=1, bitorder="little")
    out[:, : packed.shape[1]] = packed
    return out


def operand(number: Any, rows: int, k: int, seed: int) -> tuple[Any, npt.NDArray[np.float32]]:
    """Small integers: their bits, one array element for each container, and their values."""
    limit = {Format.E2M1: 3, Format.E2M3: 7, Format.E3M2: 7}.get(number, 8)
    values = np.random.default_rng(seed).integers(-limit, limit + 1, (rows, k)).astype(np.float32)
    stored = values.astype(DTYPES[number])
    width = {Format.E2M3: 6, Format.E3M2: 6, Format.E2M1: 4}.get(number)
    if (
        width
    ):  # 16 elements in the 16 bytes that 16 bytes would take: a matrix of bytes of the same shape
        stored = pack(stored.view(np.uint8), width).reshape(rows, k)
    return stored, values


def instruction(
    a: Any,
    b: Any,
    m: int,
    n: int,
    *,
    f32_result: bool = True,
    transpose_a: bool = False,
    transpose_b: bool = False,
    negate_a: bool = False,
    negate_b: bool = False,
) -> int:
    """The instruction descriptor of PTX table 42."""
    word = int(f32_result) << 4 | CODES[a] << 7 | CODES[b] << 10
    word |= negate_a << 13 | negate_b << 14 | transpose_a << 15 | transpose_b << 16
    return word | n >> 3 << 17 | m >> 4 << 24


def cells(layout: str, m: int, n: int, column: int, lane: int) -> tuple[Any, Any, Any]:
    """CTA, lane and column of every element of D (PTX 9.7.16.10.5, figures 205 to 216)."""
    row, col = np.meshgrid(np.arange(m), np.arange(n), indexing="ij")
    if layout == "A":
        return row // 128, row % 128, column + col
    if layout == "B":
        return row // 64, row % 64 + 64 * (col // (n // 2)), column + col % (n // 2)
    if layout == "D":
        return 0 * row, row, column + col
    return 0 * row, row // 16 * 32 + row % 16 + lane, column + col  # F


LAYOUTS = {(256, 2): "A", (128, 2): "B", (128, 1): "D", (64, 1): "F"}


def bf16_instruction(**changes: Any) -> int:
    arguments: dict[str, Any] = {"a": Format.BF16, "b": Format.BF16, "m": 128, "n": 64}
    return instruction(**(arguments | changes))


DESCRIPTOR = umma_descriptor(0x400, 0, 1024, Swizzle.B128)


def example(**changes: Any) -> Any:
    """A legal instruction: 128x64x16 of bf16."""
    arguments: dict[str, Any] = {
        "kind": datapath.UmmaKind.F16,
        "instruction": bf16_instruction(),
        "a": DESCRIPTOR,
        "b": DESCRIPTOR,
        "d": 0,
    }
    return datapath.Umma(**(arguments | changes))
