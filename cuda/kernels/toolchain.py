"""Find the CUDA compiler that builds the kernels. Serves CMake (as a script) and tests/build.

By default it is nvcc from NVIDIA's wheels, which `pip install .` brings at a pinned version; with
JAXBW_SYSTEM_NVCC=1 in the environment it is the nvcc on PATH.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

OLDEST = (12, 9)  # the first release with family targets such as sm_100f
WHEELS = "cuda-toolkit[cccl,crt,cudart,nvcc,nvvm]==13.0.2"


class ToolchainError(RuntimeError):
    """There is no CUDA compiler to build the kernels with; the message says how to get one."""


@dataclass(frozen=True)
class Toolchain:
    """The programs that compile a kernel, and the directory of cuda.h."""

    nvcc: Path
    ptxas: Path
    include: Path


def find() -> Toolchain:
    """The toolchain that the environment asks for.

    Raises:
      ToolchainError: it is not there, or too old.
    """
    nvcc = _system_nvcc() if os.environ.get("JAXBW_SYSTEM_NVCC", "0") != "0" else _wheel_nvcc()
    _check_version(nvcc)
    # nvcc on PATH may be a wrapper script: what it would run says where it really is.
    plan = output(nvcc, "--dryrun", "-ptx", "none.cu")
    home = re.search(r"^#\$ _HERE_=(.*)$", plan, re.MULTILINE)
    include = re.search(r'^#\$ INCLUDES="-I([^"]*)"', plan, re.MULTILINE)
    if home is None or include is None:
        raise ToolchainError(f"{nvcc} --dryrun does not say where its programs and headers are")
    return Toolchain(nvcc, Path(home[1]) / "ptxas", Path(include[1]).resolve())


def _system_nvcc() -> Path:
    path = shutil.which("nvcc")
    if path is None:
        raise ToolchainError(
            "JAXBW_SYSTEM_NVCC is set, but there is no nvcc on PATH. Put the bin folder of a CUDA "
            f"toolkit {_dotted(OLDEST)} or newer on PATH, or unset JAXBW_SYSTEM_NVCC to take nvcc "
            "from NVIDIA's wheels."
        )
    return Path(path)


def _wheel_nvcc() -> Path:
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations if spec else None
    for root in roots or ():
        nvcc = Path(root) / "cu13" / "bin" / "nvcc"
        if nvcc.exists():
            return nvcc
    raise ToolchainError(
        f"nvcc is not among the Python packages of {sys.executable}. `pip install .` brings it; "
        f'with --no-build-isolation first `pip install "{WHEELS}"`, or set JAXBW_SYSTEM_NVCC=1 '
        "to use the nvcc on PATH."
    )


def _check_version(nvcc: Path) -> None:
    release = re.search(r"release (\d+)\.(\d+)", output(nvcc, "--version"))
    version = (int(release[1]), int(release[2])) if release else (0, 0)
    if version < OLDEST:
        raise ToolchainError(
            f"{nvcc} is CUDA {_dotted(version)}; "
            f"the Blackwell kernels need {_dotted(OLDEST)} or newer."
        )


def output(program: Path, *arguments: str | Path) -> str:
    """What a program prints.

    Raises:
      ToolchainError: it fails; the message holds what it printed.
    """
    # nvcc crashes under the sanitizers that `make sanitize` preloads into Python.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(
        [program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    if done.returncode != 0:
        raise ToolchainError(f"{program} {' '.join(map(str, arguments))} failed:\n{done.stdout}")
    return done.stdout


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


if __name__ == "__main__":
    try:
        found = find()
    except ToolchainError as error:
        sys.exit(str(error))
    print(found.nvcc, found.ptxas, found.include, sep=";")
