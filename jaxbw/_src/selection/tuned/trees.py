"""Regression trees, many at a time: each takes a row of features to a leaf, and leaves add up."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]

LEAF = -1  # the feature of a node that asks for none
# How trees are stored: one behind the other, each from its root on, every node behind its parent,
# and the two children of a node side by side.
COLUMNS: Mapping[str, type[np.generic]] = {
    "counts": np.uint16,  # nodes of each tree
    "feature": np.int8,  # of each node: what it asks for, or LEAF
    "number": np.float32,  # its threshold, or what the leaf adds
    "left": np.uint16,  # its left child's number in the tree; 0 for a leaf
}


@dataclass(frozen=True, eq=False)
class Forest:
    """The nodes of all trees, one tree behind the other.

    A row goes to the left child where its feature is at most the threshold, else to the one behind
    it. A leaf leads to itself, so that all rows are at one after `depth` steps.
    """

    roots: Integers
    feature: Integers
    threshold: Floats  # of a leaf: infinite
    left: Integers
    value: Floats  # of a leaf
    depth: int

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[Any]], features: int) -> Self:
        """Trees as they are stored, by the names of COLUMNS.

        Raises:
          ValueError: they are not.
        """
        if columns.keys() != COLUMNS.keys():
            raise ValueError(f"trees have not the columns {', '.join(COLUMNS)}")
        for name, kind in COLUMNS.items():
            if columns[name].dtype != kind or columns[name].ndim != 1:
                raise ValueError(f"{name} of the trees is no row of {np.dtype(kind)}")
        counts, feature, number = (columns[name] for name in ("counts", "feature", "number"))
        if len(counts) == 0 or counts.min() < 1:
            raise ValueError("it has no trees")
        ends = counts.astype(np.intp).cumsum()
        if any(len(columns[name]) != ends[-1] for name in ("feature", "number", "left")):
            raise ValueError("the columns of the trees differ in length")
        if not np.isfinite(number).all():
            raise ValueError("a tree has a threshold or a value that is no number")
        if feature.min() < LEAF or feature.max() >= features:
            raise ValueError(f"a tree asks for a feature that is none of {features}")
        roots, at, is_leaf = ends - counts, np.arange(ends[-1]), feature == LEAF
        left = np.where(is_leaf, at, np.repeat(roots, counts) + columns["left"])
        onward = ~is_leaf
        if ((left <= at) & onward).any() or ((left + 1 >= np.repeat(ends, counts)) & onward).any():
            raise ValueError("a node of a tree leads to none behind it")
        return cls(
            roots=roots,
            feature=np.maximum(feature, 0).astype(np.intp),
            threshold=np.where(is_leaf, np.inf, number),
            left=left,
            value=np.where(is_leaf, number, 0.0),
            depth=_depth(roots, left),
        )

    def __len__(self) -> int:
        return len(self.roots)

    def total(self, rows: Floats) -> Floats:
        """For each row of features, the sum of the leaves that it comes to."""
        given, first = rows.ravel(), np.arange(len(rows))[:, None] * rows.shape[1]
        at = np.broadcast_to(self.roots, (len(rows), len(self)))
        for _ in range(self.depth):
            beyond = given.take(first + self.feature.take(at)) > self.threshold.take(at)
            at = self.left.take(at) + beyond
        found: Floats = self.value.take(at).sum(axis=1)
        return found


def _depth(roots: Integers, left: Integers) -> int:
    """Steps from a root to the farthest leaf."""
    depth, at = 0, roots
    while len(at := at[left[at] > at]):
        at, depth = np.unique(np.concatenate([left[at], left[at] + 1])), depth + 1
    return depth
