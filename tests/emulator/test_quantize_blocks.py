"""The PTX that quantizes to blocks in the emulator: any schedule, nothing else touched.

Their bits, and what the host plans, are tested through the custom call
(tests/jax/test_quantize_blocks_kernel.py).
"""

import itertools
import struct
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw
from jaxbw._src import block_formats, stochastic
from jaxbw.emulator import Module

from ..alignment import aligned
from .test_quantize import DTYPES, FAMILIES, any_bits, loaded

THREADS = 512
ELEMENTS = {"mxfp8": 8, "mxfp8_e5m2": 9, "mxfp4": 17, "nvfp4": 17}  # DataType in cuda/params.h
GUARD = 64


def divisor(value: int) -> tuple[int, int, int]:
    """As in cuda/gemm/division.h."""
    shift = (value - 1).bit_length()
    return value, -(-(1 << (31 + shift)) // value), shift


def packed(x: Any) -> Any:
    """The bytes of data, of 4 bits two in a byte."""
    flat = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    return flat[::2] | flat[1::2] << 4 if x.dtype == jnp.float4_e2m1fn else flat


def check(
    kind: str,
    name: str,
    shape: tuple[int, int, int],
    *,
    family: str,
    square: bool,
    randomly: bool = False,
    **launch: Any,
) -> None:
    """Both directions of [matrices, rows, columns]; `randomly`: rotated, and rounded so."""
    kernel = f"jaxbw_{family}_quantize_blocks_{kind}"
    module: Module = loaded(kernel)
    x = any_bits(shape, DTYPES[kind])
    whole = aligned((1,), np.float32)
    whole[0] = 0.75
    bits = aligned((8,), np.int32)
    options: Any = {"axis": -2, "implementation": "xla"}
    if name == "nvfp4":
        options["global_scale"] = whole[0]
    if randomly:
        options |= {name: jax.random.key(i) for i, name in enumerate(("key", "rotation"))}
        bits[:2] = stochastic.seed_of(options["key"])
        bits[4] = stochastic.signs_of(options["rotation"])
    q: Any = jaxbw.quantize(x, name, square=square, both=True, **options)
    wanted = []
    for each in (q.along(-1), q):
        # Padded for the kernel; MXFP4's are padded further behind it.
        data = np.asarray(each.data)[..., : block_formats.padded(each.size)]
        wanted += [packed(data), packed(np.asarray(each.scale))]
    results = [aligned((each.size + GUARD,), np.uint8) for each in wanted]
    for each in results:
        each[...] = 0xA5
    for array in (x, whole, bits):
        array.flags.writeable = False
    across, down = (-(-extent // 128) for extent in q.shape[:0:-1])
    params = struct.pack(
        "<8Q9I5I",
        x.ctypes.data,
        whole.ctypes.data if name == "nvfp4" else 0,
        *((bits.ctypes.data, bits[4:].ctypes.data) if randomly else (0, 0)),
        *(each.ctypes.data for each in results),
        *divisor(shape[0]),
        *divisor(across),
        *divisor(across * down),
        *(shape[1], *q.shape[1:], square, ELEMENTS[name]),
    )
    report = module.launch(
        kernel,
        grid=shape[0] * across * down,
        block=THREADS,
        args=[params],
        buffers=[x, whole, bits, *results],
        **launch,
    )
    assert not report.findings
    for got, each in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(got[:-GUARD], each)
        assert (got[-GUARD:] == 0xA5).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("seed", [0, 1])
def test_any_schedule(family: str, square: bool, name: str, seed: int) -> None:
    launch: Any = {"family": family, "square": square, "schedule": "random", "seed": seed}
    check("bf16", name, (2, 40, 136), **launch)
    check("f32", name, (1, 130, 19), **launch)
    if name == "nvfp4":
        check("bf16", name, (2, 40, 136), randomly=True, **launch)
        check("f32", name, (1, 130, 19), randomly=True, **launch)


# NVFP4 divides by a global scale, and what is rounded to float32 then by 6 and by scales of few
# bits: by a rounded reciprocal and one correction. All that matters is on which side of ties it is.


def rounded(x: Fraction) -> Fraction:
    """A positive number to 24 bits, to nearest even."""
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    exponent -= x < Fraction(2) ** exponent
    unit = Fraction(2) ** (exponent - 23)
    return round(x / unit) * unit


def quotient(x: Fraction, y: Fraction) -> Fraction:
    """As cuda/gemm/block_formats.cuh has it."""
    inverse = rounded(1 / y)
    close = rounded(x * inverse)
    return rounded(close + (x - close * y) * inverse)  # the remainder is exact


# Significands of ties between codes times scales, and of those between scales.
TIES = sorted({s * tie for s in range(1, 16) for tie in (1, 3, 5, 7)} | set(range(1, 32, 2)))


def test_quotients_nearest_to_what_is_rounded_to_a_tie() -> None:
    """The dividends and divisors of 24 bits that are hardest: half a unit from a tie, and 2^-25."""
    count = 0
    for tie in TIES:
        significand = tie << 25 - tie.bit_length()
        below = 2 * significand - 1 if significand == 2**24 else significand - 1
        for middle, shift in itertools.product((below, significand + 1), (24, 25)):
            for rest in range(-64, 65):
                y = -rest * pow(middle, -1, 2**shift) % 2**shift
                x = (middle * y + rest) >> shift
                if 2**23 <= x < 2**24 and 2**23 <= y < 2**24:
                    assert quotient(Fraction(x), Fraction(y)) == rounded(Fraction(x, y))
                    count += 1
    assert count > 2000


def test_quotients_by_few_bits() -> None:
    """Beside a tie and on it, by whichever scale, and by 6."""
    for y, tie in itertools.product(range(1, 16), TIES):
        product = Fraction(tie * y)
        unit = rounded(product * (1 + Fraction(1, 2**22))) - product
        for x in (product, product - unit / 4, product - unit / 2, product + unit / 2):
            got = quotient(rounded(x), Fraction(y))
            assert (got > tie) - (got < tie) == (rounded(x) > product) - (rounded(x) < product)
