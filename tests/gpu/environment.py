"""The machine that tests run on: its tools, and what a results file says of it."""

import datetime
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from ..emulator import installed

ROOT = Path(__file__).resolve().parents[2]


def describe() -> dict[str, str]:
    """Machine, driver and versions of now; "unknown" where nothing can be asked."""
    gpu = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,power.limit", "--format=csv"]
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", "-m", f"tests.gpu.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "commit": last_line(["git", "-C", str(ROOT), "describe", "--always", "--dirty"]),
        "kernels": installed.fingerprint(),
        "gpu": last_line(gpu),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")},
    }


def last_line(command: list[str]) -> str:
    """The last line of what a program prints."""
    if shutil.which(command[0]) is None:
        return "unknown"
    done = subprocess.run(command, capture_output=True, text=True)
    return ([line for line in done.stdout.splitlines() if line.strip()] or ["unknown"])[-1].strip()


def find_program(name: str) -> str:
    """A program of the CUDA toolkit."""
    beside_nvcc = Path(shutil.which("nvcc") or "").resolve().parent / name
    found = shutil.which(name) or (str(beside_nvcc) if beside_nvcc.is_file() else None)
    if found is None:
        raise FileNotFoundError(f"{name} is not on PATH; it is a part of the CUDA toolkit")
    return found
