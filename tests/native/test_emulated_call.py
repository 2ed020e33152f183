"""The custom call on platform cpu: the whole chain of kernels in the emulator, strictly checked."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxbw import _native

from .fake_driver.matmul import DTYPES, PAIR, SM90, SM100, Matmul, Values

CALLS = {
    "unaligned": Matmul(37, 21, 75),
    "unaligned pair": Matmul(37, 21, 75, layout="tt", output="f16", family="sm100", config=PAIR),
    "unaligned gated": Matmul(
        40, 21, 75, gated=True, save=True, output="bf16", family="sm100", config=SM100
    ),
    "tf32": Matmul(37, 21, 75, dtype="f32", family="sm100", config=SM100),
    "tf32 MN-major": Matmul(136, 72, 100, layout="tt", dtype="f32", family="sm100", config=PAIR),
    "split": Matmul(200, 136, 300, config=SM90 | {"split_k": 3}),
    "many parts": Matmul(200, 136, 300, config=SM90 | {"split_k": 5}, bias="f32", output="bf16"),
    "many parts, unaligned": Matmul(70, 51, 635, gated=True, config=SM90 | {"split_k": 4}),
    "many parts, tail": Matmul(
        *(600, 300, 300), config=SM90 | {"split_k": 4, "split_tail": 1, "wave": 4}
    ),
    "split pair": Matmul(200, 300, 300, family="sm100", config=PAIR | {"split_k": 3}),
    "split and unaligned": Matmul(70, 51, 139, family="sm100", config=SM100 | {"split_k": 2}),
    "split tail": Matmul(
        *(600, 500, 200),
        layout="nt",
        family="sm100",
        config=PAIR
        | {"block_m": 512, "block_n": 64, "split_k": 2, "split_tail": 1, "wave": 3},
    ),
    "swapped": Matmul(
        *(24, 264, 72),
        bias="f32",
        c="f32",
        beta=1.0,
        residual="bf16",
        save=True,
        family="sm100",
        config=SM100 | {"swap_ab": 1, "block_n": 32},
    ),
    "swapped and unaligned": Matmul(
        *(21, 135, 73), output="bf16", family="sm100", config=SM100 | {"swap_ab": 1, "block_n": 64}
    ),
}  # fmt: skip


def call(matmul: Matmul, operands: list[Values]) -> list[Values]:
    """The results of the custom call without the workspace."""
    given = matmul.attributes
    results: list[Any] = [
        jax.ShapeDtypeStruct(values.shape, values.dtype) for values in matmul.expected(operands)
    ]
    count = len(results)
    lhs, rhs = operands[:2]
    size, _ = _native.scratch(lhs.shape, rhs.shape, DTYPES[matmul.dtype][1], given)
    if size:
        results.append(jax.ShapeDtypeStruct((size,), np.uint8))
    wrap = {str: str, int: np.int32, float: np.float32}
    typed = {name: wrap[type(value)](value) for name, value in given.items()}
    found = jax.ffi.ffi_call("jaxbw_gemm_v10", results)(*operands, **typed)
    return [np.asarray(values) for values in found[:count]]


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_emulated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXBW_EMULATOR_CHECKS", "strict")
    matmul = CALLS[name]
    operands = matmul.operands()
    found = call(matmul, operands)
    for values, expected in zip(found, matmul.expected(operands), strict=True):
        np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("name", ["split tail", "many parts"])
def test_a_split_call_is_the_same_on_several_cores(name: str) -> None:
    matmul = CALLS[name]
    operands = matmul.operands()
    (expected,) = matmul.expected(operands)
    for _ in range(2):
        (found,) = call(matmul, operands)
        np.testing.assert_array_equal(found, expected)
