"""The extension on a machine whose driver is missing, is something else, or does not start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Build

# Prints what the extension reports, and the error of a launch.
REPORT = """
import numpy as np
from jaxbw import _native
x = np.zeros((1, 128, 64), np.uint16)
print(_native.driver_version(), _native.devices())
print(_native.driver_problem())
ones = dict.fromkeys(("k_spans", "cluster_m", "cluster_n", "cluster_k", "cta_group", "swizzle",
                      "split_k", "accumulators"), 1)
zeros = dict.fromkeys(("has_c", "has_bias", "bias_along_m", "has_residual", "has_lhs_scale",
                       "has_rhs_scale", "lhs_blocks", "rhs_blocks", "mx", "has_out_scale", "out_mx",
                       "gated", "save", "activation", "lhs_major", "rhs_major", "promoted",
                       "counters", "pingpong", "raster", "split_tail", "wave", "swap_ab",
                       "scheduler"), 0)
attributes = ones | zeros | {"kernel": "jaxbw_sm90_bf16_nt_64x128", "alpha": 1.0, "beta": 0.0,
                             "block_m": 128, "block_n": 128, "stages": 4}
try:
    _native.launch_gemm([x, x], [_native.DataType.BF16] * 2, _native.DataType.F32, attributes)
except _native.DriverError as error:
    print(error)
"""


def report(library: str, tmp_path: Path, **settings: str) -> list[str]:
    """The lines that REPORT prints where libcuda is this library."""
    environment = os.environ | settings | {"JAXBW_LIBCUDA": library, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", REPORT],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_no_driver(tmp_path: Path) -> None:
    missing = str(tmp_path / "libcuda.so.1")
    state, problem, error = report(missing, tmp_path)
    assert state == "None []"
    assert problem.startswith(f"no CUDA driver: {missing}: cannot open shared object file")
    assert error == problem


def test_a_library_that_is_no_driver(build: Build, tmp_path: Path) -> None:
    state, problem, error = report(str(build("ffi_harness.cc")), tmp_path)
    assert state == "None []"
    assert (
        "needs a driver that supports CUDA 12.0 or newer (missing: cuGetProcAddress_v2)" in problem
    )
    assert error == problem


def test_a_driver_without_a_function_that_is_needed(build: Build, tmp_path: Path) -> None:
    fake = str(build("fake_libcuda.cc"))
    state, problem, _ = report(fake, tmp_path, FAKE_CUDA_FAIL="cuGetProcAddress=500")
    assert state == "None []"
    assert "needs a driver that supports CUDA 12.0 or newer (missing: cu" in problem


@pytest.mark.parametrize("call", ["cuInit", "cuDeviceGetCount"])
def test_a_driver_without_a_device(build: Build, tmp_path: Path, call: str) -> None:
    fake = str(build("fake_libcuda.cc"))
    state, problem, *_ = report(fake, tmp_path, FAKE_CUDA_FAIL=f"{call}=100")
    assert state == "13000 []"
    assert problem == f"{call}: CUDA_ERROR_NO_DEVICE (a fake error)"
