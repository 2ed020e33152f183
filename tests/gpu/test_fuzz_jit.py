"""The fuzzer of matmuls through jax.jit: here on the emulator, and a sample of it on the GPU."""

from dataclasses import replace

import pytest

from ..emulator import gemm_draw
from . import fuzz_direct, fuzz_jit, fuzzing

TINY = replace(fuzz_direct.H200, area=1 << 14, work=1 << 20)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(3))
def test_calls_say_what_their_cases_say(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_jit, "IMPLEMENTATION", "emulator-sm90")
    monkeypatch.setattr(fuzz_jit, "SMALL", TINY)
    cases = fuzz_jit.draw(seed, 0)
    quick = [case for case in cases if case.batch * case.m * case.n < 4 * TINY.area]
    assert len(quick) >= len(cases) // 2
    fuzz_jit.check(quick)


def test_all_kinds_of_calls_are_drawn() -> None:
    cases = [case for number in range(5) for case in fuzz_jit.draw(1, number)]
    configs = [fuzz_jit.given_config(case, index) for index, case in enumerate(cases)]
    assert 0.2 < sum(config is not None for config in configs) / len(cases) < 0.5
    for kind in (
        [case for case in cases if case.gated],
        [case for case in cases if fuzz_jit.is_plain(case) and case.layout == "tt"],
        [case for case in cases if case.shared],
        [case for case in cases if case.bias and case.residual and case.c],
    ):
        assert kind


def test_a_call_that_cannot_have_what_was_drawn_is_counted() -> None:
    """A run ended without its report for such a call, and then counted an instance too many.

    As drawn, lhs was transposed: 8 CTAs share 160 rows. Row-major, as matmul's is, they cannot.
    """
    [case] = [each for each in fuzz_jit.draw(0, 37) if gemm_draw.sm90_refusal(each) is not None]
    found = fuzzing.features(case)
    assert found["k"] == "136"
    assert not {"kernel", "waves"} & found.keys()


@pytest.mark.gpu
def test_a_sample() -> None:
    assert fuzz_jit.attempt(0, 0).fault == ""
