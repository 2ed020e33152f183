"""The compiled part of jaxbw: kernel loading and launching, and the XLA custom call.

Importing it needs no CUDA driver. libcuda is opened at the first call that needs it; the
environment variable `JAXBW_LIBCUDA` names another file than `libcuda.so.1`.
"""

from enum import Enum
from types import ModuleType
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

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

    Each is a dict of stages. "jaxbw_gemm_v1" is one GEMM launch:

    - operands lhs [B|1, m, k] (K-major) or [B|1, k, m] (MN-major) and rhs [B|1, n, k] (K-major)
      or [B|1, k, n] (MN-major), f16 or bf16; optionally bias [n], f16, bf16 or f32;
    - result [B, m, n], f16, bf16 or f32;
    - attributes kernel (string) and lhs_major, rhs_major, activation (values of the enums here),
      block_m, block_n, cluster_m, cluster_n, cta_group, stages, swizzle (int32), exactly these.
    """

def emulator_ffi_targets() -> dict[str, dict[str, object]]:
    """The custom calls for platform "cpu": the same ones, run by the emulator.

    The environment variable `JAXBW_EMULATOR_CHECKS`, read at each call, says what is checked:
    "off" (the default, on all cores), "hardware" or "strict". A finding fails the call.
    """

def set_kernel_directory(path: str) -> None:
    """Says where `<kernel name>.cubin` and `.ptx` lie. They are loaded at first use."""

def max_stages(family: str, block_m: int, block_n: int, cta_group: int) -> int:
    """The deepest shared-memory ring of a tile.

    Args:
      family: "sm90" or "sm100".
      block_m, block_n: rows and columns of the MMA tile.
      cta_group: CTAs that share the tile.

    Raises:
      ValueError: unknown family, or a dimension of 0.
    """

def shared_memory_bytes(
    family: str, block_m: int, block_n: int, cta_group: int, stages: int
) -> int:
    """The dynamic shared memory of one CTA, in bytes. Arguments and errors as in `max_stages`."""

def launch_gemm(
    lhs: NDArray[np.uint16],
    rhs: NDArray[np.uint16],
    bias: NDArray[Any] | None = None,
    *,
    kernel: str,
    lhs_dtype: DataType,
    output: DataType,
    bias_dtype: DataType | None = None,
    lhs_major: Major,
    rhs_major: Major,
    activation: Activation = ...,
    block_m: int,
    block_n: int,
    cluster_m: int = 1,
    cluster_n: int = 1,
    cta_group: int = 1,
    stages: int,
    swizzle: int = 1,
    device: int = 0,
    guard_bytes: int = 4096,
    repeats: int = 1,
) -> NDArray[np.uint8]:
    """Launches one GEMM on host arrays without JAX, for tests and sanitizers; waits for the result.

    Every buffer lies between guard regions, and the result is poisoned with NaN before each launch.

    Args:
      lhs, rhs: the operands of the custom call (see `ffi_targets`), C-contiguous bit patterns of
        `lhs_dtype`.
      bias: [n], C-contiguous bit patterns of `bias_dtype`.
      kernel, block_m, block_n, cluster_m, cluster_n, cta_group, stages, swizzle: the launch
        configuration.
      guard_bytes: size of each guard, a multiple of 16; 0 for compute-sanitizer, which cannot
        look inside an allocation.
      repeats: launches, which must agree bit for bit.

    Returns:
      The bytes of the result [B, m, n], to be viewed as `output`.

    Raises:
      ValueError: the operands do not belong to one product, or the configuration is not
        launchable.
      DriverError: no driver, no fitting device, or a driver call failed.
      RuntimeError: a guard was overwritten, or a repeated launch gave another result.
    """
