"""tcgen05.mma: what descriptors mean and what is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxbw._native import datapath

from .datapath_reference import SHARED_BASE, umma_descriptor
from .mma_reference import DESCRIPTOR, Format, Swizzle, bf16_instruction, example

Kind = datapath.UmmaKind


def test_a_known_shared_memory_descriptor() -> None:
    """Tile at 0x400, 1024 bytes between groups of 8 rows, 128-byte swizzle: worked out by hand."""
    assert DESCRIPTOR == 0x4000_4040_0000_0040
    chunks = example().shared_chunks()
    assert len(chunks) == 2 * 128 + 2 * 64
    assert chunks[:4] == [0x400, 0x410, 0x490, 0x480]  # row 1: chunks 0 and 1 trade places
    assert chunks[2 * 8] == 0x800  # row 8


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


@given(st.integers(1, 2), st.integers(0, 31), st.integers(0, 63))
def test_legal_shapes(group: int, m: int, n: int) -> None:
    word = bf16_instruction(m=m << 4, n=n << 3)
    op = example(instruction=word, cta_group=group)
    if n << 3 in SHAPE_RULES[group].get(m << 4, ()):
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
