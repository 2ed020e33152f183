"""Products for the direct launcher: what is multiplied, how it is launched, and what must come out.

The oracle is NumPy in float64. Serves the tests here and, under compute-sanitizer, sanitize.py.
"""

import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from jaxbw import _native
from jaxbw.selection.kernel_table import Kernel

DTYPES: dict[str, tuple[Any, _native.DataType]] = {
    "bf16": (ml_dtypes.bfloat16, _native.DataType.BF16),
    "f16": (np.float16, _native.DataType.F16),
    "f32": (np.float32, _native.DataType.F32),
}
ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-24}  # unit roundoff
SMALLEST = {"bf16": 2.0**-134, "f16": 2.0**-25, "f32": 2.0**-150}  # half of the least subnormal

# The tensor core truncates where float32 addition rounds, and adds in an order of its own: twice
# the textbook bound K * 2^-24 * (|A| @ |B|).
ACCUMULATION = 2 * 2.0**-24
# The activations are built on ex2.approx and rcp.approx: a few ulp each. Their slope is below 1.2.
ACTIVATION = 2.0**-20
SLOPE = 1.2

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """One product and its launch configuration."""

    m: int
    n: int
    k: int
    batch: int = 1
    shared: tuple[str, ...] = ()  # operands with one matrix for all batch indices
    layout: str = "nn"
    dtype: str = "bf16"
    output: str = "f32"
    bias: str | None = None
    activation: str = "none"
    block_n: int = 128
    cluster: tuple[int, int] = (1, 1)
    cta_group: int = 1
    stages: int | None = None  # None: as many as fit
    swizzle: int = 1
    integers: bool = True  # then float32 holds every partial sum, and the result is exact
    family: str = "sm90"

    def __str__(self) -> str:
        """A test id: the shape, then what is not the default."""
        parts = [f"{self.m}x{self.n}x{self.k}"]
        for name, spec in self.__dataclass_fields__.items():
            value = getattr(self, name)
            if name not in ("m", "n", "k") and value != spec.default:
                parts.append(f"{name}={value}".replace(" ", ""))
        return "-".join(parts)

    @property
    def lhs_major(self) -> _native.Major:
        return _native.Major.K if self.layout[0] == "n" else _native.Major.MN

    @property
    def rhs_major(self) -> _native.Major:
        return _native.Major.MN if self.layout[1] == "n" else _native.Major.K


@dataclass(frozen=True)
class Operands:
    """lhs [batch|1, m, k], rhs [batch|1, k, n] and bias [n], in the dtypes of their case."""

    lhs: npt.NDArray[Any]
    rhs: npt.NDArray[Any]
    bias: npt.NDArray[Any] | None = None


def kernels() -> tuple[Kernel, ...]:
    """The installed kernels."""
    manifest = Path(_native.__file__).parent / "kernels" / "manifest.json"
    entries = json.loads(manifest.read_text())["kernels"]
    return tuple(Kernel.from_json(entry) for entry in entries)


def kernel_for(case: Case) -> str:
    """The name of the installed kernel that serves a case."""
    (name,) = (
        kernel.name
        for kernel in kernels()
        if kernel.family == case.family
        and kernel.input in (case.dtype, "16bit")
        and kernel.layout in (case.layout, "any")
        and kernel.block_n in (case.block_n, None)
        and kernel.cta_group == case.cta_group
    )
    return name


def device_for(family: str) -> int | None:
    """The first device that runs kernels of a family; None where there is none."""
    for device in _native.devices():
        major, minor = device.compute_capability
        if (major, minor) == (9, 0) if family == "sm90" else major == 10:
            return device.ordinal
    return None


def operands(case: Case) -> Operands:
    """Random operands, the same on every run.

    Integers are so small that float32 holds every sum of K products exactly.
    """
    random = np.random.default_rng(zlib.crc32(str(case).encode()))
    largest = max(1, min(8, math.isqrt(2**23 // case.k)))

    def draw(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
        if case.integers:
            values = random.integers(-largest, largest + 1, shape).astype(np.float64)
        else:
            values = random.standard_normal(shape)
        return values.astype(DTYPES[dtype][0])

    lhs_batch, rhs_batch = (1 if name in case.shared else case.batch for name in ("lhs", "rhs"))
    return Operands(
        draw((lhs_batch, case.m, case.k), case.dtype),
        draw((rhs_batch, case.k, case.n), case.dtype),
        None if case.bias is None else draw((case.n,), case.bias),
    )


def launch(
    case: Case,
    given: Operands,
    *,
    device: int | None = None,
    repeats: int = 1,
    guard_bytes: int = 4096,
) -> npt.NDArray[Any]:
    """The kernel's result [batch, m, n], by default on the first device that fits."""
    output, output_type = DTYPES[case.output]
    block_m = 128 * case.cta_group
    stages = case.stages
    if stages is None:
        stages = _native.max_stages(case.family, block_m, case.block_n, case.cta_group)
    data = _native.launch_gemm(
        _stored(given.lhs, case.layout[0]),
        _stored(given.rhs, case.layout[1]),
        None if given.bias is None else given.bias.view(f"u{given.bias.itemsize}"),
        kernel=kernel_for(case),
        lhs_dtype=DTYPES[case.dtype][1],
        output=output_type,
        bias_dtype=None if case.bias is None else DTYPES[case.bias][1],
        lhs_major=case.lhs_major,
        rhs_major=case.rhs_major,
        activation=_native.Activation[case.activation.upper()],
        block_m=block_m,
        block_n=case.block_n,
        cluster_m=case.cluster[0],
        cluster_n=case.cluster[1],
        cta_group=case.cta_group,
        stages=stages,
        swizzle=case.swizzle,
        device=(device_for(case.family) or 0) if device is None else device,
        repeats=repeats,
        guard_bytes=guard_bytes,
    )
    result: npt.NDArray[Any] = data.view(output).reshape(case.batch, case.m, case.n)
    return result


def _stored(matrices: npt.NDArray[Any], letter: str) -> npt.NDArray[np.uint16]:
    """The bits of a batch of matrices as they lie in memory: row by row, or column by column."""
    stored = matrices if letter == "n" else matrices.swapaxes(1, 2)
    return np.ascontiguousarray(stored).view(np.uint16)


def expected(case: Case, given: Operands) -> tuple[Values, Values]:
    """The result in float64, before the cast to the output dtype, and the error that is allowed."""
    lhs, rhs = given.lhs.astype(np.float64), given.rhs.astype(np.float64)
    total = lhs @ rhs
    magnitude = np.abs(lhs) @ np.abs(rhs)
    if given.bias is not None:
        total = total + given.bias.astype(np.float64)
        magnitude = magnitude + np.abs(given.bias.astype(np.float64))
    result = _activate(case.activation, total)
    allowed = SLOPE * ACCUMULATION * (case.k + 1) * magnitude
    if case.activation in ("gelu", "silu"):
        allowed = allowed + ACTIVATION * np.abs(total)
    # Casting rounds what was computed, which may be off by `allowed` already.
    rounding = ROUNDING[case.output] * (np.abs(result) + allowed) + SMALLEST[case.output]
    return result, allowed + rounding


def _activate(name: str, x: Values) -> Values:
    match name:
        case "none":
            return x
        case "relu":
            return np.maximum(x, 0.0)
        case "gelu":
            return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
        case "silu":
            return 0.5 * x * (1.0 + np.tanh(0.5 * x))
    raise ValueError(f"unknown activation {name!r}")


def check(case: Case, *, repeats: int = 1, guard_bytes: int = 4096) -> None:
    """Launches a case and compares every element with the oracle.

    Raises:
      AssertionError: an element is wrong, or was not written.
    """
    given = operands(case)
    verify(case, given, launch(case, given, repeats=repeats, guard_bytes=guard_bytes))


def verify(case: Case, given: Operands, result: npt.NDArray[Any]) -> None:
    """Compares a result with the oracle.

    Raises:
      AssertionError: an element is wrong, or was not written.
    """
    reference, allowed = expected(case, given)
    exact = case.integers and case.activation in ("none", "relu")
    with np.errstate(over="ignore"):  # f16 overflows to infinity, in the kernel as here
        rounded = reference.astype(DTYPES[case.output][0])
    if exact:
        wrong = result != rounded
    else:
        wrong = ~(np.abs(result.astype(np.float64) - reference) <= allowed)
    if wrong.any():
        raise AssertionError(_report(case, result, rounded, wrong))


def _report(
    case: Case, result: npt.NDArray[Any], rounded: npt.NDArray[Any], wrong: npt.NDArray[np.bool_]
) -> str:
    places = np.argwhere(wrong)
    low, high = places.min(axis=0), places.max(axis=0)
    first = tuple(places[0])
    unwritten = np.isnan(result.astype(np.float32)).sum()
    return (
        f"{case}: {len(places)} of {result.size} elements are wrong, {unwritten} are NaN (as the "
        f"poison is), within [batch, m, n] {low.tolist()}..{high.tolist()}; the first is "
        f"{result[first]} at {places[0].tolist()} where {rounded[first]} belongs"
    )
