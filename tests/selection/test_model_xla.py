"""benchmarks/model_xla.py: what it learns from made-up times, and what it says of choices."""

import itertools
import json
import math
import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import lightgbm
import model_xla
import numpy as np
import pytest
from model_xla import Sample, grow, judged, margins, out_of_fold, rates, samples, table

from jaxbw._src.lab.bench.case import suite
from jaxbw._src.selection import xla
from jaxbw._src.selection.devices import TARGETS
from jaxbw._src.selection.tuned.files import read, to_bytes
from jaxbw._src.selection.tuned.trees import Forest
from jaxbw._src.selection.xla import XlaModel, XlaTime
from jaxbw._src.selection.xla.features import FEATURES, Rates, features, is_aligned, rough
from measuring import model_matmuls
from measuring.matmuls import Matmul

H200 = TARGETS["H200"]
GIVEN = Rates(132, 3.0, 2.0, 6e6, 20, 4e6)
MATMULS = [each for each in itertools.islice(model_matmuls.draw(3), 200) if xla.kind(each.problem)]


def made_up(matmul: Matmul) -> float:
    """XLA's time: that of the formula with noise, half as much again where it is transposed."""
    noise = math.exp(random.Random(str(matmul)).gauss(0, 0.03))
    return rough(matmul.problem, GIVEN).us * noise * (1.5 if matmul.layout == "nt" else 1.0)


KNOWN = [Sample(each, made_up(each), 10.0, 10.0) for each in MATMULS]


@pytest.fixture(scope="module")
def entry() -> Any:
    return table(KNOWN, GIVEN, {"matmuls": len(KNOWN)}, {})


def test_it_learns_what_the_formula_does_not_say(entry: Any) -> None:
    model = XlaModel.of(entry)
    times = [model.time(each.matmul.problem) for each in KNOWN]
    errors = [abs(math.log(t.us / s.xla_us)) for t, s in zip(times, KNOWN, strict=True)]
    assert np.mean(errors) < 0.03


def test_what_another_machine_shows_is_learnt_too() -> None:
    """No transposed matmul was measured here, but many on a machine of half the rates."""
    slower = Rates(132, 3.0, 2.0, 3e6, 20, 2e6)
    here = [each for each in KNOWN if each.matmul.layout != "nt"]
    there = [
        replace(each, xla_us=each.xla_us * rough(p, slower).us / rough(p, GIVEN).us)
        for each, p in ((each, each.matmul.problem) for each in KNOWN)
    ]
    asked = [each.matmul.problem for each in KNOWN if each.matmul.layout == "nt"]

    def median(others: Any) -> float:
        model = XlaModel.of(table(here, GIVEN, {}, others))
        return float(np.median([model.time(p).us / rough(p, GIVEN).us for p in asked]))

    assert median({}) < 1.1
    assert median({slower: there}) > 1.25


def test_trees_say_what_lightgbm_says() -> None:
    forest = Forest.of(grow({GIVEN: KNOWN}), len(FEATURES))
    rows = np.array([features(each.matmul.problem, GIVEN) for each in KNOWN])
    base = np.array([rough(each.matmul.problem, GIVEN).us for each in KNOWN])
    errors = np.log([each.xla_us for each in KNOWN]) - np.log(base)
    grown = lightgbm.train(model_xla.GROWTH, lightgbm.Dataset(rows, errors), model_xla.TREES)
    np.testing.assert_allclose(forest.total(rows), grown.predict(rows), atol=2e-3)


def test_margins_hold_for_the_share_that_they_say() -> None:
    source = random.Random(0)
    known, expected = [], []
    for matmul in MATMULS:
        error = math.exp(source.gauss(0, 0.2 if matmul.m <= 32 else 0.05))
        known.append(Sample(matmul, 20.0 * error, 10.0, 11.0))
        expected.append(20.0)
    found = margins(known, expected)
    by_rows = dict(found["margins"])
    assert tuple(by_rows) == model_xla.ROWS
    classes = [(few, rows, True) for few, rows in itertools.pairwise((0, *by_rows))]
    for few, rows, aligned in (*classes, (0, 2**31, False)):
        margin = by_rows[rows] if aligned else found["unaligned"]
        ratios = [
            (s.xla_us / s.kernel_us) / (20.0 / s.modelled_us)
            for s in known
            if few < s.matmul.m <= rows and is_aligned(s.matmul.problem) is aligned
        ]
        share = np.mean([ratio <= margin for ratio in ratios])
        assert share == pytest.approx(model_xla.CONFIDENCE, abs=0.05)
    assert by_rows[32] > by_rows[128] > 1.1
    aligned_ones = [s for s in known if is_aligned(s.matmul.problem)]
    assert margins(aligned_ones, [20.0] * len(aligned_ones))["unaligned"] == math.inf


def test_the_file_is_the_table(entry: Any, tmp_path: Path) -> None:
    path = tmp_path / "table.npz"
    path.write_bytes(to_bytes(entry))
    np.testing.assert_equal(read(path), entry)
    assert len(entry["trees"]["counts"]) == model_xla.TREES


def test_it_says_what_was_measured(entry: Any) -> None:
    layouts = [each.layout for each in MATMULS]
    assert {"nn", "nt", "tn"} <= set(entry["layouts"])
    assert all(layouts.count(each) >= model_xla.FEWEST for each in entry["layouts"])
    assert {"bfloat16 matmul", "float16 matmul"} < set(entry["kinds"])
    kinds = [xla.kind(each.problem) for each in MATMULS]
    assert all(kinds.count(kind) >= model_xla.FEWEST for kind in entry["kinds"])
    assert entry["sizes"]["m"] == [min(p.m for p in MATMULS), max(p.m for p in MATMULS)]


def test_constants_are_found() -> None:
    found = rates([s for s in KNOWN if s.matmul.layout != "nt"], 132)
    for matmul in MATMULS[:20]:
        assert rough(matmul.problem, found).us == pytest.approx(
            rough(matmul.problem, GIVEN).us, rel=0.1
        )


def test_who_is_judged_was_not_learnt_from(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt: list[set[Matmul]] = []

    def grown(known: Any) -> Any:
        learnt.append({each.matmul for each in known[GIVEN]})
        return grow(known)

    monkeypatch.setattr(model_xla, "grow", grown)
    monkeypatch.setattr(model_xla, "TREES", 3)
    some = KNOWN[:80]
    asked: list[Matmul] = []
    time = XlaModel.time

    def noted(self: XlaModel, problem: Any) -> XlaTime:
        (matmul,) = (each.matmul for each in some if each.matmul.problem == problem)
        assert matmul not in learnt[-1]
        asked.append(matmul)
        return time(self, problem)

    monkeypatch.setattr(XlaModel, "time", noted)
    assert len(out_of_fold(some, GIVEN, {})) == 80
    assert sorted(asked) == sorted(each.matmul for each in some)


def test_what_choices_give_up() -> None:
    matmul = MATMULS[0]
    quick, slow = XlaTime(1.0, 1.0), XlaTime(99.0, 99.0)
    known = [
        Sample(matmul, 8.0, 10.0, 10.0),  # rightly taken
        Sample(matmul, 12.0, 10.0, 10.0),  # wrongly
        Sample(matmul, 8.0, 10.0, 10.0),  # missed
        Sample(matmul, 20.0, 10.0, 10.0),  # rightly left
    ]
    found = judged(known, [quick, quick, slow, slow])
    mean = (0.8 * 1.2 * 0.8 * 2.0) ** 0.25
    assert found["jnp over kernels"] == pytest.approx(mean, abs=1e-4)
    assert found["jnp over choice"] == pytest.approx((0.8 * 2.0) ** 0.25, abs=1e-4)
    assert found["jnp over better"] == pytest.approx((1.2 * 2.0) ** 0.25, abs=1e-4)
    assert (found["XLA is quicker by 3 %"], found["of these taken"]) == (2, 1)
    assert (found["taken"], found["wrongly"], found["most lost by it"]) == (2, 1, 1.2)
    assert (found["least, kernels"], found["least, choice"]) == (0.8, 0.8)


def test_the_benchmark_is_never_learnt_from(tmp_path: Path) -> None:
    m, n, k = next(iter(suite()))
    others = [Matmul(m, n, k), Matmul(48, 768, 3072), Matmul(96, 768, 3072)]
    here = {"device": "NVIDIA H200"}
    rows = [
        {**asdict(each), **here, "us": {"xla": [3.0, 1.0, 2.0], "kernel": [5.0]}}
        for each in others[:2]
    ]
    rows.append({**asdict(others[2]), **here, "us": {"xla": [3.0]}})
    (tmp_path / "xla.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (found,) = samples([tmp_path / "xla.jsonl"], H200)
    assert (found.matmul, found.xla_us, found.kernel_us) == (others[1], 2.0, 5.0)
    assert found.modelled_us == pytest.approx(6, rel=0.5)
