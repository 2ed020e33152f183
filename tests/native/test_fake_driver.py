"""Runs each file of fake_driver/ in a process of its own, on a driver that needs no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import HERE, ROOT, Build

FILES = sorted((HERE / "fake_driver").glob("test_*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_on_the_fake_driver(file: Path, build: Build, tmp_path: Path) -> None:
    environment = os.environ | {
        "JAXBW_LIBCUDA": str(build("fake_libcuda.cc")),
        "JAXBW_FFI_HARNESS": str(build("ffi_harness.cc")),
        "JAXBW_FAKE_DRIVER_TESTS": "1",
        "JAX_PLATFORMS": "cpu",
        "PYTHONSAFEPATH": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    command += ["--basetemp", str(tmp_path / "inner"), str(file)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
