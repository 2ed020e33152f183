"""All cases, the modules that they launch, and how recorded results are kept and compared."""

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from . import copy_cases, scalar_cases, thread_cases, wgmma_cases
from .case import Buffer, Bytes, Case, Map

HERE = Path(__file__).resolve().parent
CUDA = HERE.parents[2] / "cuda"
VECTORS = HERE / "vectors.npz"
GENERATED = {wgmma_cases.MODULE: wgmma_cases.ptx, scalar_cases.MODULE: scalar_cases.ptx}
WHOLE = 2048  # bytes up to which a result is recorded whole, and not by its digest
DIGEST = 16  # bytes


def cases() -> list[Case]:
    modules = (copy_cases, thread_cases, wgmma_cases, scalar_cases)
    return [case for module in modules for case in module.cases()]


def modules() -> list[str]:
    return sorted([*GENERATED, *(path.stem for path in (HERE / "kernels").glob("*.cu"))])


def ptx(module: str, nvcc: str | Path) -> str:
    """The PTX text of a module: of a .cu by the compiler, or made here."""
    if module in GENERATED:
        return GENERATED[module]()
    return compiled(HERE / "kernels" / f"{module}.cu", nvcc)


def compiled(source: Path, nvcc: str | Path, arch: str = "sm_90a") -> str:
    """The PTX text that the compiler makes of a .cu."""
    # The compiler does not run with the libraries that `make sanitize` loads into Python.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "module.ptx"
        options = ["-std=c++20", f"-arch={arch}", f"-I{CUDA}", "-ptx", "-o", str(target)]
        done = subprocess.run(
            [str(nvcc), *options, str(source)],
            capture_output=True,
            text=True,
            timeout=100,
            env=environment,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{source.name} does not compile:\n{done.stderr}")
        return target.read_text()


def digest(data: Bytes) -> Bytes:
    return np.frombuffer(hashlib.sha256(data.tobytes()).digest()[:DIGEST], np.uint8)


def inputs_digest(case: Case) -> Bytes:
    """Of everything that a launch is given: a recorded result of other inputs says nothing."""
    launch: list[object] = [case.entry, case.grid, case.block, case.cluster, case.smem]
    for argument in case.arguments:
        if isinstance(argument, Map):
            launch.append(argument.fields)
        elif not isinstance(argument, Buffer):
            launch.append(argument)
    whole = hashlib.sha256(repr(launch).encode())
    for buffer in case.buffers:
        whole.update(buffer.data.tobytes())
    return np.frombuffer(whole.digest()[:DIGEST], np.uint8)


def kept(case: Case, result: Bytes) -> Bytes:
    """What is recorded of a result: approximate values whole, large exact ones by their digest."""
    whole = case.ulp is not None or result.size <= WHOLE
    return result if whole else digest(result)


def ulps(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Distance in units in the last place; NaN is as far from NaN as 0 from 0."""

    def ordered(x: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        bits = x.view(np.int32).astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)

    distance = np.abs(ordered(a) - ordered(b))
    both, either = np.isnan(a) & np.isnan(b), np.isnan(a) | np.isnan(b)
    return np.where(both, 0, np.where(either, 1 << 40, distance))


def difference(case: Case, recorded: Bytes, result: Bytes) -> str | None:
    """None, or how the emulator's result differs from the GPU's."""
    if case.ulp is not None:
        gpu, ours = recorded.view(np.float32), result.view(np.float32)
        distance = ulps(gpu, ours)
        with np.errstate(invalid="ignore"):  # infinities and NaN
            wrong = (distance > case.ulp) & ~(np.abs(gpu - ours) <= case.absolute)
        if not wrong.any():
            return None
        worst = int(np.where(wrong, distance, 0).argmax())
        return (
            f"element {worst}: {ours[worst]!r} is {distance[worst]} ulp from {gpu[worst]!r}; "
            f"{wrong.sum()} of {wrong.size} are off by more than {case.ulp}"
        )
    mine = kept(case, result)
    if np.array_equal(mine, recorded):
        return None
    if mine.size != result.size:
        return "the digests differ"
    places = np.flatnonzero(mine != recorded)
    first = int(places[0])
    return (
        f"{places.size} of {mine.size} bytes differ, from {first} to {places[-1]}; there the "
        f"GPU has {recorded[first : first + 16].tobytes().hex(' ')}, the emulator "
        f"{mine[first : first + 16].tobytes().hex(' ')}"
    )
