"""Grouped matmuls by the kernels that ship, run as PTX: bit-exact, in every schedule, no finding.

Every row that belongs to no group is NaN, and so is the result before the launch. Sizes are no
multiples of anything.
"""

import pytest

from .ragged_launch import Ragged, check

SCHEDULES = [("eager", 0), ("latest", 0), ("random", 1), ("pct", 3)]
TN = dict(contraction=True)
CASES = {
    "plain": Ragged((37, 90, 50)),
}


@pytest.mark.sampled(len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_grouped(name: str, schedule: tuple[str, int]) -> None:
    how, seed = schedule
    check(CASES[name], schedule=how, seed=seed)
