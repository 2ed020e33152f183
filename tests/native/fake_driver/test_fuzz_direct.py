"""The fuzzer of the GPU's launches, on a driver that computes with plain loops."""

from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest

from ...gpu import campaign, fuzz_direct, fuzzing
from .conftest import FakeDriver

SEED = 1
QUICK = 1 << 20  # multiply-adds


def quick() -> Iterator[int]:
    """Numbers of small cases."""
    for number in count():
        case = fuzz_direct.draw(SEED, number)
        if case.m * case.n * case.k * case.batch < QUICK:
            yield number


def test_drawn_cases_are_launched_as_they_are_drawn(fake: FakeDriver) -> None:
    for number in islice(quick(), 60):
        assert fuzz_direct.attempt(SEED, number).fault == ""
        case = fuzz_direct.draw(SEED, number)
        assert {launch["kernel"] for launch in fake.launches()[-2:]} == {case.kernel}


@pytest.mark.parametrize(
    ("bug", "fault"),
    [
        ("before", "the guard before the result buffer was overwritten"),
        ("after", "the guard after the result buffer was overwritten"),
        ("unwritten", "differs from the first"),
        ("unstable", "differs from the first"),
    ],
)
def test_what_a_kernel_does_wrong_is_a_fault(fake: FakeDriver, bug: str, fault: str) -> None:
    fake.misbehave(bug)
    for number in islice(quick(), 5):
        # What was there, c, is the same before each launch, and wrong.
        is_c = bug == "unwritten" and fuzz_direct.draw(SEED, number).in_place
        expected = "elements of d are wrong" if is_c else fault
        assert expected in fuzz_direct.attempt(SEED, number).fault


def test_what_is_not_written_is_a_fault_where_nan_may_be_right(fake: FakeDriver) -> None:
    """Sums beyond 8 bits are NaN, as what was not written was before each launch."""
    fake.misbehave("unwritten")
    numbers = (i for i in quick() if fuzz_direct.draw(SEED, i).output in ("e4m3", "e5m2"))
    for number in islice(numbers, 3):
        assert "differs from the first" in fuzz_direct.attempt(SEED, number).fault


def test_a_failing_driver_costs_the_process(fake: FakeDriver) -> None:
    number = next(quick())
    fake.fail("cuCtxSynchronize", 700)
    outcome = fuzz_direct.attempt(SEED, number)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in outcome.fault
    assert outcome.lost


def test_the_report_counts_features_and_says_how_to_repeat_a_fault(tmp_path: Path) -> None:
    notes = campaign.Notes(tmp_path / "notes.jsonl")
    notes.add(campaign.Outcome(3))
    notes.add(campaign.Outcome(7, "wrong"))
    report = fuzzing.summary(fuzz_direct.FUZZER, SEED, 10, campaign.Notes(tmp_path / "notes.jsonl"))
    assert (report["cases"], report["planned"], report["launches"]) == (2, 10, 4)
    (fault,) = report["faults"]
    assert fault["reproduce"] == "python -m tests.gpu.fuzz_direct --seed 1 --only 7"
    assert fault["cases"] == [str(fuzz_direct.draw(SEED, 7))]
    for axis, counts in report["cases_by"].items():
        assert sum(counts.values()) == 2, axis
