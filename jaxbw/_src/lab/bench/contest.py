"""The arms that compete in a case: compiled, each in its best configuration.

What is found best is stored with the results, so that it is looked for once. Arms that time kernels
when they compile do so alone; the others' candidates compile side by side.
"""

import contextlib
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from jaxbw._src.lab.bench import measure
from jaxbw._src.lab.bench.arms.arm import Arm
from jaxbw._src.lab.bench.case import Case
from jaxbw._src.lab.bench.inputs import Operands, Oracle
from jaxbw._src.lab.bench.results import Config, Results
from jaxbw._src.lab.bench.timer import Matmul, Rotation, Timer

Task = tuple[Arm, Config]
T = TypeVar("T")


class Trial(NamedTuple):
    """A configuration, its first estimate, and its calls; or infinity, and why there are none."""

    microseconds: float
    config: Config
    calls: Rotation | str


class Contest:
    """Who takes part in the measurement of a case, and why the others do not.

    Args:
      case: what is computed.
      sets: its operands.
      timer: for the candidates.
      tuned: what earlier sessions found; what is found here is added.

    `seconds` is how long each part of it took.
    """

    def __init__(self, case: Case, sets: Sequence[Operands], timer: Timer, tuned: Results) -> None:
        self._case, self._sets, self._timer, self._tuned = case, sets, timer, tuned
        self.arms: dict[str, Rotation] = {}
        self.absent: dict[str, str] = {}
        self.seconds: dict[str, float] = defaultdict(float)

    def enter(self, arms: Sequence[Arm]) -> None:
        """Compiles all of them; each lands in `arms` or in `absent`."""
        tasks: list[Task] = []
        for arm in arms:
            if reason := arm.refusal(self._case):
                self.absent[arm.name] = reason
                continue
            stored = self._tuned.configuration(arm.name, self._case)
            configs = arm.candidates(self._case) if stored is None else [stored]
            tasks += [(arm, config) for config in configs]
        calls = self._compile(tasks)
        for arm in arms:
            mine = [(config, found) for (each, config), found in calls if each is arm]
            if len(mine) == 1:
                self._admit(arm, mine[0][1])
            elif mine:
                self._tune(arm, mine)

    def errors(self) -> dict[str, float]:
        """The relative error of each arm; one that cannot compute the case after all is absent."""
        oracle = Oracle(self._case, self._sets[0])
        found = {}
        for name, calls in list(self.arms.items()):
            error = guarded(lambda calls: oracle.relative_error(calls.first()), calls)
            if isinstance(error, str):
                self.absent[name] = error
                del self.arms[name]
            else:
                found[name] = error
        return found

    def _tune(self, arm: Arm, mine: Sequence[tuple[Config, Rotation | str]]) -> None:
        """Times the candidates, then variations of the best."""
        with self._stage(f"tune {arm.name}"):
            trials = [self._try(*each) for each in mine]
        best = min(trials, key=lambda trial: trial.microseconds)
        if math.isfinite(best.microseconds):
            varied = [(arm, config) for config in arm.variations(self._case, best.config)]
            compiled = self._compile(varied)
            with self._stage(f"tune {arm.name}"):
                trials += [self._try(config, calls) for (_, config), calls in compiled]
            best = min(trials, key=lambda trial: trial.microseconds)
            tried = [[t.microseconds, t.config] for t in trials if math.isfinite(t.microseconds)]
            found = self._tuned.tuned.setdefault(arm.name, {})
            found[str(self._case)] = {"config": best.config, "tried": tried}
        self._admit(arm, best.calls)

    def _try(self, config: Config, calls: Rotation | str) -> Trial:
        if not isinstance(calls, str):
            found = guarded(measure.quick, self._timer, calls)
            if not isinstance(found, str):
                return Trial(round(found, 3), config, calls)
            calls = found
        return Trial(math.inf, config, calls)

    def _admit(self, arm: Arm, calls: Rotation | str) -> None:
        if isinstance(calls, str):
            self.absent[arm.name] = calls
        else:
            self.arms[arm.name] = calls

    def _compile(self, tasks: Sequence[Task]) -> list[tuple[Task, Rotation | str]]:
        """Calls of each, or why there are none."""

        def compile_one(task: Task) -> Matmul | str:
            arm, config = task
            return guarded(arm.prepare, self._case, config)

        alone = {}
        for i, (arm, config) in enumerate(tasks):
            if arm.measures_to_compile:
                with self._stage(f"compile {arm.name}"):
                    alone[i] = compile_one((arm, config))
        with self._stage("compile the others"), ThreadPoolExecutor(os.cpu_count()) as pool:
            others = {i: pool.submit(compile_one, t) for i, t in enumerate(tasks) if i not in alone}
        matmuls = [alone[i] if i in alone else others[i].result() for i in range(len(tasks))]
        return [
            (task, matmul if isinstance(matmul, str) else Rotation(matmul, self._sets))
            for task, matmul in zip(tasks, matmuls, strict=True)
        ]

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[name] += time.monotonic() - start


def guarded(work: Callable[..., T], *arguments: Any) -> T | str:
    """What it returns, or its error in a line: other people's compilers raise anything."""
    try:
        return work(*arguments)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {lines[0][:200]}"
