"""How arms are timed against each other: interleaved, in random order, in several rounds.

In a burst the GPU is fresh from idleness and clocks
high; sustained, it has been at work for long enough to be held back by its power limit.
"""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxbw._src.lab.bench.timer import Rotation, Timer
from jaxbw._src.lab.interleaving import interleaved

BURST_US, FEWEST_CALLS, MOST_CALLS = 4e3, 4, 30
IDLE_S = 0.05  # before a burst: the clock recovers
WARM_UP_S, SUSTAINED_S = 0.15, 0.25  # the arm before has driven the card to its limit already
LAUNCH_US = 25.0  # of the host for one call: a shorter kernel does not repeat faster
MOST_KEPT = 64  # calls of a sustained round that are stored, evenly spaced


@dataclass
class Timing:
    """The microseconds of an arm, by round and call, and the kernels of one call."""

    rounds: list[tuple[float, ...]] = field(default_factory=list)
    kernels: tuple[str, ...] = ()

    @property
    def median_us(self) -> float:
        """Over all calls."""
        return statistics.median(us for calls in self.rounds for us in calls)


def quick(timer: Timer, calls: Rotation, count: int = 8) -> float:
    """A first estimate, in microseconds: the median of few calls."""
    calls.repeat(2)
    return statistics.median(timer.burst(calls, count + 1).microseconds[1:])


def bursts(
    timer: Timer,
    arms: Mapping[str, Rotation],
    *,
    rounds: int,
    seed: int,
    idle_s: float | None = None,
) -> dict[str, Timing]:
    """Times all arms in short bursts after idleness."""
    counts = {
        name: int(min(MOST_CALLS, max(FEWEST_CALLS, BURST_US / quick(timer, calls))))
        for name, calls in arms.items()
    }
    timings = {name: Timing() for name in arms}
    for name in interleaved(arms, rounds, seed):
        time.sleep(IDLE_S if idle_s is None else idle_s)
        burst = timer.burst(arms[name], counts[name] + 1)
        timings[name].rounds.append(burst.microseconds[1:])  # the first call wakes the clock
        timings[name].kernels = burst.kernels
    return timings


def sustained(
    timer: Timer, arms: Mapping[str, Rotation], *, rounds: int, seed: int
) -> dict[str, Timing]:
    """Times all arms under their own load: power-capped, where they are heavy enough."""
    estimates = {name: max(LAUNCH_US, quick(timer, calls)) for name, calls in arms.items()}
    timings = {name: Timing() for name in arms}
    for name in interleaved(arms, rounds, seed):
        arms[name].repeat(max(3, int(WARM_UP_S * 1e6 / estimates[name])))
        burst = timer.burst(arms[name], max(3, int(SUSTAINED_S * 1e6 / estimates[name])))
        stride = -(-len(burst.microseconds) // MOST_KEPT)
        timings[name].rounds.append(burst.microseconds[::stride])
        timings[name].kernels = burst.kernels
    return timings


MODES = {"burst": bursts, "sustained": sustained}
