"""Decoding and rounding of the tensor cores' number formats, against numpy and ml_dtypes."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from .datapath_reference import datapath
from .mma_reference import DTYPES, Format, pack


@pytest.mark.parametrize("number", list(DTYPES))
def test_every_bit_pattern_decodes(number: Any) -> None:
    dtype = DTYPES[number]
    if number == Format.TF32:  # truncated to 10 bits of mantissa (PTX 9.7.15.5.2)
        bits = np.random.default_rng(0).integers(0, 2**32, 4096, np.uint32)
        expected = (bits & 0xFFFFE000).view(np.float32)
        chunks = bits.view(np.uint8).reshape(-1, 16)
    else:
        width = {Format.E2M3: 6, Format.E3M2: 6, Format.E2M1: 4}.get(
            number, np.dtype(dtype).itemsize * 8
        )
        bits = np.arange(2**width, dtype=np.uint16)
        stored = bits.astype(np.uint16 if width == 16 else np.uint8).view(dtype)
        expected = stored.astype(np.float32)
        chunks = pack(bits, width)
    got = np.concatenate([datapath.decode_chunk(number, chunk) for chunk in chunks])
    np.testing.assert_array_equal(got, expected)  # NaNs compare equal
    np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


@pytest.mark.parametrize(
    ("encode", "dtype"),
    [(datapath.f32_to_f16, np.float16), (datapath.f32_to_bf16, ml_dtypes.bfloat16)],
)
def test_rounding_to_16_bits(encode: Any, dtype: Any) -> None:
    bits = np.random.default_rng(1).integers(0, 2**32, 100_000, np.uint32)
    # Ties and their neighbours: every 16-bit value, half a step beyond it, and one bit off that.
    exact = np.arange(2**16, dtype=np.uint16).view(dtype).astype(np.float32).view(np.uint32)
    offsets = (0, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001)
    ties = np.concatenate([exact + offset for offset in offsets])
    values = np.concatenate([bits, ties.astype(np.uint32)]).view(np.float32)
    values = values[~np.isnan(values)]
    with np.errstate(over="ignore"):
        expected = values.astype(dtype).view(np.uint16)
    np.testing.assert_array_equal(encode(values), expected)
    assert np.isnan(
        encode(np.array([np.nan, -np.nan], np.float32)).view(dtype).astype(np.float32)
    ).all()
