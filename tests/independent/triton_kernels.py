"""GEMMs in Triton: with plain loads, with TMA, and with its compiler's warp specialization."""

from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from .launching import BF16, E4M3, E5M2, F16, Kernel, Problem, tensor_map

BLACKWELL, HOPPER = GPUTarget("cuda", 100, 32), GPUTarget("cuda", 90, 32)
TYPES = {BF16: "bf16", F16: "fp16", E4M3: "fp8e4nv", E5M2: "fp8e5"}
# Of the metadata that Triton's own launcher encodes tensor maps from.
SWIZZLES = (0, 32, 64, 128)


@triton.jit
def matmul_pointers(
    lhs, rhs, result, m, n, k, block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr
):
    rows = (tl.program_id(0) * block_m + tl.arange(0, block_m))[:, None]
    columns = (tl.program_id(1) * block_n + tl.arange(0, block_n))[None, :]
    sums = tl.zeros((block_m, block_n), tl.float32)
    for start in tl.range(0, k, block_k):
        inner = start + tl.arange(0, block_k)
        across, down = inner[None, :], inner[:, None]
        a = tl.load(lhs + rows * k + across, mask=(rows < m) & (across < k), other=0.0)
        b = tl.load(rhs + down * n + columns, mask=(down < k) & (columns < n), other=0.0)
        sums = tl.dot(a, b, sums)
    rounded = sums.to(result.dtype.element_ty)
    tl.store(result + rows * n + columns, rounded, mask=(rows < m) & (columns < n))


@triton.jit
def matmul_descriptors(
    lhs,
    rhs,
    result,
    m,
    n,
    k,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    lhs_transposed: tl.constexpr,
    rhs_transposed: tl.constexpr,
    specialize: tl.constexpr,
):
    tiles_n = tl.cdiv(n, block_n)
    tiles = tl.cdiv(m, block_m) * tiles_n
    for tile in tl.range(
        tl.program_id(0), tiles, tl.num_programs(0), warp_specialize=specialize, flatten=False
    ):
        row, column = tile // tiles_n * block_m, tile % tiles_n * block_n
        sums = tl.zeros((block_m, block_n), tl.float32)
        for inner in tl.range(0, k, block_k):
            if lhs_transposed:
                a = lhs.load([inner, row]).T
            else:
                a = lhs.load([row, inner])
            if rhs_transposed:
                b = rhs.load([column, inner]).T
            else:
                b = rhs.load([inner, column])
            sums = tl.dot(a, b, sums)
        result.store([row, column], sums.to(result.dtype))


def descriptor_arguments(compiled: Any, *arrays: Any) -> list[Any]:
    """For each array its tensor map, shape and strides: how Triton passes a descriptor."""
    arguments: list[Any] = []
    for array, meta in zip(arrays, compiled.metadata.tensordesc_meta, strict=True):
        box = meta["block_size"][::-1]
        arguments += [tensor_map(array, box, SWIZZLES[meta["swizzle"]])]
        arguments += [*array.shape, array.shape[1], 1]
    return arguments


def _compile(
    function: Any, types: list[str], constants: dict[str, Any], stages: int, target: Any = BLACKWELL
) -> Any:
    names = function.arg_names
    signature = dict(zip(names, [*types, "i32", "i32", "i32"], strict=False))
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(function, signature, constants)
    options = dict(num_warps=4, num_stages=stages, enable_fp_fusion=True)
    return triton.compile(source, target=target, options=options)


def _blocks(block: tuple[int, int, int]) -> dict[str, Any]:
    return dict(zip(("block_m", "block_n", "block_k"), block, strict=True))


def pointers(problem: Problem, block: tuple[int, int, int], stages: int = 3) -> Kernel:
    types = [f"*{TYPES[dtype]}" for dtype in problem.dtypes]
    compiled = _compile(matmul_pointers, types, _blocks(block), stages)
    return Kernel(
        ptx=compiled.asm["ptx"],
        cubin=compiled.asm["cubin"],
        grid=(-(-problem.m // block[0]), -(-problem.n // block[1])),
        cluster=(1, 1),
        dynamic_smem=compiled.metadata.shared,
        # Behind them Triton's two scratch buffers, which these kernels do without.
        arguments=lambda *arrays: [*arrays, problem.m, problem.n, problem.k, 0, 0],
    )


def descriptors(
    problem: Problem,
    block: tuple[int, int, int],
    stages: int = 3,
    specialize: bool = False,
    programs: int = 3,
    target: Any = BLACKWELL,
) -> Kernel:
    m, n, k = block
    shapes = [
        (k, m) if problem.lhs_transposed else (m, k),
        (n, k) if problem.rhs_transposed else (k, n),
        (m, n),
    ]
    constants = _blocks(block) | dict(
        lhs_transposed=problem.lhs_transposed,
        rhs_transposed=problem.rhs_transposed,
        specialize=specialize,
    )
    types = [
        f"tensordesc<{TYPES[dtype]}[{rows}, {columns}]>"
        for dtype, (rows, columns) in zip(problem.dtypes, shapes, strict=True)
    ]
    compiled = _compile(matmul_descriptors, types, constants, stages, target)
    sizes = [problem.m, problem.n, problem.k, 0, 0]
    return Kernel(
        ptx=compiled.asm["ptx"],
        cubin=compiled.asm["cubin"],
        grid=(programs, 1),
        cluster=(1, 1),
        dynamic_smem=compiled.metadata.shared,
        arguments=lambda *arrays: [*descriptor_arguments(compiled, *arrays), *sizes],
    )
