"""A record of what is asked of the fake driver, and ways to make it misbehave."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jaxbw import _native
from jaxbw._src.selection import kernel_table

KERNELS = kernel_table.load(Path(__file__).parents[3] / "cuda" / "kernels.toml")
Call = dict[str, Any]


@dataclass(frozen=True)
class FakeDriver:
    log: Path
    monkeypatch: pytest.MonkeyPatch

    def calls(self, name: str) -> list[Call]:
        """The calls of a driver function since the test began, with their arguments."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [call for call in map(json.loads, lines) if call["call"] == name]

    def launches(self) -> list[Call]:
        """The launches of gemm kernels."""
        return [call for call in self.calls("cuLaunchKernelEx") if "problem" in call]

    def repacks(self) -> list[Call]:
        """The launches of repack kernels."""
        return [call for call in self.calls("cuLaunchKernelEx") if "pitches" in call]

    def reductions(self) -> list[Call]:
        """The launches of kernels that add up parts."""
        return [call for call in self.calls("cuLaunchKernelEx") if "_reduce_" in call["kernel"]]

    def fail(self, name: str, error: int) -> None:
        """Lets a driver function return an error from now on."""
        self.monkeypatch.setenv("FAKE_CUDA_FAIL", f"{name}={error}")

    def recover(self) -> None:
        self.monkeypatch.delenv("FAKE_CUDA_FAIL")

    def misbehave(self, bug: str) -> None:
        """Lets launches do something wrong, see fake_libcuda.cc."""
        self.monkeypatch.setenv("FAKE_CUDA_BUG", bug)

    def launch_only(self) -> None:
        """Lets launches compute nothing, for shapes too large to compute here."""
        self.monkeypatch.setenv("FAKE_CUDA_COMPUTE", "0")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """The fake driver, with an empty file for the cubin of each kernel in the table."""
    assert os.environ["JAXBW_LIBCUDA"].endswith("fake_libcuda.so")
    for kernel in KERNELS:
        (tmp_path / f"{kernel.name}.cubin").touch()
    _native.set_kernel_directory(str(tmp_path))
    log = tmp_path / "calls.jsonl"
    monkeypatch.setenv("FAKE_CUDA_LOG", str(log))
    return FakeDriver(log, monkeypatch)
