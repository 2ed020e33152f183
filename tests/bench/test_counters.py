"""benchmarks/measuring/counters.py: what ncu counted, by call."""

import pytest

from measuring.counters import Counted, calls

HEAD = (
    '"ID","Kernel Name","sm__cycles_active.avg","sm__cycles_elapsed.max","smsp__inst_executed.sum"'
)
# As ncu 2025.3 wrote it, but for its other columns.
TEXT = f"""==PROF== Connected to process 2526
{HEAD}
"","","cycle","cycle","inst"
"0","jaxbw_sm90_bf16_nn_64x64","7,846.98","11,325","531,456"
"1","jaxbw_sm90_bf16_nn_64x64","4,036.59","7,301","531,456"
"2","nvjet_sm90_tst_128x64_splitK","4,608.36","8,067","354,560"
"3","splitKreduce_kernel","1,000.5","2,000","1,000"
"4","nvjet_sm90_tst_128x64_splitK","3,166.70","6,381","354,560"
"5","splitKreduce_kernel","900.5","1,900","1,000"
==PROF== Disconnected from process 2526
"""


def test_the_last_launch_of_each_call_counts_with_all_its_kernels() -> None:
    ours, theirs = calls(TEXT, 2)
    assert ours == Counted(("jaxbw_sm90_bf16_nn_64x64",), 4036.59, 7301, 531456)
    assert theirs.kernels == ("nvjet_sm90_tst_128x64_splitK", "splitKreduce_kernel")
    assert theirs.active == pytest.approx(4067.2)
    assert (theirs.elapsed, theirs.instructions) == (8281, 355560)


def test_kernels_that_launches_do_not_divide_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 kernels in 3 launches: jaxbw_sm90_bf16_nn_64x64"):
        calls(TEXT, 3)
