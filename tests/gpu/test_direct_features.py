"""What a launch can be beside a plain matmul: epilogues, split and swapped matmuls, odd sizes.

On host arrays without JAX, against NumPy in float64. The guards around every buffer are checked,
and the workspace holds garbage before each launch.
"""

import itertools
from dataclasses import replace

import pytest

from . import fuzz_direct
from .direct import Case
from .test_direct import LAYOUTS, check

pytestmark = pytest.mark.gpu

FLOATS = ("f32", "bf16", "f16")
ACTIVATIONS = ("none", "relu", "silu", "gelu", "gelu_exact")
ODD = [(1, 1, 1), (3, 5, 7), (17, 33, 65), (127, 129, 63), (130, 1, 77), (1, 131, 200)]
ODD += [(257, 255, 131), (264, 100, 1)]


@pytest.mark.parametrize("output", FLOATS)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation: str, dtype: str, output: str) -> None:
    for bias, integers in itertools.product((None, *FLOATS), (True, False)):
        plain = Case(136, 144, 72, dtype=dtype, output=output, activation=activation)
        check(replace(plain, bias=bias, integers=integers))


@pytest.mark.parametrize("output", FLOATS)
@pytest.mark.parametrize("operand", FLOATS)
@pytest.mark.parametrize("n", [136, 131])
def test_operands_of_the_epilogue(n: int, operand: str, output: str) -> None:
    """Each array alone, and all of them together; rows that TMA stores, and rows that it cannot."""
    plain = Case(200, n, 72, output=output, batch=2)
    check(replace(plain, c=operand, alpha=-0.5))
    check(replace(plain, c=operand, alpha=-0.5, in_memory=True))
    check(replace(plain, alpha=2.0, in_memory=True))
    check(replace(plain, c=output, in_place=True))
    check(replace(plain, residual=operand, activation="relu"))
    check(replace(plain, bias=operand, bias_along_m=True))
    for along_m, integers in itertools.product((False, True), (True, False)):
        everything = replace(
            plain,
            alpha=2.0,
            c=output,
            in_place=True,
            bias=operand,
            bias_along_m=along_m,
            activation="gelu_exact",
            residual=operand,
            integers=integers,
        )
        check(everything)
        check(replace(everything, c=operand, in_place=False, activation="silu", save=True))


@pytest.mark.parametrize("output", FLOATS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_saved_results(activation: str, output: str) -> None:
    for n, block_n in itertools.product((264, 100), (64, 128, 256)):
        case = Case(264, n, 136, block_n=block_n, output=output, activation=activation, save=True)
        check(replace(case, bias="f32", cluster=(2, 1)))
        check(replace(case, residual="bf16", integers=False))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("output", FLOATS)
@pytest.mark.parametrize("block_n", [128, 256])
def test_gated_matmuls(block_n: int, output: str, layout: str) -> None:
    for activation, n in itertools.product(ACTIVATIONS, (136, 131)):
        case = Case(200, n, 136, block_n=block_n, output=output, layout=layout, gated=True)
        case = replace(case, activation=activation)
        check(case)
        check(replace(case, save=True, integers=False, cluster=(2, 1)))
    check(replace(case, bias="f32", residual="bf16", alpha=0.5, batch=2))
    check(replace(case, residual="bf16", alpha=0.5, in_memory=True))
    check(replace(case, bias="bf16", bias_along_m=True, split_k=2, save=True))


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_gated_few_rows(layout: str) -> None:
    """Gate and up are halves of a tile, and of what the CTAs of a cluster send each other."""
    for block_m, parts in itertools.product((8, 16, 32), (1, 2, 8)):
        case = Case(block_m - 3, 408, 1096, block_m=block_m, block_n=128, cluster_k=parts)
        case = replace(case, layout=layout, gated=True)
        check(case, repeats=3)
        check(replace(case, n=331, output="f32", activation="silu", integers=False))
        check(replace(case, bias="f32", residual="bf16", alpha=0.5, batch=2, shared=("lhs",)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("split_k", [2, 3, 5, 16])
def test_split_k(split_k: int, layout: str) -> None:
    """The parts of a tile meet in the workspace, and every launch finds other garbage there."""
    for m, n, k in ((128, 128, 1024), (264, 328, 1032), (100, 77, 1100)):
        case = Case(m, n, k, split_k=split_k, layout=layout)
        check(case, repeats=3)
        check(replace(case, cluster=(2, 1), block_n=256, integers=False), repeats=3)
        check(replace(case, batch=3, output="bf16", cluster=(1, 2), swizzle=4))
    epilogue = replace(case, c="f32", in_place=True, bias="bf16", residual="f16")
    check(replace(epilogue, activation="gelu", integers=False, save=True), repeats=3)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_parts_of_k_in_a_cluster(parts: int, layout: str) -> None:
    """The parts of a tile meet in distributed shared memory, many clusters after each other."""
    for m, n, k in ((128, 128, 1024), (264, 328, 1032), (1100, 1077, 1100)):
        case = Case(m, n, k, cluster_k=parts, layout=layout)
        check(case, repeats=3)
        check(replace(case, output="bf16", integers=False), repeats=3)
        check(replace(case, block_n=64, output="f16", batch=2))
        check(replace(case, split_k=2, integers=False, block_n=64), repeats=3)
        check(replace(case, cluster=(2, 1), cluster_k=max(1, parts // 2), output="bf16"))
    epilogue = replace(case, c="f32", in_place=True, bias="bf16", residual="f16")
    check(replace(epilogue, activation="gelu", integers=False, save=True), repeats=3)
    gated = Case(200, 130, 1100, cluster_k=parts, layout=layout, gated=True, save=True)
    check(replace(gated, activation="silu", split_k=2), repeats=3)
    few = Case(16, 1000, 1100, cluster_k=parts, layout=layout, block_n=64, swap_ab=True)
    check(replace(few, bias="f32", output="bf16", residual="f32"), repeats=3)


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (2, 2)], ids=str)
def test_only_the_tail_is_split(cluster: tuple[int, int]) -> None:
    for n in (128, 1000, 2304):
        case = Case(2200, n, 520, cluster=cluster, split_k=4, split_tail=True, swizzle=8)
        check(case, repeats=3)
        check(replace(case, output="bf16", integers=False, batch=2))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("m", [1, 3, 8, 16, 33, 200])
def test_swap_ab(m: int, layout: str) -> None:
    for n, block_n in itertools.product((264, 1001), (64, 128)):
        case = Case(m, n, 200, layout=layout, block_n=block_n, swap_ab=True)
        check(case)
        check(replace(case, bias="f32", output="bf16", residual="f32", activation="silu"))
        check(replace(case, bias="f32", bias_along_m=True, c="f32", in_place=True, save=True))
        check(replace(case, split_k=3, batch=2, cluster=(2, 1), integers=False), repeats=3)


@pytest.mark.parametrize("size", ODD, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_any_length(layout: str, size: tuple[int, int, int]) -> None:
    """Operands that TMA cannot address are repacked, results are stored without it."""
    for dtype, output in itertools.product(("bf16", "f16"), FLOATS):
        check(Case(*size, layout=layout, dtype=dtype, output=output))
    check(Case(*size, layout=layout, batch=3, cluster=(2, 1)))
    check(Case(*size, layout=layout, batch=3, shared=("lhs",), integers=False))
    check(Case(*size, layout=layout, batch=3, shared=("rhs",), block_n=64), repeats=3)


@pytest.mark.parametrize("output", FLOATS)
def test_stores_of_rows(output: str) -> None:
    for n in (8, 60, 120, 129, 264):
        case = Case(300, n, 72, output=output)
        check(case)
        check(replace(case, block_n=256, residual="f32", save=True))


@pytest.mark.parametrize("scheduler", ["static", "none"])
@pytest.mark.parametrize("raster", ["m", "n"])
def test_schedules(raster: str, scheduler: str) -> None:
    for cluster, swizzle in itertools.product(((1, 1), (2, 1), (1, 2)), (1, 3, 16)):
        case = Case(3000, 2600, 72, cluster=cluster, swizzle=swizzle, raster=raster, block_n=64)
        check(replace(case, scheduler=scheduler))
        check(replace(case, scheduler=scheduler, split_k=2, k=200, m=600, n=520, batch=3))


@pytest.mark.parametrize("part", range(10))
def test_whatever_is_legal(part: int) -> None:
    """A sample of fuzz_direct.py, whose campaigns are ten thousand cases each."""
    for number in range(20 * part, 20 * part + 20):
        assert fuzz_direct.attempt(0, number).fault == ""
