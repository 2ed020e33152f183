"""The compiled part of jaxbw: kernel loading and launching, and the XLA custom call.

Importing it needs no CUDA driver. libcuda is opened at the first call that needs it; the
environment variable `JAXBW_LIBCUDA` names another file than `libcuda.so.1`.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from types import ModuleType
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

_Attribute: TypeAlias = str | int | float  # of a custom call

CUDA_VERSION: int
"""The CUDA version of the toolkit that built this module and the kernels.

Encoded as 1000 * major + 10 * minor. A driver that supports an older version (see
`driver_version`) may refuse the kernels.
"""

emulator: ModuleType
"""The PTX machine. Its typed face is the package `jaxbw.emulator`."""

class DataType(Enum):
    """Element type of an operand, a bias or a result. The values are those of `cuda/params.h`."""

    F16 = 0
    BF16 = 1
    F32 = 2
    E4M3 = 8
    E5M2 = 9
    E2M1 = 17  # two in a byte

class Untyped(Enum):
    """Element type of an array that no kernel multiplies or adds: of a workspace, of indices."""

    BYTES = 0
    INT32 = 1

class Major(Enum):
    """The dimension of an operand that is contiguous in memory: K, or the other one."""

    K = 0
    MN = 1

class Activation(Enum):
    """What the epilogue applies after the bias. GELU is `jax.nn.gelu`'s default, with tanh."""

    NONE = 0
    RELU = 1
    GELU = 2
    SILU = 3
    GELU_EXACT = 4

class DriverError(RuntimeError):
    """No usable CUDA driver or GPU, or a driver call failed: the message names call and error."""

@final
class DeviceInfo:
    """One CUDA device."""

    @property
    def ordinal(self) -> int:
        """The driver's number of the device."""

    @property
    def name(self) -> str:
        """For example "NVIDIA H200"."""

    @property
    def compute_capability(self) -> tuple[int, int]:
        """(major, minor)."""

    @property
    def sm_count(self) -> int:
        """Streaming multiprocessors."""

    @property
    def memory_bytes(self) -> int:
        """Device memory, in bytes."""

    @property
    def l2_bytes(self) -> int:
        """L2 cache, in bytes."""

def driver_version() -> int | None:
    """The CUDA version that the driver supports, encoded as CUDA_VERSION; None without a driver."""

def driver_problem() -> str | None:
    """Why no device can be used, in words; None where one can."""

def devices() -> list[DeviceInfo]:
    """The CUDA devices of this process; empty where there is no driver or no GPU."""

def start_kernel_times(libraries: Sequence[str]) -> None:
    """Records from here on when kernels run, by CUPTI, which is the first of these that opens.

    One that the process has loaded goes first.

    Raises:
      DriverError: none opens, or CUPTI fails: another profiler is at work, for example.
    """

def stop_kernel_times() -> tuple[list[tuple[str, int, int]], int]:
    """Up to here: name, start and end (ns) of each kernel that has ended; records CUPTI dropped."""

def ffi_targets() -> dict[str, dict[str, object]]:
    """The custom calls for platform "CUDA", as `jax.ffi.register_ffi_target` takes them.

    Each is a dict of stages. "jaxbw_gemm_v10" is one matmul with its epilogue (see `Epilogue` in
    cuda/params.h), one call, one or several kernels:

    - operands lhs [B|1, m, k] (K-major) or [B|1, k, m] (MN-major), rhs [B|1, n, k] (K-major) or
      [B|1, k, n] (MN-major), then as far as the attributes say: rhs_up (gated; shaped as rhs),
      c [B, m, n], bias [n] or (bias_along_m) [m], residual [B, m, n]; perhaps the scalars alpha
      and (with c) beta, f32, instead of the attributes; then lhs_scale [B|1, m], rhs_scale and
      (gated) rhs_up_scale [B|1, n], f32, batched as lhs and rhs are, or (lhs_blocks, rhs_blocks)
      lhs_scale [B|1, m, k/128] and rhs_scale [B|1, n/128, k/128], rounded up; (mx) lhs_tiles,
      rhs_tiles and (gated) rhs_up_tiles, of scales, [B|1, rows/128, k/(4 mx), 512], of mx 32 uint8
      or float8_e8m0fnu, of 16 float8_e4m3fn; and the scalar out_scale, f32;
    - results d [B, m, n], then saved [B, m, n] (save), saved_up [B, m, n] (save and gated), amax
      [B], f32 (with an out_scale), result_tiles, of the scales of d in MXFP8 (out_mx), [B, m/128,
      n/128, 512], uint8 or float8_e8m0fnu, d then having n rounded up to 32; and workspace, uint8
      [W] where W = `workspace_bytes` is not 0;
    - lhs, rhs and rhs_up have one dtype, f16, bf16 or (multiplied as TF32) f32, or 8 bits each, or
      (mx) are float4_e2m1fn, two in a byte; d any of these but the last, every other array is f16,
      bf16 or f32, saved results as d, but bf16 beside 8 bits. d may be the memory of c;
    - attributes, exactly these. kernel: string. alpha, beta: float32. All others int32:
      of the matmul has_c, has_bias, bias_along_m, has_residual, has_lhs_scale, has_rhs_scale,
      has_out_scale, out_mx, gated, save (0 or 1), lhs_blocks (0 or 1), rhs_blocks (0 or 128), mx
      (0, 16 or 32), activation, lhs_major, rhs_major (values of the enums);
      of the configuration block_m, block_n, pingpong, k_spans, cluster_m, cluster_n, cluster_k,
      cta_group, stages, swizzle, raster (0: bands along m, 1: along n), split_k, split_tail, wave,
      swap_ab, accumulators, scheduler (0 static, 1 CLC, 2 none).

    With a grouped kernel group_sizes, int32 [B, total_groups], and group_offset, int32 [], are the
    last operands. With a K-major lhs its rows are grouped, rhs and rhs_up are [B|1, groups, ...],
    and bias is [B|1, groups, n]; with one that is MN-major the contraction is, and d is
    [B, groups, m, n]: c is the same array, to which is added. The first of these groups is number
    group_offset. Sizes are clamped.

    The last tiles % wave cluster tiles are split where split_tail is 1: wave is how many clusters
    the device is taken to run at a time. It is 0 where split_tail is 0.

    "jaxbw_quantize_v1" is an array as float8 with scales (see `QuantizeParams`): operand x, f16,
    bf16 or f32 [groups, group]; results data, e4m3 or e5m2, shaped as x, scale, f32 [groups], and
    workspace, uint8 [W] where W = `quantize_workspace_bytes` is not 0; attribute kernel. For an x
    [groups, matrices, rows, columns] transposed [groups, matrices, columns, rows] follows scale.

    "jaxbw_quantize_blocks_v1" is an array in a block-scaled format (see `QuantizeBlocksParams`):
    operands x, f16, bf16 or f32 [matrices, rows, columns], and of NVFP4 global scales, f32 [S],
    each of matrices / S of them, and then perhaps seeds, int32 [S, 2], by which data are rounded
    stochastically, and signs, int32 [S], by which x is rotated (jaxbw/_src/stochastic.py) and gets
    rows up to a multiple of 16; attributes kernel, a string, and int32 columns, rows (of blocks
    along that dimension 0: nothing, 1: scales, 2: data and scales) and square (0 or 1). Results of
    columns are data, e4m3, e5m2 or e2m1 [matrices, rows, K], K the columns padded to a multiple of
    32, and scales [matrices, tiles of rows, tiles of K, 512], uint8 or float8_e8m0fnu, of NVFP4
    float8_e4m3fn; then those of rows, likewise of the transpose. There are data of one of them.
    """

def quantize_workspace_bytes(x: Sequence[int], dtype: DataType, format: DataType) -> int:
    """Scratch memory of "jaxbw_quantize_v1" of an x of this shape and dtype.

    Raises:
      ValueError: there is no such call.
    """

def ffi_types() -> dict[str, Any]:
    """The types of state that the custom calls for platform "CUDA" leave with XLA.

    As `jax.ffi.register_ffi_type` takes them, which comes before the calls. "jaxbw_call_site" is
    what "jaxbw_gemm_v10" keeps between executions: all that does not depend on addresses.
    """

def emulator_ffi_targets() -> dict[str, dict[str, object]]:
    """The custom calls for platform "cpu": the same ones, run by the emulator.

    The environment variable `JAXBW_EMULATOR_CHECKS`, read at each call, says what is checked:
    "off" (the default, on all cores), "hardware" or "strict". A finding fails the call.
    """

def set_kernel_directory(path: str) -> None:
    """Says where `<kernel name>.cubin` and `.ptx` lie. They are loaded at first use.

    Direct launches take each kernel from the directory of the moment; a custom call keeps those
    that it began with.
    """

# --- the planner

@final
class Grouped(Enum):
    """What of a matmul falls into groups of consecutive rows."""

    NONE = ...
    ROWS = ...
    CONTRACTION = ...

@final
class Problem:
    """One matmul with its epilogue, as the operands lie in memory.

    lhs is [batch|1, m, k] (`Major.K`) or [batch|1, k, m], rhs [batch|1, n, k] or [batch|1, k, n].
    c, bias and residual are dtypes of what there is. `factors_in_memory`: alpha and
    (with c) beta are operands instead. `lhs_scale`, `rhs_scale`: there are scales of rows, of
    columns (of a gated matmul's both right operands). `lhs_blocks`, `rhs_blocks`: how many rows, or
    columns, share a scale of each 128 of k: 1, 128, or 0 for no such scales. `mx`: on sm100 so
    many of k of each row and column share a scale, 32 a ue8m0 one, of 4 bits also 16 one in ue4m3,
    in tiles [batch|1, rows/128, k/(4 mx), 512] (MxParams in cuda/params.h); 0 for none.
    `out_scale`: a result of 8 bits has one. `out_mx`: it is in MXFP8.
    `grouped`: rows, or the contraction, fall into groups: rhs is [batch|1, groups, ...], as are its
    scales, or the result [batch, groups, m, n], and there are total_groups sizes for each batch
    index. `source_rows`: lhs has so many rows, of which m indices choose; 0 where it has m.
    """

    def __init__(
        self,
        *,
        batch: int,
        m: int,
        n: int,
        k: int,
        lhs_batched: bool = True,
        rhs_batched: bool = True,
        lhs_major: Major = ...,
        rhs_major: Major = ...,
        lhs: DataType = ...,
        rhs: DataType = ...,
        output: DataType = ...,
        promoted: bool = False,
        alpha: float = 1.0,
        beta: float = 0.0,
        c: DataType | None = None,
        bias: DataType | None = None,
        bias_along_m: bool = False,
        residual: DataType | None = None,
        activation: Activation = ...,
        gated: bool = False,
        save: bool = False,
        factors_in_memory: bool = False,
        lhs_scale: bool = False,
        rhs_scale: bool = False,
        lhs_blocks: int = 0,
        rhs_blocks: int = 0,
        mx: int = 0,
        out_scale: bool = False,
        out_mx: bool = False,
        grouped: Grouped = ...,
        groups: int = 1,
        total_groups: int = 0,
        source_rows: int = 0,
    ) -> None: ...

@final
class Violation:
    """A rule that is broken. `str` has the runtime's words for it, without a remedy."""

    @property
    def rule(self) -> str:
        """Its code, one of `rules`."""

    @property
    def fields(self) -> dict[str, int]:
        """The numbers that it is about. operand: 0 is lhs, 1 rhs, 2 the result."""

    @property
    def takes(self) -> list[int]:
        """The values that there are in the place of a wrong one."""

@final
class Plan:
    """What a launch will do. Numbers of tiles are of cluster tiles, of all batch indices."""

    @property
    def kernel(self) -> str:
        """The instance's name."""

    @property
    def attributes(self) -> dict[str, str | int | float]:
        """All attributes of the custom call, see `ffi_targets`."""

    @property
    def block_k(self) -> int:
        """Elements along K in a stage; this and the next three are what open fields become."""

    @property
    def stages(self) -> int:
        """Depth of the shared-memory ring."""

    @property
    def accumulators(self) -> int:
        """Of a CTA."""

    @property
    def scheduler(self) -> str:
        """ "static", "clc" or "none"."""

    @property
    def resident(self) -> int:
        """Clusters that run at a time, as was given."""

    @property
    def cluster_ctas(self) -> int:
        """CTAs of a cluster."""

    @property
    def clusters(self) -> int:
        """Of the grid."""

    def clusters_on(self, resident: int) -> int:
        """Of the grid, on a device that runs so many at a time."""

    @property
    def threads(self) -> int:
        """Of a CTA."""

    @property
    def shared_memory(self) -> int:
        """Dynamic shared memory of a CTA, in bytes."""

    @property
    def loaded_columns(self) -> int:
        """Of B, in a CTA's part of a stage: more than are multiplied where whole spans are."""

    @property
    def cluster_rows(self) -> int:
        """Of what the kernel computes, with swap-AB the transpose, in a cluster tile."""

    @property
    def cluster_columns(self) -> int:
        """Likewise; of a gated matmul those of the result."""

    @property
    def tiles_m(self) -> int:
        """Cluster tiles along the rows of one matrix."""

    @property
    def tiles_n(self) -> int:
        """Along its columns."""

    @property
    def tiles(self) -> int:
        """In all: whole and split ones."""

    @property
    def whole_tiles(self) -> int:
        """These are not split along K."""

    @property
    def split_tiles(self) -> int:
        """These are."""

    @property
    def parts(self) -> int:
        """Of the split tiles."""

    @property
    def items(self) -> int:
        """Whole tiles and parts."""

    @property
    def waves(self) -> int:
        """Rounds of the resident clusters: of whole tiles, then of parts."""

    @property
    def work_items(self) -> NDArray[np.int64]:
        """[items, 5], as they are handed out: batch index, row, column, part, parts of the tile."""

    @property
    def slices(self) -> int:
        """Of the split tiles: each has sums of every part, and perhaps a counter."""

    @property
    def slice_floats(self) -> int:
        """Sums of one part in a slice."""

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory: repacked operands, sums of parts, counters."""

    @property
    def workspace_offsets(self) -> dict[str, int]:
        """Where its sections begin: "a", "b", "b_up" of the kernel, "partials".

        Of a grouped matmul also "group_table" and "group_counts".
        """

    @property
    def counters(self) -> int:
        """Counters of slices, of 32 bits; 0 where a launch behind adds up the parts.

        A call site has them: zero before a launch, they are zero again behind it.
        """

    @property
    def repacked(self) -> tuple[str, ...]:
        """Which of "lhs" and "rhs" are copied ahead."""

    @property
    def store_path(self) -> str:
        """ "tma", "rows" or "columns": how results leave if all arrays are aligned."""

    @property
    def formula(self) -> str:
        """ "general", "cast" or "elementwise": the way of the epilogue, likewise."""

    @property
    def residual_stages(self) -> int:
        """Stages of the ring that a tile of the residual takes; 0 where it does not come by TMA."""

    @property
    def reduces_apart(self) -> bool:
        """Whether a launch behind adds up the parts."""

def plan(family: str, problem: Problem, config: Any, resident: int = 1) -> Plan | Violation:
    """What a launch will do, or the rule that forbids it. A pure function.

    Args:
      family: "sm90" or "sm100".
      problem: the matmul.
      config: a `jaxbw.GemmConfig` that has a tile. Its open fields get the family's defaults.
      resident: clusters that the device runs at a time.

    Raises:
      ValueError: unknown family, or no resident cluster.
    """

def plan_many(
    family: str,
    problem: Problem,
    columns: Mapping[str, NDArray[np.int64]],
    *,
    swap_ab: bool,
    resident: Sequence[int],
) -> dict[str, NDArray[np.int64]]:
    """Plans of many configurations, as columns.

    Args:
      family, problem: as of `plan`.
      columns: fields of the custom call's configuration, by their names; others are ignored, and
        stages and accumulators 0 where they are open.
      swap_ab: of all of them.
      resident: clusters that run at a time, by the number of their CTAs.

    Returns:
      legal (0 or 1; what follows is told of illegal ones, too), kernel (an index into
      `kernel_names`; -1 where there is none), stages, rows and columns (of A and B, that a CTA
      loads), cluster_rows, cluster_columns, tiles_m, tiles_n, tiles, resident, whole_tiles,
      whole_waves, part_waves,
      part_rounds (of split tiles that an SM brings to their end), parts, items, accumulators (the
      fewest), most_accumulators (those that there are), held_columns (not 0: those of the only
      accumulator that the epilogue reads first, as the next matmul waits for them), general (1: the
      epilogue's way), gathered (who adds up parts: 0 the last, 1 all that are there, 2 a launch
      behind).
    """

def check_problem(family: str, problem: Problem) -> Violation | None:
    """The rule that forbids a problem, whatever the configuration; None where none does."""

def complete_config(
    family: str, config: Any, problem: Problem | None = None
) -> dict[str, Any] | Violation:
    """block_k, stages, accumulators and scheduler of a configuration, none of them open.

    Arguments are as of `plan`. Or the rule that forbids the configuration whatever the sizes are,
    and without a problem whatever that is.
    """

def limits(family: str) -> dict[str, Any]:
    """The bounds of a family's configurations.

    max_cluster, max_cluster_k, max_split, max_swizzle; min_shared_parts and min_reduced_parts, from
    which on parts are added up otherwise; schedulers, the default first.
    """

def kernel_names() -> list[str]:
    """The names of all instances of cuda/kernels.toml, in its order."""

def rules() -> list[str]:
    """The code of every rule there is."""

def walk(rows: int, columns: int, swizzle: int, raster: str) -> NDArray[np.int64]:
    """(row, column) of each tile of a grid, in the order of their numbers.

    Bands of `swizzle` rows are walked one after the other, each column by column; with raster "n",
    bands of columns, row by row.

    >>> walk(3, 2, 2, "m").tolist()
    [[0, 0], [1, 0], [0, 1], [1, 1], [2, 0], [2, 1]]
    """

# --- launches

def max_stages(family: str, block_m: int, block_n: int, cta_group: int, k_spans: int = 1) -> int:
    """The deepest shared-memory ring of a tile; 0 where not even one stage fits.

    Args:
      family: "sm90" or "sm100".
      block_m, block_n: rows and columns of accumulators.
      cta_group: CTAs that share the tile.
      k_spans: swizzle spans along K in a stage.

    Raises:
      ValueError: unknown family, or a dimension of 0.
    """

def shared_memory_bytes(
    family: str, block_m: int, block_n: int, cta_group: int, stages: int, k_spans: int = 1
) -> int:
    """The dynamic shared memory of one CTA, in bytes. Arguments and errors as in `max_stages`."""

def scratch(
    lhs: Sequence[int], rhs: Sequence[int], input: DataType, attributes: Mapping[str, _Attribute]
) -> tuple[int, int]:
    """The bytes of a call's result `workspace`, and how many counters it has.

    The workspace holds what has to be repacked for TMA, and the partial sums of split tiles.

    Args:
      lhs, rhs: their shapes, and `input` their dtype.
      attributes: all attributes of the call.

    Raises:
      ValueError: the call would be refused.
    """

def launch_gemm(
    operands: Sequence[NDArray[Any]],
    dtypes: Sequence[DataType | None],
    output: DataType,
    attributes: Mapping[str, _Attribute],
    *,
    alias_c: bool = False,
    device: int = 0,
    guard_bytes: int = 4096,
    repeats: int = 1,
    poison: bool = True,
    stream: int = 0,
) -> list[NDArray[np.uint8]]:
    """Calls "jaxbw_gemm_v10" on host arrays without JAX, for tests and sanitizers; waits for it.

    Every buffer lies between guard regions. Before each launch the results are poisoned with NaN,
    the workspace is filled with garbage.

    Args:
      operands: those of the custom call (see `ffi_targets`), C-contiguous bit patterns (uint16 or
        uint32; uint8 of two E2M1) of `dtypes`, which is None of tiles of ue8m0 scales (uint8).
      output: dtype of the results.
      attributes: all attributes of the call.
      alias_c: c lies in the memory of d.
      guard_bytes: size of each guard, a multiple of 16; 0 for compute-sanitizer, which cannot
        look inside an allocation.
      repeats: launches, which must agree bit for bit.
      poison: False, without guards: results and workspace are as the allocation left them, for
        compute-sanitizer's initcheck.
      stream: a CUstream of the device's primary context; 0: the null stream.

    Returns:
      The bytes of each result but for the workspace.

    Raises:
      ValueError: the operands do not belong to one matmul, or the configuration is not
        launchable.
      DriverError: no driver, no fitting device, or a driver call failed.
      RuntimeError: a guard was overwritten, or a repeated launch gave another result.
    """

_DeviceArray: TypeAlias = tuple[int, Sequence[int], DataType | Untyped]
_Profiling: TypeAlias = tuple[str, int, int, int]

def enqueue_gemm(
    operands: Sequence[_DeviceArray],
    results: Sequence[_DeviceArray],
    attributes: Mapping[str, _Attribute],
    *,
    counters: int = 0,
    device: int = 0,
    wait: bool = False,
    profiling: _Profiling | None = None,
) -> None:
    """Enqueues "jaxbw_gemm_v10" on arrays in device memory, without JAX, for measuring.

    It goes to the null stream, which is not ordered with those of XLA: wait for what made the
    operands, and before what reads the results.

    Args:
      operands, results: those of the custom call (see `ffi_targets`), each as its address, shape
        and dtype; the workspace is BYTES.
      attributes: all attributes of the call.
      counters: the address of as many words of 32 bits as the attributes say, which are zero.
      device: whose memory it is.
      wait: until the device has done all that was enqueued.
      profiling: the directory of a profiling build (cuda/kernels/profiled.py), whose kernel is
        launched instead; the address of the memory for its stamps, of so many 64-bit words; and
        those of a warp. cuda/gemm/profile_layout.h says what is there then.

    Raises:
      ValueError: the arrays do not belong to one matmul, the configuration is not launchable, or
        the memory for stamps does not hold all CTAs.
      DriverError: no driver, or a driver call failed.
    """

def trace_gemm(
    operands: Sequence[_DeviceArray],
    results: Sequence[_DeviceArray],
    attributes: Mapping[str, _Attribute],
    *,
    sm_count: int,
    profiling: _Profiling | None = None,
) -> Any:
    """Runs "jaxbw_gemm_v10" in the emulator, on one machine of so many SMs, and traces it.

    Returns what `jaxbw._src.emulator.report.make_report` takes.

    Arguments are as of `enqueue_gemm`, in the host's memory. `JAXBW_EMULATOR_CHECKS` says what is
    checked; findings are in the report.

    Raises:
      ValueError: as of `enqueue_gemm`, or a cluster has more CTAs than there are SMs.
      RuntimeError: the kernel did something from which there is no going on.
    """

class EmulatedLaunch:
    """One kernel's launch, as `jaxbw.emulator.Module.launch` takes it; extents are along x."""

    @property
    def kernel(self) -> str: ...
    @property
    def blocks(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def cluster_ctas(self) -> int: ...
    @property
    def shared_memory(self) -> int: ...
    @property
    def parameters(self) -> bytes:
        """The one argument: RepackParams or GemmParams of cuda/params.h."""

def emulated_launches(
    plan: Plan, arrays: Mapping[str, int], *, sm_count: int
) -> tuple[EmulatedLaunch | None, EmulatedLaunch, EmulatedLaunch | None]:
    """The launches of a plan's repack, gemm, and reduce kernels, in this order. Runs nothing.

    For tests, which run them by `jaxbw.emulator`. "counters" are among the arrays where the plan
    has any; they and amax must be 0 before.

    Args:
      plan: on a device that runs `plan.resident` clusters at a time.
      arrays: the addresses of host arrays by name: "lhs", "rhs", "result", and as far as the
        problem has them "rhs_up", "c" (which may be the result), "bias", "residual", "alpha",
        "beta", "lhs_scale", "rhs_scale", "rhs_up_scale", "out_scale", "saved", "saved_up", "amax",
        "result_tiles" and "workspace".
      sm_count: SMs of the emulated GPU.

    Raises:
      ValueError: other arrays than the call's, or one that is misaligned.
    """

def gemm_params_fields() -> dict[str, tuple[int, int]]:
    """Offset and size of the fields of GemmParams that tests read or change."""

def activities() -> list[str]:
    """What a warp of a profiled kernel does, by the number in its stamps."""

PROFILE_HEAD_WORDS: int
"""64-bit words of a CTA before the slices of its warps."""

PROFILE_SLICE_HEAD: int
"""64-bit words of a slice before the stamps."""
