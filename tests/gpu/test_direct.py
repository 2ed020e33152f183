"""The GEMM itself, launched on host arrays without JAX, against NumPy in float64.

test_direct_features.py has epilogues and what else a launch can be. Integer operands make every
result exact, so a single misplaced element is seen; normal ones show that errors stay within the
rounding of the output and of float32 accumulation.
"""

import itertools

import numpy as np
import pytest

from ..emulator.gemm_cases import INPUTS, cta_launch
from . import direct
from .direct import Case

pytestmark = pytest.mark.gpu

LAYOUTS = ("nn", "nt", "tn", "tt")
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2))


def skip_without_device(case: Case) -> None:
    if direct.device_for(case.family) is None:
        pytest.skip(f"no device runs the {case.family} kernels")


def check(case: Case, repeats: int = 1) -> None:
    skip_without_device(case)
    direct.check(case, repeats=repeats)


def instances() -> list[Case]:
    """Every kernel, each at all of its layouts and dtypes, with a tail in every dimension."""
    cases = []
    for kernel in direct.kernels():
        layouts = LAYOUTS if kernel.layout == "any" else (kernel.layout,)
        dtypes = INPUTS[kernel.input]
        widths = (32, 128, 256) if kernel.block_n is None else (kernel.block_n,)
        for layout, (dtype, rhs_dtype), width in itertools.product(layouts, dtypes, widths):
            whole_spans = width // kernel.cta_group % 64 == 0
            if kernel.family == "sm100" and layout[1] == "n" and not whole_spans:
                continue  # an MN-major rhs is loaded 64 columns at a time
            case = Case(
                *(264, 328, 200),
                layout=layout,
                dtype=dtype,
                rhs_dtype=None if rhs_dtype == dtype else rhs_dtype,
                promoted=kernel.input == "8bit_promoted",
                **cta_launch(kernel, width),
                cta_group=kernel.cta_group,
                family=kernel.family,
            )
            cases.append(case)
    return cases


@pytest.mark.parametrize("case", instances(), ids=str)
def test_every_instance_is_exact(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "cluster", [*CLUSTERS, (4, 1), (1, 4), (4, 2), (2, 4), (8, 1), (1, 8)], ids=str
)
def test_clusters_share_operands(cluster: tuple[int, int], layout: str) -> None:
    check(Case(m=648, n=584, k=328, cluster=cluster, layout=layout))


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
@pytest.mark.parametrize("swizzle", [1, 2, 3, 8, 16])
def test_rasterisation_covers_every_tile(swizzle: int, cluster: tuple[int, int]) -> None:
    check(Case(m=1288, n=648, k=72, cluster=cluster, swizzle=swizzle))


@pytest.mark.parametrize("block_n", [64, 128, 192, 256])
@pytest.mark.parametrize("stages", [2, 3, None])
def test_ring_is_filled_drained_and_reused(stages: int | None, block_n: int) -> None:
    depth = stages or 12
    for k in (8, 64, 64 * depth - 8, 64 * depth + 64, 64 * (depth + 1) - 8, 2048):
        check(Case(m=264, n=264, k=k, stages=stages, block_n=block_n, cluster=(2, 1)))


@pytest.mark.parametrize("m", [1, 2, 7, 64, 127, 128, 129, 257])
def test_tails(m: int) -> None:
    for n, k in itertools.product((8, 16, 64, 120, 128, 136, 264), (8, 56, 64, 72, 200)):
        check(Case(m, n, k))
    for n in (4, 60, 132):  # what the f32 result still can address; the rhs has rows of K
        check(Case(m, n, 72, layout="nt"))


@pytest.mark.parametrize(
    "case",
    [
        Case(1, 4, 64, layout="nt"),
        Case(1, 4, 1),
        Case(3, 8, 1, layout="tn"),
        Case(513, 8, 8),
        Case(1, 1000, 8, output="bf16"),
        Case(1, 1, 1, output="bf16"),
        Case(1, 1, 64, layout="nt"),
        Case(1, 5, 64, layout="nt"),
        Case(64, 1, 1, output="bf16"),
        Case(1, 64, 1, layout="tn"),
        Case(7, 1, 2000, layout="tt", batch=3),
    ],
    ids=str,
)
def test_dimensions_of_one(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shared", [(), ("lhs",), ("rhs",)], ids=str)
def test_batches_do_not_leak_into_each_other(shared: tuple[str, ...], layout: str) -> None:
    check(Case(m=136, n=264, k=72, batch=3, shared=shared, layout=layout, cluster=(2, 1)))
    check(Case(m=136, n=264, k=72, batch=5, shared=shared, layout=layout, cluster=(1, 2)))


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
@pytest.mark.parametrize("k", [64, 256])
def test_many_waves(k: int, cluster: tuple[int, int]) -> None:
    check(Case(m=4096, n=4096, k=k, block_n=64, cluster=cluster, swizzle=8))


def test_offsets_beyond_32_bits() -> None:
    # 2^31 elements end within row 65536: the rows around it, the first and the last are compared.
    case = Case(m=65800, n=32768, k=8, output="bf16", block_n=256, cluster=(2, 1), swizzle=8)
    skip_without_device(case)
    given = case.matmul()
    (result,) = direct.launch(case, given)
    assert not (result.view(np.uint16) == 0xFFFF).any(), "elements were not written"
    for rows in (slice(0, 130), slice(65500, 65800)):
        matmul = given.lhs[:, rows].astype(np.float32) @ given.rhs.astype(np.float32)
        np.testing.assert_array_equal(result[:, rows], matmul.astype(result.dtype))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("output", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("k", [64, 1024, 8192])
def test_normal_values(k: int, output: str, dtype: str) -> None:
    check(Case(m=520, n=520, k=k, dtype=dtype, output=output, integers=False, block_n=256))


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
def test_launches_repeat_bit_for_bit(cluster: tuple[int, int]) -> None:
    check(Case(m=1160, n=1032, k=1000, cluster=cluster, block_n=256, integers=False), repeats=20)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_stay_in_their_row_and_column(special: float) -> None:
    case = Case(m=264, n=264, k=200, output="bf16")
    skip_without_device(case)
    given = case.matmul()
    given.lhs[0, 130, 199] = special
    given.rhs[0, 0, 263] = special
    result = direct.launch(case, given)[0].astype(np.float64)
    with np.errstate(invalid="ignore"):
        reference = given.lhs.astype(np.float64) @ given.rhs.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(reference))
    np.testing.assert_array_equal(np.isinf(result), np.isinf(reference))
    assert np.isfinite(np.delete(np.delete(result, 130, 1), 263, 2)).all()
