"""Tuned tables: what they correct, how they are made, and what is refused."""

import functools
import json
import math
from importlib import resources
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import model_error
import numpy as np
import pytest
import tune_selection
from products import draw

import jaxbw
from jaxbw._src.lab.tuning.measure import Effort, measure
from jaxbw._src.problem import GemmProblem
from jaxbw._src.selection import tuned
from jaxbw._src.selection.candidates import Candidates
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.cost_model import evaluate, memset_us
from jaxbw._src.selection.devices import TARGETS
from jaxbw._src.selection.machine import machines
from jaxbw._src.selection.search import price
from jaxbw._src.selection.tuned import Table, table_for
from jaxbw._src.selection.tuned.features import FEATURES
from jaxbw._src.selection.tuned.trees import LEAF
from jaxbw._src.selection.tuned_products import SWITCH
from jaxbw._src.selection.workload import Workload
from jaxbw._src.selection.workload import workload as as_workload

from .made_up_gpu import MadeUpGpu
from .workloads import workload

H200 = machines()["H200"]
# One question, whether tiles have at most 128 columns, and then for those whether they are shared.
TREE: dict[str, list[float]] = {
    "feature": [FEATURES.index("block_n"), FEATURES.index("cluster_m"), LEAF, LEAF, LEAF],
    "threshold": [128, 1, 0, 0, 0],
    "left": [1, 2, 2, 3, 4],
    "right": [4, 3, 2, 3, 4],
    "value": [0, 0, math.log(1.25), math.log(0.9), 0],
}
ALWAYS: dict[str, list[float]] = {
    **{"feature": [LEAF], "threshold": [0], "left": [0], "right": [0], "value": [math.log(1.1)]}
}
ENTRY: dict[str, Any] = {
    **{"version": tuned.VERSION, "made": {"command": "by hand", "products": 3}},
    "sizes": {"m": [64, 8192], "n": [64, 8192], "k": [64, 8192], "mnk": [2**18, 2**39]},
    **{"features": list(FEATURES), "trees": [TREE, ALWAYS]},
}


def table(*trees: Any) -> Table:
    return Table.from_json(ENTRY | {"trees": list(trees or (TREE, ALWAYS))})


def factors(correction: Table, work: Workload, *configs: GemmConfig) -> list[float]:
    rows = Candidates.of(configs, "sm90", 2)
    walked = np.zeros(len(configs), np.int64), np.ones(len(configs), np.int64)
    found = correction.factors(work, H200, rows, evaluate(work, H200, rows, walked))
    return [float(each) for each in found]


def test_the_leaves_of_all_trees_multiply() -> None:
    narrow, wide = GemmConfig(128, 128), GemmConfig(128, 256)
    shared = GemmConfig(128, 64, cluster=(2, 1))
    work = workload(2048, 2048, 512)
    assert factors(table(), work, narrow, shared, wide) == pytest.approx(
        [1.25 * 1.1, 0.9 * 1.1, 1.1]
    )
    assert factors(table(*[ALWAYS] * 20), work, wide) == [tuned.MOST]


def test_what_the_model_finds_hopeless_is_left_alone() -> None:
    work = workload(8192, 8192, 8192)
    many, one = GemmConfig(128, 32), GemmConfig(128, 256)
    assert factors(table(ALWAYS), work, many) == pytest.approx([1.1])
    assert factors(table(ALWAYS), work, many, one) == pytest.approx([1.0, 1.1])


@pytest.mark.parametrize(
    ("sizes", "covered"),
    [
        ((64, 64, 64), True),
        ((8192, 8192, 8192), True),
        ((63, 64, 128), False),
        ((64, 8193, 64), False),
        ((64, 64, 8193), False),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_products_beyond_those_measured_are_left_to_the_model(
    sizes: tuple[int, int, int], covered: bool, swapped: bool
) -> None:
    work = workload(*sizes, swapped=swapped)
    assert table(ALWAYS).covers(work) == covered
    assert factors(table(ALWAYS), work, GemmConfig(128, 128)) == [1.1 if covered else 1.0]
    small = Table.from_json(ENTRY | {"sizes": ENTRY["sizes"] | {"mnk": [1, 2**18 - 1]}})
    assert not small.covers(work)


def test_a_choice_follows_the_table_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    monkeypatch.setenv(SWITCH, "off")
    plain = jaxbw.explain(x, x, device="H200")
    assert plain.config is not None
    assert "corrected" not in plain.reason
    assert plain.config.tile == (128, 256)
    monkeypatch.delenv(SWITCH)
    slow = table(TREE | {"value": [0, 0, 0, 0, math.log(1.5)]})
    monkeypatch.setattr(tuned, "_load", lambda name: slow)
    other = jaxbw.explain(x, x, device="H200")
    assert other.config is not None
    assert other.config.tile != plain.config.tile
    assert "corrected by measurements of 3 products" in other.reason
    given = jaxbw.explain(x, x, device="H200", config=plain.config)
    assert given.cost is not None
    assert plain.cost is not None
    assert given.cost.total == pytest.approx(1.5 * plain.cost.total)
    assert given.cost.tuned == pytest.approx(0.5 * plain.cost.total)
    assert jaxbw.explain(x, x, device="B200").cost.tuned == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"version": 1}, "it has version 1, not 2"),
        ({"more": 1}, "it has not the keys features, made, sizes, trees, version"),
        ({"features": ["m"]}, "its features are not those of this jaxbw"),
        ({"trees": []}, "it has no trees"),
        ({"sizes": {"m": [1, 2]}}, "'n'"),
        ({"sizes": ENTRY["sizes"] | {"k": [3, 2]}}, r"\[3, 2\] is no range of sizes"),
        ({"trees": [{"feature": [0]}]}, "a tree has not the keys feature, threshold"),
        ({"trees": [TREE | {"left": [1]}]}, "the columns of a tree differ in length"),
        ({"trees": [TREE | {"feature": [-2, 0, -1, -1, -1]}]}, "a feature that is none of"),
        ({"trees": [TREE | {"feature": [99, 0, -1, -1, -1]}]}, "a feature that is none of"),
        ({"trees": [TREE | {"left": [0, 2, 2, 3, 4]}]}, "leads to none behind it"),
        ({"trees": [TREE | {"right": [5, 3, 2, 3, 4]}]}, "leads to none behind it"),
        ({"trees": [ALWAYS | {"value": [math.nan]}]}, "a value that is no number"),
        ({"trees": [ALWAYS | {"value": [None]}]}, ""),
    ],
)
def test_a_file_that_is_no_table_is_refused(
    change: dict[str, Any], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "h200.json").write_text(json.dumps(ENTRY | change))
    monkeypatch.setattr(resources, "files", lambda _: tmp_path)
    with pytest.raises(ImportError, match=rf"no tuned table of this jaxbw: .*{fault}"):
        tuned._load.__wrapped__("h200.json")
    (tmp_path / "h200.json").write_text("{")
    with pytest.raises(ImportError, match="no tuned table"):
        tuned._load.__wrapped__("h200.json")
    (tmp_path / "h200.json").unlink()
    assert tuned._load.__wrapped__("h200.json") is None


def test_h100_takes_the_factors_of_h200() -> None:
    assert table_for("H100") is table_for("H200")
    assert table_for("B200") is None


# --- how tables are made


def hidden(config: GemmConfig) -> float:
    """What the model does not know."""
    factor = 0.75 if config.tile == (128, 128) else 1.0
    factor *= 1.2 if config.cluster_k == 2 else 1.0
    return factor * (1.3 if config.swap_ab else 1.0)


def measurements(count: int) -> list[model_error.Measurements]:
    """Products on a machine that is the model's but for that."""
    found = []
    for product in draw(count, seed=3):
        problem = product.problem

        @functools.cache
        def microseconds(config: GemmConfig, problem: GemmProblem = problem) -> float:
            side = as_workload(problem, swapped=config.swap_ab)
            cost = price("sm90", H200, side, config).cost
            return cost.total * hidden(config) - memset_us(H200, config)

        measured = measure(
            MadeUpGpu(microseconds), product.problem, TARGETS["H200"], Effort(count=60)
        )
        found.append(model_error.Measurements.of(product, measured, H200))
    return found


def test_a_table_finds_what_the_model_does_not_know() -> None:
    measured = measurements(40)
    before = [tune_selection.regret(H200, each, None) for each in measured]
    after = list(tune_selection.check(H200, measured))
    lost, still = (model_error.geometric_mean(each) - 1 for each in (before, after))
    assert lost > 0.02
    assert still < lost / 2


def test_the_file_is_what_was_grown() -> None:
    samples = [tune_selection.sample(H200, each) for each in measurements(4)]
    made = tune_selection.tune(samples, {"products": 4})
    text = tune_selection.to_text(made)
    assert json.loads(text) == made
    assert text.count("\n{") == len(made["trees"])  # a line for each
    assert made == tune_selection.tune(samples, {"products": 4})


@hypothesis.settings(max_examples=50, deadline=None)
@hypothesis.given(
    *[st.integers(1, 40000)] * 3, st.sampled_from(("nn", "nt", "tn", "tt")), st.booleans()
)
def test_the_installed_table_has_a_factor_for_all_sizes(
    m: int, n: int, k: int, layout: str, swapped: bool
) -> None:
    installed = table_for("H200")
    assert installed is not None
    work = workload(m, n, k, layout, swapped=swapped)
    split, shared = GemmConfig(128, 64, split_k=4), GemmConfig(128, 256, cluster=(2, 1))
    for factor in factors(installed, work, GemmConfig(128, 128), split, shared):
        assert 1 / tuned.MOST <= factor <= tuned.MOST


def test_the_judged_products_are_none_of_the_tables() -> None:
    seeds = {400: 60, 401: 60, 402: 60, 403: 60, 500: 110, 501: 110, 700: 160, 702: 80}
    seeds |= {610: 40, 611: 40, 612: 40, 613: 40, 2030: 22, 2031: 22, 2032: 22, 2033: 22}
    tuned_to = {product for seed, count in seeds.items() for product in draw(count, seed)}
    tuned_to |= set(draw(80, 701, least=1024))
    assert not tuned_to & {product for seed in (2034, 2035) for product in draw(22, seed)}
