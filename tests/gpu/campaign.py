"""Numbered attempts in worker processes, each noted when it ends: a campaign that can go on later.

Knows nothing of what is attempted. A worker that dies, hangs, or says that its device is lost
costs one attempt, and is replaced.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing import connection, get_context
from pathlib import Path

_CONTEXT = get_context("spawn")  # CUDA does not survive a fork
_POLL = 0.5  # seconds


@dataclass(frozen=True)
class Outcome:
    """What became of an attempt; `fault` is empty where all is well."""

    number: int
    fault: str = ""
    seconds: float = 0.0
    lost: bool = False  # the process cannot attempt anything more


Attempt = Callable[[int], Outcome]


def run(
    attempt: Attempt,
    numbers: Iterable[int],
    *,
    jobs: int,
    budget: float = float("inf"),
    limit: float = 120.0,
) -> Iterator[Outcome]:
    """The outcomes, as they come.

    Args:
      attempt: called in the workers; may be pickled.
      numbers: what to attempt.
      jobs: worker processes.
      budget: seconds after which nothing more is begun.
      limit: seconds after which an attempt is taken for hanging.
    """
    left = iter(numbers)
    end = time.monotonic() + budget
    idle, busy = [_Worker(attempt) for _ in range(jobs)], list[_Worker]()
    try:
        while True:
            while idle and time.monotonic() < end and (number := next(left, None)) is not None:
                busy.append(idle.pop())
                busy[-1].give(number)
            if not busy:
                return
            ready = connection.wait([worker.pipe for worker in busy], _POLL)
            for worker in busy.copy():
                if worker.pipe in ready:
                    outcome = worker.take()
                elif worker.overdue(limit):
                    outcome = Outcome(worker.number, f"no end after {limit:g} s", limit, lost=True)
                else:
                    continue
                busy.remove(worker)
                if outcome.lost:
                    worker.stop()
                    worker = _Worker(attempt)
                idle.append(worker)
                yield outcome
    finally:
        for worker in (*idle, *busy):
            worker.stop()


class _Worker:
    """A process that attempts one number at a time."""

    def __init__(self, attempt: Attempt) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_serve, args=(theirs, attempt), daemon=True)
        self.process.start()
        theirs.close()
        self.number, self.since = -1, 0.0

    def give(self, number: int) -> None:
        self.number, self.since = number, time.monotonic()
        self.pipe.send(number)

    def take(self) -> Outcome:
        try:
            outcome: Outcome = self.pipe.recv()
        except EOFError:
            self.process.join()
            died = f"the process died with exit code {self.process.exitcode}"
            return Outcome(self.number, died, time.monotonic() - self.since, lost=True)
        return outcome

    def overdue(self, limit: float) -> bool:
        return time.monotonic() - self.since > limit

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: "connection.Connection[Outcome, int]", attempt: Attempt) -> None:
    while True:
        number = pipe.recv()
        start = time.monotonic()
        outcome = attempt(number)
        seconds = round(time.monotonic() - start, 4)
        pipe.send(Outcome(number, outcome.fault, seconds, outcome.lost))


class Notes:
    """The outcomes of a campaign in a file of JSON lines, to which every run adds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.outcomes = {entry["number"]: Outcome(**entry) for entry in map(json.loads, lines)}

    def add(self, outcome: Outcome) -> None:
        """Notes an outcome, at once."""
        self.outcomes[outcome.number] = outcome
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")

    @property
    def faults(self) -> list[Outcome]:
        """By number."""
        return sorted((o for o in self.outcomes.values() if o.fault), key=lambda o: o.number)
