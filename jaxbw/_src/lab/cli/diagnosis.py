"""What there is of driver, GPU, JAX and kernels, and what is wrong with it: facts and problems."""

import os
import platform
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

import jaxbw
from jaxbw import _native
from jaxbw._src.selection import devices, manifest
from jaxbw._src.selection.devices import Device
from jaxbw._src.selection.kernel_table import Kernel
from jaxbw._src.selection.policy import current_tuned

PACKAGES = ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "flax", "ml_dtypes", "numpy")
VARIABLES = (
    *("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "XLA_FLAGS", "LD_LIBRARY_PATH"),
    *("JAXBW_LIBCUDA", "JAXBW_TUNED", "JAXBW_LOG", "JAXBW_EMULATOR_CHECKS"),
)
_KERNEL_DRIVER = Path("/proc/driver/nvidia/version")  # there wherever the driver's module is loaded
_REINSTALL = "pip install --force-reinstall jaxbw, or make build in its sources"
_TUNE = "name a file that python -m jaxbw tune wrote, or unset JAXBW_TUNED"
# The first driver branch for CUDA 13: NVIDIA's release notes of CUDA 13.0.
_DRIVER_BRANCH = {13: 580}


@dataclass(frozen=True)
class Problem:
    """What is wrong, and what to do about it. With `broken`, the installation itself is."""

    what: str
    remedy: str
    broken: bool = False

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}"


@dataclass(frozen=True)
class Facts:
    """What was found.

    Attributes:
      versions: of jaxbw, Python and packages.
      ffi: of XLA's foreign function interface, in this jaxlib's headers.
      built_for: the CUDA version of the kernels, as "13.0".
      driver: the CUDA version that the driver supports; None without a driver.
      driver_problem: why no device can be used; None where one can.
      gpus: every CUDA device, as the driver describes it.
      device: the one that kernels are chosen for; None where there is none.
      platforms: what JAX can compute on; or why it cannot, `jax_fault`.
      kernels: how many are installed, by family.
      serving: the family of kernels for the device; None where there are none.
      tuned: the user's tuned table in use, and how many of its entries are for the device and
        this version of jaxbw; None without one. `tuned_fault` says what is wrong with it.
      environment: variables that change what jaxbw and JAX do.
    """

    versions: Mapping[str, str]
    ffi: str | None
    built_for: str
    driver: str | None
    driver_problem: str | None
    gpus: tuple[Mapping[str, Any], ...]
    device: Device | None
    platforms: tuple[str, ...]
    jax_fault: str | None
    kernels: Mapping[str, int]
    serving: str | None
    tuned: str | None
    tuned_fault: str | None
    environment: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def facts() -> Facts:
    """Looks at this machine."""
    driver = _native.driver_version()
    device = devices.running_device()
    platforms, jax_fault = _platforms()
    tuned, tuned_fault = _tuned(device)
    counts: dict[str, int] = {}
    for kernel in manifest.kernels():
        counts[kernel.family] = counts.get(kernel.family, 0) + 1
    family = device.family if device is not None else None
    return Facts(
        versions=dict(_versions()),
        ffi=_ffi_version(),
        built_for=_dotted(_native.CUDA_VERSION),
        driver=None if driver is None else _dotted(driver),
        driver_problem=_native.driver_problem(),
        gpus=tuple(_described(info) for info in _native.devices()),
        device=device,
        platforms=platforms,
        jax_fault=jax_fault,
        kernels=counts,
        serving=family if family in counts and device and not device.problem else None,
        tuned=tuned,
        tuned_fault=tuned_fault,
        environment={name: os.environ[name] for name in VARIABLES if name in os.environ},
    )


def problems(found: Facts) -> Iterator[Problem]:
    """What is wrong, what lies at the bottom first."""
    yield from _driver_problems(found)
    yield from _jax_problems(found)
    yield from _kernel_problems(found)
    if found.tuned_fault is not None:
        yield Problem(f"every matmul is refused ({found.tuned_fault})", _TUNE, broken=True)


def _driver_problems(found: Facts) -> Iterator[Problem]:
    if found.driver_problem is not None and (_KERNEL_DRIVER.exists() or found.driver is not None):
        yield Problem(
            f"an NVIDIA driver is there and no GPU can be used ({found.driver_problem})",
            "run nvidia-smi; in a container pass --gpus all and "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility; else name the library, "
            "JAXBW_LIBCUDA=/path/to/libcuda.so.1",
        )
    if found.device is not None and found.device.problem is not None:
        needed = _native.CUDA_VERSION // 1000
        branch = f", branch {_DRIVER_BRANCH[needed]} or newer" if needed in _DRIVER_BRANCH else ""
        yield Problem(
            f"no kernel can be loaded on {found.device.name}: {found.device.problem}",
            f"install an NVIDIA driver for CUDA {needed}{branch}; until then XLA serves",
        )


def _jax_problems(found: Facts) -> Iterator[Problem]:
    if found.jax_fault is not None:
        yield Problem(f"JAX does not start ({found.jax_fault})", _platforms_remedy(), broken=True)
        return
    if found.gpus and "gpu" not in found.platforms:
        if os.environ.get("JAX_PLATFORMS"):
            remedy = _platforms_remedy()
        elif any(name.startswith("jax-cuda") for name in found.versions):
            remedy = "run python -c 'import jax; jax.devices(\"cuda\")' and see what it says"
        else:
            remedy = f'pip install -U "jax[cuda{_native.CUDA_VERSION // 1000}]"'
        yield Problem("the driver shows a GPU and JAX does not use it", remedy)


def _platforms_remedy() -> str:
    value = os.environ.get("JAX_PLATFORMS")
    return f"JAX_PLATFORMS is {value!r}: unset it" if value else "pip install -U jax jaxlib"


def _kernel_problems(found: Facts) -> Iterator[Problem]:
    if not found.kernels:
        yield Problem(
            "this installation has no kernels: it was built without them",
            "pip install --force-reinstall jaxbw, or build without JAXBW_KERNELS=OFF",
            broken=True,
        )
    faults = [each for kernel in manifest.kernels() for each in _file_faults(kernel)]
    for name, fault in dict.fromkeys(faults):  # instances share PTX
        yield Problem(f"{manifest.directory() / name} {fault}", _REINSTALL, broken=True)


def _file_faults(kernel: Kernel) -> Iterator[tuple[str, str]]:
    """The files of a kernel that are not whole, and what is wrong with them."""
    files = ((kernel.name, ".cubin", _elf_fault), (kernel.source_name, ".ptx", _ptx_fault))
    for name, suffix, fault_of in files:
        path = manifest.directory() / (name + suffix)
        try:
            fault = fault_of(path.read_bytes(), name)
        except OSError as error:
            fault = f"cannot be read ({error.strerror})"
        if fault is not None:
            yield path.name, fault


def _elf_fault(content: bytes, name: str) -> str | None:
    """A cubin is a 64-bit ELF file; what its header speaks of must be there."""
    if content[:4] != b"\x7fELF" or len(content) < 64:
        return "is no cubin"
    tables = struct.unpack_from("<QQ", content, 0x20)  # of program headers and of section headers
    sizes = struct.unpack_from("<HHHH", content, 0x36)  # size and number of either's entries
    ends = [
        start + size * count
        for start, size, count in zip(tables, sizes[::2], sizes[1::2], strict=True)
    ]
    if max(ends) > len(content):
        return "is cut short"
    return None if name.encode() in content else f"does not hold the kernel {name}"


def _ptx_fault(content: bytes, name: str) -> str | None:
    """PTX ends with the brace of its last function."""
    if not re.search(rb"^\.version \d", content, re.MULTILINE):
        return "is no PTX"
    if not re.search(rb"\.entry " + name.encode() + rb"\b", content):
        return f"does not hold the kernel {name}"
    return None if content.rstrip(b"\0 \n").endswith(b"}") else "is cut short"


def _platforms() -> tuple[tuple[str, ...], str | None]:
    """What JAX can compute on, its default first; or why it cannot."""
    try:
        default = jax.default_backend()
        others = []
        for name in ("gpu", "cpu"):
            try:
                others += [device.platform for device in jax.devices(name)[:1]]
            except RuntimeError:
                continue
    except Exception as error:  # a plugin may raise anything
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return (), lines[0]
    return tuple(dict.fromkeys([default, *others])), None


def _tuned(device: Device | None) -> tuple[str | None, str | None]:
    """The user's tuned table, and what is wrong with it."""
    try:
        table = current_tuned()
    except ValueError as error:
        return None, str(error)
    if table is None:
        return None, None
    text = f"{table.source}: {len(table.entries)} matmuls"
    if device is not None and device.family is not None:
        text += f", {table.count(device)} of them for {device.name} and this version of jaxbw"
    return text, None


def _versions() -> Iterator[tuple[str, str]]:
    yield "jaxbw", jaxbw.__version__
    yield "python", platform.python_version()
    for package in PACKAGES:
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue


def _ffi_version() -> str | None:
    """Of the headers that this jaxlib brings; None where they say nothing."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    text = header.read_text() if header.is_file() else ""
    found = [re.search(rf"#define XLA_FFI_API_{part} (\d+)", text) for part in ("MAJOR", "MINOR")]
    return ".".join(match.group(1) for match in found if match) or None


def _described(info: _native.DeviceInfo) -> dict[str, Any]:
    major, minor = info.compute_capability
    return {
        "name": info.name,
        "compute_capability": f"{major}.{minor}",
        "sm_count": info.sm_count,
        "memory_bytes": info.memory_bytes,
        "l2_bytes": info.l2_bytes,
    }


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
