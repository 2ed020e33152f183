"""The replay: agents that wait, issue and arrive, on engines that they share; max-plus.

An agent is a generator of actions. The replay always continues the agent whose time is the least,
so that engines are asked nearly in the order of time; an engine serves in the order it is asked.
A barrier completes with the last of its arrivals, whatever their order. Times are nanoseconds.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Key = tuple[str, int]  # a barrier: its ring, and how often it has come round


class Wait(NamedTuple):
    """Until a barrier is complete; one before the first is."""

    key: Key
    wake: float = 0.0


class Work(NamedTuple):
    """Something that takes the agent itself a while, on an engine or alone."""

    name: str
    time: float
    engine: str | None = None
    latency: float = 0.0


class Start(NamedTuple):
    """Something asynchronous that passes engines at the same time and arrives at barriers.

    `services`: what it takes of each engine of its own SM. It is done a latency after the last.
    `shares`: what it takes of what all SMs share, as if every SM asked for as much. Those ask at
    other times, so a share delays what comes after it, and not the operation itself.
    `group`: whose reading of shared memory `Settle` waits for, after `read`.
    """

    name: str
    issue: float
    services: tuple[tuple[str, float], ...]
    latency: float
    shares: tuple[tuple[str, float], ...] = ()
    keys: tuple[Key, ...] = ()
    group: str | None = None
    read: float = 0.0


class Arrive(NamedTuple):
    """At a barrier, now or later."""

    key: Key
    delay: float = 0.0


class Drain(NamedTuple):
    """Arrives when all that an engine has been given is done, and a latency later."""

    engine: str
    latency: float
    keys: tuple[Key, ...]


class Settle(NamedTuple):
    """Until all but the youngest `left` of a group have read what they store."""

    group: str
    left: int


Action = Wait | Work | Start | Arrive | Drain | Settle
Agent = Iterator[Action]


class Interval(NamedTuple):
    """Something that took a while: of an agent or an engine."""

    track: str
    name: str
    begin: float
    end: float


@dataclass
class Outcome:
    """What a replay found.

    Attributes:
      time: when the last agent and the last operation were done.
      busy: time that each engine was in use; services: how often it was asked.
      waited: time that each agent stood at a barrier.
      intervals: what happened when, if it was recorded.
    """

    time: float = 0.0
    busy: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    services: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    waited: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    intervals: list[Interval] = field(default_factory=list)


class ReplayError(RuntimeError):
    """Agents wait for each other, for ever."""


class _Replay:
    """Barriers, engines and agents, and how far each is."""

    def __init__(self, agents: Mapping[str, Agent], arrivals: Mapping[str, int], record: bool):
        self.outcome = Outcome()
        self._agents = agents
        self._arrivals = arrivals
        self._record = record
        self._coming: dict[Key, list[float]] = {}  # arrivals to come, and the latest so far
        self._complete: dict[Key, float] = {}
        self._waiting: dict[Key, list[tuple[float, str, float]]] = {}
        self._free: dict[str, float] = defaultdict(float)
        self._groups: dict[str, list[float]] = defaultdict(list)
        self._ready = [(0.0, name) for name in agents]

    def run(self) -> Outcome:
        heapq.heapify(self._ready)
        while self._ready:
            now, name = heapq.heappop(self._ready)
            self._continue(name, now)
        if self._waiting:
            stuck = [
                f"{who[1]} at {key}" for key, parked in self._waiting.items() for who in parked
            ]
            raise ReplayError(f"agents wait for ever: {', '.join(sorted(stuck)[:4])}")
        return self.outcome

    def _continue(self, name: str, now: float) -> None:
        """Runs an agent until it waits, or another one's time is less."""
        ready = self._ready
        for action in self._agents[name]:
            if isinstance(action, Wait):
                if action.key[1] >= 0:
                    done = self._complete.get(action.key)
                    if done is None:
                        parked = self._waiting.setdefault(action.key, [])
                        parked.append((now, name, action.wake))
                        return
                    now = self._passed(name, now, done + action.wake)
            elif isinstance(action, Start):
                now += action.issue
                self._start(action, now)
            elif isinstance(action, Work):
                now = self._work(name, action, now)
            elif isinstance(action, Drain):
                at = max(now, self._free[action.engine]) + action.latency
                self._done(action.keys, at)
            elif isinstance(action, Arrive):
                self._arrive(action.key, now + action.delay)
            else:
                stores = self._groups[action.group]
                if len(stores) > action.left:
                    now = self._passed(name, now, stores[-1 - action.left])
            if ready and ready[0][0] < now:
                heapq.heappush(ready, (now, name))
                return
        self.outcome.time = max(self.outcome.time, now)

    def _serve(self, engine: str, now: float, time: float, name: str) -> float:
        begin = max(now, self._free[engine])
        end = self._free[engine] = begin + time
        self.outcome.busy[engine] += time
        self.outcome.services[engine] += 1
        if self._record and time:
            self.outcome.intervals.append(Interval(engine, name, begin, end))
        return end

    def _start(self, action: Start, now: float) -> None:
        begin = now
        for engine, time in action.shares:
            begin = max(begin, self._serve(engine, now, time, action.name) - time)
        end = begin
        for engine, time in action.services:
            end = max(end, self._serve(engine, begin, time, action.name))
        if action.group is not None:
            stores = self._groups[action.group]
            stores.append(max(end + action.read, stores[-1] if stores else 0.0))
        self._done(action.keys, end + action.latency)

    def _work(self, name: str, action: Work, now: float) -> float:
        end = now + action.time
        if action.engine is not None:
            end = self._serve(action.engine, now, action.time, action.name)
        end += action.latency
        if self._record and end > now:
            self.outcome.intervals.append(Interval(name, action.name, now, end))
        return end

    def _done(self, keys: tuple[Key, ...], at: float) -> None:
        self.outcome.time = max(self.outcome.time, at)
        for key in keys:
            self._arrive(key, at)

    def _arrive(self, key: Key, now: float) -> None:
        state = self._coming.setdefault(key, [self._arrivals.get(key[0], 1), 0.0])
        state[0] -= 1
        state[1] = max(state[1], now)
        if state[0] > 0:
            return
        done = self._complete[key] = self._coming.pop(key)[1]
        for since, waiter, wake in self._waiting.pop(key, ()):
            heapq.heappush(self._ready, (self._passed(waiter, since, done + wake), waiter))

    def _passed(self, name: str, now: float, at: float) -> float:
        if at <= now:
            return now
        self.outcome.waited[name] += at - now
        if self._record:
            self.outcome.intervals.append(Interval(name, "waits", now, at))
        return at


def replay(
    agents: Mapping[str, Agent], arrivals: Mapping[str, int], *, record: bool = False
) -> Outcome:
    """Runs agents to their end.

    Args:
      agents: by name.
      arrivals: that a barrier of each ring takes; 1 where it is not named.
      record: keep the intervals.

    Raises:
      ReplayError: agents are left that wait for barriers which nobody completes.
    """
    return _Replay(agents, arrivals, record).run()
