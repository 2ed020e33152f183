"""The table of tests/jax/dot_general_cases.py on the GPU: exact with integers, bounded with others.

What XLA does not run on a GPU it must refuse alike for jaxbw; what ends its process, and what it
gets wrong for everybody, is left out.
Where a kernel takes a case it is asked for by name, too.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import DotAlgorithmPreset, Precision

import jaxbw
from jaxbw._src.selection import devices

from ..jax.dot_general_cases import (
    ALGORITHMS,
    CASES,
    FLOATS,
    Case,
    breaks_xla_on_a_gpu,
    compare,
    is_doubled_by_xla_on_a_gpu,
    matmuls,
    refusal,
)

pytestmark = pytest.mark.gpu

CHUNK = 30
RUNNABLE = [
    case for case in CASES if not (breaks_xla_on_a_gpu(case) or is_doubled_by_xla_on_a_gpu(case))
]
FLOATING = [
    case
    for case in CASES
    if case.lhs_dtype == case.rhs_dtype in FLOATS  # XLA has its ways with others
    and case.preferred in (None, *FLOATS)
    and case.precision not in ALGORITHMS
]
SIXTEEN_BITS = [
    case
    for case in CASES
    if case.lhs_dtype == case.rhs_dtype in ("bfloat16", "float16")
    and case.preferred in (None, case.lhs_dtype, "float32")
    and case.precision not in ALGORITHMS
    and 0 not in (*case.shapes.lhs, *case.shapes.rhs)
]
OF_FLOAT8 = (
    DotAlgorithmPreset.ANY_F8_ANY_F8_F32,
    DotAlgorithmPreset.ANY_F8_ANY_F8_F32_FAST_ACCUM,
)
ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
TF32 = 2.0**-11


@pytest.fixture(autouse=True)
def _with_64_bits() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def taken(cases: list[Case]) -> list[Case]:
    """Those that the platform takes; of the others, jaxbw and lax say the same.

    But for X9, which kernels serve, whether or not this version of XLA does, and float8's, which
    they serve in part.
    """
    found = []
    for case in cases:
        ours, theirs = (refusal(f, case) for f in (jaxbw.dot_general, jax.lax.dot_general))
        if theirs is not None and case.precision == DotAlgorithmPreset.BF16_BF16_F32_X9:
            assert ours is None, f"{case}: {ours}"
            continue
        if theirs is not None and case.precision in OF_FLOAT8:
            continue
        assert (ours is None) == (theirs is None), f"{case}: jaxbw: {ours}; lax: {theirs}"
        if theirs is None:
            found.append(case)
    return found


@pytest.mark.parametrize("first", range(0, len(RUNNABLE), CHUNK))
def test_equal(first: int) -> None:
    cases = RUNNABLE[first : first + CHUNK]
    try:
        compare(cases)
    except (ValueError, NotImplementedError, jax.errors.JaxRuntimeError):
        compare(taken(cases))


@pytest.mark.parametrize("first", range(0, len(SIXTEEN_BITS), CHUNK))
def test_kernels(first: int) -> None:
    """Strictly: XLA cannot pass this in their place."""
    device = devices.running_device()
    assert device is not None
    assert device.family is not None
    cases = SIXTEEN_BITS[first : first + CHUNK]
    (results,) = matmuls(cases, [jaxbw.dot_general], implementation=device.family)
    for case, result in zip(cases, results, strict=True):
        wanted = case.reference(*case.operands()).astype(result.dtype)
        np.testing.assert_array_equal(result, wanted, str(case))


def bound(case: Case, lhs: Any, rhs: Any, dtype: Any) -> Any:
    """What rounding explains: of operands to TF32, of K terms and their sums, of the result."""
    magnitude = case.reference(np.abs(lhs), np.abs(rhs))
    k = int(np.prod([lhs.shape[i] for i in case.shapes.dims[0][0]]))
    sums = 2 * k * ROUNDOFF["float64" if case.lhs_dtype == "float64" else "float32"]
    as_tf32 = case.lhs_dtype == "float32" and case.precision != Precision.HIGHEST
    operands = 2 * TF32 + TF32**2 if as_tf32 else 0.0
    inner = (1 + operands) * (1 + sums) - 1
    return ((1 + ROUNDOFF[np.dtype(dtype).name]) * (1 + inner) - 1) * magnitude


@pytest.mark.parametrize("first", range(0, len(FLOATING), CHUNK))
def test_within_the_bound(first: int) -> None:
    """Normal operands, against float64."""
    generator = np.random.default_rng(first)
    for case in taken(FLOATING[first : first + CHUNK]):
        lhs, rhs = (
            np.asarray(generator.standard_normal(shape)).astype(jnp.dtype(dtype))
            for shape, dtype in (
                (case.shapes.lhs, case.lhs_dtype),
                (case.shapes.rhs, case.rhs_dtype),
            )
        )
        result = np.asarray(
            jax.jit(lambda x, y, case=case: case(jaxbw.dot_general, x, y))(lhs, rhs)
        )
        error = np.abs(result.astype(np.float64) - case.reference(lhs, rhs))
        assert (error <= bound(case, lhs, rhs, result.dtype)).all(), case
