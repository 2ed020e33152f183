"""Tuned tables: what they correct, how they are made, and what is refused."""

import functools
import math
from importlib import resources
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tune_selection

import jaxbw
from jaxbw._src.families.sm90 import SM90
from jaxbw._src.lab.tuning.measure import Effort, measure
from jaxbw._src.problem import GemmProblem
from jaxbw._src.selection import tuned
from jaxbw._src.selection.candidates import Candidates
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.cost_model import evaluate
from jaxbw._src.selection.devices import TARGETS
from jaxbw._src.selection.machine import machines
from jaxbw._src.selection.search import price, search
from jaxbw._src.selection.tuned import Table, table_for
from jaxbw._src.selection.tuned.features import FEATURES
from jaxbw._src.selection.tuned.files import read, to_bytes
from jaxbw._src.selection.tuned.trees import LEAF, Floats, Forest
from jaxbw._src.selection.tuned_matmuls import SWITCH
from jaxbw._src.selection.workload import Workload
from jaxbw._src.selection.workload import workload as as_workload
from measuring import configurations, samples
from measuring.matmuls import draw
from measuring.measurements import Measurements, geometric_mean

from .made_up_gpu import MadeUpGpu
from .made_up_trees import Tree, columns
from .workloads import ALL, workload

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
H200 = machines()["H200"]
# One question, whether tiles have at most 128 columns, and then for those whether they are shared.
TREE: Tree = [
    (FEATURES.index("block_n"), 128, 1),
    (FEATURES.index("cluster_m"), 1, 3),
    (LEAF, 0, 0),
    (LEAF, math.log(1.25), 0),
    (LEAF, math.log(0.9), 0),
]
ALWAYS: Tree = [(LEAF, math.log(1.1), 0)]
ENTRY: dict[str, Any] = {
    **{"version": tuned.VERSION, "made": {"command": "by hand", "products": 3}},
    "sizes": {"m": [64, 8192], "n": [64, 8192], "k": [64, 8192], "mnk": [2**18, 2**39]},
    "tiles": [[*tile, int(pingpong)] for tile, _, pingpong in SM90.tiles()],
    **{"features": list(FEATURES), "trees": columns(TREE, ALWAYS)},
}


def table(*trees: Tree) -> Table:
    return Table.of(ENTRY | {"trees": columns(*(trees or (TREE, ALWAYS)))})


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


def test_a_tile_that_was_not_measured_is_no_candidate() -> None:
    """Two kinds of new tiles were rated too well by tables that had not seen them."""
    straight = workload(8, 4096, 4096), ALL
    wide = [tile for tile in ENTRY["tiles"] if tile[0] > 32]
    for tiles, rows in ((ENTRY["tiles"], {8}), (wide, set())):
        known = Table.of(ENTRY | {"tiles": tiles})
        _, ranked = search("sm90", H200, straight, None, tuned=known, kept=10**6)
        assert {each.config.tile[0] for each in ranked} & {8, 16, 32} == rows


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
def test_matmuls_beyond_those_measured_are_left_to_the_model(
    sizes: tuple[int, int, int], covered: bool, swapped: bool
) -> None:
    work = workload(*sizes, swapped=swapped)
    assert table(ALWAYS).covers(work) == covered
    expected = pytest.approx([1.1]) if covered else [1.0]
    assert factors(table(ALWAYS), work, GemmConfig(128, 128)) == expected
    small = Table.of(ENTRY | {"sizes": ENTRY["sizes"] | {"mnk": [1, 2**18 - 1]}})
    assert not small.covers(work)


def test_a_choice_follows_the_table_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    monkeypatch.setenv(SWITCH, "off")
    plain = jaxbw.explain(x, x, device="H200")
    assert plain.config is not None
    assert "corrected" not in plain.reason
    assert plain.config.tile == (128, 256)
    monkeypatch.delenv(SWITCH)
    slow = table([(FEATURES.index("block_n"), 128, 1), (LEAF, 0, 0), (LEAF, math.log(1.5), 0)])
    monkeypatch.setattr(tuned, "_load", lambda name: slow)
    other = jaxbw.explain(x, x, device="H200", implementation="kernel")
    assert other.config is not None
    assert other.config.tile != plain.config.tile
    assert "corrected by measurements of 3 matmuls" in other.reason
    given = jaxbw.explain(x, x, device="H200", config=plain.config)
    assert given.cost is not None
    assert plain.cost is not None
    assert given.cost.total == pytest.approx(1.5 * plain.cost.total)
    assert given.cost.tuned == pytest.approx(0.5 * plain.cost.total)
    assert jaxbw.explain(x, x, device="B200").cost.tuned == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"version": 1}, "it has version 1, not 5"),
        ({"more": 1}, "it has not the keys features, made, sizes, tiles, trees, version"),
        ({"features": ["m"]}, "its features are not those of this jaxbw"),
        ({"trees": columns()}, "it has no trees"),
        ({"trees": columns([])}, "it has no trees"),
        ({"sizes": {"m": [1, 2]}}, "'n'"),
        ({"sizes": ENTRY["sizes"] | {"k": [3, 2]}}, r"\[3, 2\] is no range of sizes"),
        ({"trees": columns(ALWAYS) | {"left": np.zeros(2, np.uint16)}}, "differ in length"),
        ({"trees": columns(ALWAYS) | {"counts": np.ones(1)}}, "counts of the trees is no row of"),
        ({"trees": columns([(-2, 0, 0)])}, "a feature that is none of"),
        ({"trees": columns([(99, 0, 1), *ALWAYS * 2])}, "a feature that is none of"),
        ({"trees": columns([(0, 0, 0), *ALWAYS * 2])}, "leads to none behind it"),
        ({"trees": columns([(0, 0, 2), *ALWAYS * 2])}, "leads to none behind it"),
        ({"trees": columns([(0, 0, 2), *ALWAYS * 2], ALWAYS)}, "leads to none behind it"),
        ({"trees": columns([(LEAF, math.nan, 0)])}, "a value that is no number"),
    ],
)
def test_a_file_that_is_no_table_is_refused(
    change: dict[str, Any], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "h200.npz"
    path.write_bytes(to_bytes(ENTRY | change))
    monkeypatch.setattr(resources, "files", lambda _: tmp_path)
    with pytest.raises(ImportError, match=rf"no tuned table of this jaxbw: .*{fault}"):
        tuned._load.__wrapped__("h200.npz")
    path.unlink()
    assert tuned._load.__wrapped__("h200.npz") is None


@pytest.mark.parametrize("damage", ["", "{", "no header", "no column", "cut off"])
def test_a_damaged_file_is_refused(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, arrays = tmp_path / "h200.npz", columns(TREE)
    path.write_text(damage)
    if damage == "no header":
        np.savez(path, **arrays)  # type: ignore[arg-type]
    if damage == "no column":
        np.savez(path, header=np.frombuffer(b"{}", np.uint8), left=arrays["left"])
    if damage == "cut off":
        path.write_bytes(to_bytes(ENTRY)[:-100])
    monkeypatch.setattr(resources, "files", lambda _: tmp_path)
    with pytest.raises(ImportError, match=r"no tuned table of this jaxbw: .*: reinstall it"):
        tuned._load.__wrapped__("h200.npz")


def test_each_hopper_has_a_table_of_its_own_and_8_bits_another_one() -> None:
    h100, h200, float8 = table_for("H100", 2), table_for("H200", 2), table_for("H100", 1)
    assert None not in (h100, h200, float8)
    assert len({id(each) for each in (h100, h200, float8)}) == 3
    assert table_for("H200", 1) is float8
    assert table_for("H100", 4) is table_for("B200", 2) is None


# --- how tables are made


def hidden(config: GemmConfig) -> float:
    """What the model does not know."""
    factor = 0.75 if config.tile == (128, 128) else 1.0
    factor *= 1.2 if config.cluster_k == 2 else 1.0
    return factor * (1.3 if config.swap_ab else 1.0)


def measurements(count: int) -> list[Measurements]:
    """Matmuls on a machine that is the model's but for that."""
    found = []
    for matmul in draw(count, seed=3):
        problem = matmul.problem

        @functools.cache
        def microseconds(config: GemmConfig, problem: GemmProblem = problem) -> float:
            side = as_workload(problem, "sm90", swapped=config.swap_ab)
            cost = price("sm90", H200, side, config).cost
            return cost.total * hidden(config)

        measured = measure(
            MadeUpGpu(microseconds), matmul.problem, TARGETS["H200"], Effort(count=60)
        )
        found.append(Measurements.of(matmul, measured, H200))
    return found


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """LightGBM's wait for each other, spinning, where another worker has the core."""
    monkeypatch.setitem(samples.GROWTH, "num_threads", 1)


def test_a_table_finds_what_the_model_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "SEEDS", (1,))
    monkeypatch.setattr(tune_selection, "FOLDS", 2)
    measured = measurements(56)
    before = [tune_selection.regret(H200, each, None) for each in measured]
    after = list(tune_selection.check(H200, measured))
    lost, still = (geometric_mean(each) - 1 for each in (before, after))
    assert lost > 0.02
    assert still < lost / 2


def test_a_table_is_the_mean_of_its_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    """One forest alone was grown since tables became binary; a table shipped so, of 50 trees."""
    seen = [samples.sample(H200, each) for each in measurements(8)]
    rows = np.concatenate([each.rows for each in seen])

    def total(*seeds: int) -> Floats:
        monkeypatch.setattr(samples, "SEEDS", seeds)
        return Forest.of(samples.grow(seen), len(FEATURES)).total(rows)

    first, second, both = total(1), total(2), total(1, 2)
    assert not np.allclose(first, second)
    np.testing.assert_allclose(both, (first + second) / 2, atol=1e-6)


def test_the_slope_is_that_of_the_loss() -> None:
    seen = [samples.sample(H200, each) for each in measurements(3)]
    loss = samples.Loss(seen)

    def chances(logarithms: Floats, unit: float) -> Floats:
        found = np.exp(-(logarithms - logarithms.min()) / unit)
        return np.asarray(found / found.sum())

    def value(factors: Floats) -> float:
        total, at = 0.0, 0
        for each in seen:
            mine = factors[at : (at := at + len(each.rows))]
            chosen = chances(each.lost - each.errors + mine, samples.Loss.RATED)
            total -= float(chances(each.lost, samples.Loss.LOST) @ np.log(chosen))
            wrong = float(each.weights @ ((mine - each.errors) / samples.Loss.RATED) ** 2)
            total += samples.Loss.LEVEL * wrong / 2
        return total

    count = sum(len(each.rows) for each in seen)
    factors = np.random.default_rng(0).normal(0, 0.1, count)
    slope, curvature = loss(factors, None)
    assert curvature.min() > 0
    for at in range(0, count, 17):
        step = np.zeros(count)
        step[at] = 1e-5
        found = (value(factors + step) - value(factors - step)) / 2e-5
        assert found == pytest.approx(slope[at] / samples.Loss.RATED, rel=1e-4, abs=1e-6)


def test_the_level_of_a_table_is_the_models() -> None:
    """Where XLA is weighed, absolute times count: choices alone leave them free."""
    seen = [samples.sample(H200, each) for each in measurements(8)]
    trees = Forest.of(samples.grow(seen), len(FEATURES))
    means = [each.weights @ trees.total(each.rows) for each in seen]
    assert np.mean(means) == pytest.approx(0, abs=1e-3)


def test_the_file_is_what_was_grown(tmp_path: Path) -> None:
    seen = [samples.sample(H200, each) for each in measurements(4)]
    made = tune_selection.tune(seen, {"products": 4})
    path = tmp_path / "table.npz"
    path.write_bytes(to_bytes(made))
    stored = read(path)
    np.testing.assert_equal(stored, made)
    assert to_bytes(stored) == to_bytes(tune_selection.tune(seen, {"products": 4}))


@pytest.mark.parametrize("name", ["h100.npz", "h100_8bit.npz", "h200.npz"])
def test_the_installed_tables_are_small(name: str) -> None:
    path = resources.files("jaxbw._src.selection.tuned") / name
    assert len(path.read_bytes()) <= 450_000


@hypothesis.settings(max_examples=50, deadline=None)
@hypothesis.given(
    *[st.integers(1, 40000)] * 3, st.sampled_from(("nn", "nt", "tn", "tt")), st.booleans()
)
def test_the_installed_table_has_a_factor_for_all_sizes(
    m: int, n: int, k: int, layout: str, swapped: bool
) -> None:
    installed = table_for("H200", 2)
    assert installed is not None
    work = workload(m, n, k, layout, swapped=swapped)
    split, shared = GemmConfig(128, 64, split_k=4), GemmConfig(128, 256, cluster=(2, 1))
    for factor in factors(installed, work, GemmConfig(128, 128), split, shared):
        assert 1 / tuned.MOST <= factor <= tuned.MOST


def test_the_judged_matmuls_are_none_of_the_tables() -> None:
    seeds = {400: 60, 401: 60, 402: 60, 403: 60, 500: 110, 501: 110, 700: 160, 702: 80}
    seeds |= {610: 40, 611: 40, 612: 40, 613: 40, 2030: 22, 2031: 22, 2032: 22, 2033: 22}
    tuned_to = {matmul for seed, count in seeds.items() for matmul in draw(count, seed)}
    tuned_to |= set(draw(80, 701, least=1024))
    judged = {matmul for seed in (2034, 2035) for matmul in draw(22, seed)}
    assert not tuned_to & judged
    of_8_bits = RESULTS / "2026-11-27_h100_calibration_8bit.jsonl.xz"
    sizes = {(row["m"], row["n"], row["k"]) for row in configurations.rows(of_8_bits)}
    assert len(sizes) > 300
    assert not sizes & {(matmul.m, matmul.n, matmul.k) for matmul in judged}
