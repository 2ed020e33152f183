"""Trees by hand, as they are stored."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxbw._src.selection.tuned.trees import COLUMNS

# Of each node: the feature that it asks for or LEAF, the threshold or value, the left child.
Tree = list[tuple[int, float, int]]


def columns(*trees: Tree) -> dict[str, NDArray[Any]]:
    """Several trees, one behind the other."""
    nodes = [node for tree in trees for node in tree]
    feature, number, left = zip(*nodes, strict=True) if nodes else ((), (), ())
    by_name = {"counts": [*map(len, trees)], "feature": feature, "number": number, "left": left}
    return {name: np.array(by_name[name], kind) for name, kind in COLUMNS.items()}
