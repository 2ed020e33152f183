"""mma.sync against numpy, with the fragments of PTX 9.7.14.5.7 to 9.7.14.5.11."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxbw import emulator

from .ptx import module

Array = np.ndarray[Any, Any]
LANE = np.arange(32)
GROUP, PLACE = LANE // 4, LANE % 4


@dataclass(frozen=True)
class Shape:
    """Element i of a lane: its row and column in A, and its row of B, whose column is the group."""

    a: Callable[[int], tuple[Array, Array]]
    b: Callable[[int], Array]
    a_elements: int
    b_elements: int


def halves(k: int) -> Shape:
    return Shape(
        lambda i: (GROUP + 8 * (i in (2, 3, 6, 7)), PLACE * 2 + (i & 1) + 8 * (i >= 4)),
        lambda i: PLACE * 2 + (i & 1) + 8 * (i >= 2),
        k // 2,
        k // 4,
    )


def words(k: int) -> Shape:
    return Shape(
        lambda i: (GROUP + 8 * (i in (1, 3)), PLACE + 4 * (i >= 2)),
        lambda i: PLACE + 4 * (i == 1),
        k // 2,
        k // 4,
    )


def octets(k: int) -> Shape:
    return Shape(
        lambda i: (GROUP + 8 * (4 <= i < 8 or i >= 12), PLACE * 4 + (i & 3) + 16 * (i >= 8)),
        lambda i: PLACE * 4 + (i & 3) + 16 * (i >= 4),
        k // 2,
        k // 4,
    )


FORMATS: dict[str, tuple[Any, Callable[[int], Shape]]] = {
    "f16": (np.float16, halves),
    "bf16": (ml_dtypes.bfloat16, halves),
    "tf32": (np.float32, words),
    "e4m3": (ml_dtypes.float8_e4m3fn, octets),
    "e5m2": (ml_dtypes.float8_e5m2, octets),
    "s8": (np.int8, octets),
    "u8": (np.uint8, octets),
}
CASES = [
    (8, "f32", "f16", "f16", "f32"),
    (16, "f32", "f16", "f16", "f32"),
    (16, "f16", "f16", "f16", "f16"),
    (16, "f16", "f16", "f16", "f32"),
    (8, "f16", "f16", "f16", "f16"),
    (8, "f32", "bf16", "bf16", "f32"),
    (16, "f32", "bf16", "bf16", "f32"),
    (4, "f32", "tf32", "tf32", "f32"),
    (8, "f32", "tf32", "tf32", "f32"),
    (16, "f32", "e4m3", "e5m2", "f32"),
    (32, "f32", "e5m2", "e4m3", "f32"),
    (32, "f16", "e4m3", "e4m3", "f16"),
    (16, "s32", "s8", "s8", "s32"),
    (32, "s32", "s8", "u8", "s32"),
    (32, "s32", "u8", "s8", "s32"),
]


def named(letter: str, count: int) -> str:
    return "{" + ", ".join(f"%{letter}{i}" for i in range(count)) + "}"


def kernel(opcode: str, counts: tuple[int, int, int, int]) -> emulator.Module:
    """Each lane loads the registers of A, B and C from a row of words, and stores those of D."""
    d, a, b, c = counts
    declared = " ".join(f".reg .b32 %{x}<4>;" for x in "dabc")
    names = [f"%{x}{i}" for x, n in zip("abc", (a, b, c), strict=True) for i in range(n)]
    loads = "\n".join(f"ld.global.b32 {n}, [%rd0 + {4 * i}];" for i, n in enumerate(names))
    stores = "\n".join(f"st.global.b32 [%rd0 + {4 * i}], %d{i};" for i in range(d))
    operands = ", ".join(named(x, n) for x, n in zip("dabc", counts, strict=True))
    return module(
        f"{declared} mad.wide.u32 %rd0, %tid, 64, %out;\n{loads}\n{opcode} {operands};\n{stores}"
    )


def packed(elements: list[Array], dtype: Any) -> Array:
    """Words of each lane, from its elements."""
    return np.ascontiguousarray(np.stack(elements, axis=1).astype(dtype)).view(np.uint32)


def accumulators(values: Array, dtype: Any) -> Array:
    rows = [GROUP, GROUP, GROUP + 8, GROUP + 8]
    return packed([values[rows[i], PLACE * 2 + (i & 1)] for i in range(4)], dtype)


DTYPES = {"f16": np.float16, "f32": np.float32, "s32": np.int32}


def run(k: int, types: tuple[str, str, str, str], a: Array, b: Array, c: Array, flag: str) -> Any:
    d_type, a_type, b_type, c_type = types
    shape = FORMATS[a_type][1](k)
    left = packed([a[shape.a(i)] for i in range(shape.a_elements)], FORMATS[a_type][0])
    right = packed([b[shape.b(i), GROUP] for i in range(shape.b_elements)], FORMATS[b_type][0])
    initial = accumulators(c, DTYPES[c_type])
    out = emulator.empty((32, 16), np.uint32)
    columns = np.concatenate([left, right, initial], axis=1)
    out[:, : columns.shape[1]] = columns
    count = 2 if d_type == "f16" else 4
    counts = (count, left.shape[1], right.shape[1], initial.shape[1])
    opcode = f"mma.sync.aligned.m16n8k{k}.row.col{flag}.{'.'.join(types)}"
    report = kernel(opcode, counts).launch("kernel", grid=1, block=32, args=[out])
    assert report.findings == []
    return out[:, :count]


@pytest.mark.parametrize(("k", "d_type", "a_type", "b_type", "c_type"), CASES)
def test_matmul(k: int, d_type: str, a_type: str, b_type: str, c_type: str) -> None:
    rng = np.random.default_rng(k)
    low = 0 if "u8" in (a_type, b_type) else -3
    a, b, c = (rng.integers(low, 4, shape) for shape in ((16, k), (k, 8), (16, 8)))
    got = run(k, (d_type, a_type, b_type, c_type), a, b, c, "")
    assert (got == accumulators(a @ b + c, DTYPES[d_type])).all()


@pytest.mark.parametrize("flag", ["", ".satfinite"])
def test_integers_wrap_or_saturate(flag: str) -> None:
    a, b = np.full((16, 32), -128), np.full((32, 8), 127)
    c = np.full((16, 8), -(2**31))
    want = np.full((16, 8), -(2**31) if flag else 2**31 - 128 * 127 * 32)
    got = run(32, ("s32", "s8", "s8", "s32"), a, b, c, flag)
    assert (got == accumulators(want, np.int32)).all()


def test_tf32_ignores_the_low_bits() -> None:
    a, b, c = np.full((16, 8), 1 + 2.0**-11), np.ones((8, 8)), np.zeros((16, 8))
    got = run(8, ("f32", "tf32", "tf32", "f32"), a, b, c, "")
    assert (got.view(np.float32) == 8).all()


def test_what_was_never_written_makes_its_rows_undefined() -> None:
    declared = " ".join(f".reg .b32 %{x}<4>;" for x in "dabc")
    names = [f"%{x}{i}" for x, n in (("a", 4), ("b", 2), ("c", 4)) for i in range(n)]
    defined = "".join(f"mov.b32 {name}, 0;" for name in names if name != "%a1")
    # Register 1 of A is in rows 8 to 15, of which elements 2 and 3 of D are.
    for stored, kinds in (("%d1", set()), ("%d2", {"poison"})):
        body = (
            f"{declared} {defined} mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            f"{named('d', 4)}, {named('a', 4)}, {named('b', 2)}, {named('c', 4)};"
            f"setp.eq.u32 %p0, %tid, 0; @%p0 st.global.b32 [%out], {stored};"
        )
        out = emulator.empty(4, np.uint32)
        report = module(body).launch("kernel", grid=1, block=32, args=[out])
        assert {finding.kind for finding in report.findings} == kinds


@pytest.mark.parametrize(
    ("opcode", "message"),
    [
        ("m16n8k16.row.col.f32.tf32.tf32.f32", "has a shape that its types have not"),
        ("m16n8k16.row.col.f32.f16.bf16.f32", "combination of types"),
        ("m16n8k16.row.col.f16.bf16.bf16.f16", "combination of types"),
        ("m16n8k32.row.col.s32.s8.e4m3.s32", "combination of types"),
        ("m8n8k4.row.col.f32.f16.f16.f32", "modifier .m8n8k4"),
        ("m16n8k16.row.row.f32.f16.f16.f32", "row and .col"),
    ],
)
def test_other_matmuls_are_refused(opcode: str, message: str) -> None:
    loaded = kernel("mma.sync.aligned." + opcode, (4, 4, 2, 4))
    with pytest.raises(emulator.EmulatorError, match=message):
        loaded.launch("kernel", grid=1, block=32, args=[emulator.empty(4, np.uint32)])


@pytest.mark.parametrize("count", [1, 2])
def test_bytes_are_loaded_as_b_of_a_matmul(count: int) -> None:
    """The two registers of a matrix of ldmatrix.m16n16.trans are each B of a matmul."""
    rng = np.random.default_rng(count)
    b = rng.integers(-100, 100, (count, 16, 16)).astype(np.int8)
    a = rng.integers(-100, 100, (16, 16))
    left = packed([a[octets(16).a(i)] for i in range(8)], np.int8)
    names = [f"%b{i}" for i in range(2 * count)]
    matmuls = "".join(
        f"mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {named('d', 4)}, {named('a', 2)}, "
        f"{{{name}}}, {{0, 0, 0, 0}};"
        f"mad.wide.u32 %rd1, %tid, 16, %out; "
        f"st.global.v4.b32 [%rd1 + {512 * i}], {named('d', 4)};"
        for i, name in enumerate(names)
    )
    body = f"""
      .reg .b32 %a<4>, %b<4>, %d<4>;
      mad.lo.u32 %r1, %tid, 16, %shared;
      mad.wide.u32 %rd0, %tid, 16, %out;
      ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd0];
      st.shared.v4.b32 [%r1], {{%r4, %r5, %r6, %r7}};
      mad.wide.u32 %rd0, %tid, 8, %out;
      ld.global.v2.b32 {{%a0, %a1}}, [%rd0 + 512];
      bar.warp.sync -1;
      ldmatrix.sync.aligned.m16n16.x{count}.trans.shared.b8 {{{", ".join(names)}}}, [%r1];
      bar.sync 0;
      {matmuls}
    """
    out = emulator.empty((4, 32, 4), np.uint32)
    out[...] = 0
    out.reshape(-1).view(np.int8)[: b.size] = b.reshape(-1)
    out.reshape(-1)[128:192] = left.reshape(-1)
    report = module(body).launch("kernel", grid=1, block=32, args=[out])
    assert report.findings == []
    for i in range(2 * count):
        want = a @ b[i // 2, :, 8 * (i % 2) : 8 * (i % 2) + 8].astype(int)
        assert (out[i] == accumulators(want, np.int32)).all()


@pytest.mark.parametrize("count", [1, 2, 4])
def test_bytes_of_accumulators_are_stored_transposed(count: int) -> None:
    """A register of stmatrix.m16n8.trans holds a byte of each of the four elements of a lane."""
    c = np.random.default_rng(count).integers(0, 256, (count, 16, 8)).astype(np.uint8)
    registers = np.concatenate([accumulators(each, np.uint8) for each in c], axis=1)
    names = ", ".join(f"%a{i}" for i in range(count))
    loads = "".join(f"ld.global.b32 %a{i}, [%rd0 + {4 * i}];" for i in range(count))
    body = f"""
      .reg .b32 %a<4>;
      mad.wide.u32 %rd0, %tid, 16, %out;
      {loads}
      mad.lo.u32 %r1, %tid, 16, %shared;
      stmatrix.sync.aligned.m16n8.x{count}.trans.shared.b8 [%r1], {{{names}}};
      bar.warp.sync -1;
      setp.ge.u32 %p0, %tid, {8 * count};
      @%p0 bra END;
      ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r1];
      st.global.v4.b32 [%rd0], {{%r4, %r5, %r6, %r7}};
    END:
    """
    out = emulator.empty((32, 4), np.uint32)
    out[:, :count] = registers
    report = module(body).launch("kernel", grid=1, block=32, args=[out])
    assert report.findings == []
    stored = out.reshape(-1).view(np.uint8)[: c.size].reshape(count, 8, 16)
    assert (stored == c.transpose(0, 2, 1)).all()


@pytest.mark.parametrize(
    "opcode",
    [
        "ldmatrix.sync.aligned.m16n16.x1.shared.b8 {%r1, %r2}, [%shared];",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b16 {%r1, %r2}, [%shared];",
        "stmatrix.sync.aligned.m8n8.x1.trans.shared.b8 [%shared], {%r1};",
    ],
)
def test_other_matrices_of_bytes_are_refused(opcode: str) -> None:
    out = emulator.empty(4, np.uint32)
    with pytest.raises(emulator.EmulatorError, match=r"is of .m8n8 .b16 or"):
        module(opcode).launch("kernel", grid=1, block=32, args=[out])
