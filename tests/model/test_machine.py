"""Machine tables: every number has a unit, a source and a confidence, and stands once."""

from typing import Any

import pytest

from jaxbw.model import machine as machines
from jaxbw.model.machine import CONFIDENCES, SHARED, constants, names, replayed
from jaxbw.selection.machine import machines as selection_machines


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


def test_nothing_of_hopper_claims_to_be_measured_by_the_micro_benchmarks() -> None:
    for constant in constants("H200"):
        if "micro" in constant.source:
            assert constant.confidence == "L"
            assert "to be measured" in constant.source


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
    monkeypatch.setattr(machines, "_table", lambda: {"B200": {"wake_cycles": entry}})
    with pytest.raises(ValueError, match=fault):
        list(constants("B200"))


def test_a_constant_of_the_selection_is_not_stated_again(monkeypatch: Any) -> None:
    monkeypatch.setattr(machines, "_table", lambda: {"B200": {"clock_ghz": GOOD}})
    with pytest.raises(ValueError, match="stands in selection's table, too"):
        list(constants("B200"))


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="no machine 'V100'; there are B200"):
        replayed("V100")
    with pytest.raises(KeyError, match="no constant 'speed'"):
        replayed(names()[0]).scaled("speed", 2)
