"""Measured matmuls as the regression sees them, and the trees that LightGBM grows from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from jaxbw._src.selection.machine import Machine
from jaxbw._src.selection.tuned.features import FEATURES, features
from jaxbw._src.selection.tuned.trees import COLUMNS, LEAF
from measuring.measurements import Floats, Measurements

FOLDS = 8  # in which matmuls are left out in turn
SLOW = 5.0  # exponent by which slow configurations weigh less
TREES = 50
SEEDS = (1, 2, 3)  # of as many forests, whose mean is less in error than each
GROWTH: dict[str, Any] = {
    "objective": "regression",
    "learning_rate": 0.2,
    "num_leaves": 127,
    "max_depth": 12,  # steps for every row: see Forest.total
    "min_data_in_leaf": 15,  # configurations, of some 90 of a matmul
    "min_sum_hessian_in_leaf": 1e-6,
    "lambda_l2": 0.01,  # a matmul weighs one in all
    "feature_fraction": 0.5,
    "deterministic": True,
    "force_row_wise": True,  # or it measures which is quicker, and may differ
    "num_threads": 2,
    "verbose": -1,
}


@dataclasses.dataclass(frozen=True)
class Sample:
    """One matmul as the regression sees it; a row for each configuration."""

    sizes: tuple[int, int, int]
    rows: Floats  # FEATURES
    errors: Floats  # logarithms of measured over modelled times, less the matmul's mean
    weights: Floats  # which add up to one


def sample(machine: Machine, measured: Measurements) -> Sample:
    """A matmul with its features."""
    rows = np.empty((len(measured.measured), len(FEATURES)))
    errors = np.log(measured.microseconds)
    for group, costs in measured.priced(machine):
        rows[group.rows] = features(group.work, machine, group.table, costs)
        errors[group.rows] -= np.log(costs.total / 1000)
    counts = measured.in_order(machine)
    rows, errors = rows[counts], errors[counts]
    weights = measured.slower[counts] ** -SLOW
    weights /= weights.sum()
    matmul = measured.matmul
    sizes = matmul.m, matmul.n, matmul.k
    return Sample(sizes, rows, errors - weights @ errors, weights)


def grow(samples: Sequence[Sample]) -> dict[str, NDArray[Any]]:
    """The trees that some matmuls give, as a table's file has them."""
    data = lightgbm.Dataset(
        np.concatenate([each.rows for each in samples]),
        np.concatenate([each.errors for each in samples]),
        weight=np.concatenate([each.weights for each in samples]),
    )
    roots: list[Mapping[str, Any]] = []
    for seed in SEEDS:
        grown = lightgbm.train(GROWTH | {"seed": seed}, data, TREES)
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
