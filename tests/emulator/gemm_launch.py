"""Launches our GEMM kernels in the emulator: what cuda/host does on a GPU, restated in numpy."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from jaxbw import _native, emulator
from jaxbw._native import Activation, DataType, Major, Plan, Problem
from jaxbw._src.selection.config import GemmConfig

from . import installed
from .gemm_params import (
    ClusterShape,
    Divisor,
    Epilogue,
    EpilogueOperand,
    EpilogueResult,
    GemmParams,
    TileOrder,
    words,
)

Array = npt.NDArray[Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
TYPES = {np.dtype(np.float16): 0, BF16: 1, np.dtype(np.float32): 2}  # DataType of cuda/params.h
ACTIVATIONS = ("none", "relu", "gelu", "silu", "gelu_exact")  # as Activation counts them
SPAN, ATOM = 128, 1024  # bytes: a swizzle span, 8 rows of it
CONTROL = 1024  # bytes of barriers and the like
MMA_ROWS = 128  # of a CTA, at most
WGMMA_ROWS = 64  # of a warpgroup
MAX_STAGES = 12
REDUCE_THREADS = 512  # cuda/gemm/reduce.h
GUARD = 256  # elements in front of a result and behind it
POISON = 0xA5
FORMULAS = ("general", "cast", "elementwise")  # as Formula counts them


@dataclass(frozen=True)
class Family:
    """How the epilogue of an architecture's kernels is divided (cuda/gemm/storage.h)."""

    name: str
    epilogue_warps: int
    rows_per_warp: int


SM90 = Family("sm90", epilogue_warps=8, rows_per_warp=16)
SM100 = Family("sm100", epilogue_warps=4, rows_per_warp=32)


@dataclass(frozen=True)
class Config:
    """A launch configuration; the majors are 0 (K) or 1 (MN), of the matmul before a swap."""

    family: Family
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
    store: str = "tma"  # or "rows", "columns"; "tma" where rows have 16-byte multiples, else "rows"
    scheduler: str | None = None  # "clc", "static", "none"; None: the family's
    split_k: int = 1
    split_tail: bool = False
    swap_ab: bool = False
    b_is_ready: bool = False
    reduced: bool | None = None  # whether a launch behind adds up the parts; None: as the host does

    @property
    def clusters(self) -> int:
        """CTAs of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster_k


@dataclass(frozen=True)
class Matmul:
    """What is multiplied: lhs [batch|1, m, k], rhs [batch|1, k, n], and what the epilogue takes.

    c and residual are [batch, m, n], bias is [n], or [m] with `bias_along_m`. With `rhs_up` the
    matmul is gated. `in_place`: c lies where the result will.
    """

    lhs: Array
    rhs: Array
    dtype: np.dtype[Any]
    rhs_up: Array | None = None
    alpha: float = 1.0
    beta: float = 0.0
    c: Array | None = None
    in_place: bool = False
    bias: Array | None = None
    bias_along_m: bool = False
    residual: Array | None = None
    save: bool = False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Batch, m, n, k."""
        batch = max(self.lhs.shape[0], self.rhs.shape[0])
        return batch, self.lhs.shape[1], self.rhs.shape[2], self.lhs.shape[2]


@dataclass
class Outcome:
    """Results [batch, m, n], and the report of the launch, or of the first that shows something."""

    d: Array
    saved: list[Array]
    report: emulator.Report
    params: GemmParams
    counters: Array  # of the slices of split tiles, as they were left


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


def storage(config: Config, itemsize: int = 2) -> tuple[int, int, int]:
    """Bytes of a CTA's part of a stage, A's and B's; and of the staging."""
    c, span = config, SPAN * config.k_spans
    b = ceil_div(c.block_n // c.cta_group * span, ATOM) * ATOM
    staging = c.family.epilogue_warps * c.family.rows_per_warp * SPAN * 2
    return c.block_m // c.cta_group * span, b, staging


def max_stages(config: Config) -> int:
    """The deepest ring that fits."""
    c = config
    return _native.max_stages(c.family.name, c.block_m, c.block_n, c.cta_group, c.k_spans)


def plan_of(config: Config, matmul: Matmul, resident: int = 1) -> Plan:
    """What the planner makes of a launch.

    Raises:
      AssertionError: it cannot be launched.
    """
    c, p = config, matmul
    batch, m, n, k = p.shape

    def optional(values: Array | None) -> DataType | None:
        return None if values is None else DataType(TYPES[values.dtype])

    problem = Problem(
        batch=batch,
        m=m,
        n=n,
        k=k,
        lhs_batched=p.lhs.shape[0] == batch,
        rhs_batched=p.rhs.shape[0] == batch,
        lhs_major=Major(c.lhs_major),
        rhs_major=Major(c.rhs_major),
        input=DataType(TYPES[p.dtype]),
        output=DataType(TYPES[c.output]),
        alpha=p.alpha,
        beta=p.beta,
        c=optional(p.c),
        bias=optional(p.bias),
        bias_along_m=p.bias_along_m,
        residual=optional(p.residual),
        activation=Activation(c.activation),
        gated=p.rhs_up is not None,
        save=p.save,
    )
    given = GemmConfig(
        c.block_m,
        c.block_n,
        block_k=c.k_spans * SPAN // p.dtype.itemsize,
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
        accumulators=None if c.family is SM90 else c.accumulators,
        scheduler=c.scheduler,
    )
    found = _native.plan(c.family.name, problem, given, resident)
    assert isinstance(found, Plan), f"{config}: {found}"
    return found


def mma_tiles(config: Config) -> int:
    """MMA tiles on top of each other in a CTA's tile."""
    if config.family is SM90:
        return (config.block_m if config.pingpong else config.block_m // 2) // WGMMA_ROWS
    return max(1, config.block_m // config.cta_group // MMA_ROWS)


def residual_box(config: Config) -> tuple[int, int]:
    """Columns and rows of a load of the residual: rows of a CTA's tile, a span or half of one."""
    return 64 if config.block_n % 64 == 0 else 32, config.block_m


def formula(config: Config, matmul: Matmul) -> int:
    """Which way the epilogue takes: 0 general, 1 a cast, 2 elementwise."""
    return FORMULAS.index(plan_of(config, matmul).formula)


def store_box(config: Config, matmul: Matmul) -> tuple[int, int]:
    """Columns and rows of one TMA store."""
    span = SPAN // config.output.itemsize
    if config.family is SM90:
        return min(64 if config.block_n % 64 == 0 else 32, span), config.family.rows_per_warp
    rows = min(MMA_ROWS, config.block_m // config.cta_group)
    columns = config.block_n // 2 if rows == 64 and config.cta_group == 2 else config.block_n
    chunk = 16 if rows == 64 and config.cta_group == 1 else 32
    if formula(config, matmul) == 1 and columns % span == 0:
        return span, chunk
    columns //= 1 if matmul.rhs_up is None else 2
    return next(width for width in (32, 16, 8) if columns % width == 0), chunk


def _map(array: Array, columns: int, box: tuple[int, int], swizzle: int) -> emulator.TensorMap:
    """Of [batch, rows, pitch], whose first `columns` of a row are the matrix."""
    batch, rows, pitch = array.shape
    size = array.itemsize
    return emulator.TensorMap.encode(
        array,
        box=(*box, 1),
        extents=(columns, rows, batch),
        strides=(max(16, pitch * size), max(16, pitch * size) * rows),
        swizzle=swizzle,
    )


def _stored(values: Array, dtype: np.dtype[Any]) -> Array:
    """[batch, rows, pitch]: rows of 16-byte multiples, as the repack kernels leave them.

    Nothing may be read behind the end of a row: NaN stands there.
    """
    batch, rows, columns = values.shape
    pitch = ceil_div(columns * dtype.itemsize, 16) * 16 // dtype.itemsize
    array = emulator.empty((batch, rows, pitch), dtype)
    array[...] = np.nan
    array[:, :, :columns] = values
    return array


class _Operand:
    """A or B as the kernel sees it: values [batch|1, mn, k]."""

    def __init__(self, values: Array, major: int, dtype: np.dtype[Any]) -> None:
        self.major = major
        self.extents = values.shape[2], values.shape[1]
        matrices = values.transpose(0, 2, 1) if major else values
        self.array = _stored(matrices, dtype)

    def map(self, config: Config, extent: int, peers: int) -> emulator.TensorMap:
        """The boxes of a CTA that loads a share of `extent` indices of M or N."""
        span = SPAN // self.array.itemsize
        row = SPAN // 2 if self.major and extent % span else SPAN
        columns = row // self.array.itemsize
        rows = config.k_spans * span if self.major else extent
        contiguous = self.extents[self.major]
        return _map(self.array, contiguous, (columns, rows // peers), row)


@dataclass
class _Results:
    """Arrays in guard regions: the results of one launch."""

    shape: tuple[int, int, int]
    dtype: np.dtype[Any]
    pitch: int | None
    guarded: list[Array] = field(default_factory=list)

    def new(self) -> Array:
        """[batch, m, n], or where rows lie apart [batch, m, pitch], unguarded and untouched."""
        if self.pitch is not None:
            self.guarded.append(emulator.empty((*self.shape[:2], self.pitch), self.dtype))
            return self.guarded[-1]
        size = int(np.prod(self.shape))
        guarded = emulator.empty(size + 2 * GUARD, self.dtype)
        guarded.view(np.uint8)[...] = POISON
        self.guarded.append(guarded)
        return guarded[GUARD:-GUARD].reshape(self.shape)

    def check(self) -> None:
        for guarded in self.guarded if self.pitch is None else []:
            edges = np.concatenate([guarded[:GUARD], guarded[-GUARD:]])
            intact = (edges.view(np.uint8) == POISON).all()
            assert intact, "the kernel wrote outside the result"


def work(config: Config, plan: Plan) -> dict[str, Any]:
    """The members of GemmParams that say what the work items are."""
    c = config
    return dict(
        order=TileOrder.of(plan.tiles_m, plan.tiles_n, c.swizzle, c.raster),
        whole_tiles=plan.whole_tiles,
        split_k=Divisor.of(c.split_k),
        parts=Divisor.of(c.split_k * c.cluster_k),
        work_items=plan.items,
    )


def launch(
    module: emulator.Module,
    config: Config,
    matmul: Matmul,
    sm_count: int = 8,
    more_buffers: Iterable[Array] = (),
    pitch: int | None = None,
    reduce: emulator.Module | None = None,
    **options: Any,
) -> Outcome:
    """Runs a kernel, which may also access `more_buffers`. Nothing around its results may change.

    With `pitch` the rows of the results lie so many elements apart. `reduce` is what adds up the
    parts of split tiles where a launch behind does: by default the installed kernel.

    Raises:
      AssertionError: it does.
      emulator.EmulatorError: the kernel did something from which there is no going on.
    """
    c, p = config, matmul
    entry = module.entries()[0]
    batch, m, n, k = p.shape
    gated = p.rhs_up is not None
    a, b = _operands(c, p)
    b_up = b if p.rhs_up is None else _Operand(p.rhs_up.transpose(0, 2, 1), b.major, p.dtype)
    results = _Results((batch, m, n), c.output, pitch)
    d = results.new()
    saved = [results.new() for _ in range(p.save + (p.save and gated))]
    row = pitch or n
    if c.swap_ab:
        m, n = n, m

    cluster_m, cluster_n = c.cluster
    rows, b_columns = c.block_m // c.cta_group, c.block_n // c.cta_group
    tile_columns = c.block_n // 2 if gated else c.block_n
    plan = plan_of(c, p, max(1, sm_count // c.clusters))
    reduced = plan.reduces_apart if c.reduced is None else c.reduced
    partials = emulator.empty(plan.slices * c.split_k * plan.slice_floats, np.float32)
    counters = emulator.empty(0 if reduced else plan.slices, np.uint32)
    partials[...], counters[...] = np.nan, 0

    path = "columns" if c.swap_ab else c.store
    if path == "tma" and row * c.output.itemsize % 16:
        path = "rows"
    params = GemmParams(
        store_path=("tma", "rows", "columns").index(path),
        row_stride=1 if c.swap_ab else row,
        column_stride=row if c.swap_ab else 1,
        batch_stride=p.shape[1] * row,
        m=m,
        n=n,
        k=k,
        batch=batch,
        a_batched=a.array.shape[0] > 1,
        b_batched=b.array.shape[0] > 1,
        block_m=c.block_m,
        block_n=c.block_n,
        pingpong=c.pingpong,
        tile_columns=tile_columns,
        cluster=ClusterShape.of(cluster_m, cluster_n, c.cta_group, c.cluster_k),
        stages=c.stages,
        residual_stages=plan.residual_stages,
        k_spans=c.k_spans,
        accumulators=c.accumulators,
        scheduler=plan.scheduler == "clc",
        tile_slices=Divisor.of(max(1, c.block_m // 16 * (tile_columns // 32))),
        partials=partials.ctypes.data if plan.slices else 0,
        counters=counters.ctypes.data if counters.size else 0,
        input=TYPES[p.dtype],
        a_major=a.major,
        b_major=b.major,
        b_is_ready=c.b_is_ready,
        **work(c, plan),
    )
    buffers = [a.array, b.array, b_up.array, *results.guarded, partials, counters]
    read = _epilogue(params, c, p, d, saved)
    buffers += read
    b_extent = b_columns // 2 if gated and c.cta_group == 1 else b_columns
    b_peers = cluster_m // c.cta_group
    params.a = words(a.map(c, rows, cluster_n).encoded)
    params.b = words(b.map(c, b_extent, b_peers).encoded)
    params.b_up = words(b_up.map(c, b_extent, b_peers).encoded)
    if path == "tma":
        box = store_box(c, p)
        span = box[0] * c.output.itemsize
        maps = [words(_map(x, n, box, span if span > 16 else 0).encoded) for x in (d, *saved)]
        params.d, params.saved = maps[0], (type(maps[0]) * 2)(*maps[1:])
    if params.residual_stages:
        residual_map = _map(read[-1], n, residual_box(c), residual_box(c)[0] * 2)
        params.residual = words(residual_map.encoded)

    common: dict[str, Any] = dict(
        args=[params.encode()], buffers=list(_distinct([*buffers, *more_buffers]))
    )
    common |= dict(sm_count=sm_count) | options
    report = module.launch(
        entry,
        grid=plan.clusters * plan.cluster_ctas,
        block=plan.threads,
        cluster=plan.cluster_ctas,
        dynamic_smem=plan.shared_memory,
        **common,
    )
    if plan.slices and reduced and not report.findings:
        name = "jaxbw_sm90_reduce_f32"
        chunks = plan.split_tiles * cluster_m * cluster_n * (c.block_m // 16) * (tile_columns // 32)
        behind = (reduce or installed.load(name)).launch(
            name, grid=min(chunks, sm_count), block=REDUCE_THREADS, **common
        )
        report = behind if behind.findings else report
    results.check()
    return Outcome(
        d[..., : p.shape[2]], [x[..., : p.shape[2]] for x in saved], report, params, counters
    )


def _operands(config: Config, matmul: Matmul) -> tuple[_Operand, _Operand]:
    """A and B: of the matmul, or where operands are swapped of its transpose."""
    p = matmul
    lhs = _Operand(p.lhs, config.lhs_major, p.dtype)
    rhs = _Operand(p.rhs.transpose(0, 2, 1), config.rhs_major, p.dtype)
    return (rhs, lhs) if config.swap_ab else (lhs, rhs)


def _epilogue(
    params: GemmParams, config: Config, matmul: Matmul, d: Array, saved: list[Array]
) -> list[Array]:
    """Sets the members that say what the epilogue does; returns what it reads, residual last."""
    p, read = matmul, []

    def operand(values: Array | None) -> EpilogueOperand:
        if values is None:
            return EpilogueOperand(0, 2)
        array = emulator.empty(values.shape, values.dtype)
        array[...] = values
        read.append(array)
        return EpilogueOperand(array.ctypes.data, TYPES[array.dtype])

    c = operand(None if p.in_place else p.c)
    if p.in_place:
        d[...] = p.c
        c = EpilogueOperand(d.ctypes.data, TYPES[d.dtype])
    params.epilogue = Epilogue(
        alpha=p.alpha,
        beta=p.beta,
        c=c,
        bias=operand(p.bias),
        residual=operand(p.residual),
        bias_along_m=p.bias_along_m != config.swap_ab,
        activation=config.activation,
        gated=p.rhs_up is not None,
        formula=formula(config, p),
    )
    params.output = EpilogueResult(d.ctypes.data, TYPES[d.dtype])
    for i, array in enumerate(saved):
        params.saved_output[i] = EpilogueResult(array.ctypes.data, TYPES[array.dtype])
    return read


def _distinct(arrays: list[Array]) -> Iterator[Array]:
    """Each array once, and none that is empty."""
    seen = set()
    for array in arrays:
        if array.size and array.ctypes.data not in seen:
            seen.add(array.ctypes.data)
            yield array


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
