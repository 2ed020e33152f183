"""Matmuls of fp8 on the GPU, bit by bit as the emulator computes them.

Hopper's tensor cores keep 13 fraction bits of sums of 8-bit products. The emulator's fused sum says
which ones, so real values can be compared exactly, not within a bound that nothing would break.
"""

import itertools

import pytest

from ..emulator import gemm_launch, installed
from . import direct
from .direct import Case

pytestmark = pytest.mark.gpu

MIXES = tuple(itertools.product(("e4m3", "e5m2"), repeat=2))
LAUNCHES = (
    dict(block_m=128, block_n=128),
    dict(block_m=128, block_n=64, cluster=(2, 1)),
    dict(block_m=64, block_n=128, pingpong=True, cluster=(1, 2)),
    dict(block_m=64, block_n=32, pingpong=True, swap_ab=True),
    dict(block_m=128, block_n=128, split_k=3),
    dict(block_m=128, block_n=64, cluster_k=2),
)


@pytest.mark.parametrize("launch", LAUNCHES, ids=str)
@pytest.mark.parametrize("promoted", [False, True])
@pytest.mark.parametrize(("lhs", "rhs"), MIXES)
def test_bits_are_the_emulators(
    lhs: str, rhs: str, promoted: bool, launch: dict[str, object]
) -> None:
    if direct.device_for("sm90") is None:
        pytest.skip("no device runs the sm90 kernels")
    given: dict[str, object] = dict(launch, dtype=lhs, rhs_dtype=rhs, promoted=promoted)
    case = Case(m=200, n=264, k=1040, layout="nt", family="sm90", integers=False, **given)  # type: ignore[arg-type]
    matmul = case.matmul()
    emulated = gemm_launch.launch(
        installed.load(case.kernel), case.config(), matmul, sm_count=case.sm_count, sums="fused"
    )
    found, *_ = direct.launch(case, matmul)
    assert (found.view("u4") == emulated.d.view("u4")).all(), (found - emulated.d).max()


@pytest.mark.parametrize("launch", LAUNCHES, ids=str)
@pytest.mark.parametrize("output", ["e4m3", "e5m2"])
@pytest.mark.parametrize("dtype", ["bf16", "e4m3"])
def test_results_of_8_bits(dtype: str, output: str, launch: dict[str, object]) -> None:
    given: dict[str, object] = dict(launch, dtype=dtype, output=output, alpha=0.5, residual="f32")
    for n in (264, 133):
        direct.check(Case(m=200, n=n, k=520, layout="nt", family="sm90", **given))  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_operands_are_transposed_first(layout: str) -> None:
    for m, n, k in ((130, 203, 271), (256, 512, 384), (33, 65, 129)):
        direct.check(Case(m=m, n=n, k=k, layout=layout, dtype="e4m3", family="sm90"))
