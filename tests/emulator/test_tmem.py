"""Tensor memory: tcgen05.ld/st fragments, tcgen05.cp, allocation."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from .datapath_reference import SHARED_BASE, datapath, swizzled, umma_descriptor

Shape, Copy, Access = datapath.TmemShape, datapath.TmemCopyShape, datapath.TmemAccess

# A fragment as a linear map over bits: what bit i of the thread, and of the register, adds to
# (lane, column). Further register bits double the column. Triton's and CUTLASS's layouts of the
# instructions say this; the figures of PTX 9.7.16.2.3.1 draw it.
THREAD_BITS = {
    Shape.S32X32B: [(1, 0), (2, 0), (4, 0), (8, 0), (16, 0)],
    Shape.S16X64B: [(8, 0), (0, 1), (1, 0), (2, 0), (4, 0)],
    Shape.S16X128B: [(0, 1), (0, 2), (1, 0), (2, 0), (4, 0)],
    Shape.S16X256B: [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)],
    Shape.S16X32BX2: [(1, 0), (2, 0), (4, 0), (8, 0), (0, 0)],  # bit 4: the second access
}
REGISTER_BITS = {Shape.S16X128B: [(8, 0)], Shape.S16X256B: [(0, 1), (8, 0)]}
COLUMNS = {Shape.S16X64B: 2, Shape.S16X128B: 4, Shape.S16X256B: 8}  # of .x1; the others 1
REGISTERS = {Shape.S16X128B: 2, Shape.S16X256B: 4}
ACCESSES = [(s, 2**i) for s in THREAD_BITS for i in range(8) if REGISTERS.get(s, 1) * 2**i <= 128]


def position(shape: Any, thread: int, register: int) -> tuple[int, int]:
    register_bits = [
        *REGISTER_BITS.get(shape, []),
        *((0, COLUMNS.get(shape, 1) << i) for i in range(7)),
    ]
    moves = [THREAD_BITS[shape][i] for i in range(5) if thread >> i & 1]
    moves += [register_bits[i] for i in range(7) if register >> i & 1]
    return sum(m[0] for m in moves), sum(m[1] for m in moves)


def filled() -> Any:
    memory = datapath.TensorMemory()
    memory.cells[:] = np.random.default_rng(0).integers(0, 2**32, (128, 512), np.uint32)
    return memory


def access_at_the_end(shape: Any, repeat: int, packed: bool) -> tuple[Any, int]:
    """An access, and the column where it starts if it is to end with the last one."""
    width = COLUMNS.get(shape, 1) * repeat * (2 if packed else 1)
    split = min(200, 512 - width) if shape == Shape.S16X32BX2 else 0
    return Access(shape, repeat, packed, split), 512 - width - split


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("shape", "repeat"), ACCESSES)
def test_a_load_reads_the_fragment(shape: Any, repeat: int, packed: bool) -> None:
    memory, warp = filled(), 6  # lanes 64 to 95
    access, column = access_at_the_end(shape, repeat, packed)
    split = min(200, 512 - repeat * (2 if packed else 1))
    first_lane = 64 if shape == Shape.S32X32B else 80
    got = datapath.tmem_load(memory, access, first_lane << 16 | column, warp)
    assert len(got) == 32 * repeat * REGISTERS.get(shape, 1) == 32 * access.register_count()
    expected = []
    for register in range(access.register_count()):
        for thread in range(32):
            lane, offset = position(shape, thread, register)
            at = column + offset * (2 if packed else 1)
            if shape == Shape.S16X32BX2 and thread >= 16:
                at += split
            low, high = (
                memory.cells[first_lane + lane, at],
                memory.cells[first_lane + lane, (at + 1) % 512],
            )
            expected.append((low & 0xFFFF) | (high & 0xFFFF) << 16 if packed else low)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("shape", "repeat"), ACCESSES)
def test_a_store_is_undone_by_a_load(shape: Any, repeat: int, packed: bool) -> None:
    memory = filled()
    before = memory.cells.copy()
    access, column = access_at_the_end(shape, repeat, packed)
    width = (
        512 - column
        if shape != Shape.S16X32BX2
        else COLUMNS.get(shape, 1) * repeat * (2 if packed else 1)
    )
    if shape == Shape.S16X32BX2:
        access, column = Access(shape, repeat, packed, width), 0  # two halves side by side
        width *= 2
    registers = np.random.default_rng(1).integers(0, 2**32, 32 * access.register_count(), np.uint32)
    datapath.tmem_store(memory, access, 32 << 16 | column, 1, registers)
    np.testing.assert_array_equal(
        datapath.tmem_load(memory, access, 32 << 16 | column, 1), registers
    )
    written = np.zeros((128, 512), bool)
    for region in access.regions(32 << 16 | column, 1):
        written[
            region.lane : region.lane + region.lanes, region.column : region.column + region.columns
        ] = True
    if packed:  # the upper halves are cleared, which is ours to choose
        assert (memory.cells[written] < 2**16).all()
    lanes = 32 if shape == Shape.S32X32B else 16
    assert written.sum() == lanes * width
    np.testing.assert_array_equal(memory.cells[~written], before[~written])


@pytest.mark.parametrize(
    ("arguments", "address", "warp", "reason"),
    [
        ((Shape.S32X32B, 3), 0, 0, "x3 does not exist"),
        ((Shape.S32X32B, 256), 0, 0, "x256 does not exist"),
        ((Shape.S16X256B, 64), 0, 0, "x64 does not exist"),
        ((Shape.S32X32B, 1), 0, 1, "warp 1 reaches lanes 32 to 63"),
        ((Shape.S32X32B, 1), 16 << 16, 0, "in steps of 32"),
        ((Shape.S16X64B, 1), 8 << 16, 0, "in steps of 16"),
        ((Shape.S32X32B, 1), 128 << 16, 4, "warp 4 reaches lanes 0 to 31"),
        ((Shape.S32X32B, 2), 511, 0, r"columns \[511, 513\) do not lie in tensor memory"),
        ((Shape.S16X32BX2, 2, False, 511), 0, 0, r"columns \[511, 513\) do not lie"),
    ],
)
def test_refuses_accesses_out_of_reach(
    arguments: tuple[Any, ...], address: int, warp: int, reason: str
) -> None:
    with pytest.raises(RuntimeError, match=reason):
        datapath.tmem_load(filled(), Access(*arguments), address, warp)


# Row r of the source -> lanes (PTX 9.7.16.9.2, CUTLASS's copy traits).
COPIES = {
    Copy.S128X256B: (32, {r: [r] for r in range(128)}),
    Copy.S128X128B: (16, {r: [r] for r in range(128)}),
    Copy.S4X256B: (32, {r: [32 * r] for r in range(4)}),
    Copy.S64X128B_WARPX2_02_13: (16, {r: [r, r + 64] for r in range(64)}),
    Copy.S64X128B_WARPX2_01_23: (
        16,
        {r: [r, r + 32] if r < 32 else [r + 32, r + 64] for r in range(64)},
    ),
    Copy.S32X128B_WARPX4: (16, {r: [r, r + 32, r + 64, r + 96] for r in range(32)}),
}


@pytest.mark.parametrize(
    "swizzle", [datapath.Swizzle.NONE, datapath.Swizzle.B32, datapath.Swizzle.B128]
)
@pytest.mark.parametrize("shape", list(COPIES))
def test_copy_from_shared_memory(shape: Any, swizzle: Any) -> None:
    row_bytes, lanes = COPIES[shape]
    rows = np.random.default_rng(2).integers(0, 256, (128, row_bytes), np.uint8)
    if swizzle == datapath.Swizzle.NONE:
        linear = rows.reshape(128, row_bytes // 16, 16).transpose(
            1, 0, 2
        )  # columns of 16-byte chunks
        leading, stride = 128 * 16, 128
    else:
        span = 32 if swizzle == datapath.Swizzle.B32 else 128
        linear = np.zeros((128, span), np.uint8)
        linear[:, :row_bytes] = rows
        leading, stride = 0, 8 * span
    shared = swizzled(np.ascontiguousarray(linear).reshape(-1), swizzle)
    memory = datapath.TensorMemory()
    descriptor = umma_descriptor(SHARED_BASE, leading, stride, swizzle)
    datapath.tmem_copy(shape, shared, SHARED_BASE, descriptor, memory, 40)
    expected = np.zeros((128, 512), np.uint32)
    for row, targets in lanes.items():
        for lane in targets:
            expected[lane, 40 : 40 + row_bytes // 4] = rows[row].view(np.uint32)
    np.testing.assert_array_equal(memory.cells, expected)
    written = np.zeros((128, 512), bool)
    for region in datapath.tmem_copy_regions(shape, 40):
        written[
            region.lane : region.lane + region.lanes, region.column : region.column + region.columns
        ] = True
    assert written.sum() == sum(len(t) for t in lanes.values()) * row_bytes // 4


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 10)), max_size=40))
def test_allocations_never_overlap(steps: list[tuple[bool, int, int]]) -> None:
    allocator, smallest = datapath.TmemAllocator(), 512
    live: list[tuple[int, int]] = []
    for allocate, size, index in steps:
        if allocate:
            columns = min(32 << size, smallest)
            address = allocator.allocate(columns)
            taken = {c for a, n in live for c in range(a, a + n)}
            free = [a for a in range(0, 512, columns) if not taken & set(range(a, a + columns))]
            assert (address is not None) == bool(free)
            if address is not None:
                smallest = columns
                assert address in free
                live.append((address, columns))
        elif live:
            address, columns = live.pop(index % len(live))
            allocator.deallocate(address, columns)
            assert not allocator.is_allocated(address, columns)
        assert allocator.columns_in_use() == sum(n for _, n in live)
        assert all(allocator.is_allocated(a, n) for a, n in live)


@pytest.mark.parametrize("columns", [0, 16, 48, 1024])
def test_refuses_sizes_that_are_no_power_of_two(columns: int) -> None:
    with pytest.raises(RuntimeError, match="must be a power of two from 32 to 512"):
        datapath.TmemAllocator().allocate(columns)


def test_allocation_rules() -> None:
    allocator = datapath.TmemAllocator()
    assert allocator.allocate(256) == 0
    with pytest.raises(RuntimeError, match="sizes must not increase"):
        allocator.allocate(512)
    with pytest.raises(RuntimeError, match="no allocation of 128 columns"):
        allocator.deallocate(0, 128)
    allocator.relinquish()
    with pytest.raises(RuntimeError, match="relinquish_alloc_permit"):
        allocator.allocate(32)
    allocator.deallocate(0, 256)
    assert allocator.columns_in_use() == 0
