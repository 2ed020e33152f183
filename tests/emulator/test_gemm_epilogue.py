"""Epilogues of the kernels that ship: Hopper's formula in registers beside the general way."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from . import gemm_cases, gemm_launch
from .gemm_cases import Case
from .installed import load
from .test_gemm_kernels import ONE, SCALES, check


def agrees_with_the_general_way(case: Case) -> None:
    """All results have the bits that they have where a float32 residual, or zeros, is read."""
    config, matmul = case.config(), case.matmul()
    assert gemm_launch.plan_of(config, matmul).formula == "elementwise"
    assert (matmul.residual is None) == (case.residual is None)
    residual = np.zeros(matmul.shape) if matmul.residual is None else matmul.residual
    general = replace(matmul, residual=residual.astype(np.float32))
    assert gemm_launch.plan_of(config, general).formula == "general"
    found, expected = (
        gemm_launch.launch(load(gemm_launch.plan_of(config, each).kernel), config, each)
        for each in (matmul, general)
    )
    for mine, of_general in zip(found.results, expected.results, strict=True):
        np.testing.assert_array_equal(mine, of_general)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("bias_along_m", [False, True])
@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
def test_a_formula_in_registers_is_the_general_one(
    activation: str, bias_along_m: bool, gated: bool
) -> None:
    formula: dict[str, Any] = dict(bias="bf16", bias_along_m=bias_along_m, alpha=0.75, gated=gated)
    case = Case(
        140, 200, 136, **ONE, family="sm90", activation=activation, integers=False, **formula
    )
    agrees_with_the_general_way(case)


@pytest.mark.parametrize(
    "options",
    [
        {"lhs_scale": True, "rhs_scale": False},
        {"block_n": 64, "pingpong": True, "block_m": 64, "bias_along_m": True},
        {"gated": True, "block_n": 256},
        {"swap_ab": True, "block_n": 64},
        {"batch": 2, "shared": ("rhs",), "block_n": 192},
        {"split_k": 2, "in_memory": True},
    ],
    ids=str,
)
def test_scales_in_registers_are_the_general_ones(options: dict[str, Any]) -> None:
    """On an H100 the general way took 0.7 ms more for scales of 16384 x 14336 results, of 2."""
    formula: dict[str, Any] = dict(bias="bf16", activation="silu", alpha=0.75, integers=False)
    fp8: dict[str, Any] = dict(family="sm90", dtype="e4m3", rhs_dtype="e5m2", layout="nt")
    case = Case(140, 200, 400, **fp8 | formula | SCALES | {"output": "bf16"} | options)
    agrees_with_the_general_way(case)


@pytest.mark.parametrize("residual", ["bf16", "f16"])
@pytest.mark.parametrize("pingpong", [False, True])
@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
def test_a_residual_in_registers_is_the_general_one(
    activation: str, pingpong: bool, residual: str
) -> None:
    case = Case(
        *(140, 200, 136),
        **ONE,
        family="sm90",
        block_m=64 if pingpong else 128,
        pingpong=pingpong,
        bias="bf16",
        bias_along_m=pingpong,
        activation=activation,
        alpha=0.75,
        residual=residual,
        integers=False,
    )
    agrees_with_the_general_way(case)


@pytest.mark.parametrize(
    "options",
    [
        {"bias": "bf16", "activation": "gelu"},
        {"gated": True, "block_n": 256, "bias": "f32", "activation": "silu"},
        {"gated": True, "block_n": 128, "output": "f16", "pingpong": True, "block_m": 64},
        {"split_k": 2, "activation": "relu", "cluster": (2, 1)},
        {"block_n": 96, "bias_along_m": True, "bias": "f16", "batch": 2},
        {**SCALES, "dtype": "e4m3", "rhs_dtype": "e5m2", "layout": "nt", "output": "bf16"}
        | {"gated": True, "block_n": 128, "activation": "silu"},
    ],
    ids=str,
)
def test_what_is_saved_from_registers_is_what_the_general_way_saves(
    options: dict[str, Any],
) -> None:
    """On an H100 the general way took 180 us where saving nothing took 58 (8192 x 3072 x 768)."""
    case = Case(
        *(300, 328, 136),
        **ONE | {"output": "bf16"} | options,
        family="sm90",
        save=True,
        alpha=0.75,
        integers=False,
    )
    agrees_with_the_general_way(case)


def test_a_residual_costs_no_more_than_a_formula_in_registers() -> None:
    """In instructions of warps, of one tile: the general way takes 47,600."""
    tile = Case(128, 256, 64, family="sm90", output="bf16", block_n=256)

    def instructions(case: Case) -> int:
        return sum(check(case).report.instructions.values())

    plain = instructions(tile)
    elementwise = instructions(replace(tile, bias="bf16", activation="silu"))
    for dtype in ("bf16", "f16"):
        assert plain < instructions(replace(tile, residual=dtype)) < elementwise


@pytest.mark.parametrize("activation", gemm_launch.ACTIVATIONS)
@pytest.mark.parametrize("cta_group", [1, 2])
def test_activation(activation: str, cta_group: int) -> None:
    group: dict[str, Any] = dict(block_m=128 * cta_group, block_n=64 * cta_group)
    group |= dict(cta_group=cta_group, cluster=(cta_group, 1))
    case = Case(130, 72, 64, **group, bias="f32", activation=activation, integers=False)
    d = check(case).d
    # As exact as float32 is: the bound of the sweep allows for a long sum.
    matmul = case.matmul()
    assert matmul.bias is not None
    z = (matmul.lhs @ matmul.rhs + matmul.bias).astype(np.float64)
    np.testing.assert_allclose(d, gemm_cases.activate(activation, z), rtol=1e-5, atol=1e-5)
