"""Measures models and stores each; goes on where the last session stopped."""

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from jaxbw._src.lab.bench import environment, statistics
from jaxbw._src.lab.bench.models.form import FORMS, PLAIN, Form
from jaxbw._src.lab.bench.models.program import Launches, Program
from jaxbw._src.lab.bench.models.transformer import Transformer
from jaxbw._src.lab.bench.results import write_whole
from jaxbw._src.lab.interleaving import interleaved

WARM_UP = 3
CALLS = 3  # in a round
ROUNDS = 12
COMPILED_TOGETHER = 12  # programs; each takes a thread and the GPU's memory for autotuning


@dataclass(frozen=True)
class FormTimes:
    """One form of a model, measured.

    Attributes:
      rounds: milliseconds of a step, by round and call: host time, blocking.
      result: the loss; of a decoding step the mean of its logits.
    """

    rounds: list[list[float]]
    matmuls: dict[str, int]
    launches: Launches
    temporary_bytes: int
    compile_s: float
    result: float


@dataclass(frozen=True)
class Row:
    """A model with its layers written one way, in all forms that were measured."""

    model: str
    stacking: str
    forms: dict[str, FormTimes]
    session: str
    clocks: dict[str, list[float]]

    def of_plain(self, form: str) -> statistics.Estimate:
        """How much faster a form is than plain XLA."""
        return statistics.ratio(self.forms[PLAIN.name].rounds, self.forms[form].rounds)


@dataclass
class Results:
    """Everything measured so far, and the environment of each session, by its date."""

    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a file.

        Raises:
          ValueError: it is none that `save` wrote.
        """
        try:
            stored = json.loads(path.read_text())
            return cls(stored["sessions"], [*map(_row, stored["model_rows"])])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} is no results file of `python -m jaxbw bench model`"
            ) from error

    def save(self, path: Path) -> None:
        """Writes a file: a line for each row. A session that is killed leaves the one before."""
        lines = ",\n".join(json.dumps(dataclasses.asdict(row)) for row in self.rows)
        sessions = json.dumps(self.sessions, indent=1)
        write_whole(path, f'{{"sessions": {sessions},\n"model_rows": [\n{lines}\n]}}\n')

    def has(self, model: str, stacking: str) -> bool:
        """Whether that was measured."""
        return any((row.model, row.stacking) == (model, stacking) for row in self.rows)


def _row(stored: dict[str, Any]) -> Row:
    forms = {
        name: FormTimes(**(each | {"launches": Launches(**each["launches"])}))
        for name, each in stored["forms"].items()
    }
    return Row(**(stored | {"forms": forms}))


@dataclass(frozen=True)
class Plan:
    """What a session is to measure: cases of model and stacking; until `budget_s` is over."""

    cases: Sequence[tuple[Transformer, str]]
    seed: int
    budget_s: float
    out: Path
    note: str = ""

    def missing(self, results: Results) -> list[tuple[Transformer, str]]:
        """The cases that the results do not have yet."""
        return [case for case in self.cases if not results.has(case[0].name, case[1])]


def run(plan: Plan, results: Results, report: Callable[[Row], None]) -> None:
    """Measures what is missing, batch by batch: a batch is compiled in threads, then timed.

    XLA's autotuning takes most of the time, and nothing is timed beside it.

    Args:
      report: is told each row.
    """
    described = environment.describe(plan.seed, ROUNDS, plan.note) | {
        "inputs": "iid normal weights, 0.02; iid uniform tokens",
        "time": "host time of a blocking step; forms interleaved in random order",
    }
    begin, longest = time.monotonic(), 0.0
    with environment.Monitor() as monitor:
        while batch := plan.missing(results)[: COMPILED_TOGETHER // len(FORMS)]:
            start = time.monotonic()
            if start - begin + longest > plan.budget_s:
                return
            for (model, stacking), programs in zip(batch, _compile(batch), strict=True):
                row = _measure(model, stacking, programs, plan.seed, monitor, described["date"])
                results.sessions[row.session] = described
                results.rows.append(row)
                results.save(plan.out)
                report(row)
            longest = max(longest, time.monotonic() - start)


def _compile(cases: Sequence[tuple[Transformer, str]]) -> list[dict[str, Program]]:
    def compile_one(given: tuple[tuple[Transformer, str], Form]) -> Program:
        (model, stacking), form = given
        return Program.compile(model, form, stacking)

    every = list(itertools.product(cases, FORMS))
    with ThreadPoolExecutor(COMPILED_TOGETHER) as threads:
        compiled = iter(list(threads.map(compile_one, every)))
    return [{form.name: next(compiled) for form in FORMS} for _ in cases]


def _measure(
    model: Transformer,
    stacking: str,
    programs: dict[str, Program],
    seed: int,
    monitor: environment.Monitor,
    session: str,
) -> Row:
    arguments = model.arguments(stacking, seed)
    values, start = {}, time.monotonic()
    for name, program in programs.items():
        for _ in range(WARM_UP):
            _, arguments, value = program.run(arguments)
        values[name] = float(np.mean(np.asarray(value, np.float64)))
    rounds: dict[str, list[list[float]]] = {name: [] for name in programs}
    for name in interleaved(programs, ROUNDS, seed):
        times = []
        for _ in range(CALLS):
            ms, arguments, _ = programs[name].run(arguments)
            times.append(round(ms, 4))
        rounds[name].append(times)
    launches = {}
    for name, program in programs.items():
        launches[name], arguments = program.launches(arguments)
    forms = {
        name: FormTimes(
            rounds[name],
            program.matmuls,
            launches[name],
            program.temporary_bytes,
            program.compile_s,
            values[name],
        )
        for name, program in programs.items()
    }
    return Row(model.name, stacking, forms, session, monitor.since(start))
