"""The shapes that published GEMM tests use, scaled down, launched as B200 would be for them.

The lists are those of DeepGEMM's, QuACK's and Modular's tests. What is chosen for the full shape
runs on an eighth of N and K.
"""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import jaxbw

from . import gemm_cases, gemm_launch
from .gemm_cases import DTYPES, Case
from .installed import load

SCALE = 8
M = (1, 16, 32, 64, 96, 128, 4096)
N_K = (
    *((2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168)),
    (7168, 2048),
)
ODD = [(m, n, k) for m in (150, 225, 300, 450) for n, k in ((2304, 16384), (13312, 16384))]
LAYOUTS = ("nn", "nt", "tn", "tt")
SCHEDULES = [("eager", 0), ("latest", 0), ("random", 1), ("pct", 2)]


def chosen(m: int, n: int, k: int, layout: str, output: str, batch: int = 1) -> Case:
    """The launch that is chosen for a matmul, on a small one."""
    if m == 1:  # one row is contiguous along K, too, and is taken so
        layout = "n" + layout[1]
    major = {"n": (0, 1), "t": (1, 0)}
    sizes = [[m, k], [k, n]]
    lhs, rhs = (
        jax.ShapeDtypeStruct((batch, *(size[i] for i in major[letter])), jnp.bfloat16)
        for size, letter in zip(sizes, layout, strict=True)
    )
    contracting = ((2 if layout[0] == "n" else 1,), (1 if layout[1] == "n" else 2,))
    choice = jaxbw.explain(
        lhs,
        rhs,
        dimension_numbers=(contracting, ((0,), (0,))),
        preferred_element_type=DTYPES[output],
        device="B200",
    )
    assert choice.kernel is not None, choice
    assert choice.config is not None
    config = gemm_launch.from_gemm_config(choice.config, 0, 0, DTYPES[output])
    small_n, small_k = -(-n // SCALE), -(-k // SCALE)
    case = Case(
        min(m, 520),
        small_n,
        small_k,
        batch=batch,
        layout=layout,
        output=output,
        **{name: getattr(config, name) for name in LAUNCH},
    )
    return replace(case, split_k=min(case.split_k, -(-small_k // (64 * case.k_spans))))


def check(case: Case, schedule: tuple[str, int]) -> None:
    gemm_cases.check(load(case.kernel), case, *schedule)


# What a case takes over from the configuration that was chosen.
LAUNCH = (
    *("block_m", "block_n", "cta_group", "cluster", "stages", "swizzle", "raster", "k_spans"),
    *("accumulators", "scheduler", "split_k", "split_tail", "swap_ab"),
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("m", M)
def test_shapes_of_language_models(m: int) -> None:
    turns = zip(itertools.cycle(LAYOUTS), itertools.cycle(SCHEDULES), strict=False)
    for (n, k), (layout, schedule) in zip(N_K, itertools.islice(turns, m % 4, None), strict=False):
        check(chosen(m, n, k, layout, "bf16"), schedule)


@pytest.mark.parametrize("n", [256, 129280 // 16])
def test_float32_results(n: int) -> None:
    check(chosen(64, n, 7168, "nt", "f32"), ("random", 3))


@pytest.mark.parametrize(("m", "n", "k"), ODD)
def test_rows_that_tiles_do_not_divide(m: int, n: int, k: int) -> None:
    check(chosen(m, n, k, "nt", "bf16"), ("latest", 0))


def test_a_batch_of_three() -> None:
    for layout in LAYOUTS:
        check(chosen(200, 1024, 1024, layout, "bf16", batch=3), ("pct", 1))


@pytest.mark.parametrize(
    "off", [(0, 0, 0), (8, 0, 0), (0, 8, 0), (0, 0, 8), (1, 1, 1), (-1, -8, -3)]
)
@pytest.mark.parametrize("cta_group", [1, 2])
def test_off_by_an_alignment(off: tuple[int, int, int], cta_group: int) -> None:
    base = Case(256, 256, 128, output="bf16", block_m=128 * cta_group, cta_group=cta_group)
    case = replace(base, m=256 + off[0], n=256 + off[1], k=128 + off[2], cluster=(cta_group, 1))
    check(case, ("random", 1))


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_k_ends_just_before_the_ring_has_gone_round(stages: int) -> None:
    for k in (64 * (stages + 1) - 8, 64 * stages, 64 * stages + 1):
        check(Case(128, 128, k, output="bf16", stages=stages), ("latest", 0))


@pytest.mark.parametrize("waves", [0.5, 1.25, 2.5])
@pytest.mark.parametrize("raster", ["m", "n"])
@pytest.mark.parametrize("swizzle", [1, 4])
def test_waves(waves: float, raster: str, swizzle: int) -> None:
    # On four SMs.
    tiles = round(waves * 4)
    case = Case(64 * tiles, 60, 64, output="bf16", block_m=64, block_n=64, scheduler="static")
    check(replace(case, raster=raster, swizzle=swizzle), ("random", 2))
    check(replace(case, m=60, n=64 * tiles, raster=raster, swizzle=swizzle), ("pct", 2))


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_split(parts: int) -> None:
    check(Case(200, 136, 328, output="bf16", split_k=parts), ("random", 4))
