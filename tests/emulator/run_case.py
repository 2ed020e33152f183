"""Runs a case, dense or grouped, by a kernel that may be a mutant of the installed one."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxbw import emulator

from . import gemm_cases, gemm_launch, ragged_launch
from .gemm_cases import Case
from .gemm_launch import Matmul
from .ragged_launch import Ragged


@dataclass(frozen=True)
class Run:
    """What a run shows."""

    reports: Sequence[emulator.Report]
    verify: Callable[[], None]  # raises AssertionError where a result is wrong

    @property
    def findings(self) -> list[emulator.Finding]:
        """Of all its launches."""
        return [finding for report in self.reports for finding in report.findings]

    @property
    def steps(self) -> int:
        """Of all its launches."""
        return sum(report.steps for report in self.reports)


@functools.cache
def _matmul(case: Case) -> Matmul:
    return case.matmul()


@functools.cache
def _operands(case: Ragged) -> tuple[Any, Any]:
    return case.operands()


def run(module: emulator.Module, case: Case | Ragged, **options: Any) -> Run:
    """A run on so few SMs that each has many tiles, and that several add the parts of one."""
    if isinstance(case, Ragged):
        result, _, reports = ragged_launch.launch(case, *_operands(case), module, **options)
        return Run(reports, functools.partial(case.compare, result))
    config, matmul = case.config(), _matmul(case)
    sm_count = config.clusters * (1 if case.split_k == 1 else 2)
    outcome = gemm_launch.launch(module, config, matmul, sm_count=sm_count, **options)
    verify = functools.partial(gemm_cases.verify_results, case, matmul, outcome.results)
    return Run([outcome.report], verify)


def stages(case: Case | Ragged) -> int:
    """Of its ring."""
    return case.plan().stages if isinstance(case, Ragged) else case.config().stages
