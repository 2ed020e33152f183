"""Regression trees, many at a time: each takes a row of features to a leaf, and leaves add up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_COLUMNS = ("feature", "threshold", "left", "right", "value")
LEAF = -1  # the feature of a node that asks for none


@dataclass(frozen=True, eq=False)
class Forest:
    """The nodes of all trees, one tree behind the other.

    A row goes left where its feature is at most the threshold. A leaf leads to itself, so that all
    rows are at one after `depth` steps.
    """

    roots: Integers
    feature: Integers
    threshold: Floats
    left: Integers
    right: Integers
    value: Floats  # of a leaf
    depth: int

    @classmethod
    def from_json(cls, trees: Sequence[Mapping[str, Sequence[float]]], features: int) -> Self:
        """Trees as lists of their nodes, the root first, and every node behind its parent.

        Raises:
          ValueError: they are not.
        """
        nodes = [_nodes(tree, features) for tree in trees]
        sizes = np.array([len(each["feature"]) for each in nodes], np.int64)
        roots = np.cumsum(sizes) - sizes
        depth = max(map(_depth, nodes))
        for root, tree_nodes in zip(roots, nodes, strict=True):
            for side in ("left", "right"):
                tree_nodes[side] += root  # from numbers in the tree to numbers in the forest
        joined = {name: np.concatenate([each[name] for each in nodes]) for name in _COLUMNS}
        return cls(roots, **joined, depth=depth)

    def __len__(self) -> int:
        return len(self.roots)

    def total(self, rows: Floats) -> Floats:
        """For each row of features, the sum of the leaves that it comes to."""
        at = np.broadcast_to(self.roots, (len(rows), len(self))).copy()
        row = np.arange(len(rows))[:, None]
        for _ in range(self.depth):
            asked = self.feature[at]
            below = rows[row, asked] <= self.threshold[at]  # of a leaf: either way leads to it
            at = np.where(below, self.left[at], self.right[at])
        found: Floats = self.value[at].sum(axis=1)
        return found


def _nodes(tree: Any, features: int) -> dict[str, NDArray[Any]]:
    """The columns of one tree; leaves point to themselves."""
    if not isinstance(tree, dict) or tree.keys() != set(_COLUMNS):
        raise ValueError(f"a tree has not the keys {', '.join(_COLUMNS)}")
    columns: dict[str, NDArray[Any]] = {
        name: np.array(tree[name], np.float64 if name in ("threshold", "value") else np.int64)
        for name in _COLUMNS
    }
    count = len(columns["feature"])
    if count == 0 or any(column.shape != (count,) for column in columns.values()):
        raise ValueError("the columns of a tree differ in length")
    if not all(np.isfinite(columns[name]).all() for name in ("threshold", "value")):
        raise ValueError("a tree has a threshold or a value that is no number")
    number, leaf = np.arange(count), columns["feature"] == LEAF
    if columns["feature"].min() < LEAF or columns["feature"].max() >= features:
        raise ValueError(f"a tree asks for a feature that is none of {features}")
    for name in ("left", "right"):
        onward = columns[name][~leaf]
        if (onward <= number[~leaf]).any() or (onward >= count).any():
            raise ValueError("a node of a tree leads to none behind it")
        columns[name] = np.where(leaf, number, columns[name])
    columns["feature"] = np.maximum(columns["feature"], 0)
    return columns


def _depth(nodes: Mapping[str, NDArray[Any]]) -> int:
    """Steps from the root to the farthest leaf."""
    depth = np.zeros(len(nodes["feature"]), np.int64)
    for node, (left, right) in enumerate(zip(nodes["left"], nodes["right"], strict=True)):
        if left != node:
            depth[[left, right]] = depth[node] + 1
    return int(depth.max())
