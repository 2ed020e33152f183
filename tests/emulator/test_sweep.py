"""A sample of the sweep (sweep.py): every instance."""

import itertools

import pytest

from jaxbw._src.selection.kernel_table import Kernel

from . import sweep
from .gemm_cases import Case
from .gemm_launch import ACTIVATIONS
from .ragged_launch import Ragged

SAMPLE = {"sm90": 2, "sm100": 12}  # launches of an instance
GROUPED_SAMPLE = 4
PARTS = 2  # of the sample


@pytest.mark.sampled(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kernel", sweep.kernels(), ids=lambda kernel: kernel.name)
def test_instance(kernel: Kernel, part: int) -> None:
    # Instances and cases take turns with the schedules, so that all of them are used.
    number = sweep.kernels().index(kernel) + part
    turns = itertools.islice(itertools.cycle(sweep.SCHEDULES), 3 * number, None)
    drawn = list(sweep.cases(kernel))
    sample = SAMPLE[kernel.family] if kernel.is_dense else GROUPED_SAMPLE
    for case in drawn[:: len(drawn) // sample][part::PARTS]:
        sweep.check(case, next(turns))


def test_the_grid_is_legal_and_has_every_alternative() -> None:
    """The stages of an 8-bit tile were drawn as for 16 bits: a sweep ended at such a launch."""
    drawn = [case for kernel in sweep.kernels() for case in sweep.cases(kernel)]
    for case in drawn:
        case.plan()
    for family, axes in {
        "sm90": dict(cluster=10, layout=4, dtype=2, output=3, bias=4, c=4, residual=4, batch=2),
        "sm100": dict(cluster=12, layout=4, dtype=3, output=3, bias=4, c=4, residual=4, batch=3)
        | dict(block_m=4, scheduler=3, k_spans=4, accumulators=2, gated=2),
    }.items():
        mine = [case for case in drawn if isinstance(case, Case) and case.family == family]
        flags = dict.fromkeys(("swap_ab", "gated", "save", "store", "raster", "integers"), 2)
        for axis, count in (axes | flags).items():
            values = {getattr(case, axis) for case in mine}
            assert len(values) >= count, f"{family}: {axis} is only {values}"
        assert {case.activation for case in mine} == set(ACTIVATIONS)
        assert {case.split_k > 1 for case in mine} == {True, False}
    grouped = [case for case in drawn if isinstance(case, Ragged)]
    for axis, count in dict(output=3, bias=4, scales=4, scheduler=2, split=3, stages=5).items():
        assert len({getattr(case, axis) for case in grouped}) >= count, axis
