"""Sizes of groups, made up: a grouped matmul's are known only to the device, when it runs.

What measures or models one takes sizes of a kind: "uniform", all alike; "zipf", in proportion to
1, 1/2, 1/3 and so on, in some order; "one", all rows in one group; "random", by random weights.
"""

import numpy as np
import numpy.typing as npt

from jaxbw._src.ragged import RaggedProblem

KINDS = ("uniform", "zipf", "one", "random")
DEFAULT = KINDS[0]

Sizes = npt.NDArray[np.int32]


def known(kind: str) -> str:
    """The kind of a name.

    Raises:
      ValueError: there is no such one.
    """
    if kind not in KINDS:
        raise ValueError(f"sizes of groups are {', '.join(KINDS)}, not {kind!r}")
    return kind


def drawn(kind: str, groups: int, rows: int) -> Sizes:
    """int32 [groups], which sum to `rows`: always the same ones of a kind, groups, and rows.

    Raises:
      ValueError: there is no such kind.

    >>> drawn("uniform", 4, 10).tolist(), drawn("one", 4, 10).tolist()
    ([3, 3, 2, 2], [0, 0, 10, 0])
    """
    rng, place = np.random.default_rng(groups + rows), np.arange(groups)
    if known(kind) == "uniform":
        return (rows // groups + (place < rows % groups)).astype(np.int32)
    if kind == "one":
        return np.where(place == groups // 2, rows, 0).astype(np.int32)
    weights = 1.0 / (1 + place) if kind == "zipf" else rng.exponential(size=groups)
    return rng.multinomial(rows, rng.permutation(weights / weights.sum())).astype(np.int32)


def of_problem(problem: RaggedProblem, sizes: str | Sizes = DEFAULT) -> Sizes:
    """int32 [batch, total groups], as a call of the problem would have them.

    Of a kind, groups have `expected_rows` on average, as many as there are rows for; others are
    empty. Given ones, [total groups], are those of each index of the batch.

    Raises:
      ValueError: there is no such kind, or not so many groups.
    """
    if not isinstance(sizes, str):
        if sizes.shape != (problem.total_groups,):
            raise ValueError(f"{sizes.shape} sizes of groups; there are {problem.total_groups}")
        return np.tile(sizes.astype(np.int32), (problem.batch, 1))
    total, expected = problem.total_groups, problem.expected_rows
    used = max(1, min(total, -(-problem.m // expected)))
    found = np.zeros(total, np.int32)
    found[np.arange(used) * total // used] = drawn(sizes, used, min(problem.m, expected * total))
    return np.tile(found, (problem.batch, 1))
