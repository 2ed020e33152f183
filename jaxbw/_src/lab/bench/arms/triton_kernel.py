"""The Triton kernel: persistent, operands and result through tensor maps."""

from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from jaxbw._src.lab.bench.arms.triton import Tiles

TMA_ELEMENTS = 8  # the rows of a tensor map are multiples of 16 bytes
GROUP = 8  # rows of tiles that share what they read of the right operand
_TYPES = {"torch.bfloat16": tl.bfloat16, "torch.float16": tl.float16}


@triton.jit(do_not_specialize=["m", "n", "k", "programs"])
def _kernel(
    lhs,
    rhs,
    result,
    m,
    n,
    k,
    programs,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    group: tl.constexpr,
    lhs_transposed: tl.constexpr,
    rhs_transposed: tl.constexpr,
    halves: tl.constexpr,
    dtype: tl.constexpr,
):
    tiles_m = tl.cdiv(m, block_m)
    tiles_n = tl.cdiv(n, block_n)
    steps = tl.cdiv(k, block_k)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, programs, flatten=True):
        band = tile // (group * tiles_n)
        rows = min(tiles_m - band * group, group)
        row = (band * group + tile % rows) * block_m
        column = (tile % (group * tiles_n)) // rows * block_n
        sums = tl.zeros((block_m, block_n), dtype=tl.float32)
        for step in range(steps):
            inner = step * block_k
            a = lhs.load([inner, row]).T if lhs_transposed else lhs.load([row, inner])
            b = rhs.load([column, inner]).T if rhs_transposed else rhs.load([inner, column])
            sums = tl.dot(a, b, sums)
        if halves:
            pairs = tl.permute(tl.reshape(sums, (block_m, 2, block_n // 2)), (0, 2, 1))
            left, right = tl.split(pairs)
            result.store([row, column], left.to(dtype))
            result.store([row, column + block_n // 2], right.to(dtype))
        else:
            result.store([row, column], sums.to(dtype))


def matmul(lhs: Any, rhs: Any, *, layout: str, tiles: Tiles) -> Any:
    """The matmul; operands that no tensor map takes are padded, and the result is cut."""
    import torch

    m, k = lhs.shape if layout[0] == "n" else lhs.shape[::-1]
    n = rhs.shape[1] if layout[1] == "n" else rhs.shape[0]
    width = n + -n % TMA_ELEMENTS
    result = torch.empty((m, width), device=lhs.device, dtype=lhs.dtype)
    block_m, block_n, block_k = tiles.block_m, tiles.block_n, tiles.block_k
    programs = torch.cuda.get_device_properties(lhs.device).multi_processor_count
    _kernel[(min(programs, triton.cdiv(m, block_m) * triton.cdiv(n, block_n)),)](
        _map(lhs, block_m, block_k, layout[0] == "t"),
        _map(rhs, block_k, block_n, layout[1] == "t"),
        _map(result, block_m, block_n // (1 + tiles.halves), False),
        m,
        n,
        k,
        programs,
        block_m,
        block_n,
        block_k,
        GROUP,
        layout[0] == "t",
        layout[1] == "t",
        tiles.halves,
        _TYPES[str(lhs.dtype)],
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    return result if width == n else result[:, :n].contiguous()


def _map(matrix: Any, rows: int, columns: int, transposed: bool) -> Any:
    missing = -matrix.shape[1] % TMA_ELEMENTS
    if missing:
        import torch

        matrix = torch.nn.functional.pad(matrix, (0, missing))
    return TensorDescriptor.from_tensor(matrix, [columns, rows] if transposed else [rows, columns])
