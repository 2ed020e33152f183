"""tcgen05.mma: what descriptors mean and what is refused."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from .datapath_reference import SHARED_BASE, datapath, umma_descriptor
from .mma_reference import DESCRIPTOR, Format, Swizzle, bf16_instruction, example, instruction

Kind = datapath.UmmaKind


def test_a_known_shared_memory_descriptor() -> None:
    """Tile at 0x400, 1024 bytes between groups of 8 rows, 128-byte swizzle: worked out by hand."""
    assert DESCRIPTOR == 0x4000_4040_0000_0040
    chunks = example().shared_chunks()
    assert len(chunks) == 2 * 128 + 2 * 64
    assert chunks[:4] == [0x400, 0x410, 0x490, 0x480]  # row 1: chunks 0 and 1 trade places
    assert chunks[2 * 8] == 0x800  # row 8


# PTX 9.7.16.3.3 in units of 16 bytes. MN-major: (W, lines), strides of (W, groups of MN) and of
# (lines, groups of K); CUTLASS has the one for 32-byte atoms. K-major: of (8, groups) and 2.
CANONICAL_MN: dict[Any, Callable[[int, int], Any]] = {
    Swizzle.NONE: lambda lbo, sbo: ((1, 8), (0, sbo), (1, lbo)),
    Swizzle.B32: lambda lbo, sbo: ((2, 8), (1, lbo), (2, sbo)),
    Swizzle.B64: lambda lbo, sbo: ((4, 8), (1, lbo), (4, sbo)),
    Swizzle.B128: lambda lbo, sbo: ((8, 8), (1, lbo), (8, sbo)),
    Swizzle.B128_ATOM_32B: lambda lbo, sbo: ((8, 4), (1, lbo), (8, sbo)),
}
CANONICAL_K: dict[Any, Callable[[int, int], Any]] = {
    Swizzle.NONE: lambda lbo, sbo: ((1, sbo), lbo),
    Swizzle.B32: lambda lbo, sbo: ((2, sbo), 1),
    Swizzle.B64: lambda lbo, sbo: ((4, sbo), 1),
    Swizzle.B128: lambda lbo, sbo: ((8, sbo), 1),
}
# CuTe's Swizzle<B, M, S> on byte addresses: B bits from M + S upwards are xored into those at M.
CUTE_SWIZZLES = {
    Swizzle.NONE: (0, 4, 3),
    Swizzle.B32: (1, 4, 3),
    Swizzle.B64: (2, 4, 3),
    Swizzle.B128: (3, 4, 3),
    Swizzle.B128_ATOM_32B: (2, 5, 2),
}


@given(
    st.sampled_from(list(CANONICAL_MN)),
    st.booleans(),
    st.integers(0, 15),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_chunks_follow_the_canonical_layouts(
    swizzle: Any, k_major: bool, start: int, lbo: int, sbo: int
) -> None:
    """128 rows of A and 64 of B, with any strides and any start."""
    tf32 = swizzle == Swizzle.B128_ATOM_32B
    if k_major and tf32:
        return
    number, kind = (Format.TF32, Kind.TF32) if tf32 else (Format.BF16, Kind.F16)
    first, unit = 0x400 + 128 * start, 64  # strides of whole patterns, in chunks
    word = instruction(number, number, 128, 64, transpose_a=not k_major, transpose_b=not k_major)
    descriptor = umma_descriptor(first, 16 * unit * lbo, 16 * unit * sbo, swizzle)
    expected = []
    for rows in (128, 64):
        if k_major:
            (line, group), chunk = CANONICAL_K[swizzle](unit * lbo, unit * sbo)
            offsets = [
                r % 8 * line + r // 8 * group + c * chunk for r in range(rows) for c in range(2)
            ]
        else:
            (width, lines), (one, next_mn), (line, next_k) = CANONICAL_MN[swizzle](
                unit * lbo, unit * sbo
            )
            chunks, ks = (rows // 4, 8) if tf32 else (rows // 8, 16)
            offsets = [
                c % width * one + c // width * next_mn + k % lines * line + k // lines * next_k
                for k in range(ks)
                for c in range(chunks)
            ]
        bits, base, shift = CUTE_SWIZZLES[swizzle]
        for offset in offsets:
            address = first + 16 * offset
            expected.append(address ^ (address >> shift & (1 << bits) - 1 << base))
    op = datapath.Umma(kind, word, descriptor, descriptor, 0)
    assert op.shared_chunks() == expected


@pytest.mark.parametrize(
    ("bits", "rule"),
    [
        (1 << 46, r"bits 46-48 must be 0b001"),  # exclusive or: clears it
        (1 << 47, r"bits 46-48 must be 0b001"),
        (1 << 52, r"absolute leading address \(bit 52\)"),
        (1 << 53, r"bits 53-60 must be 0"),
        (1 << 14, r"bits 14-15 and 30-31"),
        (1 << 61, r"swizzle mode 3 is invalid"),
        (7 << 61, r"swizzle mode 5 is invalid"),
    ],
)
def test_refuses_bad_shared_memory_descriptors(bits: int, rule: str) -> None:
    with pytest.raises(RuntimeError, match=rule):
        example(b=DESCRIPTOR ^ bits)


@pytest.mark.parametrize(
    ("kind", "bits", "rule"),
    [
        (Kind.F16, 1 << 2, "sparsity"),
        (Kind.F16, 1 << 3, "saturation"),
        (Kind.F16, 1 << 6, "bits 6, 23 and 29 are reserved"),
        (Kind.F16, 1 << 29, "bits 6, 23 and 29 are reserved"),
        (Kind.F16, 1 << 30, "maximum shift"),
        (Kind.F16, 3 << 4, "D type 2 does not exist"),
        (Kind.F16, 1 << 10, "A and B must have the same type"),
        (Kind.F16, 1 << 4, "an f16 D needs f16 operands"),
        (Kind.F16, 1 << 8, "operand type 3 does not exist for this kind"),
        (Kind.TF32, 0, "operand type 1 does not exist for this kind"),
        (Kind.F8F6F4, 1 << 8 | 1 << 9, "operand type 7 does not exist for this kind"),
    ],
)
def test_refuses_bad_instruction_descriptors(kind: Any, bits: int, rule: str) -> None:
    with pytest.raises(RuntimeError, match=rule):
        example(kind=kind, instruction=bf16_instruction() ^ bits)


SHAPE_RULES = {  # PTX table 39, with the steps of 16 of CUTLASS for M = 128
    1: {64: range(8, 257, 8), 128: range(16, 257, 16)},
    2: {128: range(16, 257, 16), 256: range(16, 257, 16)},
}


def test_legal_shapes() -> None:
    for group, m, n in itertools.product((1, 2), range(0, 512, 16), range(0, 512, 8)):
        op = example(instruction=bf16_instruction(m=m, n=n), cta_group=group)
        if n in SHAPE_RULES[group].get(m, ()):
            op.check()
        else:
            with pytest.raises(RuntimeError, match=r"must be .*\(PTX 9\.7\.16\.2\.1\)"):
                op.check()


ATOM_32B = umma_descriptor(0x400, 0, 512, Swizzle.B128_ATOM_32B)
E4M3 = {"a": Format.E4M3, "b": Format.E4M3}
TF32 = {"a": Format.TF32, "b": Format.TF32}


@pytest.mark.parametrize(
    ("word", "changes", "rule"),
    [
        (E4M3 | {"n": 48, "transpose_b": True}, {"kind": Kind.F8F6F4, "cta_group": 2}, "table 52"),
        ({"n": 48}, {"cta_group": 2, "a_in_tmem": True, "a": 256}, "steps of 32"),
        ({}, {"a": ATOM_32B}, "operand A: .* no documented K-major layout"),
        ({"transpose_b": True}, {"b": ATOM_32B}, "operand B: .* goes with transposed tf32"),
        (TF32 | {"transpose_a": True}, {"kind": Kind.TF32}, "operand A: .* transposed tf32"),
        (
            {"a": Format.E2M1, "b": Format.E2M1, "transpose_b": True},
            {"kind": Kind.F8F6F4},
            "operand B: 6- and 4-bit elements cannot be transposed",
        ),
        ({}, {"d": 16 << 16}, "lane 16 of D's address"),
        ({"m": 64}, {"d": 8 << 16}, "lane 8 of D's address"),
        ({}, {"d": 449}, r"columns \[449, 513\) do not lie in tensor memory"),
        ({"transpose_a": True}, {"a_in_tmem": True, "a": 256}, "A in tensor memory cannot be"),
        ({"m": 64}, {"a_in_tmem": True, "a": 16 << 16 | 256}, "the same lane alignment"),
        ({}, {"a_in_tmem": True, "a": 505}, r"A: .* columns \[505, 513\)"),
        (
            {"a": Format.E2M1, "b": Format.E4M3},
            {"kind": Kind.F8F6F4, "a_in_tmem": True, "a": 256},
            "6- and 4-bit A in tensor memory",
        ),
        ({}, {"scale_input_d": 16}, "scale-input-d must be 0 to 15"),
        (E4M3, {"kind": Kind.F8F6F4, "scale_input_d": 1}, "scale-input-d is for"),
    ],
)
def test_refuses_illegal_combinations(
    word: dict[str, Any], changes: dict[str, Any], rule: str
) -> None:
    with pytest.raises(RuntimeError, match=rule):
        example(instruction=bf16_instruction(**word), **changes).check()


def test_refuses_to_read_past_shared_memory() -> None:
    with pytest.raises(RuntimeError, match=r"reaches shared address \d+, outside"):
        example().execute([np.zeros(1024, np.uint8)], SHARED_BASE, [datapath.TensorMemory()])


@given(st.data(), st.sampled_from(list(Kind)), st.integers(1, 2), st.booleans())
def test_any_operands_execute_or_are_refused(
    data: st.DataObject, kind: Any, group: int, a_in_tmem: bool
) -> None:
    """Random words, but for the bits that are easily got wrong: no crash, whatever they say."""
    word = data.draw(st.integers(0, 2**23 - 1)) & ~0b1001111 | data.draw(st.integers(4, 16)) << 24
    descriptor = st.integers(0, 2**64 - 1).map(
        lambda bits: bits & ~(0x7F << 46 | 0xFF << 53) | 1 << 46
    )
    a = data.draw(st.integers(0, 2**32 - 1) if a_in_tmem else descriptor)
    d = data.draw(st.integers(0, 2**32 - 1) | st.integers(0, 512))
    shared = [np.zeros(232448, np.uint8)] * group
    try:
        op = datapath.Umma(kind, word, a, data.draw(descriptor), d, group, a_in_tmem)
        op.execute(shared, SHARED_BASE, [datapath.TensorMemory() for _ in range(group)])
    except RuntimeError:
        return
    assert op.shared_chunks()
