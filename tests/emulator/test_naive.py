"""The matmul on CUDA cores that ships among the kernels, with its epilogues."""

from dataclasses import replace

import pytest

from . import gemm_cases, gemm_launch
from .gemm_cases import Case
from .installed import load

NAIVE = "jaxbw_sm100_naive_16bit"
CASES = [
    Case(40, 72, 24, layout="nn", output="bf16"),
    Case(9, 33, 17, layout="nt", dtype="f16", output="f16", bias="f32"),
    Case(7, 65, 3, layout="tn", batch=3, shared=("rhs",), bias="bf16", bias_along_m=True),
    Case(1, 1, 1, layout="tt", activation="silu", alpha=0.5),
    Case(20, 40, 50, batch=2, c="bf16", residual="f16", activation="relu"),
    Case(20, 40, 50, activation="gelu_exact", c="f32", in_place=True, integers=False),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_naive_kernel(case: Case) -> None:
    config = replace(case.config(), scheduler="static")
    kernel = load(NAIVE)
    for sms in (1, 3):  # any grid
        product = case.product()
        outcome = gemm_launch.launch(kernel, config, product, sm_count=sms)
        gemm_cases.verify(case, product, outcome)
