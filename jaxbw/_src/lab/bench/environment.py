"""What a reader needs to repeat a session: machine, versions, command; and the clocks meanwhile."""

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from jax.extend.backend import get_backend

import jaxbw

PACKAGES = ("jax", "jaxlib", "jax-cuda13-plugin", "nvidia-cublas", "torch", "triton", "numpy")
_GPU = "name,driver_version,clocks.max.sm,clocks.max.memory,power.limit"
_LIVE = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
INTERVAL_MS = 50


def describe(seed: int, rounds: int, note: str) -> dict[str, Any]:
    """The environment of a session."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
        "command": shlex.join(["python", "-m", "jaxbw", *sys.argv[1:]]),
        "note": note,
        "commit": _commit(),
        "gpu": _gpu(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {"jaxbw": jaxbw.__version__} | _versions(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "seed": seed,
        "rounds": rounds,
        "inputs": "iid normal, drawn in float32; sets rotating over at least 400 MB",
        "time": "device time (CUPTI) of all kernels of a call; arms interleaved in random order",
    }


class Monitor:
    """Reads clocks, power and temperature with nvidia-smi, in a process of its own."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, list[float]]] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        query = [f"--query-gpu={','.join(_LIVE)}", "--format=csv,noheader,nounits"]
        command = ["nvidia-smi", "-i", _visible_gpu(), *query, "-lms", str(INTERVAL_MS)]
        try:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        except FileNotFoundError:
            return self
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            with self._process:  # closes the pipe behind its reader
                self._reader.join()

    def since(self, start: float) -> dict[str, list[float]]:
        """The 10th, 50th and 90th percentile of each reading since `time.monotonic()` was that."""
        samples = [values for at, values in self._samples if at >= start]
        if not samples:
            return {}
        columns = np.percentile(np.asarray(samples), [10, 50, 90], axis=0).T
        return {name: column.tolist() for name, column in zip(_LIVE, columns, strict=True)}

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                values = [float(each) for each in line.split(",")]
            except ValueError:  # "[N/A]"
                continue
            self._samples.append((time.monotonic(), values))


def _visible_gpu() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"


def _gpu() -> dict[str, str]:
    command = ["nvidia-smi", "-i", _visible_gpu(), f"--query-gpu={_GPU}", "--format=csv,noheader"]
    line = _output(command)
    if not line:
        return {}
    known = dict(zip(_GPU.split(","), line.split(", "), strict=True))
    return {"index": _visible_gpu()} | known


def _commit() -> str | None:
    """Of the checkout that the package lies in; "+" where files differ from it."""
    package = str(Path(jaxbw.__file__).parent)
    commit = _output(["git", "-C", package, "rev-parse", "HEAD"])
    changed = _output(["git", "-C", package, "status", "--porcelain", "-uno"])
    return commit and commit + ("+" if changed else "")


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found | {"backend": get_backend().platform_version}
