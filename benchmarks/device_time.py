"""Device time of JAX calls: the summed durations of every kernel that a call launches.

Durations come from CUPTI through the binding that jaxlib ships for Mosaic GPU's profiler, so that
launch gaps and host time stay out of the numbers while pads, transposes and split-K reductions of a
call are all in them. Arms are measured in short bursts after idle, in random order, several rounds:
a fixed order biases big products by up to 5 %.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

Call = Callable[[int], Any]  # launches the product on the i-th input set


@dataclass
class Timing:
    """Per-call device times of one arm, in microseconds, over all rounds."""

    microseconds: list[float] = field(default_factory=list)
    kernels: tuple[str, ...] = ()

    @property
    def median(self) -> float:
        """The median over all calls."""
        return float(np.median(self.microseconds))

    def percentile(self, q: float) -> float:
        """The q-th percentile over all calls."""
        return float(np.percentile(self.microseconds, q))


def _burst(call: Call, count: int, first: int) -> tuple[list[float], tuple[str, ...]]:
    """Time calls back to back; returns each one's microseconds, and the kernels of one call."""
    from jax._src.lib import mosaic_gpu

    cupti = mosaic_gpu._mosaic_gpu_ext  # type: ignore[attr-defined]
    outputs = []
    cupti._cupti_init()
    try:
        for i in range(count):
            outputs.append(call(first + i))
        jax.block_until_ready(outputs)
    finally:
        events = cupti._cupti_get_timings(False)
    per_call, rest = divmod(len(events), count)
    if not events or rest:
        raise RuntimeError(f"{len(events)} kernels in {count} calls: cannot tell the calls apart")
    calls = [events[i * per_call : (i + 1) * per_call] for i in range(count)]
    return [1e3 * sum(ms for _, ms in call) for call in calls], tuple(name for name, _ in calls[0])


def measure(
    arms: Mapping[str, Call],
    *,
    rounds: int = 6,
    burst_ms: float = 4.0,
    idle_s: float = 0.05,
    seed: int = 0,
) -> dict[str, Timing]:
    """Time all arms, interleaved in random order.

    Args:
      arms: name to call; a call takes a counter by which it rotates its input sets.
      rounds: bursts of each arm.
      burst_ms: aimed length of a burst (4 to 30 calls).
      idle_s: pause before each burst, which lets the clock recover.
      seed: of the order.

    Raises:
      RuntimeError: CUPTI returned no durations, or the calls of a burst launched different kernels.
    """
    order = random.Random(seed)
    timings = {name: Timing() for name in arms}
    counts = {}
    for name, call in arms.items():
        jax.block_until_ready([call(0), call(1)])
        durations, timings[name].kernels = _burst(call, 3, 0)
        counts[name] = int(min(30, max(4, burst_ms * 1e3 / np.median(durations))))
    for round_index in range(rounds):
        names: Sequence[str] = order.sample(list(arms), len(arms))
        for name in names:
            time.sleep(idle_s)
            durations, _ = _burst(arms[name], counts[name] + 1, 5 * round_index)
            timings[name].microseconds += durations[1:]  # the first call wakes the clock
    return timings
