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

def ffi_targets() -> dict[str, dict[str, object]]:
    """The custom calls for platform "CUDA", as `jax.ffi.register_ffi_target` takes them.

    Each is a dict of stages. "jaxbw_gemm_v3" is one product with its epilogue (see `Epilogue` in
    cuda/params.h), one call, one or several kernels:

    - operands lhs [B|1, m, k] (K-major) or [B|1, k, m] (MN-major), rhs [B|1, n, k] (K-major) or
      [B|1, k, n] (MN-major), then as far as the attributes say: rhs_up (gated; shaped as rhs),
      c [B, m, n], bias [n] or (bias_along_m) [m], residual [B, m, n];
    - results d [B, m, n], then saved [B, m, n] (save), saved_up [B, m, n] (save and gated), and
      workspace, uint8 [W] where W = `workspace_bytes` is not 0;
    - lhs, rhs and rhs_up have one dtype, f16, bf16 or (multiplied as TF32) f32; every other array
      is f16, bf16 or f32, saved results as d. d may be the memory of c;
    - attributes, exactly these. kernel: string. alpha, beta: float32. All others int32:
      of the product has_c, has_bias, bias_along_m, has_residual, gated, save (0 or 1), activation,
      lhs_major, rhs_major (values of the enums here);
      of the configuration block_m, block_n, pingpong, k_spans, cluster_m, cluster_n, cluster_k,
      cta_group, stages, swizzle, raster (0: bands along m, 1: along n), split_k, split_tail, wave,
      swap_ab, accumulators, scheduler (0 static, 1 CLC, 2 none).

    The last tiles % wave cluster tiles are split where split_tail is 1: wave is how many clusters
    the device is taken to run at a time. It is 0 where split_tail is 0.
    """

def ffi_types() -> dict[str, Any]:
    """The types of state that the custom calls for platform "CUDA" leave with XLA.

    As `jax.ffi.register_ffi_type` takes them, which comes before the calls. "jaxbw_call_site" is
    what "jaxbw_gemm_v3" keeps between executions: all that does not depend on addresses.
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

def min_stages(family: str, block_m: int, block_n: int, cluster_k: int = 1) -> int:
    """The shallowest shared-memory ring of a tile that `cluster_k` CTAs compute parts of K of.

    Arguments and errors as in `max_stages`.
    """

def shared_memory_bytes(
    family: str, block_m: int, block_n: int, cta_group: int, stages: int, k_spans: int = 1
) -> int:
    """The dynamic shared memory of one CTA, in bytes. Arguments and errors as in `max_stages`."""

def workspace_bytes(
    lhs: Sequence[int], rhs: Sequence[int], input: DataType, attributes: Mapping[str, _Attribute]
) -> int:
    """How much scratch memory a call of "jaxbw_gemm_v3" takes: the size of its result `workspace`.

    It holds what has to be repacked for TMA, and the partial sums of split tiles.

    Args:
      lhs, rhs: their shapes, and `input` their dtype.
      attributes: all attributes of the call.

    Raises:
      ValueError: the call would be refused.
    """

def launch_gemm(
    operands: Sequence[NDArray[Any]],
    dtypes: Sequence[DataType],
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
    """Calls "jaxbw_gemm_v3" on host arrays without JAX, for tests and sanitizers; waits for it.

    Every buffer lies between guard regions. Before each launch the results are poisoned with NaN,
    the workspace is filled with garbage.

    Args:
      operands: those of the custom call (see `ffi_targets`), C-contiguous bit patterns (uint16 or
        uint32) of `dtypes`.
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
      The bytes of d and of the saved results, each [B, m, n] of `output`.

    Raises:
      ValueError: the operands do not belong to one product, or the configuration is not
        launchable.
      DriverError: no driver, no fitting device, or a driver call failed.
      RuntimeError: a guard was overwritten, or a repeated launch gave another result.
    """

_DeviceArray: TypeAlias = tuple[int, Sequence[int], DataType | None]
_Profiling: TypeAlias = tuple[str, int, int, int]

def enqueue_gemm(
    operands: Sequence[_DeviceArray],
    results: Sequence[_DeviceArray],
    attributes: Mapping[str, _Attribute],
    *,
    device: int = 0,
    wait: bool = False,
    profiling: _Profiling | None = None,
) -> None:
    """Enqueues "jaxbw_gemm_v3" on arrays in device memory, without JAX, for measuring.

    It goes to the null stream, which is not ordered with those of XLA: wait for what made the
    operands, and before what reads the results.

    Args:
      operands, results: those of the custom call (see `ffi_targets`), each as its address, shape
        and dtype; the workspace as uint8, with None for the dtype.
      attributes: all attributes of the call.
      device: whose memory it is.
      wait: until the device has done all that was enqueued.
      profiling: the directory of a profiling build (cuda/kernels/profiled.py), whose kernel is
        launched instead; the address of the memory for its stamps, of so many 64-bit words; and
        those of a warp. cuda/gemm/profile_layout.h says what is there then.

    Raises:
      ValueError: the arrays do not belong to one product, the configuration is not launchable, or
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
    """Runs "jaxbw_gemm_v3" in the emulator, on one machine of so many SMs, and traces it.

    Returns what `jaxbw._src.emulator.report.make_report` takes.

    Arguments are as of `enqueue_gemm`, in the host's memory. `JAXBW_EMULATOR_CHECKS` says what is
    checked; findings are in the report.

    Raises:
      ValueError: as of `enqueue_gemm`, or a cluster has more CTAs than there are SMs.
      RuntimeError: the kernel did something from which there is no going on.
    """

def activities() -> list[str]:
    """What a warp of a profiled kernel does, by the number in its stamps."""

PROFILE_HEAD_WORDS: int
"""64-bit words of a CTA before the slices of its warps."""

PROFILE_SLICE_HEAD: int
"""64-bit words of a slice before the stamps."""
