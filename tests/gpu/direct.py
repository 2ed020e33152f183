"""Products for the direct launcher: what is multiplied, how it is launched, and what must come out.

The oracle is NumPy in float64. Serves the tests here and, under compute-sanitizer, sanitize.py.
"""

import json
import math
import zlib
from collections.abc import Sequence
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
    "f32": (np.float32, _native.DataType.F32),  # operands: multiplied as TF32
}
ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-24}  # unit roundoff
SMALLEST = {"bf16": 2.0**-134, "f16": 2.0**-25, "f32": 2.0**-150}  # half of the least subnormal

# The tensor core truncates where float32 addition rounds, and adds in an order of its own: twice
# the textbook bound K * 2^-24 * (|A| @ |B|).
ACCUMULATION = 2 * 2.0**-24
# The activations are built on ex2.approx and rcp.approx: a few ulp each. Their slope is below 1.2.
ACTIVATION = 2.0**-20
SLOPE = 1.2
BETA = 0.5  # exact, so that integers stay exact
SCHEDULERS = ("static", "clc", "none")

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """One product with its epilogue, and its launch configuration."""

    m: int
    n: int
    k: int
    batch: int = 1
    shared: tuple[str, ...] = ()  # operands with one matrix for all batch indices
    layout: str = "nn"
    dtype: str = "bf16"
    output: str = "f32"
    alpha: float = 1.0
    c: str | None = None
    in_place: bool = False  # c lies where d goes
    bias: str | None = None
    bias_along_m: bool = False
    activation: str = "none"
    residual: str | None = None
    gated: bool = False
    save: bool = False
    block_m: int | None = None  # None: 128 rows for each CTA of the group
    block_n: int = 128
    cluster: tuple[int, int] = (1, 1)
    cta_group: int = 1
    stages: int | None = None  # None: as many as fit
    swizzle: int = 1
    raster: str = "m"
    split_k: int = 1
    split_tail: bool = False
    swap_ab: bool = False
    store_buffers: int = 2
    tma_store: bool = True
    scheduler: str = "static"
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
    def rows(self) -> int:
        """block_m, filled in."""
        return self.block_m or 128 * self.cta_group

    @property
    def kernel(self) -> str:
        """The name of the kernel that serves it: it sees swapped operands where they are."""
        if self.family == "sm100":
            kind = "tf32" if self.dtype == "f32" else "16bit"
            return f"jaxbw_sm100_{kind}_{self.cta_group}cta"
        swapped = "".join("nt"[letter == "n"] for letter in reversed(self.layout))
        layout = swapped if self.swap_ab else self.layout
        return f"jaxbw_sm90_{self.dtype}_{layout}_{self.rows}x{self.block_n}x64"

    def attributes(self, sm_count: int) -> dict[str, str | int | float]:
        """All attributes of the custom call, on a GPU of so many SMs."""
        stages = self.stages
        if stages is None:
            stages = _native.max_stages(self.family, self.rows, self.block_n, self.cta_group)
        cluster_m, cluster_n = self.cluster
        return {
            "kernel": self.kernel,
            "alpha": self.alpha,
            "beta": BETA,
            "has_c": int(self.c is not None),
            "has_bias": int(self.bias is not None),
            "has_residual": int(self.residual is not None),
            "bias_along_m": int(self.bias_along_m),
            "gated": int(self.gated),
            "save": int(self.save),
            "activation": _native.Activation[self.activation.upper()].value,
            "lhs_major": _native.Major["K" if self.layout[0] == "n" else "MN"].value,
            "rhs_major": _native.Major["MN" if self.layout[1] == "n" else "K"].value,
            "block_m": self.rows,
            "block_n": self.block_n,
            "k_spans": 1,
            "cluster_m": cluster_m,
            "cluster_n": cluster_n,
            "cta_group": self.cta_group,
            "stages": stages,
            "swizzle": self.swizzle,
            "raster": int(self.raster == "n"),
            "split_k": self.split_k,
            "split_tail": int(self.split_tail),
            "wave": sm_count // (cluster_m * cluster_n) if self.split_tail else 0,
            "swap_ab": int(self.swap_ab),
            "accumulators": 2 if self.family == "sm100" else 1,
            "store_buffers": self.store_buffers,
            "tma_store": int(self.tma_store),
            "operand_swizzle": 1,
            "scheduler": SCHEDULERS.index(self.scheduler),
        }


@dataclass(frozen=True)
class Operands:
    """The arrays of a case, in its dtypes, matrices row by row: lhs [batch|1, m, k], and so on."""

    lhs: npt.NDArray[Any]
    rhs: npt.NDArray[Any]
    rhs_up: npt.NDArray[Any] | None = None
    c: npt.NDArray[Any] | None = None
    bias: npt.NDArray[Any] | None = None
    residual: npt.NDArray[Any] | None = None


def kernels() -> tuple[Kernel, ...]:
    """The installed GEMM kernels."""
    manifest = Path(_native.__file__).parent / "kernels" / "manifest.json"
    entries = json.loads(manifest.read_text())["kernels"]
    return tuple(kernel for kernel in map(Kernel.from_json, entries) if kernel.role == "gemm")


def device_for(family: str) -> int | None:
    """The first device that runs kernels of a family; None where there is none."""
    for device in _native.devices():
        major, minor = device.compute_capability
        if (major, minor) == (9, 0) if family == "sm90" else major == 10:
            return device.ordinal
    return None


def operands(case: Case) -> Operands:
    """Random operands, the same on every run.

    Integers are so small that float32 holds every sum of K products exactly, in halves, and the
    product of the two sums of a gated product.
    """
    random = np.random.default_rng(zlib.crc32(str(case).encode()))
    largest = 1 if case.gated else max(1, min(8, math.isqrt(2**21 // case.k)))

    def draw(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
        if case.integers:
            values = random.integers(-largest, largest + 1, shape).astype(np.float64)
        else:
            values = random.standard_normal(shape)
        return values.astype(DTYPES[dtype][0])

    def optional(shape: tuple[int, ...], dtype: str | None) -> npt.NDArray[Any] | None:
        return None if dtype is None else draw(shape, dtype)

    lhs_batch, rhs_batch = (1 if name in case.shared else case.batch for name in ("lhs", "rhs"))
    full = (case.batch, case.m, case.n)
    return Operands(
        draw((lhs_batch, case.m, case.k), case.dtype),
        draw((rhs_batch, case.k, case.n), case.dtype),
        rhs_up=optional((rhs_batch, case.k, case.n), case.dtype if case.gated else None),
        c=optional(full, case.c),
        bias=optional((case.m if case.bias_along_m else case.n,), case.bias),
        residual=optional(full, case.residual),
    )


def launch(
    case: Case,
    given: Operands,
    *,
    device: int | None = None,
    repeats: int = 1,
    guard_bytes: int = 4096,
) -> list[npt.NDArray[Any]]:
    """d and what is saved, each [batch, m, n], by default on the first device that fits."""
    ordinal = (device_for(case.family) or 0) if device is None else device
    sm_count = next((d.sm_count for d in _native.devices() if d.ordinal == ordinal), 1)
    stored = [
        (_stored(given.lhs, case.layout[0]), case.dtype),
        (_stored(given.rhs, case.layout[1]), case.dtype),
        (None if given.rhs_up is None else _stored(given.rhs_up, case.layout[1]), case.dtype),
        (given.c, case.c),
        (given.bias, case.bias),
        (given.residual, case.residual),
    ]
    output, output_type = DTYPES[case.output]
    results = _native.launch_gemm(
        [x.view(f"u{x.itemsize}") for x, _ in stored if x is not None],
        [DTYPES[dtype or ""][1] for x, dtype in stored if x is not None],
        output_type,
        case.attributes(sm_count),
        alias_c=case.in_place,
        device=ordinal,
        repeats=repeats,
        guard_bytes=guard_bytes,
    )
    return [data.view(output).reshape(case.batch, case.m, case.n) for data in results]


def _stored(matrices: npt.NDArray[Any], letter: str) -> npt.NDArray[Any]:
    """A batch of matrices as they lie in memory: row by row, or column by column."""
    return np.ascontiguousarray(matrices if letter == "n" else matrices.swapaxes(1, 2))


def expected(case: Case, given: Operands) -> list[tuple[Values, Values]]:
    """The results in float64, before the cast, each with the error that it may have till then."""

    def wide(x: npt.NDArray[Any]) -> Values:
        return x.astype(np.float64)

    def sums(rhs: npt.NDArray[Any]) -> tuple[Values, Values]:
        left, right = wide(given.lhs), wide(rhs)
        allowed = ACCUMULATION * (case.k + case.split_k + 2) * (np.abs(left) @ np.abs(right))
        return case.alpha * (left @ right), abs(case.alpha) * allowed

    z, error = sums(given.rhs)
    if given.c is not None:
        z = z + BETA * wide(given.c)
        error = error + ACCUMULATION * np.abs(wide(given.c))
    if given.bias is not None:
        bias = wide(given.bias)[:, None] if case.bias_along_m else wide(given.bias)
        z, error = z + bias, error + ACCUMULATION * np.abs(bias)
    error = error + ACCUMULATION * np.abs(z)
    d = activate(case.activation, z)
    d_error = SLOPE * error + (ACTIVATION * np.abs(z) if _smooth(case) else 0.0)
    saved = [(z, error)]
    if given.rhs_up is not None:
        up, up_error = sums(given.rhs_up)
        saved.append((up, up_error))
        d, d_error = d * up, d_error * (np.abs(up) + up_error) + np.abs(d) * up_error
    if given.residual is not None:
        d = d + wide(given.residual)
        d_error = d_error + ACCUMULATION * np.abs(wide(given.residual))
    d_error = d_error + ACCUMULATION * np.abs(d)
    return [(d, d_error), *(saved if case.save else [])]


def _smooth(case: Case) -> bool:
    """Whether the activation makes of integers something that is rounded."""
    return case.activation not in ("none", "relu")


def activate(name: str, x: Values) -> Values:
    """The activation, in float64."""
    match name:
        case "none":
            return x
        case "relu":
            return np.maximum(x, 0.0)
        case "gelu":
            return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
        case "gelu_exact":
            erf: Values = np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2.0))
            return 0.5 * x * (1.0 + erf)
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


def verify(case: Case, given: Operands, results: Sequence[npt.NDArray[Any]]) -> None:
    """Compares the results with the oracle.

    Raises:
      AssertionError: an element is wrong, or was not written.
    """
    names = ("d", "saved", "saved_up")[: len(results)]
    for name, result, (reference, error) in zip(names, results, expected(case, given), strict=True):
        with np.errstate(over="ignore"):  # f16 overflows to infinity, in the kernel as here
            rounded = reference.astype(DTYPES[case.output][0])
        if case.integers and not (name == "d" and _smooth(case)):
            wrong = result != rounded
        else:
            # Casting rounds what was computed, which may be off by `error` already.
            unit, least = ROUNDING[case.output], SMALLEST[case.output]
            allowed = error + unit * (np.abs(reference) + error) + least
            with np.errstate(over="ignore", invalid="ignore"):
                wrong = ~(np.abs(result.astype(np.float64) - reference) <= allowed)
            wrong &= ~(np.isinf(rounded) & (result == rounded))
        if wrong.any():
            raise AssertionError(_report(case, name, result, rounded, wrong))


def _report(
    case: Case,
    name: str,
    result: npt.NDArray[Any],
    rounded: npt.NDArray[Any],
    wrong: npt.NDArray[np.bool_],
) -> str:
    places = np.argwhere(wrong)
    low, high = places.min(axis=0), places.max(axis=0)
    first = tuple(places[0])
    unwritten = np.isnan(result.astype(np.float32)).sum()
    return (
        f"{case}: {len(places)} of {result.size} elements of {name} are wrong, {unwritten} are NaN "
        f"(as the poison is), within [batch, m, n] {low.tolist()}..{high.tolist()}; the first is "
        f"{result[first]} at {places[0].tolist()} where {rounded[first]} belongs"
    )
