"""Matmuls under compositions of JAX's transformations: those of lax, in type and in value.

4,000 of them, a quarter of float8, in parts for several workers. tests/gpu/property.py runs more on
a GPU.
"""

import random
from collections import Counter
from collections.abc import Iterator

import hypothesis
import hypothesis.strategies as st
import jax
import pytest

from .transformed_matmuls import DTYPES, TRANSFORMATIONS, Case, check, draw

CASES, PARTS, TOGETHER = 4000, 32, 10  # so many are compiled together


@pytest.fixture(autouse=True)
def _with_64_bits() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


cases = st.randoms(use_true_random=False).map(draw)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("part", range(PARTS))
def test_are_those_of_lax(part: int) -> None:
    @hypothesis.seed(part)
    @hypothesis.settings(max_examples=CASES // PARTS // TOGETHER)
    @hypothesis.given(st.lists(cases, min_size=TOGETHER, max_size=TOGETHER))
    def run(drawn: list[Case]) -> None:
        check(drawn)

    run()


def test_all_transformations_are_drawn_with_all_dtypes() -> None:
    drawn = [draw(random.Random(number)) for number in range(1000)]
    steps = Counter(step.name for case in drawn for step in case.steps)
    assert set(steps) == set(TRANSFORMATIONS)
    assert min(steps.values()) > 50
    assert len({(*case.dtypes, case.preferred) for case in drawn}) == len(DTYPES)
    composed = {tuple(step.name for step in case.steps) for case in drawn}
    assert {("grad", "vmap"), ("vmap", "grad"), ("scan", "jvp"), ()} <= composed
    assert len(composed) > 150
