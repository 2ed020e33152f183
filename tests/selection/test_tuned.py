"""Tuned tables: what they correct, how they are made, and what is refused."""

import functools
import json
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
from jaxbw.problem import GemmProblem
from jaxbw.selection import tuned
from jaxbw.selection.candidates import Candidates
from jaxbw.selection.config import GemmConfig
from jaxbw.selection.cost_model import memset_us
from jaxbw.selection.devices import TARGETS
from jaxbw.selection.machine import machines
from jaxbw.selection.search import price
from jaxbw.selection.tuned import Interval, Table, table_for
from jaxbw.selection.workload import workload as as_workload
from jaxbw.tuning.measure import Effort, measure

from .made_up_gpu import MadeUpGpu
from .workloads import workload

H200 = machines()["H200"]
SMALL = {
    "m": [1, 99],
    "n": [1, None],
    "k": [1, None],
    "products": 3,
    "factors": {"tile 128x128": 1.25, "cluster 2x1": 0.9, "swapped": 0.8, "parts 4": 0.5},
}
LARGE = SMALL | {"m": [100, None], "factors": {}}
ENTRY: dict[str, Any] = {"version": 1, "made": {"command": "by hand"}, "ranges": [SMALL, LARGE]}


def table(*ranges: Any) -> Table:
    return Table.from_json(ENTRY | {"ranges": list(ranges or (SMALL, LARGE))})


def test_factors_multiply_within_their_range() -> None:
    configs = [
        GemmConfig(128, 128),
        GemmConfig(128, 128, cluster=(2, 1), split_k=4),
        GemmConfig(128, 256),
    ]
    rows = Candidates.of(configs, "sm90", 2)
    small = table().factors(workload(64, 512, 512), rows)
    assert small == pytest.approx([1.25, 1.25 * 0.9 * 0.5, 1.0])
    assert table().factors(workload(128, 512, 512), rows).tolist() == [1.0, 1.0, 1.0]
    swapped = table().factors(workload(64, 512, 512, swapped=True), rows)
    assert swapped == pytest.approx(0.8 * small)
    assert table(LARGE).factors(workload(64, 512, 512), rows).tolist() == [1.0, 1.0, 1.0]


def test_a_choice_follows_the_table_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    monkeypatch.setenv(tuned.SWITCH, "off")
    plain = jaxbw.explain(x, x, device="H200")
    assert plain.config is not None
    assert "corrected" not in plain.reason
    block_m, block_n = plain.config.tile
    kind = f"tile {block_m}x{block_n}" + " pingpong" * plain.config.pingpong
    monkeypatch.delenv(tuned.SWITCH)
    slow = table(SMALL, LARGE | {"factors": {kind: 1.5}})
    monkeypatch.setattr(tuned, "_load", lambda name: slow)
    other = jaxbw.explain(x, x, device="H200")
    assert other.config is not None
    assert other.config.tile != plain.config.tile
    assert "corrected by what was measured at m 100 up, n 1 up, k 1 up (3 products)" in other.reason
    given = jaxbw.explain(x, x, device="H200", config=plain.config)
    assert given.cost is not None
    assert plain.cost is not None
    assert given.cost.total == pytest.approx(1.5 * plain.cost.total)
    assert given.cost.tuned == pytest.approx(0.5 * plain.cost.total)
    assert jaxbw.explain(x, x, device="B200").cost.tuned == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"version": 0}, "it has version 0, not 1"),
        ({"more": 1}, "it has not the keys version, made and ranges"),
        ({"ranges": [SMALL, SMALL]}, r"the range m 1 to 99, .* meets another one"),
        ({"ranges": [{"m": [1, 2]}]}, "has not the keys m, n, k, products and factors"),
        ({"ranges": [SMALL | {"k": [3, 2]}]}, r"\[3, 2\] is no range of sizes"),
        ({"ranges": [SMALL | {"factors": {"tile 1": 1.0}}]}, "'tile 1' is no kind"),
        ({"ranges": [SMALL | {"factors": {"swapped": 9.0}}]}, "is 9.0, not within 2"),
        ({"ranges": [SMALL | {"factors": {"swapped": None}}]}, "is None, not within 2"),
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


@hypothesis.given(st.integers(1, 10), st.integers(1, 10), st.integers(0, 10), st.booleans())
def test_intervals_meet_where_they_have_a_size_in_common(
    low: int, other: int, length: int, endless: bool
) -> None:
    one, two = Interval(low, low + length), Interval(other, None if endless else other + 3)
    assert one.meets(two) == two.meets(one) == any(i in one and i in two for i in range(30))


# --- how tables are made


def measurements(count: int, hidden: dict[str, float]) -> list[model_error.Measurements]:
    """Products on a machine that is the model's but for some kinds."""
    found = []
    for product in draw(count, seed=3):
        problem = product.problem

        @functools.cache
        def microseconds(config: GemmConfig, problem: GemmProblem = problem) -> float:
            side = as_workload(problem, swapped=config.swap_ab)
            rows = Candidates.of([config], "sm90", 2)
            factor = np.prod([hidden.get(kind, 1.0) for kind, _ in tuned.kinds(side, rows)])
            cost = price("sm90", H200, side, config).cost
            return float(cost.total * factor) - memset_us(H200, config)

        gpu = MadeUpGpu(microseconds)
        measured = measure(gpu, product.problem, TARGETS["H200"], Effort(count=60))
        found.append(model_error.Measurements.of(product, measured, H200))
    return found


def test_a_table_finds_what_the_model_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_selection, "PULL", 0.1)  # few products, whose times are exact
    hidden = {"tile 128x128": 0.75, "parts 2 in a cluster": 1.2, "swapped": 1.3}
    measured = measurements(24, hidden)
    made = tune_selection.tune(H200, measured, {})
    before = [tune_selection.regret(H200, each, None) for each in measured]
    assert model_error.geometric_mean(before) > 1.02
    after = tune_selection.check(H200, measured)
    assert model_error.geometric_mean(after) < 1.01
    again = Table.from_json(json.loads(json.dumps(tune_selection.to_json(made))))
    assert again.ranges == made.ranges


@hypothesis.settings(max_examples=50, deadline=None)
@hypothesis.given(st.tuples(*[st.integers(1, 40000)] * 3))
def test_the_installed_table_has_one_range_for_all_sizes(sizes: tuple[int, int, int]) -> None:
    installed = table_for("H200")
    if installed is not None:
        assert sum(sizes in each for each in installed.ranges) == 1


def test_the_judged_products_are_none_of_the_tables() -> None:
    tuned_to = {product for seed in (400, 401, 402, 403) for product in draw(60, seed)}
    assert not tuned_to & set(draw(40, seed=2026))
    assert not tuned_to & set(draw(40, seed=2027))
