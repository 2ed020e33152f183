"""GEMMs in Triton with a scale for each block of K: `tl.dot_scaled`, as its tutorial 10 has it."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import triton
import triton.language as tl
from triton.compiler import ASTSource

from jaxbw import emulator

from .launching import E4M3, E5M2, Array
from .triton_kernels import BLACKWELL

ROWS, SCALES = 128, 4  # of a tile of scales


@triton.jit
def matmul(
    lhs,
    lhs_scales,
    rhs,
    rhs_scales,
    result,
    tiles_m,
    k,
    lhs_format: tl.constexpr,
    rhs_format: tl.constexpr,
    lhs_packed: tl.constexpr,
    rhs_packed: tl.constexpr,
    block: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
):
    row, column = tl.program_id(0) % tiles_m, tl.program_id(0) // tiles_m
    rep_m: tl.constexpr = block_m // 128
    rep_n: tl.constexpr = block_n // 128
    rep_k: tl.constexpr = block_k // block // 4
    sums = tl.zeros((block_m, block_n), tl.float32)
    for step in tl.range(0, tl.cdiv(k, block_k)):
        a = lhs.load([row * block_m, step * (block_k // lhs_packed)])
        b = rhs.load([column * block_n, step * (block_k // rhs_packed)])
        sa = lhs_scales.load([0, row * rep_m, step * rep_k, 0, 0])
        sb = rhs_scales.load([0, column * rep_n, step * rep_k, 0, 0])
        sa = sa.reshape(rep_m, rep_k, 32, 4, 4).trans(0, 3, 2, 1, 4)
        sb = sb.reshape(rep_n, rep_k, 32, 4, 4).trans(0, 3, 2, 1, 4)
        sa = sa.reshape(block_m, block_k // block)
        sb = sb.reshape(block_n, block_k // block)
        sums = tl.dot_scaled(a, sa, lhs_format, b.T, sb, rhs_format, sums)
    result.store([row * block_m, column * block_n], sums)


@dataclass(frozen=True)
class Format:
    """Of an operand: its elements, and the elements of K that share a scale."""

    dtype: Any
    triton: str
    block: int = 32
    scale: Any = ml_dtypes.float8_e8m0fnu

    @property
    def packed(self) -> int:
        return 2 if self.dtype == ml_dtypes.float4_e2m1fn else 1


MXFP8, MXFP8_E5M2 = Format(E4M3, "e4m3"), Format(E5M2, "e5m2")
MXFP4 = Format(ml_dtypes.float4_e2m1fn, "e2m1")
NVFP4 = Format(ml_dtypes.float4_e2m1fn, "e2m1", 16, ml_dtypes.float8_e4m3fn)


def tiles_of_scales(scales: Array) -> Array:
    """`[rows, blocks]` as cuBLAS, CUTLASS and Triton store them: tiles of 128 rows by 4 blocks."""
    rows, blocks = scales.shape
    tiles = scales.reshape(rows // ROWS, 4, 32, blocks // SCALES, SCALES).transpose(0, 3, 2, 1, 4)
    return tiles.reshape(1, rows // ROWS, blocks // SCALES, 2, 256)


def operand(form: Format, rows: int, k: int, seed: int) -> tuple[list[Array], Array]:
    """Elements and scales as a kernel wants them, and their values: their sums are exact."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-3, 4, (rows, k)).astype(np.float32)
    scales = np.exp2(rng.integers(-2, 3, (rows, k // form.block))).astype(np.float32)
    stored: Array = values.astype(form.dtype).view(np.uint8)
    if form.packed == 2:
        stored = stored[:, ::2] | stored[:, 1::2] << 4
    arrays = [stored, tiles_of_scales(scales.astype(form.scale).view(np.uint8))]
    aligned = []
    for array in arrays:
        aligned.append(emulator.empty(array.shape, np.uint8))
        aligned[-1][...] = array
    return aligned, values * scales.repeat(form.block, axis=1)


def compiled(lhs: Format, rhs: Format, block: tuple[int, int, int], stages: int) -> Any:
    m, n, k = block
    constants = dict(
        lhs_format=lhs.triton,
        rhs_format=rhs.triton,
        lhs_packed=lhs.packed,
        rhs_packed=rhs.packed,
        block=lhs.block,
        block_m=m,
        block_n=n,
        block_k=k,
    )
    kinds = {"e4m3": "fp8e4nv", "e5m2": "fp8e5", "e2m1": "u8"}
    scale = "fp8e4nv" if lhs.block == 16 else "u8"
    tiles = k // lhs.block // SCALES
    types = [
        f"tensordesc<{kinds[lhs.triton]}[{m}, {k // lhs.packed}]>",
        f"tensordesc<{scale}[1, {m // ROWS}, {tiles}, 2, 256]>",
        f"tensordesc<{kinds[rhs.triton]}[{n}, {k // rhs.packed}]>",
        f"tensordesc<{scale}[1, {n // ROWS}, {tiles}, 2, 256]>",
        f"tensordesc<fp32[{m}, {n}]>",
        "i32",
        "i32",
    ]
    signature = dict(zip(matmul.arg_names, types, strict=False))
    signature |= dict.fromkeys(constants, "constexpr")
    options = dict(num_warps=4, num_stages=stages, enable_fp_fusion=True)
    return triton.compile(ASTSource(matmul, signature, constants), BLACKWELL, options=options)
