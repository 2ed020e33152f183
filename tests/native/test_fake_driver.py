"""Runs the files of fake_driver/ in processes of their own, on a driver that needs no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import HERE, ROOT, Build

FILES = {file.stem: file for file in sorted((HERE / "fake_driver").glob("test_*.py"))}
# They are of a process's first use of the driver.
FIRST = ("test_direct_launcher", "test_loading")
PROCESSES = {**{name: [FILES.pop(name)] for name in FIRST}, "others": list(FILES.values())}


@pytest.mark.parametrize("files", PROCESSES.values(), ids=PROCESSES)
def test_on_the_fake_driver(files: list[Path], build: Build, tmp_path: Path) -> None:
    environment = os.environ | {
        "JAXBW_LIBCUDA": str(build("fake_libcuda.cc")),
        "JAXBW_FFI_HARNESS": str(build("ffi_harness.cc")),
        "JAXBW_FAKE_DRIVER_TESTS": "1",
        "JAX_PLATFORMS": "cpu",
        "PYTHONSAFEPATH": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    command += ["--basetemp", str(tmp_path / "inner"), *map(str, files)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
