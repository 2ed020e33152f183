"""The record of the comparison with published ladders: in step with the model, and its bars."""

import json
from pathlib import Path
from typing import Any

import compare_model
import pytest

from jaxbw._src.lab.model.machine import constants, replayed
from jaxbw._src.lab.model.report import INTERVAL
from measuring.ladders import LADDERS

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
RECORD = RESULTS / "2026-11-22_model_ladders_freeze4.json"
# Rungs beyond 20 %, and an order that is lost: said in docs/blackwell-model.md.
MISSED, LOST = {"0 basic"}, ["0 basic / 1 warps"]
QUICK = ("Modular", "Pallas", "ThunderKittens educational")


@pytest.fixture(scope="module")
def record() -> Any:
    return json.loads(RECORD.read_text())


def test_the_record_is_of_this_model(record: Any) -> None:
    now = {constant.name: constant.value for constant in constants("B200")}
    assert record["constants"] == now, "constants have changed: that is a new freeze, with a record"
    for name in QUICK:
        kept = record["ladders"][name]["rungs"]
        for rung, row in zip(LADDERS[name], kept, strict=True):
            assert (rung.name, rung.published) == (row["rung"], row["published"])
            value = compare_model.modelled(replayed("B200"), rung)["value"]
            assert value == pytest.approx(row["value"], rel=1e-6)


def test_the_bars(record: Any) -> None:
    together = record["together"]
    assert together["median_error"] <= 0.10
    assert together["median_error_without_fitted"] <= 0.10
    judged = [row for name in together["ladders"] for row in record["ladders"][name]["rungs"]]
    assert {row["rung"] for row in judged if abs(row["error"]) > 0.2} == MISSED
    lost = [pair for name in together["ladders"] for pair in record["ladders"][name]["order_lost"]]
    assert lost == LOST


def test_the_interval_holds_every_published_rung(record: Any) -> None:
    low, high = INTERVAL
    for ladder in record["ladders"].values():
        for row in ladder["rungs"]:
            # A time that was modelled, over the published one.
            assert low <= 1 + row["error"] <= high, row["rung"]
