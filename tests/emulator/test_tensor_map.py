"""The tensor map's encoding, and the rules of cuTensorMapEncodeTiled."""

import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxbw import emulator

from .datapath_reference import datapath
from .ptx import module

Fields, Type, Swizzle = datapath.TensorMapFields, datapath.TensorMapType, datapath.Swizzle
SIZE = {
    Type.UINT8: 1,
    Type.UINT16: 2,
    Type.UINT32: 4,
    Type.INT32: 4,
    Type.UINT64: 8,
    Type.INT64: 8,
    Type.FLOAT16: 2,
}
SIZE |= {Type.FLOAT32: 4, Type.FLOAT64: 8, Type.BFLOAT16: 2, Type.FLOAT32_FTZ: 4, Type.TFLOAT32: 4}
SIZE[Type.TFLOAT32_FTZ] = 4
WIDTH = {Swizzle.B32: 32, Swizzle.B64: 64}


def fields(**changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "type": Type.BFLOAT16,
        "address": 0x1000,
        "extents": [256, 64, 3],
        "strides": [512, 32768],
        "box": [64, 64, 1],
    }
    return Fields(**(arguments | changes))


def words(f: Any) -> tuple[int, ...]:
    return struct.unpack("<32I", f.encode())


@st.composite
def legal_fields(draw: st.DrawFn) -> Any:
    rank = draw(st.integers(1, 5))
    kind = draw(st.sampled_from(list(SIZE)))
    swizzle = draw(st.sampled_from(list(Swizzle)))
    widest = 256 * SIZE[kind] if swizzle == Swizzle.NONE else WIDTH.get(swizzle, 128)
    inner = draw(st.integers(1, min(widest, 256 * SIZE[kind]) // 16)) * 16 // SIZE[kind]
    steps = [1, *draw(st.lists(st.integers(1, 8), min_size=rank - 1, max_size=rank - 1))]
    box = [inner]
    room = 227 * 1024 // (inner * SIZE[kind])  # rows that fit into shared memory
    for step in steps[1:]:
        box.append(draw(st.integers(1, min(256, room * step))))
        room //= max(1, box[-1] // step)
    floating = kind in (Type.FLOAT16, Type.FLOAT32, Type.FLOAT64, Type.BFLOAT16, Type.TFLOAT32)
    return Fields(
        type=kind,
        address=draw(st.integers(0, 2**53 - 1)) * 16,
        extents=draw(st.lists(st.integers(1, 2**32), min_size=rank, max_size=rank)),
        strides=[
            16 * s
            for s in draw(st.lists(st.integers(0, 2**36 - 1), min_size=rank - 1, max_size=rank - 1))
        ],
        box=box,
        element_strides=steps,
        swizzle=swizzle,
        l2_promotion=draw(st.sampled_from(list(datapath.L2Promotion))),
        fill=draw(st.sampled_from(list(datapath.OobFill))) if floating else datapath.OobFill.ZERO,
    )


@given(legal_fields())
def test_decode_returns_what_was_encoded(f: Any) -> None:
    assert Fields.decode(f.encode()) == f


@given(st.binary(min_size=128, max_size=128))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    try:
        decoded = Fields.decode(data)
    except RuntimeError:
        return
    assert 1 <= decoded.rank <= 5


def test_layout_of_the_words() -> None:
    """A map assembled by hand, from the masks and shifts of ptxas's tensormap.replace.

    Words 16 and 18 the driver fills in: bytes of a box, and of the swizzle's pattern.
    """
    f = Fields(
        type=Type.BFLOAT16,
        address=0x7F12_3456_7890,
        extents=[4096, 1000, 7, 3, 2],
        strides=[8192, 0x12_3456_7890 & ~15, 0xFF_FFFF_FFF0, 16],
        box=[64, 64, 3, 5, 2],
        element_strides=[1, 3, 2, 4, 1],
        swizzle=Swizzle.B128,
        l2_promotion=datapath.L2Promotion.B256,
        fill=datapath.OobFill.NAN,
    )
    expected = [0] * 32
    expected[0:2] = 0x34567890, 0x7F12
    expected[2] = 4 << 4 | 10 << 7 | 3 << 13 | 1 << 15 | 3 << 17
    expected[3:8] = 8192 >> 4, 0x2345_6789, 0xFFFF_FFFF, 1, 0x1 << 4 | 0xF << 8
    expected[8:13] = 4095, 999, 6, 2, 1
    expected[13] = 63 << 24 | 2 << 3 | 1 << 6 | 3 << 9
    expected[14] = 63 | 2 << 8 | 4 << 16 | 1 << 24
    expected[16] = 64 * (64 // 3) * (3 // 2) * (5 // 4) * 2 * 2
    expected[18] = 8 * 128
    assert words(f) == tuple(expected)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (Type.UINT8, 0),
        (Type.FLOAT16, 6),
        (Type.FLOAT32, 7),
        (Type.FLOAT32_FTZ, 8),
        (Type.FLOAT64, 9),
        (Type.BFLOAT16, 10),
        (Type.TFLOAT32, 7 | 1 << 9),
        (Type.TFLOAT32_FTZ, 8 | 1 << 9),
    ],
)
def test_type_codes(kind: Any, code: int) -> None:
    """The codes of PTX table 33, but tf32, which is a bit of its own: bit 16 of the word."""
    assert words(fields(type=kind, box=[16, 64, 1]))[2] >> 7 & 0x20F == code


@pytest.mark.parametrize(
    ("swizzle", "code"),
    [
        (Swizzle.NONE, 0),
        (Swizzle.B32, 1),
        (Swizzle.B64, 2),
        (Swizzle.B128, 3),
        (Swizzle.B128_ATOM_32B, 3 | 1 << 6),
        (Swizzle.B128_ATOM_32B_FLIP_8B, 3 | 2 << 6),
        (Swizzle.B128_ATOM_64B, 3 | 3 << 6),
    ],
)
def test_swizzle_codes(swizzle: Any, code: int) -> None:
    assert words(fields(swizzle=swizzle, box=[16, 64, 1]))[2] >> 13 & ~(7 << 2) == code


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"extents": [], "strides": [], "box": []}, "one fewer"),
        ({"address": 8}, "globalAddress must be a multiple of 16"),
        ({"extents": [256, 0, 3]}, r"globalDim\[1\] = 0 must be 1 to 2\^32"),
        ({"extents": [256, 64, 2**32 + 1]}, r"globalDim\[2\]"),
        ({"strides": [520, 32768]}, r"globalStrides\[0\] = 520 must be a multiple of 16"),
        ({"strides": [512, 2**40]}, r"globalStrides\[1\] = \d+ must be less than 2\^40"),
        ({"box": [64, 257, 1]}, r"boxDim\[1\] = 257 must be 1 to 256"),
        ({"box": [60, 64, 1]}, r"boxDim\[0\] must span a multiple of 16 bytes"),
        (
            {"box": [128, 64, 1], "swizzle": Swizzle.B128},
            "boxDim.* 256 bytes, more than the swizzle's 128",
        ),
        ({"box": [32, 64, 1], "swizzle": Swizzle.B32}, "64 bytes, more than the swizzle's 32"),
        ({"element_strides": [1, 9, 1]}, r"elementStrides\[1\] = 9 must be 1 to 8"),
        (
            {"type": Type.UINT16, "fill": datapath.OobFill.NAN},
            "NaN fill needs a floating-point type",
        ),
        ({"box": [64, 256, 8]}, "does not fit into shared memory"),
        ({"address": 1 << 60}, "no virtual address"),
        (
            {"interleave": datapath.Interleave.B32, "address": 16},
            "globalAddress must be a multiple of 32",
        ),
        (
            {
                "interleave": datapath.Interleave.B16,
                "extents": [256, 64],
                "strides": [512],
                "box": [8, 64],
            },
            "interleaved layout needs tensorRank >= 3",
        ),
        ({"type": Type.U4X16_ALIGN_16B, "box": [64, 64, 1]}, r"boxDim\[0\] must be 128"),
        ({"type": Type.U4X16_ALIGN_8B, "extents": [255, 64, 3]}, r"globalDim\[0\] must be even"),
    ],
)
def test_refuses_what_the_driver_documents_as_invalid(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises((RuntimeError, ValueError), match=rule):
        fields(**changes).encode()


@pytest.mark.parametrize("bit", [0, 1, 2, 3, 22, 23, 31])
def test_refuses_bits_without_a_known_meaning(bit: int) -> None:
    encoded = list(words(fields()))
    encoded[2] |= 1 << bit
    with pytest.raises(
        RuntimeError, match=f"bits 0x{1 << bit:08x} of word 2 have no known meaning"
    ):
        Fields.decode(struct.pack("<32I", *encoded))


REPLACE = "tensormap.replace.tile.{}.shared::cta.b1024.{} [memory], {};"


def replaced(fields: list[str]) -> np.ndarray[Any, Any]:
    """The words of a map of zeros with these fields, and nothing else, written by a kernel."""
    zeros = "".join(f"st.shared.b32 [memory + {4 * i}], 0;" for i in range(32))
    out = emulator.empty(32, np.uint32)
    report = module(
        "setp.eq.u32 %p0, %tid, 0; @!%p0 bra COPY;"
        + zeros
        + "\n".join(fields)
        + "COPY: bar.warp.sync -1;"
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
        "[%out], [memory], 128;"
    ).launch("kernel", grid=1, block=32, args=[out])
    assert report.findings == []
    return out


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize(("kind", "dtype"), [(6, "float16"), (10, "bfloat16"), (1, "uint16")])
def test_a_map_that_a_kernel_makes(kind: int, dtype: str, swizzle: int) -> None:
    array = emulator.empty((3, 70, 96), np.dtype(getattr(ml_dtypes, dtype, dtype)))
    box, steps = (16, 5, 2), (1, 2, 3)
    made = emulator.TensorMap.encode(array, box=box, swizzle=swizzle, element_strides=steps)
    fields = [
        ("global_address", "b64", str(array.ctypes.data)),
        ("rank", "b32", "2"),
        *(("box_dim", "b32", f"{i}, {n}") for i, n in enumerate(box)),
        *(("global_dim", "b32", f"{i}, {n}") for i, n in enumerate((96, 70, 3))),
        *(("global_stride", "b64", f"{i}, {n}") for i, n in enumerate((192, 192 * 70))),
        *(("element_stride", "b32", f"{i}, {n}") for i, n in enumerate(steps)),
        ("elemtype", "b32", str(kind)),
        ("interleave_layout", "b32", "0"),
        ("swizzle_mode", "b32", str((0, 32, 64, 128).index(swizzle))),
        ("fill_mode", "b32", "0"),
    ]
    words = np.frombuffer(made.encoded, np.uint32).copy()
    # What follows from the others, and the promotion in L2, no instruction writes.
    words[[16, 18]] = 0
    words[2] &= ~np.uint32(3 << 17)
    assert (replaced([REPLACE.format(*field) for field in fields]) == words).all()


def test_the_tf32_type_of_a_map_that_a_kernel_makes() -> None:
    fields = [REPLACE.format("elemtype", "b32", "11"), REPLACE.format("rank", "b32", "0")]
    decoded = Fields.decode(replaced([*fields, REPLACE.format("box_dim", "b32", "0, 4")]).tobytes())
    assert decoded.type == Type.TFLOAT32


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (("box_dim", "b32", "0, 257"), "257 does not fit"),
        (("global_stride", "b64", "4, 16"), "there are 4 strides"),
        (("elemtype", "b32", "16"), "no element type 16"),
        (("rank", "b32", "0, 1"), "too few operands, or too many"),
        (("rank", "b64", "1"), "takes a .b32"),
    ],
)
def test_what_no_map_can_hold_is_refused(field: tuple[str, str, str], message: str) -> None:
    with pytest.raises(emulator.EmulatorError, match=message):
        replaced([REPLACE.format(*field)])
