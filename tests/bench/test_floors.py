"""The floors of a matmul, and what the report makes of them."""

from typing import Any

import pytest

from jaxbw._src.lab.bench import report
from jaxbw._src.lab.bench.case import Case
from jaxbw._src.lab.bench.floors import Roof
from jaxbw._src.lab.bench.results import ArmTimes, Results, Row
from jaxbw._src.selection.machine import machines

SQUARE = Case("cube", 4096, 4096, 4096)
FEW_ROWS = Case("decode", 8, 8192, 8192)


def results(gpu: str, clocks: dict[str, list[float]] | None = None) -> Results:
    """Two matmuls of ours, of 200 and 40 microseconds."""

    def row(case: Case, us: float) -> Row:
        arms = {"jaxbw": ArmTimes([[us, us]], ["kernel"], 0.0, True)}
        return Row(case, "burst", arms, {}, "session", clocks or {})

    session: dict[str, Any] = {"gpu": {"name": gpu}}
    return Results({"session": session}, {}, [row(SQUARE, 200.0), row(FEW_ROWS, 40.0)])


def test_floors_of_an_h200() -> None:
    """By hand: 4096 operations a cycle and SM; 2 * 4096^3 of them, and 3 * 4096^2 elements."""
    floors = Roof(machines()["H200"], 1.755).floors(SQUARE)
    assert floors.arithmetic == pytest.approx(2 * 4096**3 / (132 * 4096 * 1.755e9) * 1e6)
    assert floors.memory == pytest.approx(3 * 4096**2 * 2 / 4.2e12 * 1e6)


def test_each_kind_of_matmul_has_its_floor() -> None:
    roof = Roof(machines()["H200"], 1.755)
    assert roof.floors(SQUARE).arithmetic > roof.floors(SQUARE).memory
    assert roof.floors(FEW_ROWS).arithmetic < roof.floors(FEW_ROWS).memory


def test_the_clock_is_the_one_that_was_told() -> None:
    machine = machines()["H200"]
    told = {"clocks.sm": [1600.0, 1980.0, 1980.0]}
    assert Roof.over(results("NVIDIA H200", told)) == Roof(machine, 1.98)
    assert Roof.over(results("NVIDIA H200")) == Roof(machine, machine.max_clock_ghz)


def test_the_report_has_floors_of_known_gpus_only() -> None:
    clocks = {"clocks.sm": [1980.0, 1980.0, 1980.0]}
    known, unknown = (report.table(results(gpu, clocks)) for gpu in ("NVIDIA H200", "Some GPU"))
    header, square, few_rows = known.splitlines()
    assert header.endswith("arithmetic us  memory us  of floor %")
    assert square.split()[-3:] == ["128.4", "24.0", "64"]
    assert few_rows.split()[-3:] == ["1.0", "32.0", "80"]
    assert "floor" not in unknown
