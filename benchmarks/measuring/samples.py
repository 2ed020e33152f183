"""Measured matmuls as trees learn from them, and the trees that LightGBM grows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

import lightgbm
import numpy as np
from numpy.typing import NDArray

from jaxbw._src.selection.machine import Machine
from jaxbw._src.selection.tuned.features import FEATURES, features
from jaxbw._src.selection.tuned.trees import COLUMNS, LEAF
from measuring.measurements import Floats, Measurements

FOLDS = 8  # in which matmuls are left out in turn
SLOW = 5.0  # exponent by which slow configurations weigh less
TREES = 100
SEEDS = (1, 2)  # of as many forests, whose mean is less in error than each
GROWTH: dict[str, Any] = {
    "learning_rate": 0.2,
    "num_leaves": 255,
    "max_depth": 12,  # steps for every row: see Forest.total
    "min_data_in_leaf": 15,  # configurations, of some 90 of a matmul
    "min_sum_hessian_in_leaf": 1e-3,
    "lambda_l2": 2.0,  # beside a matmul's curvature, (1 + LEVEL) / RATED at most but for LEAST
    "feature_fraction": 0.8,
    "deterministic": True,
    "force_row_wise": True,  # or it measures which is quicker, and may differ
    "num_threads": 2,
    "verbose": -1,
}


@dataclasses.dataclass(frozen=True)
class Sample:
    """One matmul as the trees see it; a row for each configuration."""

    sizes: tuple[int, int, int]
    rows: Floats  # FEATURES
    errors: Floats  # logarithms of measured over modelled times, less the matmul's mean
    lost: Floats  # logarithms of measured times over the least
    weights: Floats  # which add up to one

    @classmethod
    def of(
        cls, sizes: tuple[int, int, int], rows: Floats, slower: Floats, modelled: Floats
    ) -> Self:
        """`slower`: measured times over the least; `modelled`: times in any unit."""
        weights = slower**-SLOW
        weights /= weights.sum()
        lost = np.log(slower)
        errors = lost - np.log(modelled)
        return cls(sizes, rows, errors - weights @ errors, lost, weights)


def sample(machine: Machine, measured: Measurements) -> Sample:
    """A matmul with its features."""
    rows = np.empty((len(measured.measured), len(FEATURES)))
    modelled = np.empty(len(measured.measured))
    for group, costs in measured.priced(machine):
        rows[group.rows] = features(group.work, machine, group.table, costs)
        modelled[group.rows] = costs.total
    counts = measured.in_order(machine)
    matmul = measured.matmul
    sizes = matmul.m, matmul.n, matmul.k
    return Sample.of(sizes, rows[counts], measured.slower[counts], modelled[counts])


class Loss:
    """What trees make small: what choices lose, and a little how wrong their times are.

    A configuration of a matmul is chosen with a probability that falls with its rated time, by a
    factor of e for `RATED`. It should be with one that falls with its measured time, by a factor of
    e for `LOST`. The loss is the cross entropy of the two (ListNet: Z. Cao et al., Learning to
    Rank: From Pairwise Approach to Listwise Approach, ICML 2007), and `LEVEL` of half the square
    error of the times, in units of `RATED`, which keeps the level of the model: where XLA is
    weighed, absolute times count. By square errors alone choices lose a third more: trees spend
    themselves on configurations that nobody would choose.
    """

    RATED = 0.1
    LOST = 0.08
    LEVEL = 0.3
    LEAST = 0.05  # of the curvature at the measured best, where a choice is already certain

    def __init__(self, samples: Sequence[Sample]) -> None:
        """Concatenates what is asked for at each tree."""
        counts = np.array([len(each.rows) for each in samples])
        self._starts = counts.cumsum() - counts
        self._matmul = np.repeat(np.arange(len(counts)), counts)
        self._errors = np.concatenate([each.errors for each in samples])
        weights = np.concatenate([each.weights for each in samples])
        self._pull = self.LEVEL / self.RATED * weights
        lost = np.concatenate([each.lost for each in samples])
        self._modelled = lost - self._errors  # logarithms, but for a number that a matmul has
        self._wanted = self._probabilities(lost, self.LOST)

    def _probabilities(self, logarithms: Floats, unit: float) -> Floats:
        least = np.minimum.reduceat(logarithms, self._starts)[self._matmul]
        found = np.exp((least - logarithms) / unit)
        return found / np.add.reduceat(found, self._starts)[self._matmul]

    def __call__(self, factors: Floats, _: object) -> tuple[Floats, Floats]:
        """The gradient and the curvature, both times RATED, at these logarithms of factors."""
        chosen = self._probabilities(self._modelled + factors, self.RATED)
        slope = self._wanted - chosen + self._pull * (factors - self._errors)
        curvature = np.maximum(chosen * (1 - chosen), self.LEAST * self._wanted) / self.RATED
        return slope, curvature + self._pull + 1e-6


def grow(samples: Sequence[Sample]) -> dict[str, NDArray[Any]]:
    """The trees that some matmuls give, as a table's file has them."""
    rows = np.concatenate([each.rows for each in samples])
    loss = Loss(samples)
    data = lightgbm.Dataset(rows, np.zeros(len(rows)))
    roots: list[Mapping[str, Any]] = []
    for seed in SEEDS:
        grown = lightgbm.train(GROWTH | {"objective": loss, "seed": seed}, data, TREES)
        roots += [each["tree_structure"] for each in grown.dump_model()["tree_info"]]
    return as_columns(roots, len(SEEDS))


def as_columns(roots: Sequence[Mapping[str, Any]], forests: int = 1) -> dict[str, NDArray[Any]]:
    """The trees of LightGBM as they are stored, and of so many forests the mean."""
    columns: dict[str, list[float]] = {name: [] for name in COLUMNS}

    def add(feature: int, number: float, left: int) -> None:
        for name, value in (("feature", feature), ("number", number), ("left", left)):
            columns[name].append(value)

    for root in roots:
        nodes = [root]
        for node in nodes:  # which grow while they are walked: children behind their parents
            if "leaf_value" in node:
                add(LEAF, node["leaf_value"] / forests, 0)
            else:
                add(node["split_feature"], node["threshold"], len(nodes))
                nodes += [node["left_child"], node["right_child"]]
        columns["counts"].append(len(nodes))
    return {name: np.array(columns[name], kind) for name, kind in COLUMNS.items()}
