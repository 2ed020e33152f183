"""The kernels of this folder: compiled to PTX by nvcc, and run by the emulator.

nvcc is the one of NVIDIA's wheels (`pip install "jaxbw[nvcc]"`), or with JAXBW_SYSTEM_NVCC=1 that
on PATH.
"""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import toolchain  # cuda/kernels/toolchain.py

from jaxbw import emulator

Array = npt.NDArray[Any]
HERE = Path(__file__).parent
FLAGS = ("-ptx", "-arch=compute_100f", "-std=c++20", "-O3", "--expt-relaxed-constexpr")
WARNINGS = ("-Werror", "all-warnings")
BF16 = np.dtype(ml_dtypes.bfloat16)
ROWS, COLUMNS, DEPTH = 128, 256, 64  # of a stage: M, N and K
STAGE = (ROWS + COLUMNS) * DEPTH * 2  # bytes
STAGING = ROWS * 64 * 2  # bytes of the four warps' staging buffers
CONTROL = 32  # bytes of barriers and the like


@cache
def load(name: str) -> emulator.Module:
    """Compiles a kernel of this folder."""
    source = HERE / f"{name}.cu"
    with tempfile.TemporaryDirectory() as folder:
        ptx = Path(folder) / f"{name}.ptx"
        include = f"-I{HERE.parents[1] / 'cuda'}"
        nvcc = toolchain.find().nvcc
        toolchain.output(nvcc, *FLAGS, *WARNINGS, include, "-o", ptx, source)
        return emulator.Module(ptx.read_text(), ptx.name)


def launch(name: str, lhs: Array, rhs: Array, **options: Any) -> tuple[Array, emulator.Report]:
    """Computes lhs [m, k] times the transpose of rhs [n, k], in bfloat16; n and k divide by 8.

    Args:
      name: of the kernel.
      lhs, rhs: operands; they are rounded to bfloat16.
      options: of `emulator.Module.launch`.
    """
    (m, k), n = lhs.shape, len(rhs)
    a, b, d = (emulator.empty((1, *shape), BF16) for shape in ((m, k), (n, k), (m, n)))
    a[0], b[0], d[...] = lhs, rhs, np.nan
    args: list[Any]
    if name == "naive":
        args, block, tile, shared = [a, b, d], 256, (8, 32), 0
    else:
        # Without a swizzle, TMA writes core matrices: 8 elements of K by all rows.
        swizzle, width = (0, 8) if name == "tensor_cores" else (128, DEPTH)
        maps = [
            emulator.TensorMap.encode(array, box=(width, rows, 1), swizzle=swizzle)
            for array, rows in ((a, ROWS), (b, COLUMNS))
        ]
        args, block, tile, shared = [*maps, d], 128, (ROWS, COLUMNS), STAGE + CONTROL
    if name == "tma_store":
        args[-1] = emulator.TensorMap.encode(d, box=(64, 32, 1), swizzle=128)
        shared += STAGING
    grid = (-(-n // tile[1]), -(-m // tile[0]))
    report = load(name).launch(
        name, grid=grid, block=block, dynamic_smem=shared, args=[*args, m, n, k], **options
    )
    return d[0], report
