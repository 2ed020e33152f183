"""Builds the stand-ins for the CUDA driver and for XLA's GPU runtime."""

import functools
import os
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import jax
import pytest
import toolchain

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
Build = Callable[[str], Path]

# The driver is opened once per process, so what needs the fake one runs in processes of its own,
# which test_fake_driver.py starts.
collect_ignore = [] if "JAXBW_FAKE_DRIVER_TESTS" in os.environ else ["fake_driver"]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles a source of this folder into a shared library."""
    folder = tmp_path_factory.mktemp("native")

    @functools.cache
    def compile_library(source: str) -> Path:
        library = folder / Path(source).with_suffix(".so").name
        includes = [ROOT / "cuda", jax.ffi.include_dir(), toolchain.find().include]
        compiler = (sysconfig.get_config_var("CXX") or "g++").split()[0]
        done = subprocess.run(
            [compiler, "-std=c++20", "-O2", "-shared", "-fPIC", "-o", library, HERE / source]
            + [f"-I{path}" for path in includes],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return library

    return compile_library
