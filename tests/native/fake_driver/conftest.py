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


@pytest.fixture(scope="session")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an empty file for the cubin of each kernel in the table."""
    folder = tmp_path_factory.mktemp("cubins")
    for kernel in KERNELS:
        (folder / f"{kernel.name}.cubin").touch()
    return folder


@pytest.fixture
def fake(tmp_path: Path, cubins: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """The fake driver, which has loaded no kernel from `kernels` in the test's folder."""
    assert os.environ["JAXBW_LIBCUDA"].endswith("fake_libcuda.so")
    kernels = tmp_path / "kernels"
    kernels.symlink_to(cubins)
    _native.set_kernel_directory(str(kernels))
    log = tmp_path / "calls.jsonl"
    monkeypatch.setenv("FAKE_CUDA_LOG", str(log))
    return FakeDriver(log, monkeypatch)
