"""Layers around a GEMM, by Triton: softmax, layer norm, attention and a cast to fp8."""

from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.compiler import ASTSource

from jaxbw import emulator

from .launching import Layer
from .triton_kernels import BLACKWELL, descriptor_arguments


@triton.jit
def softmax_rows(x, out, rows, columns, block: tl.constexpr, stages: tl.constexpr):
    across = tl.arange(0, block)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=stages):
        values = tl.load(x + row * columns + across, mask=across < columns, other=-float("inf"))
        values = values.to(tl.float32)
        powers = tl.exp(values - tl.max(values, axis=0))
        result = powers / tl.sum(powers, axis=0)
        tl.store(out + row * columns + across, result.to(out.dtype.element_ty), across < columns)


@triton.jit
def layer_norm_rows(x, weight, bias, out, columns, block: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((block,), tl.float32)
    for start in range(0, columns, block):
        across = start + tl.arange(0, block)
        total += tl.load(x + row * columns + across, mask=across < columns, other=0.0).to(
            tl.float32
        )
    mean = tl.sum(total, axis=0) / columns
    squares = tl.zeros((block,), tl.float32)
    for start in range(0, columns, block):
        across = start + tl.arange(0, block)
        values = tl.load(x + row * columns + across, mask=across < columns, other=0.0)
        apart = tl.where(across < columns, values.to(tl.float32) - mean, 0.0)
        squares += apart * apart
    scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / columns + 1e-5)
    for start in range(0, columns, block):
        across = start + tl.arange(0, block)
        inside = across < columns
        values = tl.load(x + row * columns + across, mask=inside, other=0.0).to(tl.float32)
        factor = tl.load(weight + across, mask=inside).to(tl.float32)
        result = (values - mean) * scale * factor + tl.load(bias + across, mask=inside)
        tl.store(out + row * columns + across, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def attention_tiles(
    query,
    key,
    value,
    out,
    length,
    width: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    causal: tl.constexpr,
    stages: tl.constexpr,
):
    head = tl.program_id(1) * length * width
    rows = tl.program_id(0) * block_m + tl.arange(0, block_m)
    across = tl.arange(0, width)
    places = rows[:, None] * width + across[None, :]
    inside = rows[:, None] < length
    q = tl.load(query + head + places, mask=inside, other=0.0)
    most = tl.full((block_m,), -float("inf"), tl.float32)
    total = tl.zeros((block_m,), tl.float32)
    sums = tl.zeros((block_m, width), tl.float32)
    end = length
    if causal:
        end = tl.minimum(length, (tl.program_id(0) + 1) * block_m)
    for start in tl.range(0, end, block_n, num_stages=stages):
        keys = start + tl.arange(0, block_n)
        there = keys < length
        k = tl.load(
            key + head + keys[None, :] * width + across[:, None], mask=there[None, :], other=0.0
        )
        scores = tl.dot(q, k) * (1.4426950408889634 / width**0.5)
        seen = there[None, :]
        if causal:
            seen = seen & (keys[None, :] <= rows[:, None])
        scores = tl.where(seen, scores, -float("inf"))
        now = tl.maximum(most, tl.max(scores, axis=1))
        powers = tl.exp2(scores - now[:, None])
        shrink = tl.exp2(most - now)
        v = tl.load(
            value + head + keys[:, None] * width + across[None, :], mask=there[:, None], other=0.0
        )
        total = total * shrink + tl.sum(powers, axis=1)
        sums = tl.dot(powers.to(v.dtype), v, sums * shrink[:, None])
        most = now
    result = (sums / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + head + places, result, mask=inside)


@triton.jit
def cast_rows(x, out, scales, columns, block: tl.constexpr):
    row = tl.program_id(0)
    across = tl.arange(0, block)
    values = tl.load(x + row * columns + across, mask=across < columns, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(values), axis=0), 1e-12) / 448
    tl.store(scales + row, scale)
    tl.store(out + row * columns + across, (values / scale).to(tl.float8e4nv), across < columns)


@triton.jit
def move_rows(source, target, rows, count: tl.constexpr):
    mine = tl.program_id(0) * count + tl.arange(0, count)
    target.scatter(source.gather(tl.load(rows + mine), 0), mine, 0)


@triton.jit
def double_tiles(x, out, rows, columns, block_m: tl.constexpr, block_n: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [block_m, block_n])
    target = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [block_m, block_n])
    row, column = tl.program_id(0) * block_m, tl.program_id(1) * block_n
    target.store([row, column], source.load([row, column]) * 2)


def _compile(function: Any, types: dict[str, str], **constants: Any) -> Any:
    source = ASTSource(function, types | dict.fromkeys(constants, "constexpr"), constants)
    options = dict(num_warps=4, enable_fp_fusion=True)
    return triton.compile(source, target=BLACKWELL, options=options)


def _made(compiled: Any, grid: tuple[int, int]) -> Layer:
    scratch = emulator.empty(compiled.metadata.global_scratch_size * grid[0] * grid[1], np.uint8)
    return Layer(
        ptx=compiled.asm["ptx"],
        grid=grid,
        dynamic_smem=compiled.metadata.shared,
        # Triton's two buffers: for tensor maps that a kernel makes, and of its profiler.
        scratch=[scratch, 0],
    )


def _layer(function: Any, types: dict[str, str], grid: tuple[int, int], **constants: Any) -> Layer:
    return _made(_compile(function, types, **constants), grid)


def softmax(columns: int) -> Layer:
    types = {"x": "*bf16", "out": "*bf16", "rows": "i32", "columns": "i32"}
    block = triton.next_power_of_2(columns)
    return _layer(softmax_rows, types, (3, 1), block=block, stages=2)


def layer_norm(rows: int) -> Layer:
    types = {"x": "*bf16", "weight": "*fp32", "bias": "*fp32", "out": "*bf16", "columns": "i32"}
    return _layer(layer_norm_rows, types, (rows, 1), block=256)


def attention(length: int, heads: int, width: int, causal: bool, block: tuple[int, int]) -> Layer:
    types = dict.fromkeys(("query", "key", "value", "out"), "*bf16") | {"length": "i32"}
    m, n = block
    grid = (-(-length // m), heads)
    return _layer(
        attention_tiles, types, grid, width=width, block_m=m, block_n=n, causal=causal, stages=2
    )


def cast(rows: int, columns: int) -> Layer:
    types = {"x": "*bf16", "out": "*fp8e4nv", "scales": "*fp32", "columns": "i32"}
    return _layer(cast_rows, types, (rows, 1), block=triton.next_power_of_2(columns))


def gather(width: int, count: int, programs: int) -> tuple[Layer, Any]:
    """Moves rows by TMA, `count` at a time; and its first arguments, of two matrices."""
    descriptor = f"tensordesc<bf16[1, {width}]>"
    types = {"source": descriptor, "target": descriptor, "rows": "*i32"}
    compiled = _compile(move_rows, types, count=count)
    return _made(compiled, (programs, 1)), lambda *arrays: descriptor_arguments(compiled, *arrays)


def double(rows: int, columns: int, block: tuple[int, int]) -> Layer:
    types = {"x": "*bf16", "out": "*bf16", "rows": "i32", "columns": "i32"}
    grid = (-(-rows // block[0]), -(-columns // block[1]))
    return _layer(double_tiles, types, grid, block_m=block[0], block_n=block[1])
