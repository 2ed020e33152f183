"""Grouped matmuls by the kernels that ship, run as PTX: bit-exact, in every schedule, no finding.

Every row that belongs to no group is NaN, and so is the result before the launch. Sizes are no
multiples of anything.
"""

from dataclasses import replace

import pytest

from .ragged_launch import Ragged, check

SCHEDULES = [("eager", 0), ("latest", 0), ("random", 1), ("pct", 3)]
BATCH = ((37, 90, 50), (0, 130, 70), (200, 0, 0))

# Rows are grouped. There are 200 of them, and tiles of 128 or 64.
ROWS = {
    "a tail": Ragged((37, 90, 50)),
    "no tail": Ragged((37, 90, 73), transposed=True),
    "one group": Ragged((200,), tile=(128, 256), n=264),
    "one takes all": Ragged((0, 0, 200, 0), transposed=True, k=136),
    "all empty": Ragged((0, 0, 0)),
    "a row each, and nothing": Ragged((1, 0, 1, 0, 0, 1), m=3, dtype="f16", output="f16"),
    "more groups than rows": Ragged((0, 1, 0, 0, 2, 0, 1, 0, 0, 1), m=5, tile=(64, 128), pingpong=True),
    "more groups than threads": Ragged((0, 0, 1) * 250, m=240, groups=3, offset=700, k=8, n=8),
    "negative sizes": Ragged((-5, 70, -(2**31), 60, -1)),
    "oversized": Ragged((70, 2**31 - 1, 9, 2**31 - 1), output="f32"),
    "some groups": Ragged((20, 31, 45, 17, 60), groups=2, offset=2),
    "offset before the first": Ragged((70, 31, 45), groups=2, offset=-1, m=150),
    "offset behind the last": Ragged((70, 31), groups=3, offset=2**31 - 1, m=150),
    "offset, and no group of them": Ragged((70, 31), groups=1, offset=-(2**31), m=150),
    "64 rows": Ragged((37, 90, 50), tile=(64, 128), pingpong=True, transposed=True),
    "64 rows, wide": Ragged((37, 90, 50), tile=(64, 256), pingpong=True, n=264, output="f32"),
    "128 rows in turns": Ragged((70, 0, 101), tile=(64, 256), pingpong=True, k=264, sm_count=1),
    "staggered": Ragged((5, 120, 33), tile=(128, 256), k=328, n=520, swizzle=1, dtype="f16"),
    "results of f32": Ragged((37, 90, 50), tile=(128, 256), n=260, output="f32", transposed=True),
    "batch": Ragged(BATCH),
    "batch, one rhs": Ragged(BATCH, shared=("rhs",), transposed=True),
    "batch, one lhs": Ragged(BATCH, shared=("lhs",), groups=2, offset=1),
    "batch, one of both": Ragged(BATCH, shared=("lhs", "rhs")),
}
# The contraction is: groups of any size next to blocks of 64.
CONTRACTION = {
    "plain": Ragged((37, 90, 50)),
    "whole blocks": Ragged((64, 128, 0, 8), k=136),
    "one group": Ragged((200,), tile=(128, 256), n=264),
    "one takes all": Ragged((0, 0, 200, 0), k=136),
    "all empty": Ragged((0, 0, 0), output="f32"),
    "more groups than rows": Ragged((0, 1, 0, 0, 2, 0, 1, 0, 0, 1), m=5, dtype="f16"),
    "more groups than threads": Ragged((0, 0, 1) * 250, m=240, groups=3, offset=700, k=8, n=8),
    "negative and oversized": Ragged((-5, 70, -(2**31), 2**31 - 1, 7), output="f32"),
    "some groups": Ragged((20, 31, 45, 17, 60), groups=2, offset=2),
    "offset before the first": Ragged((70, 31, 45), groups=2, offset=-1),
    "offset behind the last": Ragged((70, 31), groups=3, offset=1),
    "wide": Ragged((37, 0, 90, 73), tile=(128, 256), k=264, n=520),
    "in turns": Ragged((37, 0, 90, 73), tile=(64, 128), pingpong=True, sm_count=1),
    "in turns, wide": Ragged((300, 0, 9), m=320, tile=(64, 256), pingpong=True, n=264, output="f32"),
    "staggered": Ragged((320, 257), m=600, tile=(128, 256), k=264, n=264, swizzle=1),
    "batch": Ragged(BATCH),
    "batch, one rhs": Ragged(BATCH, shared=("rhs",), groups=2, offset=1),
    "batch, one lhs": Ragged(BATCH, shared=("lhs",)),
}
CASES = {f"rows: {name}": case for name, case in ROWS.items()} | {
    f"contraction: {name}": replace(case, contraction=True) for name, case in CONTRACTION.items()
}


@pytest.mark.sampled(len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_grouped(name: str, schedule: tuple[str, int]) -> None:
    how, seed = schedule
    check(CASES[name], schedule=how, seed=seed)
