"""`hardware` finds what makes another compiler's kernel wrong; `mutation` asks of more kernels."""

import importlib
from typing import Any

import pytest

from .launching import F16, Problem


@pytest.fixture
def mutation(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    for package in ("triton", "cutlass"):
        pytest.importorskip(package, reason=f"{package} is missing: 'jaxbw[independent]' has it")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
    return importlib.import_module(".mutation", __package__)


def subject(mutation: Any, name: str) -> Any:
    if name != "Gluon, tile":
        return next(each for each in mutation.layers() if each.name == name)
    gluon = importlib.import_module(".gluon_kernels", __package__)
    problem = Problem(136, 136, 200, F16)
    kernel = gluon.compiled(gluon.matmul_tile, problem, (64, 64, 64), 1)
    return mutation.of_gemm(name, kernel, problem)


# Of those whose results change some.
@pytest.mark.parametrize(
    ("name", "at_least"),
    [
        pytest.param("Gluon, tile", 5, marks=pytest.mark.long),
        ("Triton, softmax", 1),
        # Its warps store 16 bits at a time.
        pytest.param("Triton, attention by mma.sync, 16x16", 5, marks=pytest.mark.long),
        pytest.param("CuTe DSL, rows, launch control", 1, marks=pytest.mark.long),
    ],
)
def test_every_mutant_with_another_result_is_found(mutation: Any, name: str, at_least: int) -> None:
    kernel = subject(mutation, name)
    outcomes = [mutation.examine(kernel, mutant) for mutant in mutation.mutants(kernel.ptx)]
    wrong = [outcome for outcome in outcomes if outcome.wrong]
    assert len(wrong) >= at_least
    assert [each.mutant.line for each in wrong if each.missed] == []
