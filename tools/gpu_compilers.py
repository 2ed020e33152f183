"""Installs XLA's compiler for GPUs for the tests, which need no GPU: `make test` runs this.

It is in JAX's CUDA plugin. Beside JAX itself that plugin would look for a GPU at every start, so
each version gets a folder of its own, ENVIRONMENT/gpu-compilers/VERSION, without CUDA's libraries:
the installed JAX's, and, with JAX, those whose compiler has a fault that jaxbw works around.
"""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

# By the oldest Python that each runs on.
WITH_FAULTS = {"0.11.2": (3, 12)}  # calls a kernel twice: compat.computed_once


def main() -> None:
    """Installs what is not there yet."""
    folder = Path(sys.prefix) / "gpu-compilers"
    installed = version("jaxlib")
    wanted = {installed: ["jax-cuda13-pjrt", "jax-cuda13-plugin"]}
    for faulty, python in WITH_FAULTS.items():
        if faulty != installed and sys.version_info >= python:
            wanted[faulty] = ["jax", "jaxlib", *wanted[installed]]
    for number, packages in wanted.items():
        target = folder / number
        if not target.exists():
            pinned = [f"{package}=={number}" for package in packages]
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            subprocess.run([*pip, "--target", str(target), *pinned], check=True)


if __name__ == "__main__":
    main()
