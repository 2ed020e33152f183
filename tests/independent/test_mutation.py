"""`hardware` finds what makes another compiler's GEMM wrong; `mutation` asks of more kernels."""

import importlib
from typing import Any

import pytest

from .launching import F16, Problem


def test_every_mutant_with_another_result_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("triton", reason="triton is missing: pip install 'jaxbw[independent]'")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
    gluon, mutation = (
        importlib.import_module(f".{name}", __package__) for name in ("gluon_kernels", "mutation")
    )
    problem = Problem(136, 136, 200, F16)
    kernel = gluon.compiled(gluon.matmul_tile, problem, (64, 64, 64), 1)
    outcomes: list[Any] = [
        mutation.examine("tile", kernel, problem, mutant) for mutant in mutation.mutants(kernel.ptx)
    ]
    wrong = [outcome for outcome in outcomes if outcome.wrong]
    assert len(wrong) >= 5
    # In every schedule, not only in those that make the result wrong.
    assert [each.mutant.line for each in wrong if each.found < len(mutation.SCHEDULES)] == []
