"""Results: what a session measured, in a JSON file with everything that it takes to repeat it."""

import dataclasses
import json
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from jaxbw._src.lab.bench import statistics
from jaxbw._src.lab.bench.case import Case

OURS = "jaxbw"
SHIPPED = "xla"  # jax.jit(jnp.dot), as shipped

Config = dict[str, Any]


@dataclass(frozen=True)
class ArmTimes:
    """One arm's times for one case.

    Args:
      rounds: microseconds, by round and call.
      kernels: names of the kernels of one call.
      relative_error: of the result against float64.
      correct: whether that is small enough.
      details: of the arm: how it was compiled, or configured.
    """

    rounds: list[list[float]]
    kernels: list[str]
    relative_error: float
    correct: bool
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """Microseconds of a call."""
        return statistics.median(self.rounds)


@dataclass(frozen=True)
class Row:
    """One case, measured.

    Args:
      mode: "burst" or "sustained".
      arms: the times of each arm that took part.
      absent: why each other arm did not.
      session: the key of the environment that it was measured in.
      clocks: percentiles of clock and power while it was measured.
      seconds: that it took, without what was done before:
      preparation: seconds of drawing operands, compiling (arms that do it alone by name), tuning
        and checking.
    """

    case: Case
    mode: str
    arms: dict[str, ArmTimes]
    absent: dict[str, str]
    session: str
    clocks: dict[str, list[float]] = field(default_factory=dict)
    seconds: float = 0.0
    preparation: dict[str, float] = field(default_factory=dict)

    @property
    def peers(self) -> dict[str, ArmTimes]:
        """The arms that are not ours and whose result is right."""
        return {name: times for name, times in self.arms.items() if name != OURS and times.correct}

    @property
    def best_peer(self) -> str | None:
        """The peer with the lowest median."""
        return min(self.peers, key=lambda name: self.peers[name].median, default=None)

    def against(self, peer: str | None) -> statistics.Estimate | None:
        """Our speed-up over a peer; None where one of the two is absent or wrong."""
        if peer not in self.peers or OURS not in self.arms or not self.arms[OURS].correct:
            return None
        return statistics.ratio(self.arms[peer].rounds, self.arms[OURS].rounds)


@dataclass
class Results:
    """Everything measured so far.

    Args:
      sessions: the environment of each session, by its date.
      tuned: the configuration found for an arm and a case, by their names, and the times of all
        that were tried.
      rows: in the order of measurement.
    """

    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)
    tuned: dict[str, dict[str, Config]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a file.

        Raises:
          ValueError: it is none that `save` wrote.
        """
        try:
            stored = json.loads(path.read_text())
            return cls(stored["sessions"], stored["tuned"], [*map(_row, stored["rows"])])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is no results file of `python -m jaxbw bench`") from error

    def save(self, path: Path) -> None:
        """Writes a file: a line for each row. A session that is killed leaves the one before."""
        lines = ",\n".join(json.dumps(dataclasses.asdict(row)) for row in self.rows)
        sessions, tuned = json.dumps(self.sessions, indent=1), _by_line(self.tuned)
        text = f'{{"sessions": {sessions},\n"tuned": {tuned},\n"rows": [\n{lines}\n]}}\n'
        write_whole(path, text)

    def has(self, case: Case, mode: str, arms: Collection[str]) -> bool:
        """Whether every one of these arms was measured for the case, or is known to be absent."""
        row = self.find(case, mode)
        return row is not None and set(arms) <= {*row.arms, *row.absent}

    def find(self, case: Case, mode: str) -> Row | None:
        """The row of a case."""
        return next((row for row in self.rows if (row.case, row.mode) == (case, mode)), None)

    def add(self, row: Row) -> None:
        """Adds a row, in the place of one of the same case and mode."""
        self.rows = [each for each in self.rows if (each.case, each.mode) != (row.case, row.mode)]
        self.rows.append(row)

    def configuration(self, arm: str, case: Case) -> Config | None:
        """What was found best for an arm."""
        found = self.tuned.get(arm, {}).get(str(case))
        return None if found is None else found["config"]


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that whoever is killed meanwhile leaves the one before."""
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(text)
    os.replace(unfinished, path)


def merge(parts: Iterable[Results]) -> Results:
    """All results in one; of a case measured twice, the later part's row."""
    merged = Results()
    for part in parts:
        merged.sessions |= part.sessions
        for arm, configs in part.tuned.items():
            merged.tuned[arm] = merged.tuned.get(arm, {}) | configs
        for row in part.rows:
            merged.add(row)
    return merged


def _row(stored: dict[str, Any]) -> Row:
    arms = {name: ArmTimes(**times) for name, times in stored["arms"].items()}
    return Row(**(stored | {"case": Case(**stored["case"]), "arms": arms}))


def _by_line(tuned: dict[str, dict[str, Config]]) -> str:
    """JSON with a line for each configuration."""
    arms = (
        f'"{arm}": {{\n'
        + ",\n".join(f" {json.dumps(case)}: {json.dumps(found)}" for case, found in cases.items())
        + "\n}"
        for arm, cases in tuned.items()
    )
    return "{" + ",\n".join(arms) + "}"
