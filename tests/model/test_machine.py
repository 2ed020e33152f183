"""Machine tables: every number has a unit, a source and a confidence, and stands once."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxbw._src.lab.model import machine as machines
from jaxbw._src.lab.model.machine import CONFIDENCES, SHARED, constants, names, replayed
from jaxbw._src.selection.machine import constants as selection_constants
from jaxbw._src.selection.machine import machines as selection_machines

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize("name", ["B200", "GB200", "B300", "H200", "H100"])
def test_every_constant_says_where_it_is_from(name: str) -> None:
    found = list(constants(name))
    assert len({constant.name for constant in found}) == len(found)
    assert set(SHARED) <= {constant.name for constant in found}
    for constant in found:
        assert constant.confidence in CONFIDENCES
        assert constant.unit
        assert constant.source
    assert replayed(name)["sm_count"] == selection_machines()[name].sm_count


def test_fitted_constants_name_what_they_were_fitted_to() -> None:
    fitted = {c.name: c.source for c in constants("B200") if c.fitted}
    assert set(fitted) == {
        *("l2_bytes_per_ns", "tma_latency_ns", "tma_latency_cycles", "narrow_row_cycles"),
        "load_wavefront_cycles",
    }
    assert all("MOD K" in source for source in fitted.values())


def test_what_was_measured_on_the_h200_is_what_its_record_says() -> None:
    record = json.loads((RESULTS / "2026-11-22_h200_micro.json").read_text())
    measured = {name: record[name]["median"] for name in ("mbarrier", "wgmma", "tma_store")}
    latency = record["tma_latency"]["median"]
    stores = measured["tma_store"]
    per_byte = (stores["16384"]["read"] - stores["4096"]["read"]) / (16384 - 4096)
    ghz = record["environment"]["clock_khz"] / 1e6  # one SM alone: as the driver says
    expected = {
        "wake_cycles": measured["mbarrier"]["local"],
        "remote_cycles": measured["mbarrier"]["remote"] - measured["mbarrier"]["local"],
        "mma_interval_cycles": measured["wgmma"]["64_warpgroups_1"]["cycles"],
        "mma_latency_cycles": measured["wgmma"]["256_warpgroups_1"]["latency"],
        "store_bytes_per_cycle": 1 / per_byte,
        "store_read_cycles": stores["4096"]["read"] - 4096 * per_byte,
        "store_visible_cycles": stores["4096"]["complete"] - stores["4096"]["read"],
        "memory_latency_ns": (latency["memory_4096"] - latency["l2_4096"] + latency["memory_8192"]
                              - latency["l2_8192"]) / 2 / ghz,
    }  # fmt: skip
    rates = record["tma_rate"]["median"]
    expected |= {
        "mma_cycles_per_column": measured["wgmma"]["256_warpgroups_2"]["cycles"] / 256,
        "l2_bytes": record["environment"]["l2_bytes"],
        "dram_bytes_per_ns": rates["memory_65536"],
        "dram_bytes_per_ns_sm": rates["memory_one_sm_131072"],
    }
    table = [c for c in selection_constants("H200") if c.source.startswith("MIC")]
    values = {c.name: c.value for c in table if c.confidence == "H"}
    clusters = [int(count) * int(size) for size, count in record["clusters"]["median"].items()]
    assert values.pop("usable_sms") == clusters
    assert set(values) == set(expected)
    for name, value in expected.items():
        assert values[name] == pytest.approx(value, rel=0.05), name
    # An idle load, and its waiter.
    h200 = replayed("H200")
    load = h200["tma_latency_ns"] * ghz + h200["tma_latency_cycles"]
    assert load + h200["wake_cycles"] == pytest.approx(latency["l2_1024"], rel=0.01)


GOOD: dict[str, Any] = {"value": 1.0, "unit": "ns", "confidence": "L", "source": "assumed"}


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        (1.0, "exactly value, unit, confidence and source"),
        ({**GOOD, "note": ""}, "exactly value, unit, confidence and source"),
        ({**GOOD, "confidence": "X"}, "confidence is 'X'"),
        ({**GOOD, "value": 0}, "not a positive number"),
        ({**GOOD, "value": "1"}, "not a positive number"),
        ({**GOOD, "source": ""}, "has no source"),
    ],
)
def test_a_faulty_entry_is_refused(entry: Any, fault: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(machines, "_table", lambda: {"B200": {"narrow_row_cycles": entry}})
    with pytest.raises(ValueError, match=fault):
        list(constants("B200"))


def test_a_constant_of_the_selection_is_not_stated_again(monkeypatch: Any) -> None:
    monkeypatch.setattr(machines, "_table", lambda: {"B200": {"wake_cycles": GOOD}})
    with pytest.raises(ValueError, match="stands in selection's table, too"):
        list(constants("B200"))


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="no machine 'V100'; there are B200"):
        replayed("V100")
    with pytest.raises(KeyError, match="no constant 'speed'"):
        replayed(names()[0]).scaled("speed", 2)
