"""`precision` and `preferred_element_type` mean what they mean to lax.dot_general.

A kernel serves where it computes no less than what is asked for: exact matmuls (of TF32 roundings
or bfloat16 pieces, for float32) and float32 sums. All else is XLA's, in lax's own words.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.lax import DotAlgorithmPreset, Precision

import jaxbw

Operand = Callable[..., Any]
Lower = Callable[..., str]
Calls = Callable[[str], list[str]]

DIMS = (((1,), (0,)), ((), ()))
PRECISIONS = [
    None,
    *Precision,
    (Precision.HIGHEST, Precision.DEFAULT),
    *DotAlgorithmPreset,
    lax.DotAlgorithm(jnp.bfloat16, jnp.bfloat16, jnp.float32),
]
NAMES = [
    "default",
    "high",
    "highest",
    "bfloat16",
    "tensorfloat32",
    "float32",
    *(preset.name for preset in DotAlgorithmPreset if preset is not DotAlgorithmPreset.DEFAULT),
]

# What kernels do natively.
_SIXTEEN_BITS = [
    None,
    *Precision,
    (Precision.HIGHEST, Precision.DEFAULT),
    DotAlgorithmPreset.DEFAULT,
]
_TF32 = [
    None,
    Precision.DEFAULT,
    DotAlgorithmPreset.DEFAULT,
    DotAlgorithmPreset.TF32_TF32_F32,
]
_PIECES = [
    DotAlgorithmPreset.BF16_BF16_F32,
    DotAlgorithmPreset.BF16_BF16_F32_X3,
    DotAlgorithmPreset.BF16_BF16_F32_X6,
    DotAlgorithmPreset.BF16_BF16_F32_X9,
]
NATIVE: dict[tuple[str, str], list[Any]] = {
    ("sm90", "bfloat16"): [*_SIXTEEN_BITS, DotAlgorithmPreset.BF16_BF16_F32],
    ("sm90", "float16"): [*_SIXTEEN_BITS, DotAlgorithmPreset.F16_F16_F32],
    ("sm90", "float32"): _PIECES,  # TF32 if it is asked for by name
    ("sm100", "bfloat16"): [*_SIXTEEN_BITS, DotAlgorithmPreset.BF16_BF16_F32],
    ("sm100", "float16"): [*_SIXTEEN_BITS, DotAlgorithmPreset.F16_F16_F32],
    ("sm100", "float32"): [*_TF32, *_PIECES],
}


def outcome(lower: Lower, matmul: Callable[..., Any], *operands: Any) -> Any:
    """The operations of a program for CUDA, or the error of one that lax does not lower."""
    try:
        text = lower(lambda *x: matmul(*x), *operands)
    except ValueError as error:
        return type(error), str(error)
    return [line for line in text.splitlines() if "stablehlo." in line]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
def test_a_kernel_where_it_is_native_else_lax(
    precision: Any, dtype: str, family: str, operand: Operand, cuda_hlo: Lower, custom_calls: Calls
) -> None:
    lhs, rhs = operand((64, 128), dtype), operand((128, 96), dtype, 1)
    keywords: dict[str, Any] = {"dimension_numbers": DIMS, "precision": precision}
    matmul = functools.partial(jaxbw.dot_general, **keywords)
    choice = jaxbw.explain(lhs, rhs, **keywords)
    if precision in NATIVE[family, dtype]:
        assert choice.implementation == family
        assert len(custom_calls(cuda_hlo(matmul, lhs, rhs))) == 1
        return
    assert choice.implementation == "xla"
    (refusal,) = choice.refused
    on_request = family == "sm90" and dtype == "float32" and precision in _TF32
    assert ("asks for the kernel" if on_request else "precision is") in refusal.reason
    expected = outcome(cuda_hlo, functools.partial(lax.dot_general, **keywords), lhs, rhs)
    assert outcome(cuda_hlo, matmul, lhs, rhs) == expected


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_the_context_is_the_argument(
    name: str, family: str, operand: Operand, cuda_hlo: Lower, custom_calls: Calls
) -> None:
    """What jax.default_matmul_precision sets is what `precision` would say."""
    for dtype in ("bfloat16", "float16", "float32"):
        lhs, rhs = operand((64, 128), dtype), operand((128, 96), dtype, 1)
        explicit = functools.partial(jaxbw.matmul, precision=name)
        expected = outcome(cuda_hlo, explicit, lhs, rhs)
        with jax.default_matmul_precision(name):
            assert outcome(cuda_hlo, jaxbw.matmul, lhs, rhs) == expected
            # The argument wins over the context.
            asked = functools.partial(jaxbw.matmul, precision="default")
            named = jaxbw.explain(lhs, rhs, precision="default").implementation
            assert bool(custom_calls(cuda_hlo(asked, lhs, rhs))) == (named == family)


@pytest.mark.parametrize("name", NAMES)
def test_eager_calls_agree_with_lax(name: str, operand: Operand) -> None:
    """On the CPU, bit for bit, and error for error; without retracing the wrong context."""
    lhs, rhs = operand((16, 32), "float32"), operand((32, 8), "float32", 1)

    def result(matmul: Callable[..., Any]) -> Any:
        try:
            return np.asarray(matmul(lhs, rhs, DIMS))
        except ValueError as error:
            return str(error)

    with jax.default_matmul_precision(name):
        ours, theirs = result(jaxbw.dot_general), result(lax.dot_general)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("preferred", ["bfloat16", "float16", "float32", "int32", "int8"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8"])
def test_preferred_element_type(
    dtype: str, preferred: str, family: str, operand: Operand, cuda_hlo: Lower, custom_calls: Calls
) -> None:
    lhs, rhs = operand((64, 128), dtype), operand((128, 96), dtype, 1)
    keywords: dict[str, Any] = {"dimension_numbers": DIMS, "preferred_element_type": preferred}
    ours = functools.partial(jaxbw.dot_general, **keywords)
    theirs = functools.partial(lax.dot_general, **keywords)
    errors = []
    for matmul in (ours, theirs):
        try:
            expected = jax.eval_shape(matmul, lhs, rhs)
        except TypeError as error:
            errors.append(str(error))
    if errors:
        assert len(set(errors)) == 1 < len(errors)
        return
    assert jax.eval_shape(ours, lhs, rhs) == expected
    kernels = dtype in (
        ("bfloat16", "float16", "float32") if family == "sm100" else ("bfloat16", "float16")
    )
    text = cuda_hlo(ours, lhs, rhs)
    if kernels and expected.dtype.name in ("bfloat16", "float16", "float32"):
        (call,) = custom_calls(text)
        short = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}[expected.dtype.name]
        assert f"tensor<1x64x96x{short}>" in call.split(" -> ")[1]
    else:
        assert outcome(cuda_hlo, ours, lhs, rhs) == outcome(cuda_hlo, theirs, lhs, rhs)


@pytest.mark.parametrize("fused", [False, True])
def test_the_gradients_matmuls_have_laxs_precisions(
    fused: bool, operand: Operand, cuda_hlo: Lower
) -> None:
    """The cotangent has that of lhs, whichever operand it is; the other factor that of rhs."""
    lhs, rhs, bar = (operand(shape, "float32") for shape in ((16, 32), (32, 8), (16, 8)))
    precision = (Precision.HIGHEST, Precision.DEFAULT)

    def matmuls(matmul: Callable[..., Any]) -> list[Any]:
        """Of each matmul, the shapes of its factors and their precisions."""

        def step(*given: Any) -> Any:
            out, pull_back = jax.vjp(lambda x, y: matmul(x, y, DIMS, precision), *given)
            return out, pull_back(bar)

        found = re.findall(
            r"dot_general .*precision = \[(\w+), (\w+)\].*: \(tensor<(\w+)>, tensor<(\w+)>\)",
            cuda_hlo(step, lhs, rhs),
        )
        return sorted(sorted([(x, of_x), (y, of_y)]) for of_x, of_y, x, y in found)

    ours = functools.partial(jaxbw.dot_general, alpha=2.0) if fused else jaxbw.dot_general
    assert matmuls(ours) == matmuls(lax.dot_general)
    assert len(matmuls(ours)) == 3
