"""Launches cases on a GPU by the direct launcher: host arrays, no XLA.

What is multiplied, and what must come out, is said in ../emulator/gemm_cases.py. Serves the tests
here, the fuzzer and, under compute-sanitizer, sanitize.py.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxbw import _native
from jaxbw._src.selection.kernel_table import Kernel

from ..emulator import gemm_cases
from ..emulator.gemm_cases import OPERANDS, verify_results
from ..emulator.gemm_launch import Matmul, saved_type

TYPES = {
    "bf16": _native.DataType.BF16,
    "f16": _native.DataType.F16,
    "f32": _native.DataType.F32,  # operands: multiplied as TF32
    "e4m3": _native.DataType.E4M3,
    "e5m2": _native.DataType.E5M2,
}
GUARD = 4096  # bytes

Results = list[npt.NDArray[Any]]


@dataclass(frozen=True)
class Case(gemm_cases.Case):
    """A case whose family is Hopper's where it does not say which."""

    family: str = "sm90"


def kernels(family: str | None = None) -> tuple[Kernel, ...]:
    """The installed GEMM kernels, of all families or of one."""
    return tuple(kernel for kernel in gemm_cases.gemms() if family in (None, kernel.family))


def device_for(family: str) -> _native.DeviceInfo | None:
    """The first device that runs kernels of a family; None where there is none."""
    for device in _native.devices():
        major, minor = device.compute_capability
        if (major, minor) == (9, 0) if family == "sm90" else major == 10:
            return device
    return None


def attributes(case: gemm_cases.Case, sm_count: int) -> dict[str, str | int | float]:
    """All attributes of the custom call, on a GPU of so many SMs."""
    ctas = case.plan().cluster_ctas
    return case.plan(max(1, sm_count // ctas)).attributes


def launch(
    case: gemm_cases.Case,
    matmul: Matmul,
    *,
    repeats: int = 1,
    guard_bytes: int = GUARD,
    **options: Any,
) -> Results:
    """d and what is saved, each [batch, m, n], and amax, on the first device that runs the kernel.

    `options` are more of `_native.launch_gemm`.
    """
    device = device_for(case.family)
    left, right = case.dtype, case.rhs_dtype or case.dtype
    stored = [
        (_stored(matmul.lhs.astype(OPERANDS[left]), case.layout[0]), left),
        (_stored(matmul.rhs.astype(OPERANDS[right]), case.layout[1]), right),
    ]
    if matmul.rhs_up is not None:
        stored.append((_stored(matmul.rhs_up.astype(OPERANDS[right]), case.layout[1]), right))
    for array, dtype in (
        (matmul.c, case.c),
        (matmul.bias, case.bias),
        (matmul.residual, case.residual),
    ):
        if array is not None and dtype is not None:
            stored.append((array, dtype))
    stored += [(numbers, "f32") for numbers in (matmul.factors | matmul.scales).values()]
    results = _native.launch_gemm(
        [x.view(f"u{x.itemsize}") for x, _ in stored],
        [TYPES[dtype] for _, dtype in stored],
        TYPES[case.output],
        attributes(case, device.sm_count if device else 1),
        alias_c=case.in_place,
        device=device.ordinal if device else 0,
        repeats=repeats,
        guard_bytes=guard_bytes,
        **options,
    )
    shape = case.batch, case.m, case.n
    output = OPERANDS[case.output]
    saves = case.save * (1 + case.gated)
    types: list[Any] = [(output, shape), *[(saved_type(output), shape)] * saves]
    types += [(np.float32, shape[:1])] * (case.out_scale is not None)
    return [data.view(dtype).reshape(of) for data, (dtype, of) in zip(results, types, strict=True)]


def check(case: gemm_cases.Case, **options: Any) -> None:
    """Launches a case, by the options of `launch`, and compares every element with the oracle.

    Raises:
      AssertionError: an element is wrong, or was not written.
      ValueError, RuntimeError: the launch was refused, failed, wrote outside its results, or two
        launches differ.
    """
    matmul = case.matmul()
    verify_results(case, matmul, launch(case, matmul, **options))


def _stored(matrices: npt.NDArray[Any], letter: str) -> npt.NDArray[Any]:
    """A batch of matrices as they lie in memory: row by row, or column by column."""
    return np.ascontiguousarray(matrices if letter == "n" else matrices.swapaxes(1, 2))
