"""Launches of our kernels as test cases: their operands, and what must come out of them.

Serves the emulator and, through tests/gpu/direct.py, the GPU: the same cases, the same oracle.
"""

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from jaxbw import emulator
from jaxbw._native import Activation, DataType, Major, Plan, Problem, Violation, plan
from jaxbw._src.selection import manifest
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.kernel_table import Kernel

from ..quantized import FORMATS, block_scaled, tiled, untiled
from . import gemm_launch
from .gemm_launch import ACTIVATIONS, E2M1, Config, Matmul, side_by_side

DTYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),  # operands: multiplied as TF32
}
OPERANDS = DTYPES | {
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
INPUT_TYPES = OPERANDS | {"e2m1": E2M1}  # of what may be no result
# By the input of an instance: what its operands may be, each side's.
INPUTS: dict[str, tuple[tuple[str, str], ...]] = {
    "bf16": (("bf16", "bf16"),),
    "f16": (("f16", "f16"),),
    "16bit": (("bf16", "bf16"), ("f16", "f16")),
    "tf32": (("f32", "f32"),),
    **dict.fromkeys(
        ("8bit", "8bit_promoted"),
        tuple((a, b) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
    ),
    "8bit_mx": tuple(
        (a, b)
        for a in ("e4m3", "e5m2", "e2m1")
        for b in ("e4m3", "e5m2", "e2m1")
        if "e2m1" not in (a, b) or a != b
    ),
    "4bit_mx": (("e2m1", "e2m1"),),
}
# Numbers of k that share a scale of an MX format.
MX_BLOCKS = {"8bit_mx": (32,), "4bit_mx": (16, 32)}
# Of results: unit roundoff, and half of the least subnormal number.
ROUNDING = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "e4m3": 2.0**-4, "e5m2": 2.0**-3}
SMALLEST = {
    **{"f16": 2.0**-25, "bf16": 2.0**-134, "f32": 2.0**-150, "e4m3": 2.0**-10, "e5m2": 2.0**-17}
}
NAMES = {dtype: name for name, dtype in OPERANDS.items()}
# A tensor core truncates where float32 addition rounds, and adds in an order of its own: twice the
# textbook bound K * 2^-24 * (|A| @ |B|).
ACCUMULATION = 2 * 2.0**-24
# Hopper truncates the 32 products of an instruction of 8 bits, and the sum so far, to 13 fraction
# bits of the largest of them.
ACCUMULATION_8BIT = 33 * 2.0**-13
ACTIVATION = 2.0**-20  # of functions that are built on ex2.approx and rcp.approx
SLOPE = 1.2  # of an activation, at most
BETA = 0.5  # exact, so that integers stay exact; so are the alphas of cases
TF32_BITS = 13  # of a float32's mantissa, that TF32 does not have
Values = npt.NDArray[np.float64]


def gemms(kernels: Iterable[Kernel] | None = None, *, has_mx: bool = False) -> tuple[Kernel, ...]:
    """The kernels of matmuls without groups, of these or the installed ones; MX with `has_mx`."""
    found = manifest.kernels() if kernels is None else kernels
    return tuple(k for k in found if k.is_dense and (has_mx or k.input not in MX_BLOCKS))


def cta_tile(kernel: Kernel, *, pingpong: bool = False) -> dict[str, Any]:
    """block_m and block_n of a launch of an sm90 kernel, whose own tile is a warpgroup's.

    Two warpgroups take turns at tiles, or share them: one above the other, or side by side. Tiles
    of few rows are a CTA's.
    """
    rows, columns = kernel.block_m or 0, kernel.block_n or 0
    if not pingpong and kernel.role != "skinny":
        beside = side_by_side(2 * rows * columns)
        rows, columns = (rows, 2 * columns) if beside else (2 * rows, columns)
    return {"block_m": rows, "block_n": columns}


def cta_launch(kernel: Kernel, block_n: int = 128) -> dict[str, Any]:
    """block_m, block_n and cluster of a launch of any kernel; sm100's are chosen at launch.

    TMA loads up to 256 rows at once: of a wider tile two CTAs share them.
    """
    tile: dict[str, Any] = {"block_m": 128 * kernel.cta_group, "block_n": block_n}
    if kernel.family == "sm90":
        tile = cta_tile(kernel)
    return tile | {"cluster": (2 if tile["block_n"] > 256 else kernel.cta_group, 1)}


def for_all(kernel: str) -> str:
    """The name that a tile's kernel for all launches has, where another one serves some of them."""
    [found] = [k for k in manifest.kernels() if k.name == kernel]
    return replace(found, role="gemm").name if found.serves_some else kernel


@dataclass(frozen=True)
class Case:
    """One matmul and its launch configuration: see Config and Matmul in gemm_launch.py."""

    m: int
    n: int
    k: int
    batch: int = 1
    shared: tuple[str, ...] = ()  # operands with one matrix for all batch indices
    layout: str = "nn"
    dtype: str = "bf16"
    rhs_dtype: str | None = None  # where it differs from the lhs's
    promoted: bool = False  # 8 bits: sums in float32
    mx: int = 0  # sm100, 8 and 4 bits: so many of k have a power of two
    output: str = "f32"
    activation: str = "none"
    alpha: float = 1.0
    in_memory: bool = False  # alpha, and beta where there is a c
    c: str | None = None
    in_place: bool = False
    bias: str | None = None
    bias_along_m: bool = False
    residual: str | None = None
    gated: bool = False
    lhs_scale: bool = False
    rhs_scale: bool = False
    blocks: bool = False  # scales of 1x128 of lhs and of 128x128 of rhs, in the place of these
    save: bool = False
    out_scale: float | None = None  # exact: a power of two
    out_mx: bool = False  # the result is in MXFP8
    integers: bool = True  # then float32 holds every partial sum, and the result is exact
    family: str = "sm100"
    block_m: int = 128
    block_n: int = 128
    cta_group: int = 1
    pingpong: bool = False
    cluster: tuple[int, int] = (1, 1)
    cluster_k: int = 1
    stages: int | None = None  # as many as fit
    swizzle: int = 1
    raster: str = "m"
    k_spans: int = 1
    accumulators: int = 2
    store: str = "tma"
    scheduler: str | None = None
    split_k: int = 1
    split_tail: bool = False
    swap_ab: bool = False
    b_is_ready: bool = False

    def __str__(self) -> str:
        """A test id: the shape, then what is not the default."""
        parts = [f"{self.m}x{self.n}x{self.k}"]
        for spec in fields(self)[3:]:
            value = getattr(self, spec.name)
            if value != spec.default:
                parts.append(f"{spec.name}={value}".replace(" ", ""))
        return "-".join(parts)

    @property
    def kernel(self) -> str:
        """The name of the kernel that serves it."""
        name = self.plan().kernel
        if self.store == "rows":  # as if the result's address were no multiple of 16
            return for_all(name)
        return name

    @property
    def operand_types(self) -> tuple[np.dtype[Any], np.dtype[Any]]:
        """Of lhs and rhs."""
        return INPUT_TYPES[self.dtype], INPUT_TYPES[self.rhs_dtype or self.dtype]

    @property
    def repacked(self) -> tuple[str, ...]:
        """Operands that are copied first: TMA, or the instruction, cannot read them."""
        lhs = self.k if self.layout[0] == "n" else self.m
        rhs = self.n if self.layout[1] == "n" else self.k
        if "e2m1" in (self.dtype, self.rhs_dtype) and self.rhs_dtype is not None:
            of_4_bits = "lhs" if self.dtype == "e2m1" else "rhs"
            return () if self.k % 128 == 0 else (of_4_bits,)  # TMA pads whole boxes
        row = 16 // INPUT_TYPES[self.dtype].itemsize
        k_major = self.family == "sm90" and row == 16
        of_lhs, of_rhs = k_major and self.layout[0] == "t", k_major and self.layout[1] == "n"
        return ("lhs",) * (lhs % row != 0 or of_lhs) + ("rhs",) * (rhs % row != 0 or of_rhs)

    @property
    def sm_count(self) -> int:
        """SMs of the emulated GPU: for two clusters, or for four small ones."""
        return 2 * max(2, self.cluster[0] * self.cluster[1] * self.cluster_k)

    def config(self) -> Config:
        """The launch configuration."""
        names = {spec.name for spec in fields(Config)}
        given = {spec.name: getattr(self, spec.name) for spec in fields(self) if spec.name in names}
        config = Config(
            **given
            | dict(
                lhs_major=int(self.layout[0] == "t"),
                rhs_major=int(self.layout[1] == "n"),
                output=OPERANDS[self.output],
                activation=ACTIVATIONS.index(self.activation),
                stages=self.stages or 1,
            )
        )
        if self.stages:
            return config
        found = self.planned()
        return replace(config, stages=found.stages if isinstance(found, Plan) else 1)

    def gemm_config(self) -> GemmConfig:
        """The launch configuration as a user gives it: what the rules are about."""
        names = {spec.name for spec in fields(GemmConfig)} & {spec.name for spec in fields(self)}
        return replace(
            GemmConfig(**{name: getattr(self, name) for name in names}),
            # The tile's own, on sm90.
            block_k=None
            if self.family == "sm90"
            else self.k_spans * gemm_launch.span_elements(*self.operand_types),
            accumulators=None if self.family == "sm90" else self.accumulators,
        )

    def problem(self) -> Problem:
        """The problem that the planner is asked about."""

        def optional(name: str | None) -> DataType | None:
            return None if name is None else DataType[name.upper()]

        return Problem(
            batch=self.batch,
            m=self.m,
            n=self.n,
            k=self.k,
            lhs_batched="lhs" not in self.shared or self.batch == 1,
            rhs_batched="rhs" not in self.shared or self.batch == 1,
            lhs_major=Major.K if self.layout[0] == "n" else Major.MN,
            rhs_major=Major.MN if self.layout[1] == "n" else Major.K,
            lhs=DataType[self.dtype.upper()],
            rhs=DataType[(self.rhs_dtype or self.dtype).upper()],
            promoted=self.promoted,
            output=DataType[self.output.upper()],
            alpha=self.alpha,
            beta=0.0 if self.c is None else BETA,
            factors_in_memory=self.in_memory,
            lhs_scale=self.lhs_scale,
            rhs_scale=self.rhs_scale,
            lhs_blocks=int(self.blocks),
            rhs_blocks=128 * self.blocks,
            mx=self.mx,
            c=optional(self.c),
            bias=optional(self.bias),
            bias_along_m=self.bias_along_m,
            residual=optional(self.residual),
            activation=Activation[self.activation.upper()],
            gated=self.gated,
            save=self.save,
            out_scale=self.out_scale is not None,
            out_mx=self.out_mx,
        )

    def planned(self, resident: int | None = None) -> Plan | Violation:
        """What the planner says of it, by default on a GPU of `sm_count` SMs."""
        ctas = self.cluster[0] * self.cluster[1] * self.cluster_k
        resident = resident or self.sm_count // ctas
        return plan(self.family, self.problem(), self.gemm_config(), resident)

    def plan(self, resident: int | None = None) -> Plan:
        """The same of a legal case."""
        found = self.planned(resident)
        assert isinstance(found, Plan), f"{self}: {found}"
        return found

    def matmul(self) -> Matmul:
        """Random operands, the same on every run.

        Integers are so small that float32 holds every sum of K matmuls exactly, in halves, and of
        a gated matmul the matmul of two sums. Hopper keeps 13 fraction bits of sums of 8 bits.
        """
        rng = np.random.default_rng(zlib.crc32(str(self).encode()))
        narrow = INPUT_TYPES[self.dtype].itemsize == 1
        coarse = self.family == "sm90" and narrow and not self.promoted
        most = 2**13 if coarse else 2**16 if self.mx else 2**21
        largest = max(1, min(8, math.isqrt(most // self.k))) if not self.gated else 1

        def draw(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
            if self.integers:
                return rng.integers(-largest, largest + 1, shape).astype(INPUT_TYPES[dtype])
            return rng.standard_normal(shape).astype(INPUT_TYPES[dtype])

        def operand(name: str, rows: int, columns: int) -> npt.NDArray[Any]:
            batch = 1 if name in self.shared else self.batch
            dtype = self.dtype if name == "lhs" else self.rhs_dtype or self.dtype
            values = draw((batch, rows, columns), dtype)
            if self.dtype == "f32":  # exactly what the tensor core multiplies
                mask = np.uint32(0xFFFFFFFF << TF32_BITS & 0xFFFFFFFF)
                values = (values.view(np.uint32) & mask).view(np.float32)
            return values.astype(np.float64)

        def optional(dtype: str | None, shape: tuple[int, ...]) -> npt.NDArray[Any] | None:
            return None if dtype is None else draw(shape, dtype)

        def scales(name: str, size: int, present: bool) -> npt.NDArray[Any] | None:
            shape: tuple[int, ...] = (1 if name in self.shared else self.batch, size)
            if self.blocks:
                rows = size if name == "lhs" else gemm_launch.ceil_div(size, 128)
                shape = (shape[0], rows, gemm_launch.ceil_div(self.k, 128))
            if not present:
                return None
            if self.mx:
                exponents = rng.integers(-1, 2, (*shape, gemm_launch.ceil_div(self.k, self.mx)))
                return gemm_launch.scale_tiles(exponents, self.mx)
            if self.integers:
                return rng.choice(np.array([1, -1, 2, -2], np.float32), shape)
            return rng.standard_normal(shape).astype(np.float32)

        full = (self.batch, self.m, self.n)
        return Matmul(
            operand("lhs", self.m, self.k),
            operand("rhs", self.k, self.n),
            INPUT_TYPES[self.dtype],
            None if self.rhs_dtype is None else INPUT_TYPES[self.rhs_dtype],
            self.promoted,
            rhs_up=operand("rhs", self.k, self.n) if self.gated else None,
            alpha=self.alpha,
            beta=0.0 if self.c is None else BETA,
            in_memory=self.in_memory,
            c=optional(self.c, full),
            in_place=self.in_place,
            bias=optional(self.bias, (self.m if self.bias_along_m else self.n,)),
            bias_along_m=self.bias_along_m,
            residual=optional(self.residual, full),
            save=self.save,
            out_scale=self.out_scale,
            out_mx=self.out_mx,
            lhs_scale=scales("lhs", self.m, self.lhs_scale or self.blocks or self.mx > 0),
            rhs_scale=scales("rhs", self.n, self.rhs_scale or self.blocks or self.mx > 0),
            rhs_up_scale=scales("rhs", self.n, (self.rhs_scale or self.mx > 0) and self.gated),
        )


# What sweeps and fuzzers count their cases by: everything but the shape.
AXES = tuple(spec.name for spec in fields(Case) if spec.name not in ("m", "n", "k"))


def transposed(layout: str) -> str:
    """The layout of the matmul of the transposes: those of rhs and lhs, in that order."""
    return "".join("t" if letter == "n" else "n" for letter in reversed(layout))


# --- what must come out


def expected(case: Case, matmul: Matmul) -> list[tuple[Values, Values]]:
    """D, what is saved, and amax, in float64 before the cast, each with the error it may have.

    In MXFP8 d is exact, and its data in whole blocks; then come the tiles of its scales.
    """
    p = matmul
    lhs, right, of_rows, of_columns = p.lhs, p.rhs, p.lhs_scale, p.rhs_scale
    right_up, of_columns_up = p.rhs_up, p.rhs_up_scale
    if case.blocks:
        assert of_rows is not None
        assert of_columns is not None
        of_blocks = (
            x.astype(np.float64).repeat(128, 2)[..., : case.k] for x in (of_rows, of_columns)
        )
        lhs = lhs * next(of_blocks)
        right = right * next(of_blocks).repeat(128, 1)[:, : case.n].swapaxes(1, 2)
        of_rows = of_columns = None
    if case.mx:
        lhs = lhs * _powers(of_rows, case.m, case)
        right = right * _powers(of_columns, case.n, case).swapaxes(1, 2)
        if right_up is not None:
            right_up = right_up * _powers(of_columns_up, case.n, case).swapaxes(1, 2)
        of_rows = of_columns = of_columns_up = None
    scales = 2 * case.blocks + case.lhs_scale + case.rhs_scale
    accumulation = ACCUMULATION * (case.k + 2 + scales)
    if case.family == "sm90" and INPUT_TYPES[case.dtype].itemsize == 1:
        accumulation += ACCUMULATION_8BIT * (4 if case.promoted else math.ceil(case.k / 32))

    def sums(rhs: npt.NDArray[Any], columns: npt.NDArray[Any] | None) -> tuple[Values, Values]:
        allowed = accumulation * (np.abs(lhs) @ np.abs(rhs))
        factor: Values = np.array(p.alpha)
        if of_rows is not None:
            factor = factor * of_rows[:, :, None].astype(np.float64)
        if columns is not None:
            factor = factor * columns[:, None, :]
        return factor * (lhs @ rhs), np.abs(factor) * allowed

    z, error = sums(right, of_columns)
    terms = [] if p.c is None else [p.beta * p.c.astype(np.float64)]
    if p.bias is not None:
        bias = p.bias.astype(np.float64)
        terms.append(bias[:, None] if p.bias_along_m else bias)
    for term in terms:
        error = error + ACCUMULATION * (np.abs(z) + np.abs(term))
        z = z + term
    d = activate(case.activation, z)
    d_error = SLOPE * error + (ACTIVATION * np.abs(z) if smooth(case.activation) else 0.0)
    saved = [(z, error)]
    if right_up is not None:
        up, up_error = sums(right_up, of_columns_up)
        saved.append((up, up_error))
        d, d_error = d * up, d_error * (np.abs(up) + up_error) + np.abs(d) * up_error
        d_error = d_error + ACCUMULATION * np.abs(d)
    if p.residual is not None:
        residual = p.residual.astype(np.float64)
        d_error = d_error + ACCUMULATION * (np.abs(d) + np.abs(residual))
        d = d + residual
    found = [(d, d_error), *(saved if p.save else [])]
    if case.out_scale is not None:
        _, largest = FORMATS[case.output]
        found[0] = np.clip(d / case.out_scale, -largest, largest), d_error / case.out_scale
        found.append((np.abs(d).max((1, 2)), d_error.max((1, 2))))
    if case.out_mx:
        data, scales, _ = block_scaled(np.pad(d, [(0, 0), (0, 0), (0, -case.n % 32)]), "mxfp8")
        in_memory = data, tiled(scales.view(np.uint8))
        found = [(x.astype(np.float64), np.zeros(x.shape)) for x in in_memory]
    return found


def _powers(tiles: npt.NDArray[Any] | None, rows: int, case: Case) -> Values:
    """What tiles of scales say of each element, [batch, rows, k]."""
    scales = untiled(tiles, rows, gemm_launch.ceil_div(case.k, case.mx))
    is_exponent = scales.dtype == np.uint8
    scales = scales.astype(np.float64)
    powers: Values = np.exp2(scales - 127) if is_exponent else scales
    return powers.repeat(case.mx, 2)[..., : case.k]


def smooth(activation: str) -> bool:
    """Whether an activation makes of integers something that is rounded."""
    return activation not in ("none", "relu")


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


def verify(case: Case, matmul: Matmul, outcome: gemm_launch.Outcome) -> None:
    """Compares a launch with the oracle, and asks for no findings.

    Raises:
      AssertionError: an element is wrong, or was not written; or the emulator has found something;
        or a counter is not zero, as the next launch expects it.
    """
    assert outcome.report.findings == [], f"{case}: {outcome.report.findings}"
    assert not outcome.counters.any(), f"{case}: counters are left as {outcome.counters}"
    verify_results(case, matmul, outcome.results)


def verify_results(case: Case, matmul: Matmul, results: Sequence[npt.NDArray[Any]]) -> None:
    """Compares what a launch has written, each [batch, m, n] or an amax, with the oracle.

    Raises:
      AssertionError: an element is wrong, or was not written.
    """
    exact = case.integers and not smooth(case.activation)
    wanted = expected(case, matmul)
    names = ["d", *(("saved", "saved_up")[: 1 + case.gated] if case.save else ())]
    names += ["amax"] * (case.out_scale is not None) + ["tiles"] * case.out_mx
    for name, result, (reference, error) in zip(names, results, wanted, strict=True):
        rounded = _cast(reference, result.dtype)
        if exact or (case.integers and name.startswith("saved")):
            wrong = result != rounded
        else:
            # Casting rounds what was computed, which may be off by `error` already.
            unit, least = ROUNDING[NAMES[result.dtype]], SMALLEST[NAMES[result.dtype]]
            allowed = error + unit * (np.abs(reference) + error) + least
            with np.errstate(over="ignore", invalid="ignore"):
                wrong = ~(np.abs(result.astype(np.float64) - reference) <= allowed)
            beyond = _cast(reference + np.copysign(error, reference), result.dtype)
            overflows = ~np.isfinite(beyond.astype(np.float32))
            wrong &= ~(overflows & ((result == beyond) | (np.isnan(beyond) & np.isnan(result))))
        wrong &= ~(np.isnan(rounded) & np.isnan(result))
        if wrong.any():
            raise AssertionError(_report(case, name, result, rounded, wrong))


def _cast(values: Values, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """As kernels do: f16 and e5m2 overflow to infinity, e4m3 to NaN."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(dtype)


def _report(
    case: Case,
    name: str,
    result: npt.NDArray[Any],
    rounded: npt.NDArray[Any],
    wrong: npt.NDArray[np.bool_],
) -> str:
    places = np.argwhere(wrong)
    first = tuple(places[0])
    unwritten = np.isnan(result.astype(np.float32)).sum()
    return (
        f"{case}: {len(places)} of {result.size} elements of {name} are wrong, {unwritten} are "
        f"NaN, within [batch, m, n] {places.min(axis=0).tolist()}.."
        f"{places.max(axis=0).tolist()}; the first is {result[first]} at {places[0].tolist()} "
        f"where {rounded[first]} belongs"
    )


def check(
    module: emulator.Module, case: Case, schedule: str = "eager", seed: int = 0, **options: Any
) -> Any:
    """Runs a case and compares it with the oracle; returns the outcome."""
    matmul = case.matmul()
    outcome = gemm_launch.launch(
        module,
        case.config(),
        matmul,
        sm_count=case.sm_count,
        schedule=schedule,
        seed=seed,
        **options,
    )
    verify(case, matmul, outcome)
    return outcome
