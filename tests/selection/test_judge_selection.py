"""benchmarks/judge_selection.py: what a choice loses."""

import math
from dataclasses import replace

import pytest
from judge_selection import choice, judged, summary

from jaxbw._src.families.sm90 import SM90
from jaxbw._src.lab.tuning.measure import Effort, measure
from jaxbw._src.selection import tuned
from jaxbw._src.selection.devices import TARGETS
from jaxbw._src.selection.tuned import Table
from jaxbw._src.selection.tuned.features import FEATURES
from jaxbw._src.selection.tuned.files import SIZES, Sizes
from jaxbw._src.selection.tuned.trees import LEAF, Forest
from measuring.matmuls import Matmul

from .made_up_gpu import MadeUpGpu
from .made_up_trees import Tree, columns

H200 = TARGETS["H200"]
MATMUL = Matmul(2048, 2048, 2048)


def test_choices_are_compared_with_the_best() -> None:
    first = choice(MATMUL, H200, None)
    gpu = MadeUpGpu(lambda config: 12.0 if config == first else 10.0 + config.swizzle)
    measured = measure(gpu, MATMUL.problem, H200, Effort(count=30))
    row = judged(gpu, MATMUL, measured, H200)
    assert (row["model"]["config"], row["model"]["us"]) == (str(first), 12.0)
    assert row["model"]["ratio"] == pytest.approx(12 / row["best_us"], abs=1e-4)


def test_the_table_is_judged_beside_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    first = choice(MATMUL, H200, None)
    wide = FEATURES.index("block_n")
    tree: Tree = [(wide, first.tile[1] - 1, 1), (LEAF, 0, 0), (LEAF, math.log(2.0), 0)]
    sizes = Sizes(dict.fromkeys(SIZES, (1, 2**60)))
    tiles = frozenset((*tile, int(pingpong)) for tile, _, pingpong in SM90.tiles())
    slow = Table({}, sizes, tiles, Forest.of(columns(tree), len(FEATURES)))
    monkeypatch.setattr(tuned, "_load", lambda name: slow)
    gpu = MadeUpGpu(lambda config: 12.0 if config.tile == first.tile else 10.0)
    rows = [judged(gpu, MATMUL, measure(gpu, MATMUL.problem, H200, Effort(count=30)), H200)]
    assert (rows[0]["model"]["ratio"], rows[0]["tuned"]["ratio"]) == (1.2, 1.0)
    lost = {"geometric_mean": 1.2, "most": 1.2, "beyond_1.1": 1}
    assert summary(rows, "model") == {"ratio": lost, "rematch": lost}


def test_a_lucky_time_does_not_count_twice() -> None:
    """The least of many medians is the luckiest, which no choice can be."""
    gpu = MadeUpGpu(lambda config: 10.0)
    measured = measure(gpu, MATMUL.problem, H200, Effort(count=30))
    lucky = [*measured[:-1], replace(measured[-1], microseconds=9.0)]
    row = judged(gpu, MATMUL, lucky, H200)
    assert (row["tuned"]["ratio"], row["tuned"]["rematch"]) == (pytest.approx(1.1111), 1.0)
