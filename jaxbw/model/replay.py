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


class _Barriers:
    """Arrivals of every barrier so far, and who waits for it."""

    def __init__(self, arrivals: Mapping[str, int]) -> None:
        self._arrivals = arrivals
        self._open: dict[Key, list[float]] = {}  # arrivals to come, and the latest so far
        self.complete: dict[Key, float] = {}
        self.waiting: dict[Key, list[tuple[float, str, float]]] = {}

    def arrive(self, key: Key, time: float) -> bool:
        """Whether this was the last one."""
        state = self._open.setdefault(key, [self._arrivals.get(key[0], 1), 0.0])
        state[0] -= 1
        state[1] = max(state[1], time)
        if state[0] > 0:
            return False
        self.complete[key] = self._open.pop(key)[1]
        return True


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
    outcome = Outcome()
    barriers = _Barriers(arrivals)
    free: dict[str, float] = defaultdict(float)
    groups: dict[str, list[float]] = defaultdict(list)
    ready = [(0.0, name) for name in agents]
    heapq.heapify(ready)
    note = outcome.intervals.append if record else None

    def serve(engine: str, now: float, time: float, name: str) -> float:
        begin = max(now, free[engine])
        end = free[engine] = begin + time
        outcome.busy[engine] += time
        outcome.services[engine] += 1
        if note and time:
            note(Interval(engine, name, begin, end))
        return end

    def arrive(key: Key, now: float) -> None:
        if not barriers.arrive(key, now):
            return
        done = barriers.complete[key]
        for since, waiter, wake in barriers.waiting.pop(key, ()):
            heapq.heappush(ready, (passed(waiter, since, done + wake), waiter))

    def passed(name: str, now: float, at: float) -> float:
        if at <= now:
            return now
        outcome.waited[name] += at - now
        if note:
            note(Interval(name, "waits", now, at))
        return at

    while ready:
        now, name = heapq.heappop(ready)
        agent = agents[name]
        while True:
            action = next(agent, None)
            if action is None:
                outcome.time = max(outcome.time, now)
                break
            kind = type(action)
            if kind is Wait:
                key, wake = action  # type: ignore[misc]
                if key[1] >= 0:
                    done = barriers.complete.get(key)
                    if done is None:
                        barriers.waiting.setdefault(key, []).append((now, name, wake))
                        break
                    now = passed(name, now, done + wake)
            elif kind is Start:
                _, issue, services, latency, shares, keys, group, read = action  # type: ignore[misc]
                now += issue
                end = now
                for engine, time in shares:
                    end = max(end, serve(engine, now, time, action.name) - time)  # type: ignore[union-attr]
                start = end
                for engine, time in services:
                    end = max(end, serve(engine, start, time, action.name))  # type: ignore[union-attr]
                if group is not None:
                    groups[group].append(end + read)
                end += latency
                outcome.time = max(outcome.time, end)
                for key in keys:
                    arrive(key, end)
            elif kind is Work:
                _, time, engine, latency = action  # type: ignore[misc]
                begin = now
                now = (serve(engine, now, time, action.name) if engine else now + time) + latency  # type: ignore[union-attr]
                if note and now > begin:
                    note(Interval(name, action.name, begin, now))  # type: ignore[union-attr]
            elif kind is Drain:
                engine, latency, keys = action  # type: ignore[misc]
                at = max(now, free[engine]) + latency
                outcome.time = max(outcome.time, at)
                for key in keys:
                    arrive(key, at)
            elif kind is Arrive:
                key, delay = action  # type: ignore[misc]
                arrive(key, now + delay)
            else:
                group, left = action  # type: ignore[misc]
                stores = groups[group]
                if len(stores) > left:
                    now = passed(name, now, max(stores[: len(stores) - left]))
            if ready and ready[0][0] < now:
                heapq.heappush(ready, (now, name))
                break
    if barriers.waiting:
        stuck = {f"{who} at {key}" for key, who3 in barriers.waiting.items() for _, who, _ in who3}
        raise ReplayError(f"agents wait for ever: {', '.join(sorted(stuck)[:4])}")
    return outcome
