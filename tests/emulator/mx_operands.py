"""Operands of MX formats as test cases: integers times powers of two, whose products are exact."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from . import installed
from .gemm_launch import E2M1, Config, Matmul, integers, launch, plan_of, scale_tiles

Array = npt.NDArray[Any]
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
SCHEDULES = (("eager", 0), ("latest", 0), ("random", 1), ("pct", 2), ("hold", 3))
FORMATS = {"mxfp8": (E4M3, 32), "mxfp4": (E2M1, 32), "nvfp4": (E2M1, 16)}  # and its blocks


def check(
    config: Config,
    matmul: Matmul,
    *expected: Array,
    schedules: Sequence[tuple[str, int]] = SCHEDULES,
    **options: Any,
) -> None:
    """Launches it strictly; `expected`: the result, and what is saved, in float32."""
    kernel = installed.load(plan_of(config, matmul).kernel)
    for schedule, seed in schedules:
        found = launch(
            kernel, config, matmul, schedule=schedule, seed=seed, checks="strict", **options
        )
        assert found.report.findings == [], (schedule, seed, found.report.summary())
        for got, wanted in zip([found.d, *found.saved], expected, strict=True):
            rounded = wanted.astype(config.output).astype(np.float32)
            np.testing.assert_array_equal(got.astype(np.float32), rounded)


def operand(
    rng: np.random.Generator, batch: int, rows: int, k: int, block: int
) -> tuple[Array, Array, Array]:
    """Values, tiles of scales, and scaled values, `[batch, rows, k]`."""
    values = integers(rng, batch, rows, k)
    exponents = rng.integers(-2, 3, (batch, rows, -(-k // block)))
    scaled = values * np.exp2(exponents).astype(np.float32).repeat(block, axis=2)[:, :, :k]
    return values, scale_tiles(exponents, block), scaled


def drawn(
    shape: tuple[int, int, int],
    name: str = "mxfp8",
    batch: tuple[int, int] = (1, 1),
    rhs_dtype: Any = None,
    **epilogue: Any,
) -> tuple[Matmul, Array, Array]:
    """A matmul, and the products with gate and up."""
    m, n, k = shape
    dtype, block = FORMATS[name]
    rng = np.random.default_rng(m * 7 + n * 5 + k)
    left, left_scales, a = operand(rng, batch[0], m, k, block)
    gate, gate_scales, g = operand(rng, batch[1], n, k, block)
    up, up_scales, u = operand(rng, batch[1], n, k, block)
    matmul = Matmul(
        left,
        gate.swapaxes(1, 2),
        dtype,
        rhs_dtype,
        rhs_up=up.swapaxes(1, 2),
        lhs_scale=left_scales,
        rhs_scale=gate_scales,
        rhs_up_scale=up_scales,
        **epilogue,
    )
    return matmul, a @ g.swapaxes(1, 2), a @ u.swapaxes(1, 2)
