"""benchmarks/compare_kernels.py on a made-up GPU: whose kernels run when, and what comes out."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from compare_kernels import ROUNDS, compare, summary

from jaxbw import _native
from jaxbw._src.lab.tuning.launching import Launch
from jaxbw._src.selection.devices import TARGETS
from measuring.builds import parse_builds
from measuring.matmuls import Matmul

SMALL = Matmul(1024, 1024, 1024)
BUILDS = {"before": Path("/kernels/before"), "after": Path("/kernels/after")}


class TwoBuilds:
    """Takes as long as a function of the kernels' directory says; remembers whose ran."""

    def __init__(self, microseconds: Callable[[str], float], wrong: str = "") -> None:
        self.microseconds, self.wrong = microseconds, wrong
        self.directory, self.ran = "", list[str]()

    def launch(self, problem: Any, choice: Any) -> Launch:
        return lambda operands, result, wait: self.ran.append(self.directory)

    def time(self, bursts: Sequence[Sequence[Launch]], repeats: int) -> list[list[float]]:
        times = []
        for launch in (launch for burst in bursts for launch in burst):
            launch(0, 0, True)
            times.append([self.microseconds(self.ran[-1])] * repeats)
        return times

    def deviations(self, problem: Any, launches: Sequence[Launch]) -> list[float]:
        for launch in launches:
            launch(0, 0, True)
        found = [float("nan") if each == self.wrong else 0.0 for each in self.ran]
        self.ran.clear()
        return found

    def xla(self, problem: Any) -> float:
        raise AssertionError("builds of kernels are compared with each other")


def two_builds(
    monkeypatch: pytest.MonkeyPatch, microseconds: Callable[[str], float], wrong: str = ""
) -> TwoBuilds:
    gpu = TwoBuilds(microseconds, wrong)
    monkeypatch.setattr(
        _native, "set_kernel_directory", lambda path: setattr(gpu, "directory", path)
    )
    return gpu


def test_builds_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = two_builds(monkeypatch, lambda directory: 8.0 if "after" in directory else 10.0)
    rows = compare(gpu, SMALL, BUILDS, TARGETS["H200"], count=3)
    assert [row["us"] for row in rows] == [{"before": 10.0, "after": 8.0}] * 3
    assert len({row["config"] for row in rows}) == 3
    assert sorted(gpu.ran) == ["/kernels/after"] * 3 * ROUNDS + ["/kernels/before"] * 3 * ROUNDS
    one_round = gpu.ran[:6]
    assert sorted(one_round) == ["/kernels/after"] * 3 + ["/kernels/before"] * 3
    assert summary(rows) == {"after": {"all": 0.8, "best": 0.8, "least": 0.8, "most": 0.8}}


def test_results_that_differ_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = two_builds(monkeypatch, lambda directory: 1.0, wrong="/kernels/after")
    with pytest.raises(RuntimeError, match=r"1024x1024x1024 nn: .* of after is nan off"):
        compare(gpu, SMALL, BUILDS, TARGETS["H200"], count=1)


def test_the_summary_compares_each_builds_fastest_configuration() -> None:
    matmul = {"m": 8, "n": 16, "k": 32, "layout": "nn", "dtype": "bfloat16", "epilogue": "none"}
    rows = [
        {**matmul, "config": "one", "us": {"before": 10.0, "after": 9.0}},
        {**matmul, "config": "two", "us": {"before": 8.0, "after": 10.0}},
    ]
    assert summary(rows) == {"after": {"all": 1.0607, "best": 1.125, "least": 0.9, "most": 1.25}}


def test_builds_are_named_and_have_kernels(tmp_path: Path) -> None:
    (tmp_path / "jaxbw_sm90_bf16_nn_64x64.cubin").touch()
    assert parse_builds([f"a={tmp_path}", f"b={tmp_path}"]) == {"a": tmp_path, "b": tmp_path}
    with pytest.raises(ValueError, match="two builds or more"):
        parse_builds([f"a={tmp_path}"])
    with pytest.raises(ValueError, match=r"b=/nowhere: there is no \.cubin"):
        parse_builds([f"a={tmp_path}", "b=/nowhere"])
