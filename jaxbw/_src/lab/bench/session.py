"""A session: measures cases one by one, stores each, and goes on where the last one stopped."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxbw._src.lab.bench import environment
from jaxbw._src.lab.bench.arms.arm import Arm
from jaxbw._src.lab.bench.case import Case
from jaxbw._src.lab.bench.contest import Contest, guarded
from jaxbw._src.lab.bench.inputs import draw, largest_error
from jaxbw._src.lab.bench.measure import MODES
from jaxbw._src.lab.bench.results import ArmTimes, Results, Row
from jaxbw._src.lab.bench.timer import Timer


@dataclass(frozen=True)
class Plan:
    """What a session is to measure.

    Args:
      cases, arms: each of these by all of those.
      mode: of MODES.
      rounds: of each arm.
      seed: of operands and order.
      budget_s: seconds after which no case is begun that would not end in time.
      out: the results file.
      note: stored with the results.
    """

    cases: Sequence[Case]
    arms: Sequence[Arm]
    mode: str
    rounds: int
    seed: int
    budget_s: float
    out: Path
    note: str = ""

    def missing(self, results: Results) -> list[Case]:
        """The cases that the results do not have yet."""
        names = [arm.name for arm in self.arms]
        return [case for case in self.cases if not results.has(case, self.mode, names)]


class Session:
    """One sitting: a plan, and the results that it goes on from and adds to."""

    def __init__(self, plan: Plan, results: Results, timer: Timer) -> None:
        self._plan, self._results, self._timer = plan, results, timer
        self._environment = environment.describe(plan.seed, plan.rounds, plan.note)

    def run(self, report: Callable[[Row], None], warn: Callable[[str], None]) -> None:
        """Measures what is missing, until the time is up.

        Args:
          report: is told each row.
          warn: is told of a case that could not be measured.
        """
        begin, longest = time.monotonic(), 0.0
        with environment.Monitor() as monitor:
            for case in self._plan.missing(self._results):
                start = time.monotonic()
                if start - begin + longest > self._plan.budget_s:
                    return
                row = guarded(self._measure, case, monitor)
                if isinstance(row, str):
                    warn(f"{case}: {row}; the same command measures it again")
                    continue
                self._results.sessions[row.session] = self._environment
                self._results.add(row)
                self._results.save(self._plan.out)
                report(row)
                longest = max(longest, time.monotonic() - start)

    def _measure(self, case: Case, monitor: environment.Monitor) -> Row:
        """The row of one case."""
        plan = self._plan
        begin = time.monotonic()
        sets = draw(case, plan.seed)
        contest = Contest(case, sets, self._timer, self._results)
        drawn = time.monotonic()
        contest.enter(plan.arms)
        entered = time.monotonic()
        errors = contest.errors()
        start = time.monotonic()
        preparation = {"draw": drawn - begin} | contest.seconds | {"check": start - entered}
        measure_all = MODES[plan.mode]
        timings = measure_all(self._timer, contest.arms, rounds=plan.rounds, seed=plan.seed)
        seconds, clocks = round(time.monotonic() - start, 1), monitor.since(start)
        times = {
            name: ArmTimes(
                rounds=[list(calls) for calls in timing.rounds],
                kernels=list(timing.kernels),
                relative_error=errors[name],
                correct=errors[name] <= largest_error(case),
                details=contest.arms[name].matmul.details,
            )
            for name, timing in timings.items()
        }
        session = self._environment["date"]
        rounded = {stage: round(each, 1) for stage, each in preparation.items()}
        return Row(case, plan.mode, times, contest.absent, session, clocks, seconds, rounded)
