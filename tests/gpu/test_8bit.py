"""Matmuls of fp8 on the GPU, bit by bit as the emulator computes them.

Hopper's tensor cores keep 13 fraction bits of sums of 8-bit products. The emulator's fused sum says
which ones, so real values can be compared exactly, not within a bound that nothing would break.
"""

import itertools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw

from ..emulator import gemm_launch, installed
from ..quantized import scaled
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


@pytest.mark.parametrize("launch", [x for x in LAUNCHES if "swap_ab" not in x], ids=str)
@pytest.mark.parametrize(("lhs", "rhs"), MIXES)
def test_scales_of_blocks(lhs: str, rhs: str, launch: dict[str, object]) -> None:
    given: Any = dict(launch, dtype=lhs, rhs_dtype=rhs, promoted=True, blocks=True, family="sm90")
    direct.check(Case(m=200, n=264, k=1040, batch=2, layout="nn", **given))
    case = Case(m=200, n=264, k=1040, layout="nt", integers=False, **given)
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


@pytest.mark.parametrize("launch", [*LAUNCHES, dict(block_m=128, block_n=128, split_k=14)], ids=str)
@pytest.mark.parametrize(("dtype", "output"), [("bf16", "e4m3"), ("e4m3", "e5m2")])
def test_results_with_a_scale(dtype: str, output: str, launch: dict[str, object]) -> None:
    """Bit by bit what the formula makes of the float32 that the same launch gives without one."""
    given: Any = dict(launch, dtype=dtype, c="f32", bias="f32", activation="gelu", integers=False)
    for n in (264, 133):
        case = Case(
            m=200, n=n, k=1800, batch=2, layout="nt", output=output, out_scale=0.37, **given
        )
        matmul = case.matmul()
        exact, *_ = direct.launch(
            replace(case, output="f32", out_scale=None), replace(matmul, out_scale=None)
        )
        found, amax = direct.launch(case, matmul, repeats=2)
        for i in range(2):
            bits, largest = scaled(exact[i], 0.37, output)
            np.testing.assert_array_equal(found[i].view(np.uint8), bits)
            assert amax[i] == largest


def test_a_scale_in_compiled_programs() -> None:
    """XLA's bits; each call begins with an amax of zero, also within a loop."""
    rng = np.random.default_rng(0)
    xs = (
        rng.integers(-3, 4, (4, 256, 512)).astype(np.float32)
        * np.array([4, 1, 2, 1])[:, None, None]
    )
    xs, w = xs.astype(jnp.bfloat16), rng.integers(-3, 4, (512, 384)).astype(jnp.bfloat16)

    def step(scale: Any, x: Any, implementation: Any) -> Any:
        options: Any = {"preferred_element_type": "float8_e4m3fn", "activation": "relu"}
        q = jaxbw.matmul(x, w, out_scale=scale, implementation=implementation, **options)
        return q.amax / 512, (q.data, q.amax)

    def run(implementation: Any) -> Any:
        scan = lambda xs: jax.lax.scan(  # noqa: E731
            lambda s, x: step(s, x, implementation), jnp.float32(1), xs
        )
        return jax.jit(scan)(xs)

    found, wanted = run("kernel"), run("xla")
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
    first, second, *_ = np.asarray(found[1][1])
    assert first > second
