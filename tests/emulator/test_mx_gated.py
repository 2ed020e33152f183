"""Gated matmuls of MX formats: scaled integers bit by bit, strictly; scales of gate and up."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from jaxbw._native import Violation

from . import installed, mx_operands
from .gemm_cases import Case
from .gemm_launch import (
    ACTIVATIONS,
    BLOCKS,
    ROWS,
    SM100,
    Config,
    Matmul,
    integers,
    launch,
    plan_of,
)
from .mx_operands import FORMATS, SCHEDULES, drawn

Array = npt.NDArray[Any]
F32 = np.dtype(np.float32)
E5M2 = np.dtype(ml_dtypes.float8_e5m2)


def check(
    config: Config, matmul: Matmul, gate: Array, up: Array, schedules: Any = SCHEDULES
) -> None:
    """All results: an activation, if there is one, is relu."""
    z, u = np.float32(matmul.alpha) * gate, np.float32(matmul.alpha) * up
    if matmul.bias is not None:
        z = z + matmul.bias
    d = (np.maximum(z, 0) if config.activation else z) * u
    mx_operands.check(config, matmul, *((d, z, u) if matmul.save else (d,)), schedules=schedules)


ALONE = Config(SM100, 128, 256, rhs_major=0, output=F32, accumulators=1)
PAIR = replace(ALONE, block_m=256, cta_group=2, cluster=(2, 1))
NARROW = replace(ALONE, block_n=128, accumulators=2, stages=2)


@pytest.mark.sampled(3 * len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (ALONE, (200, 150, 416)),
        (replace(ALONE, stages=1), (100, 40, 672)),
        (NARROW, (200, 150, 416)),
        (replace(NARROW, cluster=(2, 2), accumulators=1), (200, 250, 288)),
        (replace(NARROW, k_spans=2, stages=1), (1, 200, 1312)),
        (replace(ALONE, k_spans=2, stages=1), (128, 130, 1312)),
        (replace(ALONE, cluster=(2, 2)), (200, 200, 288)),
        (PAIR, (200, 140, 416)),
        (replace(PAIR, stages=4), (256, 260, 544)),
        (replace(PAIR, cluster=(4, 2)), (500, 250, 288)),
    ],
    ids=str,
)
def test_shapes_with_tails(
    config: Config, shape: tuple[int, int, int], name: str, schedule: tuple[str, int]
) -> None:
    check(config, *drawn(shape, name), [schedule])


RELU = ACTIVATIONS.index("relu")
OPTIONS: list[tuple[Config, dict[str, Any]]] = [
    (replace(ALONE, lhs_major=1, rhs_major=1), {}),
    (replace(PAIR, lhs_major=1, rhs_major=1), {"rhs_dtype": E5M2}),
    (replace(PAIR, scheduler="static", raster="n", swizzle=2), {"batch": (1, 2)}),
    (replace(ALONE, split_k=3), {"batch": (2, 1)}),
    (replace(NARROW, split_k=2, scheduler="static"), {"batch": (2, 2), "rhs_dtype": E5M2}),
    (replace(NARROW, activation=RELU), {"alpha": 0.5, "bias": True, "save": True}),
    (replace(PAIR, split_k=2), {"batch": (2, 2)}),
    (replace(ALONE, activation=RELU), {"alpha": 0.5, "bias": True, "save": True}),
    (replace(PAIR, activation=RELU, output=np.dtype(ml_dtypes.bfloat16)), {"save": True}),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("config", "options"), OPTIONS, ids=str)
def test_what_the_other_kernels_can_do(config: Config, options: dict[str, Any]) -> None:
    m, n, k = 300, 208, 272
    if options.get("bias"):
        options = options | {"bias": integers(np.random.default_rng(1), n)}
    check(config, *drawn((m, n, k), **options), schedules=SCHEDULES[1:3])


@pytest.mark.parametrize("config", [ALONE, NARROW, replace(PAIR, cluster=(4, 2))], ids=str)
def test_bytes(config: Config) -> None:
    """Each CTA loads the scales of its rows, and of all columns of gate and of up."""
    (cluster_m, cluster_n), k = config.cluster, 512
    ctas, rows = cluster_m * cluster_n, cluster_m * config.block_m // config.cta_group
    columns = cluster_n * config.block_n // 2
    matmul, _, _ = drawn((rows, columns, k))
    report = launch(installed.load(plan_of(config, matmul).kernel), config, matmul).report
    scales = ctas * 3 * (k // (32 * BLOCKS)) * ROWS * BLOCKS
    data = ctas * k * (config.block_m + config.block_n) // config.cta_group
    assert report.bytes["tma load"] == data + scales
    assert report.bytes["global load"] == k * (rows + 2 * columns) + scales


@pytest.mark.parametrize(("group", "block_n"), [(1, 64), (1, 192), (2, 128), (2, 192)])
def test_other_tiles_are_refused(group: int, block_n: int) -> None:
    case = Case(128, 128, 128, dtype="e4m3", mx=32, gated=True, block_n=block_n, stages=1)
    case = replace(case, block_m=128 * group, cta_group=group, cluster=(group, 1))
    found = case.planned()
    assert isinstance(found, Violation)
    takes = "128 or 256" if group == 1 else "256"
    assert f"MX formats, with cta_group {group}, it is {takes}" in str(found)
