"""Kernels that somebody else's compiler made, run in the emulator: GEMMs and other layers."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from jaxbw import emulator

Array = np.ndarray[Any, Any]
BF16, F16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
SCHEDULES = [("eager", 0), ("latest", 0), ("pct", 1), *[("random", seed) for seed in range(4)]]


@dataclass(frozen=True)
class Kernel:
    """A compiled GEMM kernel for one problem, and how to launch it."""

    ptx: str
    cubin: bytes  # by the ptxas that comes with the compiler; for the static report
    grid: tuple[int, int]  # in CTAs
    cluster: tuple[int, int]
    dynamic_smem: int
    arguments: Callable[[Array, Array, Array], list[Any]]  # of lhs, rhs and result, as stored


@dataclass(frozen=True)
class Layer:
    """A compiled kernel that is no GEMM; its arguments are arrays and numbers, then `scratch`."""

    ptx: str
    grid: tuple[int, int]
    dynamic_smem: int
    scratch: list[Any]

    def run(self, *arguments: Any, **options: Any) -> emulator.Report:
        return self.launch(emulator.Module(self.ptx), *arguments, **options)

    def launch(self, module: emulator.Module, *arguments: Any, **options: Any) -> emulator.Report:
        """Launches a module that is `ptx`, or a mutant of it."""
        for each in self.scratch:
            if isinstance(each, np.ndarray):
                each.view(np.uint8)[...] = 0xA5
        return module.launch(
            module.entries()[0],
            grid=self.grid,
            block=_threads(self.ptx),
            dynamic_smem=self.dynamic_smem,
            args=[*arguments, *self.scratch],
            sm_count=2,
            **options,
        )


@dataclass(frozen=True)
class Problem:
    """`[m, k]` by `[k, n]`; an operand may be stored transposed.

    `dtype` is that of both operands and the result; of fp8, the rhs may have its own, and the
    result is bf16.
    """

    m: int
    n: int
    k: int
    dtype: np.dtype[Any] = BF16
    lhs_transposed: bool = False
    rhs_transposed: bool = False
    rhs_dtype: np.dtype[Any] | None = None

    @property
    def dtypes(self) -> tuple[np.dtype[Any], np.dtype[Any], np.dtype[Any]]:
        """Of lhs, rhs and result."""
        rhs = self.dtype if self.rhs_dtype is None else self.rhs_dtype
        return self.dtype, rhs, BF16 if self.dtype.itemsize == 1 else self.dtype

    def operands(self) -> tuple[Array, Array]:
        """Small integers: their matmuls and sums are exact in float32, in any order."""
        rng = np.random.default_rng(self.m * 7 + self.n * 5 + self.k)
        lhs, rhs = (rng.integers(-3, 4, s) for s in ((self.m, self.k), (self.k, self.n)))
        return lhs.astype(np.float32), rhs.astype(np.float32)


def tensor_map(
    array: Array, box: Sequence[int], swizzle: int = 128, **options: Any
) -> emulator.TensorMap:
    """The map of a matrix for a box given as (contiguous, outer)."""
    return emulator.TensorMap.encode(array, box=box, swizzle=swizzle, **options)


def _stored(values: Array, transposed: bool, dtype: np.dtype[Any]) -> Array:
    values = values.T if transposed else values
    array = emulator.empty(values.shape, dtype)
    array[...] = values
    return array


class WrongResult(AssertionError):
    """A result is not what it should be."""

    def __init__(self, report: emulator.Report, options: dict[str, Any]) -> None:
        super().__init__(f"wrong result: {options}; {report.summary()}")
        self.report = report


def _threads(ptx: str) -> int:
    threads = re.search(r"\.reqntid (\d+)", ptx)
    assert threads
    return int(threads[1])


def launcher(kernel: Kernel, problem: Problem) -> Callable[..., emulator.Report]:
    """Makes operands, once, and returns what launches the kernel by options of `Module.launch`.

    It runs on a GPU of two clusters, and its result is compared bit by bit.
    """
    module = emulator.Module(kernel.ptx)
    lhs, rhs = problem.operands()
    lhs_dtype, rhs_dtype, dtype = problem.dtypes
    result = emulator.empty((problem.m, problem.n), dtype)
    arguments = kernel.arguments(
        _stored(lhs, problem.lhs_transposed, lhs_dtype),
        _stored(rhs, problem.rhs_transposed, rhs_dtype),
        result,
    )
    expected = (lhs @ rhs).astype(dtype)

    def launch(**options: Any) -> emulator.Report:
        result.view(np.uint8)[...] = 0xA5
        report = module.launch(
            module.entries()[0],
            grid=kernel.grid,
            block=_threads(kernel.ptx),
            cluster=kernel.cluster,
            dynamic_smem=kernel.dynamic_smem,
            args=arguments,
            sm_count=2 * kernel.cluster[0] * kernel.cluster[1],
            **options,
        )
        if not np.array_equal(result.view(np.uint16), expected.view(np.uint16)):
            raise WrongResult(report, options)
        return report

    return launch
