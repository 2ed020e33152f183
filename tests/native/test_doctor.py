"""`python -m jaxbw doctor` on made-up drivers: what it says of GPUs that JAX cannot use."""

import os
import subprocess
import sys

from .conftest import Build


def doctor(build: Build, **settings: str) -> "subprocess.CompletedProcess[str]":
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX")}
    environment |= {"JAXBW_LIBCUDA": str(build("fake_libcuda.cc"))}
    return subprocess.run(
        [sys.executable, "-P", "-m", "jaxbw", "doctor"],
        env=environment | settings,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_jaxlib_without_cuda(build: Build) -> None:
    done = doctor(build)
    assert done.returncode == 0
    for part in (
        "driver       for CUDA 13.0",
        "GPU          Fake H200, compute capability 9.0, 132 SMs, 141 GiB",
        "GPU          Fake A100, compute capability 8.0, 108 SMs",
        "sm90 serves Fake H200",
        "self-test    emulator: matmul ok",
        'does not use it: pip install -U "jax[cuda13]"',
    ):
        assert part in done.stdout, done.stdout
    assert done.stdout.count("Problem: ") == 1


def test_a_gpu_that_a_variable_hides(build: Build) -> None:
    done = doctor(build, JAX_PLATFORMS="cpu")
    assert "the driver shows a GPU and JAX does not use it: JAX_PLATFORMS is 'cpu'" in done.stdout


def test_an_old_driver(build: Build) -> None:
    done = doctor(build, FAKE_CUDA_VERSION="12040")
    assert "driver       for CUDA 12.4" in done.stdout
    problem = "Fake H200: its driver supports CUDA 12; the kernels need a driver for CUDA 13"
    assert f"Problem: no kernel can be loaded on {problem}: install an NVIDIA driver" in done.stdout
    assert "branch 580 or newer" in done.stdout
    assert "none for Fake H200" in done.stdout


def test_a_driver_that_does_not_start(build: Build) -> None:
    done = doctor(build, FAKE_CUDA_FAIL="cuInit=100")
    assert "Problem: an NVIDIA driver is there and no GPU can be used (cuInit: CUDA" in done.stdout
    assert "run nvidia-smi" in done.stdout
