"""TMA: boxes, swizzles, out-of-bounds elements, reductions."""

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxbw import emulator

from .datapath_reference import (
    GLOBAL_BASE,
    SHARED_BASE,
    SWIZZLE_TABLES,
    Memory,
    datapath,
    span,
    swizzled,
)
from .ptx import module

Fields, Type = datapath.TensorMapFields, datapath.TensorMapType
Swizzle, Reduction = datapath.Swizzle, datapath.Reduction
TYPES = {1: Type.UINT8, 2: Type.BFLOAT16, 4: Type.FLOAT32, 8: Type.FLOAT64}


@pytest.mark.parametrize("swizzle", list(SWIZZLE_TABLES))
def test_swizzle_is_that_of_ptx(swizzle: Any) -> None:
    linear = np.random.default_rng(5).integers(0, 256, 1024, np.uint8)
    placed = np.empty_like(linear)
    for address in range(1024):
        placed[datapath.swizzle_address(swizzle, 0x2400 + address) - 0x2400] = linear[address]
    np.testing.assert_array_equal(placed, swizzled(linear, swizzle))


@st.composite
def transfers(draw: st.DrawFn, before: bool = False) -> tuple[Any, list[int], int]:
    """A small tensor, a box that may lie across or beyond its edges, and a shared address."""
    rank = draw(st.integers(1, 5))
    size = draw(st.sampled_from([1, 2, 4, 8]))
    swizzle = draw(st.sampled_from(list(Swizzle)))
    inner = span(swizzle) if swizzle != Swizzle.NONE else 16 * draw(st.integers(1, 8))
    extents = [draw(st.integers(1, 80)), *(draw(st.integers(1, 6)) for _ in range(rank - 1))]
    strides, row = [], -(-extents[0] * size // 16) * 16
    for extent in extents[1:]:
        strides.append(row + 16 * draw(st.integers(0, 2)))
        row = strides[-1] * extent
    fields = Fields(
        type=TYPES[size],
        address=GLOBAL_BASE + 16 * draw(st.integers(0, 3)),
        extents=extents,
        strides=strides,
        box=[inner // size, *(draw(st.integers(1, 4)) for _ in range(rank - 1))],
        element_strides=[1, *(draw(st.integers(1, 3)) for _ in range(rank - 1))],
        swizzle=swizzle,
    )
    step = 16 // size  # a box starts at a multiple of 16 bytes, and only a load's before the tensor
    first = -2 if before else 0
    coordinates = [step * draw(st.integers(first, 80 // step))]
    coordinates += [draw(st.integers(3 * first // 2, 7)) for _ in range(rank - 1)]
    return fields, coordinates, SHARED_BASE + 128 * draw(st.integers(0, 16))


def reference_box(
    fields: Any,
    coordinates: list[int],
    global_bytes: npt.NDArray[np.uint8],
    extents: list[int] | None = None,
) -> npt.NDArray[np.uint8]:
    """The box in row-major order, dimension 0 last: zeros outside the tensor (PTX 5.5.3)."""
    extents = fields.extents if extents is None else extents
    size = next(size for size, kind in TYPES.items() if kind == fields.type)
    counts = [-(-b // s) for b, s in zip(fields.box, fields.element_strides, strict=True)]
    steps = [1, *fields.element_strides[1:]]
    box = np.zeros([*reversed(counts), size], np.uint8)
    for index in itertools.product(*(range(n) for n in counts)):
        at = [c + i * s for c, i, s in zip(coordinates, index, steps, strict=True)]
        if all(0 <= a < e for a, e in zip(at, extents, strict=True)):
            offset = fields.address - GLOBAL_BASE + at[0] * size
            offset += sum(a * s for a, s in zip(at[1:], fields.strides, strict=True))
            box[tuple(reversed(index))] = global_bytes[offset : offset + size]
    return box.reshape(-1)


def new_memory(seed: int) -> Memory:
    random = np.random.default_rng(seed)
    return Memory(
        random.integers(0, 256, 1 << 20, np.uint8), random.integers(0, 256, 1 << 17, np.uint8)
    )


@given(transfers(before=True))
def test_a_load_writes_the_swizzled_box(transfer: tuple[Any, list[int], int]) -> None:
    fields, coordinates, address = transfer
    memory = new_memory(0)
    before = memory.shared.copy()
    box = reference_box(fields, coordinates, memory.global_bytes)
    assert datapath.tma_box_bytes(fields) == len(box)
    memory.load(fields, coordinates, address)

    # The pattern is anchored to absolute addresses: swizzle all of shared memory, from address 0.
    marks = np.zeros(SHARED_BASE + len(before), np.uint8)
    linear = marks.copy()
    linear[address : address + len(box)] = box
    marks[address : address + len(box)] = 1
    written = swizzled(marks, fields.swizzle)[SHARED_BASE:] != 0
    expected = np.where(written, swizzled(linear, fields.swizzle)[SHARED_BASE:], before)
    np.testing.assert_array_equal(memory.shared, expected)


@given(transfers())
def test_a_store_writes_whole_pieces(transfer: tuple[Any, list[int], int]) -> None:
    """The elements in bounds, and zeros up to 16 bytes of a row: what a load left there."""
    fields, coordinates, address = transfer
    memory = new_memory(2)
    original = memory.global_bytes.copy()
    memory.load(fields, coordinates, address)
    memory.global_bytes[:] = 0x55
    memory.store(fields, coordinates, address)
    size = next(size for size, kind in TYPES.items() if kind == fields.type)
    pieces = [-(-fields.extents[0] * size // 16) * 16 // size, *fields.extents[1:]]
    stored = reference_box(fields, coordinates, memory.global_bytes, pieces)
    np.testing.assert_array_equal(stored, reference_box(fields, coordinates, original))
    ones = np.ones_like(original)
    touched = int(reference_box(fields, coordinates, ones, pieces).sum())
    kept = int((memory.global_bytes == 0x55).sum()) - int((stored == 0x55).sum())
    assert kept == original.size - touched


@pytest.mark.parametrize(
    ("direction", "coordinates", "reason"),
    [
        ("LOAD", [1, 0], "multiple of 16 bytes"),
        ("STORE", [4, 0], "multiple of 16 bytes"),
        ("STORE", [-8, 0], "starts before"),
        ("STORE", [0, -1], "starts before"),
    ],
)
def test_what_the_gpu_takes_for_an_illegal_instruction(
    direction: str, coordinates: list[int], reason: str
) -> None:
    with pytest.raises(RuntimeError, match=reason):
        datapath.tma_pieces(simple(), datapath.TmaDirection[direction], coordinates, 0x400)


def simple(**changes: object) -> Any:
    arguments: dict[str, object] = {
        "type": Type.BFLOAT16,
        "address": GLOBAL_BASE,
        "extents": [64, 64],
        "strides": [128],
        "box": [64, 8],
    }
    return Fields(**(arguments | changes))


@pytest.mark.parametrize(
    ("changes", "address", "coordinates", "reason"),
    [
        ({}, 0x440, [0, 0], "must be a multiple of 128"),
        ({}, 0x400, [0, 0, 0], "3 coordinates for a tensor map of rank 2"),
        ({"fill": datapath.OobFill.NAN}, 0x400, [0, 0], "NaN"),
        (
            {"type": Type.U6X16_ALIGN_16B, "box": [128, 8], "extents": [128, 64]},
            0x400,
            [0, 0],
            "padded 6-bit",
        ),
        (
            {"type": Type.U4X16_ALIGN_16B, "box": [128, 8], "extents": [256, 64]},
            0x400,
            [64, 0],
            "multiple of 128",
        ),
        (
            {"box": [256, 256, 256], "extents": [256] * 3, "strides": [512, 131072]},
            0x400,
            [0, 0, 0],
            "does not fit",
        ),
        (
            {
                "interleave": datapath.Interleave.B16,
                "extents": [64] * 3,
                "strides": [128, 8192],
                "box": [8, 8, 8],
            },
            0x400,
            [0, 0, 0],
            "interleaved",
        ),
    ],
)
def test_refuses_what_it_cannot_know(
    changes: dict[str, object], address: int, coordinates: list[int], reason: str
) -> None:
    with pytest.raises(RuntimeError, match=reason):
        datapath.tma_pieces(simple(**changes), datapath.TmaDirection.LOAD, coordinates, address)


def test_refuses_to_store_a_box_that_is_narrower_than_its_swizzle() -> None:
    fields = simple(swizzle=Swizzle.B128, box=[32, 8])
    with pytest.raises(RuntimeError, match="known of loads only"):
        datapath.tma_pieces(fields, datapath.TmaDirection.STORE, [0, 0], 0x400)


@pytest.mark.parametrize("swizzle", [Swizzle.NONE, Swizzle.B128])
def test_a_padded_4_bit_box_has_a_gap_behind_each_8_bytes(swizzle: Any) -> None:
    """16U4_ALIGN16B: 64 bytes of a row become 128, the gaps stay, and 64 bytes are counted."""
    memory = new_memory(3)
    before = memory.shared.copy()
    fields = Fields(
        type=Type.U4X16_ALIGN_16B,
        address=GLOBAL_BASE,
        extents=[256, 30],
        strides=[160],
        box=[128, 8],
        swizzle=swizzle,
    )
    assert datapath.tma_box_bytes(fields) == 8 * 64
    memory.load(fields, [128, 27], SHARED_BASE + 0x400)
    rows = np.zeros((8, 8, 8), np.uint8)
    inside = memory.global_bytes[: 30 * 160].reshape(30, 160)[27:, 64:128]
    rows[:3] = inside.reshape(3, 8, 8)
    lines = memory.shared[0x400:0x800].reshape(8, 8, 16)
    for row, chunk in itertools.product(range(8), range(8)):
        at = chunk ^ row if swizzle == Swizzle.B128 else chunk  # SHARED_BASE + 0x400 is aligned
        np.testing.assert_array_equal(lines[row, at, :8], rows[row, chunk])
    np.testing.assert_array_equal(lines[:, :, 8:], before[0x400:0x800].reshape(8, 8, 16)[:, :, 8:])
    array = emulator.empty((30, 128), np.uint8)
    of_array = emulator.TensorMap.encode(array, box=(128, 8), padded_fp4=True)
    decoded = Fields.decode(of_array.encoded)
    assert (decoded.type, decoded.extents, decoded.strides) == (fields.type, [256, 30], [128])
    with pytest.raises(ValueError, match="padded_fp4 is for uint8 arrays, not for float32"):
        emulator.TensorMap.encode(np.zeros((8, 64), np.float32), box=(128, 8), padded_fp4=True)
    with pytest.raises(RuntimeError, match="stores of the padded 4-bit type"):
        datapath.tma_pieces(fields, datapath.TmaDirection.STORE, [0, 0], SHARED_BASE + 0x400)


@pytest.mark.parametrize("kind", [Type.TFLOAT32, Type.TFLOAT32_FTZ, Type.FLOAT32_FTZ])
def test_refuses_stores_of_types_that_convert(kind: Any) -> None:
    fields = simple(type=kind, box=[32, 8])
    datapath.tma_pieces(fields, datapath.TmaDirection.LOAD, [0, 0], 0x400)
    with pytest.raises(RuntimeError, match="convert on the way"):
        datapath.tma_pieces(fields, datapath.TmaDirection.STORE, [0, 0], 0x400)


GATHER = """
  mov.b64 %rd2, map;
  cvta.param.u64 %rd2, %rd2;
  mbarrier.init.shared::cta.b64 [memory + 1024], 1;
  fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [memory + 1024], {bytes};
  mov.b32 %r1, {column};
  mov.b32 %r2, 3;
  mov.b32 %r3, -1;
  mov.b32 %r4, 8;
  mov.b32 %r5, 0;
  cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes
    [memory], [%rd2, {{%r1, %r2, %r3, %r4, %r5}}], [memory + 1024];
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [memory + 1024], 0;
  @!%p1 bra WAIT;
  mov.u32 %r1, 0;
COPY:
  ld.shared.b32 %r0, [%shared];
  st.global.b32 [%out], %r0;
  add.u32 %shared, %shared, 4;
  add.u64 %out, %out, 4;
  add.u32 %r1, %r1, 4;
  setp.lt.u32 %p1, %r1, {bytes};
  @%p1 bra COPY;
"""


@pytest.mark.parametrize("width", [16, 8])
def test_gathered_rows_lie_behind_each_other(width: int) -> None:
    source, out = emulator.empty((8, 24), np.uint32), emulator.empty((4, width), np.uint32)
    source[...] = np.arange(8 * 24).reshape(8, 24)
    tensor_map = emulator.TensorMap.encode(source, box=(width, 1))
    kernel = module(
        GATHER.format(bytes=16 * width, column=16),
        parameters=".param .u64 out, .param .align 64 .b8 map[128]",
    )
    report = kernel.launch("kernel", grid=1, block=1, args=[out, tensor_map], schedule="random")
    assert report.findings == []
    assert report.bytes["global load"] == 2 * 8 * 4
    columns = np.zeros((8, width), np.uint32)
    columns[:, :8] = source[:, 16:]
    want = np.stack([columns[3], 0 * columns[0], 0 * columns[0], columns[0]])
    assert (out == want).all()


def test_gathering_takes_a_map_of_rows() -> None:
    source = emulator.empty((8, 24), np.uint32)
    tensor_map = emulator.TensorMap.encode(source, box=(8, 2))
    kernel = module(
        GATHER.format(bytes=128, column=0),
        parameters=".param .u64 out, .param .align 64 .b8 map[128]",
    )
    with pytest.raises(emulator.EmulatorError, match="whose box is one row"):
        kernel.launch("kernel", grid=1, block=1, args=[source, tensor_map])


def test_a_tf32_map_is_of_float32() -> None:
    array = emulator.empty((8, 32), np.float32)
    encoded = emulator.TensorMap.encode(array, box=(32, 8), tf32=True).encoded
    assert datapath.TensorMapFields.decode(encoded).type == Type.TFLOAT32
    with pytest.raises(ValueError, match="not for int32"):
        emulator.TensorMap.encode(array.view(np.int32), box=(32, 8), tf32=True)


INTEGERS: dict[Any, Any] = {
    Type.UINT32: np.uint32,
    Type.INT32: np.int32,
    Type.UINT64: np.uint64,
    Type.INT64: np.int64,
}
BITWISE: dict[Any, Any] = {
    Reduction.AND: np.bitwise_and,
    Reduction.OR: np.bitwise_or,
    Reduction.XOR: np.bitwise_xor,
}
ORDER: dict[Any, Any] = {Reduction.MIN: np.minimum, Reduction.MAX: np.maximum}
FUNCTIONS: dict[Any, Any] = {Reduction.ADD: np.add} | ORDER | BITWISE


def reduce(op: Any, kind: Any, old: npt.NDArray[Any], new: npt.NDArray[Any]) -> npt.NDArray[Any]:
    result: npt.NDArray[np.uint8] = datapath.tma_reduce(
        op, kind, new.view(np.uint8), old.view(np.uint8)
    )
    return result.view(old.dtype)


@pytest.mark.parametrize("kind", list(INTEGERS))
@pytest.mark.parametrize("op", [Reduction.ADD, *ORDER, *BITWISE])
def test_integer_reductions(op: Any, kind: Any) -> None:
    info = np.iinfo(INTEGERS[kind])
    old, new = np.random.default_rng(3).integers(
        info.min, info.max, (2, 64), info.dtype, endpoint=True
    )
    if op not in ORDER and kind == Type.INT64:
        with pytest.raises(RuntimeError, match="does not take this element type"):
            reduce(op, kind, old, new)
        return
    expected = FUNCTIONS[op](old, new)
    np.testing.assert_array_equal(reduce(op, kind, old, new), expected)


def test_counting_reductions() -> None:
    """inc: old >= b ? 0 : old + 1. dec: old == 0 or old > b ? b : old - 1 (PTX 9.7.13.5)."""
    old, bound = np.array([0, 4, 5, 6, 0], np.uint32), np.array([5, 5, 5, 5, 0], np.uint32)
    np.testing.assert_array_equal(reduce(Reduction.INC, Type.UINT32, old, bound), [1, 5, 0, 0, 0])
    np.testing.assert_array_equal(reduce(Reduction.DEC, Type.UINT32, old, bound), [5, 3, 4, 5, 0])
    with pytest.raises(RuntimeError, match="does not take this element type"):
        reduce(Reduction.INC, Type.INT32, old, bound)


@pytest.mark.parametrize(
    ("kind", "dtype"), [(Type.FLOAT16, np.float16), (Type.BFLOAT16, ml_dtypes.bfloat16)]
)
@pytest.mark.parametrize("op", [Reduction.ADD, *ORDER])
def test_16_bit_float_reductions(op: Any, kind: Any, dtype: npt.DTypeLike) -> None:
    bits = np.random.default_rng(4).integers(0, 1 << 16, (2, 20000), np.uint16)
    old, new = bits.view(dtype)
    keep = ~np.isnan(old.astype(np.float32)) & ~np.isnan(new.astype(np.float32))
    keep &= (bits << 1 != 0).any(0)  # the sign of a minimum of zeros is not fixed
    old, new = old[keep], new[keep]
    with np.errstate(over="ignore", invalid="ignore"):
        wide = old.astype(np.float64), new.astype(np.float64)
        expected = FUNCTIONS[op](*wide).astype(dtype)
    got = reduce(op, kind, np.ascontiguousarray(old), np.ascontiguousarray(new))
    np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64))


def test_float32_addition_keeps_subnormals() -> None:
    tiny = np.float32(1e-40)
    old = np.array([1, tiny, -tiny, 1.5e-38, 1.2e-38], np.float32)
    new = np.array([tiny, 0, -0.0, -1.4e-38, tiny], np.float32)
    result = reduce(Reduction.ADD, Type.FLOAT32, old, new)
    np.testing.assert_array_equal(result, old + new)
    with pytest.raises(RuntimeError, match="does not take this element type"):
        reduce(Reduction.MAX, Type.FLOAT32, old, new)
