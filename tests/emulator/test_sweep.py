"""A sample of the sweep (sweep.py): every instance, at every number of waves."""

import itertools

import pytest

from jaxbw.selection.kernel_table import Kernel

from ..gpu import direct
from . import sweep

SCHEDULES_OF_A_CASE = 2


@pytest.mark.parametrize("kernel", direct.kernels(), ids=lambda kernel: kernel.name)
def test_instance(kernel: Kernel) -> None:
    # Instances and cases take turns with the schedules, so that all of them are used.
    number = [other.name for other in direct.kernels()].index(kernel.name)
    turns = itertools.islice(itertools.cycle(sweep.SCHEDULES), 3 * number, None)
    for case in itertools.islice(
        sweep.cases(kernel), 0, None, 3 if kernel.family == "sm100" else 1
    ):
        for schedule in itertools.islice(turns, SCHEDULES_OF_A_CASE):
            sweep.check(case, schedule)


def test_the_grid_has_every_alternative() -> None:
    drawn = [case for kernel in direct.kernels() for case in sweep.cases(kernel)]
    for family in ("sm90", "sm100"):
        mine = [case for case in drawn if case.family == family]
        for axis, count in [
            ("cluster", 6),
            ("layout", 4),
            ("dtype", 2),
            ("output", 3),
            ("bias", 4),
        ]:
            values = {getattr(case, axis) for case in mine}
            assert len(values) == count, f"{family}: {axis} is only {values}"
        assert {case.activation for case in mine} == set(sweep.ACTIVATIONS)
        assert {case.batch for case in mine} >= {1, 2}
        assert {case.integers for case in mine} == {True, False}
