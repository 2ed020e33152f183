"""Grouped matmuls on the GPU, through jax.jit: bit-exact on integers, NaN in all other rows."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbw._src.primitives.ragged_gemm import ragged_gemm
from jaxbw._src.selection import devices
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.policy import Policy
from jaxbw._src.selection.ragged import RaggedChoice, choose

from ..emulator.ragged_launch import Ragged, launch
from ..emulator.test_ragged import BOTH, CASES, FLOAT8
from ..jax import test_fp8_ragged

pytestmark = pytest.mark.gpu


def run(case: Ragged, config: GemmConfig | None) -> None:
    """With a configuration, or the one that is chosen."""
    for _ in range(2):
        case.compare(computed(case, config, *case.operands()))


def computed(case: Ragged, config: GemmConfig | None, lhs: Any, rhs: Any) -> Any:
    """The result, in memory that was NaN before."""
    device = devices.running_device()
    assert device is not None
    if device.family != "sm90":
        pytest.skip("grouped kernels are for Hopper")
    problem = case.problem
    choice = choose(problem, device, Policy(implementation=("sm90",), config=config))
    assert isinstance(choice, RaggedChoice), str(choice)
    offset = np.array(case.offset, np.int64).astype(np.int32)
    given = (lhs.astype(problem.lhs_dtype), rhs.astype(problem.rhs_dtype), case.table, offset)
    terms = [*case.terms().values(), *([] if case.source_rows is None else [case.lhs_rows()])]

    @jax.jit
    def compute(*operands: Any) -> Any:
        return ragged_gemm(problem, choice, *operands)

    # What the allocator hands out next.
    jnp.full((2**26,), jnp.nan, problem.output).block_until_ready().delete()
    return np.asarray(compute(*given, *terms))


@pytest.mark.parametrize("tile", [(128, 256), (128, 128), (64, 128)], ids=str)
@pytest.mark.parametrize("promoted", [False, True])
@pytest.mark.parametrize("rhs_dtype", ["e4m3", "e5m2"])
def test_float8_has_the_bits_of_the_emulator(
    rhs_dtype: str, promoted: bool, tile: tuple[int, int]
) -> None:
    """Of real values: Hopper keeps 13 fraction bits of their sums."""
    if promoted and tile == (128, 256):
        tile = (128, 192)  # which is as wide as they are
    case = Ragged(
        (37, 0, 90, 50), k=1040, n=264, rhs_dtype=rhs_dtype, promoted=promoted, scales=BOTH
    )
    case = replace(
        case.of_8_bits(), output="f32", tile=tile, pingpong=tile[0] == 64, bias="f32", alpha=0.3
    )
    rng = np.random.default_rng(0)
    lhs, rhs = (rng.standard_normal(s) for s in (case.problem.lhs_shape, case.problem.rhs_shape))
    emulated, *_ = launch(case, lhs, rhs, sums="fused")
    found = computed(case, case.config, lhs, rhs)
    np.testing.assert_array_equal(found.view(np.uint32), emulated.view(np.uint32))


@pytest.mark.parametrize("name", CASES | FLOAT8)
def test_the_cases_of_the_emulator(name: str) -> None:
    case = (CASES | FLOAT8)[name]
    run(case, replace(case.config, stages=None))


def drawn(kind: str, groups: int, m: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Sizes of so many groups."""
    if kind == "one":
        sizes = np.zeros(groups, int)
        sizes[rng.integers(groups)] = m
    elif kind == "uniform":
        sizes = np.full(groups, m // groups)
    else:
        weights = rng.permutation(1.0 / np.arange(1, groups + 1))
        sizes = rng.multinomial(m - 37, weights / weights.sum())
    return tuple(int(size) for size in sizes)


@pytest.mark.parametrize("form", ["rows", "gathered", "contraction"])
@pytest.mark.parametrize("kind", ["uniform", "one", "zipf"])
@pytest.mark.parametrize(("m", "groups"), [(8000, 7), (2111, 64), (333, 300)], ids=str)
def test_sizes_of_layers(kind: str, m: int, groups: int, form: str) -> None:
    contraction = form == "contraction"
    rng = np.random.default_rng(m)
    sizes = drawn(kind, groups, m, rng)
    case = Ragged(
        sizes,
        m=m,
        k=328,
        n=712,
        contraction=contraction,
        transposed=not contraction and groups == 64,
        output="f32" if kind == "one" else "bf16",
        source_rows=1000 if form == "gathered" else None,
    )
    run(case, None)


@pytest.mark.parametrize("contraction", [False, True], ids=["rows", "contraction"])
def test_it_repeats_in_a_loop(contraction: bool) -> None:
    """XLA captures the calls of a loop into CUDA graphs; sizes change from call to call."""
    device = devices.running_device()
    assert device is not None
    case = Ragged((300, 500, 100, 100), m=1000, k=136, n=264, contraction=contraction, output="f32")
    problem = case.problem
    choice = choose(problem, device, Policy(implementation=("sm90",)))
    if not isinstance(choice, RaggedChoice):
        pytest.skip(str(choice))
    lhs, rhs = case.operands()
    given = (lhs.astype(problem.lhs_dtype), rhs.astype(problem.rhs_dtype))

    @jax.jit
    def loop(lhs: Any, rhs: Any, sizes: Any) -> Any:
        def step(i: Any, total: Any) -> Any:
            rolled = jnp.roll(sizes, i, axis=1)
            return total + ragged_gemm(problem, choice, lhs, rhs, rolled, jnp.int32(0))

        return jax.lax.fori_loop(0, 8, step, jnp.zeros(problem.output_shape, jnp.float32))

    expected = sum(
        replace(case, sizes=tuple(np.roll(case.sizes, i))).expected(lhs, rhs) for i in range(8)
    )
    np.testing.assert_array_equal(np.asarray(loop(*given, case.table)), expected)


@pytest.mark.parametrize("sizes", [(0, 9000, 200, 0), (0, 0, 9216, 0)], ids=str)
def test_parts_of_a_long_group_repeat_bit_by_bit(sizes: tuple[int, ...]) -> None:
    """Of real values, as chosen: 64 tiles in two parts each, and zeros beside them."""
    case = Ragged(sizes, m=9216, k=1024, n=2048, contraction=True, output="f32")
    rng = np.random.default_rng(0)
    lhs, rhs = (rng.standard_normal(s) for s in (case.problem.lhs_shape, case.problem.rhs_shape))
    first, *others = (computed(case, None, lhs, rhs) for _ in range(5))
    for other in others:
        np.testing.assert_array_equal(other.view(np.uint32), first.view(np.uint32))
    assert not first[0, [i for i, size in enumerate(sizes) if size == 0]].any()
    (longest,) = (i for i, size in enumerate(sizes) if size >= 9000)
    start = sum(sizes[:longest])
    rows = slice(start, start + sizes[longest])
    narrow = [x.astype(jnp.bfloat16).astype(np.float64)[0, rows] for x in (lhs, rhs)]
    exact = narrow[0].T @ narrow[1]
    # Sums of so many products of normal numbers, each within 2^-23 of the largest partial sum.
    np.testing.assert_allclose(first[0, longest], exact, atol=9216 * 2**-23 * 500, rtol=0)


def test_gradients_in_float8() -> None:
    test_fp8_ragged.test_gradients("kernel", None)
