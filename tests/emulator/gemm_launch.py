"""Launches our GEMM kernels in the emulator, as the host does it there.

What is launched, with which bytes, is the host's word (`_native.emulated_launches`). Here arrays
get guards, what nobody has written is NaN, and a test may change a kernel, the schedule, or a field
of GemmParams.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from jaxbw import _native, emulator
from jaxbw._native import Activation, DataType, Major, Plan, Problem
from jaxbw._src.selection.config import GemmConfig

from . import installed

Array = npt.NDArray[Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
E2M1 = np.dtype(ml_dtypes.float4_e2m1fn)  # two numbers in a byte, but not in NumPy
TYPES = {
    np.dtype(np.float16): DataType.F16,
    BF16: DataType.BF16,
    np.dtype(np.float32): DataType.F32,
    np.dtype(ml_dtypes.float8_e4m3fn): DataType.E4M3,
    np.dtype(ml_dtypes.float8_e5m2): DataType.E5M2,
    E2M1: DataType.E2M1,
}
ACTIVATIONS = ("none", "relu", "gelu", "silu", "gelu_exact")  # as Activation counts them
SPAN = 128  # bytes of a swizzle span
MMA_ROWS = 128  # of a CTA, at most
WGMMA_ROWS = 64  # of a warpgroup
MAX_STAGES = 12
GUARD = 256  # elements in front of a result and behind it
POISON = 0xA5
NAN = 0xFF  # bytes of a NaN of any type
ROWS, BLOCKS = 128, 4  # of a tile of scales of MX formats
STORE_ROWS, GENERAL = 1, 0  # StorePath::kRows, EpiloguePath::kGeneral of cuda/params.h
SM90, SM100 = "sm90", "sm100"
FIELDS = _native.gemm_params_fields()
TensorMapFields = _native.emulator.datapath.TensorMapFields


@dataclass(frozen=True)
class Config:
    """A launch configuration; the majors are 0 (K) or 1 (MN), of the matmul before a swap."""

    family: str
    block_m: int
    block_n: int
    cta_group: int = 1
    pingpong: bool = False
    cluster: tuple[int, int] = (1, 1)
    cluster_k: int = 1
    stages: int = 3
    swizzle: int = 1
    lhs_major: int = 0
    rhs_major: int = 1
    output: np.dtype[Any] = BF16
    activation: int = 0
    raster: str = "m"
    k_spans: int = 1
    accumulators: int = 2
    store: str = "tma"  # as the host does; or "rows", where it would store by TMA
    scheduler: str | None = None  # "clc", "static", "none"; None: the family's
    split_k: int = 1
    split_tail: bool = False
    swap_ab: bool = False
    b_is_ready: bool = False  # also where the host does not say so
    counted: bool = False  # the last of a tile adds up its parts, also where a launch behind would

    @property
    def clusters(self) -> int:
        """CTAs of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster_k


@dataclass(frozen=True)
class Matmul:
    """What is multiplied: lhs [batch|1, m, k], rhs [batch|1, k, n], and what the epilogue takes.

    c and residual are [batch, m, n], bias is [n], or [m] with `bias_along_m`. With `rhs_up` the
    matmul is gated. `in_place`: c lies where the result will. `in_memory`: alpha and beta are read
    there. Scales are [batch|1, m], and [batch|1, n], as lhs and rhs; of blocks [batch|1, m, k/128]
    and [batch|1, n/128, k/128]; of MX formats tiles [batch|1, rows/128, blocks of k/4, 512], uint8
    of blocks of 32, float8_e4m3fn of 16.
    """

    lhs: Array
    rhs: Array
    dtype: np.dtype[Any]
    rhs_dtype: np.dtype[Any] | None = None  # where it differs
    promoted: bool = False
    rhs_up: Array | None = None
    alpha: float = 1.0
    beta: float = 0.0
    in_memory: bool = False
    c: Array | None = None
    in_place: bool = False
    bias: Array | None = None
    bias_along_m: bool = False
    residual: Array | None = None
    lhs_scale: Array | None = None
    rhs_scale: Array | None = None
    rhs_up_scale: Array | None = None
    save: bool = False
    out_scale: float | None = None
    out_mx: bool = False  # the result is in MXFP8

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Batch, m, n, k."""
        batch = max(self.lhs.shape[0], self.rhs.shape[0])
        return batch, self.lhs.shape[1], self.rhs.shape[2], self.lhs.shape[2]

    @property
    def mx(self) -> int:
        """Numbers of k that share a scale; 0 where it is no MX format."""
        if self.lhs_scale is None or self.lhs_scale.ndim != 4:
            return 0
        return 32 if self.lhs_scale.dtype == np.uint8 else 16

    @property
    def factors(self) -> dict[str, Array]:
        """Those that are operands."""
        given = {"alpha": self.alpha} | ({} if self.c is None else {"beta": self.beta})
        numbers = given.items() if self.in_memory else ()
        return {name: np.array(number, np.float32) for name, number in numbers}

    @property
    def scales(self) -> dict[str, Array]:
        """Those that there are."""
        names = ("lhs_scale", "rhs_scale", "rhs_up_scale")
        tiles = ("lhs_tiles", "rhs_tiles", "rhs_up_tiles")
        named = zip(names, tiles if self.mx else names, strict=True)
        given = {as_launched: getattr(self, name) for name, as_launched in named}
        if self.out_scale is not None:
            given["out_scale"] = np.array(self.out_scale, np.float32)
        return {name: scales for name, scales in given.items() if scales is not None}


@dataclass
class Outcome:
    """Results [batch, m, n], and the report of the launch, or of the first that shows something.

    `amax`: [batch], beside a d that has a scale. `tiles`: those of scales, [batch, rows/128, n/128,
    512], uint8, beside a d in MXFP8, which has whole blocks of columns.
    """

    d: Array
    saved: list[Array]
    report: emulator.Report
    counters: Array  # of the slices of split tiles, as they were left
    amax: Array | None = None
    tiles: Array | None = None

    @property
    def results(self) -> list[Array]:
        """All that there are."""
        return [self.d, *self.saved, *(x for x in (self.amax, self.tiles) if x is not None)]


def from_gemm_config(
    config: GemmConfig, lhs_major: int, rhs_major: int, output: np.dtype[Any], itemsize: int = 2
) -> Config:
    """The launch that an sm100 GemmConfig stands for."""
    launch = Config(
        family=SM100,
        block_m=config.tile[0],
        block_n=config.tile[1],
        cta_group=config.cta_group,
        cluster=config.cluster,
        stages=config.stages or 0,
        swizzle=config.swizzle,
        lhs_major=lhs_major,
        rhs_major=rhs_major,
        output=output,
        raster=config.raster,
        k_spans=1 if config.block_k is None else config.block_k * itemsize // SPAN,
        accumulators=config.accumulators or 2,
        scheduler=config.scheduler,
        split_k=config.split_k,
        split_tail=config.split_tail,
        swap_ab=config.swap_ab,
    )
    return launch if launch.stages else replace(launch, stages=max_stages(launch))


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def span_elements(dtype: np.dtype[Any], rhs_dtype: np.dtype[Any] | None = None) -> int:
    """Numbers in a swizzle span: of 4 bits twice those of 8, unless these are beside them."""
    return SPAN // dtype.itemsize * (2 if {dtype, rhs_dtype or dtype} == {E2M1} else 1)


def loaded_columns(config: Config, itemsize: int = 2) -> int:
    """Of B, that a CTA loads: on sm100 whole spans where they are MN-major, as tf32 never is."""
    c = config
    columns = c.block_n // c.cta_group
    mn_major = itemsize != 4 and (c.lhs_major if c.swap_ab else c.rhs_major)
    step = SPAN // itemsize if mn_major and c.family == SM100 else 1
    return ceil_div(columns, step) * step


def scale_tiles(exponents: Array, block: int = 32) -> Array:
    """Powers of two `[batch, rows, blocks of k]` in tiles: ue8m0 of blocks of 32, ue4m3 of 16.

    What pads them is not the same for all.
    """
    batch, rows, blocks = exponents.shape
    padded = np.random.default_rng(9).integers(
        100,
        150 if block == 32 else 127,
        (batch, -(-rows // ROWS) * ROWS, -(-blocks // BLOCKS) * BLOCKS),
    )
    padded[:, :rows, :blocks] = 127 + exponents if block == 32 else (7 + exponents) << 3
    parts = padded.reshape(batch, -1, 4, 32, padded.shape[2] // BLOCKS, BLOCKS)
    # Byte row % 32 * 16 + row / 32 % 4 * 4 + block % 4 of [tiles of rows, tiles of k].
    ordered = parts.transpose(0, 1, 4, 3, 2, 5)
    tiles = ordered.reshape(batch, ordered.shape[1], ordered.shape[2], 512).astype(np.uint8)
    return tiles if block == 32 else tiles.view(ml_dtypes.float8_e4m3fn)


def packed(values: Array) -> Array:
    """Numbers of `E2M1` as bytes, the first of two in the lower half."""
    codes = values.astype(E2M1).view(np.uint8)
    halves: Array = codes[..., ::2] | codes[..., 1::2] << 4
    return halves


def max_stages(config: Config, itemsize: int = 2) -> int:
    """The deepest ring that fits."""
    c, columns = config, loaded_columns(config, itemsize)
    return _native.max_stages(c.family, c.block_m, columns * c.cta_group, c.cta_group, c.k_spans)


def plan_of(config: Config, matmul: Matmul, resident: int = 1) -> Plan:
    """What the planner makes of a launch.

    Raises:
      AssertionError: it cannot be launched.
    """
    c, p = config, matmul
    batch, m, n, k = p.shape

    def optional(values: Array | None) -> DataType | None:
        return None if values is None else TYPES[values.dtype]

    problem = Problem(
        batch=batch,
        m=m,
        n=n,
        k=k,
        lhs_batched=p.lhs.shape[0] == batch,
        rhs_batched=p.rhs.shape[0] == batch,
        lhs_major=Major(c.lhs_major),
        rhs_major=Major(c.rhs_major),
        lhs=TYPES[p.dtype],
        rhs=TYPES[p.rhs_dtype or p.dtype],
        promoted=p.promoted,
        output=TYPES[c.output],
        alpha=np.nan if p.in_memory else p.alpha,
        beta=np.nan if p.in_memory else p.beta,
        factors_in_memory=p.in_memory,
        lhs_scale=p.lhs_scale is not None and p.lhs_scale.ndim == 2,
        rhs_scale=p.rhs_scale is not None and p.rhs_scale.ndim == 2,
        lhs_blocks=int(p.lhs_scale is not None and p.lhs_scale.ndim == 3),
        rhs_blocks=128 * int(p.rhs_scale is not None and p.rhs_scale.ndim == 3),
        mx=p.mx,
        c=optional(p.c),
        bias=optional(p.bias),
        bias_along_m=p.bias_along_m,
        residual=optional(p.residual),
        activation=Activation(c.activation),
        gated=p.rhs_up is not None,
        save=p.save,
        out_scale=p.out_scale is not None,
        out_mx=p.out_mx,
    )
    given = GemmConfig(
        c.block_m,
        c.block_n,
        # The tile's own, on sm90.
        block_k=None if c.family == "sm90" else c.k_spans * span_elements(p.dtype, p.rhs_dtype),
        cluster=c.cluster,
        cluster_k=c.cluster_k,
        cta_group=c.cta_group,
        pingpong=c.pingpong,
        stages=c.stages,
        swizzle=c.swizzle,
        raster=c.raster,
        split_k=c.split_k,
        split_tail=c.split_tail,
        swap_ab=c.swap_ab,
        accumulators=None if c.family == SM90 else c.accumulators,
        scheduler=c.scheduler,
    )
    found = _native.plan(c.family, problem, given, resident)
    assert isinstance(found, Plan), f"{config}: {found}"
    return found


def saved_type(output: np.dtype[Any]) -> np.dtype[Any]:
    """Of what is saved beside a result of this dtype."""
    return BF16 if output.itemsize == 1 else output


def side_by_side(accumulators: int) -> bool:
    """Whether the warpgroups that share an sm90 tile of so many have each half of its columns."""
    return accumulators > 256 * 128


def mma_tiles(config: Config) -> int:
    """MMA tiles on top of each other in a CTA's tile."""
    if config.family == SM90:
        whole = config.pingpong or side_by_side(config.block_m * config.block_n)
        return config.block_m // (1 if whole else 2) // WGMMA_ROWS
    return max(1, config.block_m // config.cta_group // MMA_ROWS)


@dataclass
class _Results:
    """Arrays in guard regions: the results of one launch."""

    shape: tuple[int, int, int]
    pitch: int | None
    guarded: list[Array] = field(default_factory=list)

    def new(self, dtype: np.dtype[Any]) -> Array:
        """[batch, m, n], or where rows lie apart [batch, m, pitch], unguarded and untouched."""
        if self.pitch is not None:
            self.guarded.append(emulator.empty((*self.shape[:2], self.pitch), dtype))
            return self.guarded[-1]
        size = int(np.prod(self.shape))
        guarded = emulator.empty(size + 2 * GUARD, dtype)
        guarded.view(np.uint8)[...] = POISON
        self.guarded.append(guarded)
        return guarded[GUARD:-GUARD].reshape(self.shape)

    def amax(self) -> Array:
        """[batch], zero."""
        found = replace(self, shape=(self.shape[0], 1, 1), pitch=None).new(np.dtype(np.float32))
        found[...] = 0
        return found[:, 0, 0]

    def in_mxfp8(self) -> dict[str, Array]:
        """Data in whole blocks of columns, and tiles of their scales."""
        batch, m, n = self.shape
        data = replace(self, shape=(batch, m, ceil_div(n, 32) * 32))
        tiles = replace(self, shape=(batch * ceil_div(m, ROWS), ceil_div(n, 32 * BLOCKS), 512))
        return {
            "result": data.new(np.dtype(ml_dtypes.float8_e4m3fn)),
            "result_tiles": tiles.new(np.dtype(np.uint8)),
        }

    def check(self) -> None:
        for guarded in self.guarded if self.pitch is None else []:
            edges = np.concatenate([guarded[:GUARD], guarded[-GUARD:]])
            intact = (edges.view(np.uint8) == POISON).all()
            assert intact, "the kernel wrote outside the result"


def launch(
    module: emulator.Module,
    config: Config,
    matmul: Matmul,
    sm_count: int = 8,
    more_buffers: Iterable[Array] = (),
    pitch: int | None = None,
    reduce: emulator.Module | None = None,
    step_limit: int = 1 << 36,
    **options: Any,
) -> Outcome:
    """Runs a kernel, which may also access `more_buffers`. Nothing around its results may change.

    With `pitch` the rows of the one result lie so many elements apart. `reduce` is what adds up the
    parts of split tiles where a launch behind does: by default the installed kernel. `step_limit`
    is of the kernel, not of the launches around it.

    Raises:
      AssertionError: it does.
      emulator.EmulatorError: the kernel did something from which there is no going on.
    """
    c, p = config, matmul
    assert pitch is None or p.shape[0] == 1
    plan = plan_of(c, p, max(1, sm_count // c.clusters))
    results = _Results(p.shape[:3], pitch)
    names = ("result", "saved", "saved_up")[: 1 + p.save + (p.save and p.rhs_up is not None)]
    operands = _operands(c, p)
    written = {
        name: results.new(c.output if name == "result" else saved_type(c.output)) for name in names
    }
    if p.out_scale is not None:
        written["amax"] = results.amax()
    if p.out_mx:
        written |= results.in_mxfp8()
    workspace = emulator.empty(plan.workspace_bytes, np.uint8)
    workspace[...] = NAN
    own = {"workspace": workspace} if workspace.size else {}
    counters = emulator.empty(plan.slices if c.counted else plan.counters, np.uint32)
    counters[...] = 0
    if plan.counters:
        own["counters"] = counters
    arrays = {name: array.ctypes.data for name, array in (operands | written | own).items()}
    if p.in_place:
        written["result"][...] = p.c
        arrays["c"] = arrays["result"]

    repack, gemm, behind = _native.emulated_launches(plan, arrays, sm_count=sm_count)
    patches = _patches(c, plan, gemm.parameters, pitch, saves=p.save)
    buffers = [*results.guarded, *operands.values(), workspace, counters, *more_buffers]
    if c.counted and plan.reduces_apart:
        patches["counters"], behind = counters.ctypes.data, None
    report = None
    for call, kernel in ((repack, None), (gemm, module), (behind, reduce)):
        if call is None:
            continue
        kernel = kernel or installed.load(call.kernel)
        found = kernel.launch(
            kernel.entries()[0],
            grid=call.blocks,
            block=call.threads,
            cluster=call.cluster_ctas,
            dynamic_smem=call.shared_memory,
            args=[call.parameters if call is repack else _patched(call.parameters, patches)],
            buffers=[array for array in buffers if array.size],
            sm_count=sm_count,
            **(options | {"step_limit": step_limit} if call is gemm else options),
        )
        if call is gemm or found.findings:
            report = found
        if found.findings:
            break
    assert report is not None
    results.check()
    amax, tiles = written.pop("amax", None), written.pop("result_tiles", None)
    columns = None if p.out_mx else p.shape[2]
    d, *saved = (array[..., :columns] for array in written.values())
    if tiles is not None:
        tiles = tiles.reshape(d.shape[0], -1, *tiles.shape[1:])
    return Outcome(d, saved, report, counters, amax, tiles)


def _operands(config: Config, matmul: Matmul) -> dict[str, Array]:
    """What a launch reads, by its name, as it lies in memory."""
    c, p = config, matmul
    operands: dict[str, Array] = {}

    def store(name: str, values: Array | None, dtype: np.dtype[Any] | None = None) -> None:
        if values is None:
            return
        if dtype == E2M1:
            values, dtype = packed(values), np.dtype(np.uint8)
        operands[name] = emulator.empty(values.shape, dtype or values.dtype)
        operands[name][...] = values
        operands[name].flags.writeable = False

    def right(values: Array | None) -> Array | None:
        return values if values is None or c.rhs_major else values.swapaxes(1, 2)

    store("lhs", p.lhs.swapaxes(1, 2) if c.lhs_major else p.lhs, p.dtype)
    store("rhs", right(p.rhs), p.rhs_dtype or p.dtype)
    store("rhs_up", right(p.rhs_up), p.rhs_dtype or p.dtype)
    store("c", None if p.in_place else p.c)
    store("bias", p.bias)
    store("residual", p.residual)
    for name, numbers in (p.factors | p.scales).items():
        store(name, numbers)
    return operands


def _patches(
    config: Config, plan: Plan, parameters: bytes, pitch: int | None, *, saves: bool
) -> dict[str, int | bytes]:
    """What a test has otherwise than the host: fields of GemmParams."""
    patches: dict[str, int | bytes] = {}
    if config.b_is_ready:
        patches["b_is_ready"] = 1
    if config.store == "rows" and plan.store_path == "tma":
        patches["store_path"] = STORE_ROWS
        if saves and plan.formula == "elementwise":
            patches["epilogue.path"] = GENERAL
    if pitch is not None:
        patches["column_stride" if config.swap_ab else "row_stride"] = pitch
        if plan.store_path == "tma":
            start, size = FIELDS["d"]
            d = TensorMapFields.decode(parameters[start : start + size])
            row = pitch * config.output.itemsize
            strides = [row, row * d.extents[1]]
            moved = TensorMapFields(d.type, d.address, d.extents, strides, d.box, swizzle=d.swizzle)
            patches["d"] = moved.encode()
    return patches


def _patched(parameters: bytes, patches: dict[str, int | bytes]) -> bytes:
    patched = bytearray(parameters)
    for name, value in patches.items():
        start, size = FIELDS[name]
        given = value if isinstance(value, bytes) else value.to_bytes(size, "little")
        patched[start : start + size] = given
    return bytes(patched)


def run(
    module: emulator.Module,
    config: Config,
    lhs: Array,
    rhs: Array,
    dtype: np.dtype[Any],
    bias: Array | None = None,
    **options: Any,
) -> tuple[Array, emulator.Report]:
    """Multiplies `[batch|1, m, k]` by `[batch|1, k, n]`: `launch` for a plain matmul."""
    outcome = launch(module, config, Matmul(lhs, rhs, dtype, bias=bias), **options)
    return outcome.d, outcome.report


def integers(rng: np.random.Generator, *shape: int) -> Array:
    """Small integers: matmuls and sums of them are exact in float32 in any order."""
    return rng.integers(-3, 4, shape).astype(np.float32)
