"""GEMMs in Gluon: MMAs of CTA pairs, multicast, warps with roles, cluster launch control."""

from typing import Any

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    clc,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_mma,
    tcgen05_mma_barrier_count,
    tensor_memory_descriptor,
    tma,
)
from triton.language.core import _aggregate as aggregate

from .launching import BF16, Kernel, Problem
from .triton_kernels import BLACKWELL, descriptor_arguments

# Loads, MMAs, stores and requests for tiles have warps of their own, which all read each answer.
ROLES = gl.constexpr(4)
ACCUMULATORS = gl.constexpr(2)
ANSWER_BYTES = gl.constexpr(16)


@gluon.jit
def matmul_tile(lhs, rhs, result, stages: gl.constexpr, accumulator: gl.constexpr):
    """One tile for each cluster. All warps do everything: the loads run ahead of the MMAs."""
    pair: gl.constexpr = accumulator.two_ctas
    block_m: gl.constexpr = lhs.block_shape[0]
    block_k: gl.constexpr = lhs.block_shape[1]
    block_n: gl.constexpr = rhs.block_shape[1]
    width: gl.constexpr = result.block_shape[1]
    lhs_ring = gl.allocate_shared_memory(lhs.dtype, [stages, block_m, block_k], lhs.layout)
    rhs_ring = gl.allocate_shared_memory(rhs.dtype, [stages, block_k, block_n], rhs.layout)
    full = mbarrier.allocate_mbarrier(batch=stages, two_ctas=pair)
    empty = mbarrier.allocate_mbarrier(batch=stages)
    done = mbarrier.allocate_mbarrier()
    operands: gl.constexpr = [lhs_ring.index(0), rhs_ring.index(0)]
    commits: gl.constexpr = tcgen05_mma_barrier_count(operands, True, pair)
    for i in gl.static_range(stages):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=commits)
    mbarrier.init(done, count=commits)
    sums = allocate_tensor_memory(gl.float32, [block_m, block_n], accumulator)

    row, column = gl.program_id(0) * block_m, gl.program_id(1) * block_n
    blocks = gl.cdiv(lhs.shape[1], block_k)
    for i in range(blocks + stages - 1):
        if i < blocks:
            slot, inner = i % stages, i * block_k
            mbarrier.wait(empty.index(slot), (i // stages & 1) ^ 1)
            mbarrier.expect(full.index(slot), lhs.nbytes_per_cta + rhs.nbytes_per_cta)
            to_lhs, to_rhs = lhs_ring.index(slot), rhs_ring.index(slot)
            tma.async_load(lhs, [row, inner], full.index(slot), to_lhs, multicast=True)
            tma.async_load(rhs, [inner, column], full.index(slot), to_rhs, multicast=True)
        j = i - (stages - 1)
        if j >= 0:
            slot = j % stages
            mbarrier.wait(full.index(slot), j // stages & 1)
            tcgen05_mma(
                lhs_ring.index(slot),
                rhs_ring.index(slot),
                sums,
                use_acc=j > 0,
                multicast=True,
                mbarriers=[empty.index(slot)],
            )
    tcgen05_commit(done, descs=[lhs_ring.index(0), rhs_ring.index(0)])
    mbarrier.wait(done, 0)

    staging = gl.allocate_shared_memory(result.dtype, result.block_shape, result.layout)
    for i in gl.static_range(block_n // width):
        staging.store(sums.slice(i * width, width).load().to(result.dtype))
        fence_async_shared()
        tma.async_store(result, [row, column + i * width], staging)
        tma.store_wait(0)


@aggregate
class Shared:
    """What the roles of `matmul_persistent` share."""

    lhs: tma.tensor_descriptor
    rhs: tma.tensor_descriptor
    result: tma.tensor_descriptor
    lhs_ring: gl.shared_memory_descriptor
    rhs_ring: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    sums: tensor_memory_descriptor
    sums_full: gl.shared_memory_descriptor
    sums_empty: gl.shared_memory_descriptor
    answer: gl.shared_memory_descriptor
    answered: gl.shared_memory_descriptor
    answer_read: gl.shared_memory_descriptor


@gluon.jit
def _next_slot(slot, phase, count: gl.constexpr):
    last = slot == count - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def _next_tile(shared, round):
    mbarrier.wait(shared.answered, round & 1)
    answer = clc.load_result(shared.answer)
    more = answer.is_canceled()
    m, n = 0, 0
    if more:  # a refusal names no tile
        m, n = answer.program_id(0), answer.program_id(1)
    mbarrier.arrive(shared.answer_read)
    return more, m, n


@gluon.jit
def _request_tiles(shared):
    more = gl.to_tensor(True)
    round = 0
    while more:
        mbarrier.wait(shared.answer_read, (round & 1) ^ 1)
        mbarrier.expect(shared.answered, ANSWER_BYTES)
        clc.try_cancel(shared.answer, shared.answered)
        more, _, _ = _next_tile(shared, round)
        round += 1


@gluon.jit
def _load(shared):
    lhs, rhs = shared.lhs, shared.rhs
    stages: gl.constexpr = shared.full.shape[0]
    block_m: gl.constexpr = lhs.block_shape[0]
    block_k: gl.constexpr = lhs.block_shape[1]
    block_n: gl.constexpr = rhs.block_shape[1]
    more = gl.to_tensor(True)
    m, n = gl.program_id(0), gl.program_id(1)
    slot, phase, round = 0, 1, 0
    while more:
        for inner in range(0, lhs.shape[1], block_k):
            full = shared.full.index(slot)
            mbarrier.wait(shared.empty.index(slot), phase)
            mbarrier.expect(full, lhs.nbytes_per_cta + rhs.nbytes_per_cta)
            to_lhs, to_rhs = shared.lhs_ring.index(slot), shared.rhs_ring.index(slot)
            tma.async_load(lhs, [m * block_m, inner], full, to_lhs, multicast=True)
            tma.async_load(rhs, [inner, n * block_n], full, to_rhs, multicast=True)
            slot, phase = _next_slot(slot, phase, stages)
        more, m, n = _next_tile(shared, round)
        round += 1


@gluon.jit
def _multiply(shared):
    stages: gl.constexpr = shared.full.shape[0]
    block_k: gl.constexpr = shared.lhs.block_shape[1]
    more = gl.to_tensor(True)
    slot, phase, which, which_phase, round = 0, 0, 0, 1, 0
    while more:
        sums = shared.sums.index(which)
        mbarrier.wait(shared.sums_empty.index(which), which_phase)
        for inner in range(0, shared.lhs.shape[1], block_k):
            mbarrier.wait(shared.full.index(slot), phase)
            tcgen05_mma(
                shared.lhs_ring.index(slot),
                shared.rhs_ring.index(slot),
                sums,
                use_acc=inner > 0,
                multicast=True,
                mbarriers=[shared.empty.index(slot)],
            )
            slot, phase = _next_slot(slot, phase, stages)
        tcgen05_commit(
            shared.sums_full.index(which),
            descs=[shared.lhs_ring.index(0), shared.rhs_ring.index(0)],
        )
        which, which_phase = _next_slot(which, which_phase, ACCUMULATORS)
        more, _, _ = _next_tile(shared, round)
        round += 1


@gluon.jit
def _store(shared):
    result = shared.result
    block_m: gl.constexpr = shared.lhs.block_shape[0]
    block_n: gl.constexpr = shared.rhs.block_shape[1]
    width: gl.constexpr = result.block_shape[1]
    staging = gl.allocate_shared_memory(result.dtype, [2, block_m, width], result.layout)
    more = gl.to_tensor(True)
    m, n = gl.program_id(0), gl.program_id(1)
    which, which_phase, round = 0, 0, 0
    while more:
        mbarrier.wait(shared.sums_full.index(which), which_phase)
        sums = shared.sums.index(which)
        for i in gl.static_range(block_n // width):
            half = staging.index((round * (block_n // width) + i) % 2)
            values = sums.slice(i * width, width).load().to(result.dtype)
            tma.store_wait(1)  # the store before the last has read this half
            half.store(values)
            fence_async_shared()
            tma.async_store(result, [m * block_m, n * block_n + i * width], half)
        mbarrier.arrive(shared.sums_empty.index(which))
        which, which_phase = _next_slot(which, which_phase, ACCUMULATORS)
        more, m, n = _next_tile(shared, round)
        round += 1
    tma.store_wait(0)


@gluon.jit
def matmul_persistent(lhs, rhs, result, stages: gl.constexpr, accumulator: gl.constexpr):
    """Takes over the tiles of clusters that have not started; four roles, two accumulators."""
    pair: gl.constexpr = accumulator.two_ctas
    block_m: gl.constexpr = lhs.block_shape[0]
    block_k: gl.constexpr = lhs.block_shape[1]
    block_n: gl.constexpr = rhs.block_shape[1]
    lhs_ring = gl.allocate_shared_memory(lhs.dtype, [stages, block_m, block_k], lhs.layout)
    rhs_ring = gl.allocate_shared_memory(rhs.dtype, [stages, block_k, block_n], rhs.layout)
    full = mbarrier.allocate_mbarrier(batch=stages, two_ctas=pair)
    empty = mbarrier.allocate_mbarrier(batch=stages)
    sums_full = mbarrier.allocate_mbarrier(batch=ACCUMULATORS)
    sums_empty = mbarrier.allocate_mbarrier(batch=ACCUMULATORS, two_ctas=pair)
    answered = mbarrier.allocate_mbarrier()
    # The first CTA asks for the whole cluster, once all CTAs have read the answer before.
    whole_cluster: gl.constexpr = mbarrier.MBarrierLayout([[0]] * len(lhs.layout.cga_layout))
    answer = gl.allocate_shared_memory(gl.int64, [2], whole_cluster)
    answer_read = gl.allocate_shared_memory(gl.int64, [1], whole_cluster)
    operands: gl.constexpr = [lhs_ring.index(0), rhs_ring.index(0)]
    commits: gl.constexpr = tcgen05_mma_barrier_count(operands, True, pair)
    for i in gl.static_range(stages):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=commits)
    for i in gl.static_range(ACCUMULATORS):
        mbarrier.init(sums_full.index(i), count=commits)
        mbarrier.init(sums_empty.index(i), count=1)
    mbarrier.init(answered, count=1)
    mbarrier.init(answer_read, count=ROLES)
    sums = allocate_tensor_memory(gl.float32, [ACCUMULATORS, block_m, block_n], accumulator)
    shared = Shared(
        lhs, rhs, result, lhs_ring, rhs_ring, full, empty,
        sums, sums_full, sums_empty, answer, answered, answer_read,
    )  # fmt: skip
    arguments = (shared,)
    gl.warp_specialize(
        [
            (_store, arguments),
            (_multiply, arguments),
            (_load, arguments),
            (_request_tiles, arguments),
        ],
        [1, 1, 1],
        [24, 24, 24],
    )


def compiled(
    function: Any,
    problem: Problem,
    block: tuple[int, int, int],
    ctas: int = 1,
    stages: int = 3,
) -> Kernel:
    """The CTAs of a cluster divide block_m; of a pair, each has half of the columns of rhs.

    In a cluster of four, the pairs load the same block of rhs: once, by multicast.
    """
    block_m, block_n, block_k = block
    # With 64 rows in a CTA of a pair, half the columns are in lanes 64 to 127: no slices of those.
    width = block_n if block_m == 64 * ctas else 64
    rows = {1: [], 2: [[1, 0]], 4: [[1, 0], [2, 0]]}[ctas]
    columns = {1: [], 2: [[0, 1]], 4: [[0, 1], [0, 0]]}[ctas]
    dtype, name = (gl.bfloat16, "bf16") if problem.dtype == BF16 else (gl.float16, "fp16")

    def descriptor(shape: tuple[int, int], cga_layout: list[list[int]]) -> str:
        layout = gl.NVMMASharedLayout.get_default_for(shape, dtype, cga_layout=cga_layout)
        return f"tensordesc<{name}[{shape[0]},{shape[1]}],{layout!r}>"

    accumulator = TensorMemoryLayout(
        [block_m // ctas, block_n], col_stride=1, cga_layout=rows, two_ctas=ctas > 1
    )
    source = GluonASTSource(
        function,
        dict(
            lhs=descriptor((block_m, block_k), rows),
            rhs=descriptor((block_k, block_n), columns),
            result=descriptor((block_m, width), rows),
            stages="constexpr",
            accumulator="constexpr",
        ),
        dict(stages=stages, accumulator=accumulator),
    )
    options = dict(num_warps=4, num_ctas=ctas, enable_fp_fusion=True)
    made = triton.compile(source, target=BLACKWELL, options=options)
    return Kernel(
        ptx=made.asm["ptx"],
        cubin=made.asm["cubin"],
        grid=(-(-problem.m // block_m) * ctas, -(-problem.n // block_n)),
        cluster=(ctas, 1),
        dynamic_smem=made.metadata.shared,
        # Behind them Triton's two scratch buffers, which these kernels do without.
        arguments=lambda *arrays: [*descriptor_arguments(made, *arrays), 0, 0],
    )
