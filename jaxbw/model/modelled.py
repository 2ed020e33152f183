"""The modelled time of a product with a given kernel: clock, waves, traffic, replay."""

from dataclasses import dataclass

from jaxbw.model.clock import Clock, throttled
from jaxbw.model.kernel import Kernel
from jaxbw.model.machine import Replayed
from jaxbw.model.memory import traffic
from jaxbw.model.pipeline import Costs, agents
from jaxbw.model.replay import Outcome, replay
from jaxbw.model.schedule import Raster, Schedule, Shape, schedule

_PLAIN = Raster()
_CLOCK_STEPS = 4  # of the fixed point of clock and utilisation; it moves by less than 0.1 %


@dataclass(frozen=True)
class Replay:
    """A modelled run.

    Attributes:
      us: the modelled time, microseconds, with the launch.
      utilisation: the part of it in which the tensor cores multiply, on average over the machine.
      clock: at which it was modelled.
      shape, plan, outcome: the product, how it was cut, and what the replay found.
      costs: what its operations took.
    """

    us: float
    utilisation: float
    clock: Clock
    shape: Shape
    plan: Schedule
    outcome: Outcome
    costs: Costs

    @property
    def tflops(self) -> float:
        """Modelled TFLOP/s."""
        return self.shape.flops / self.us / 1e6


def run(
    machine: Replayed,
    kernel: Kernel,
    shape: Shape,
    raster: Raster = _PLAIN,
    clock: Clock | str = "normal",
    *,
    warm: bool = False,
    record: bool = False,
) -> Replay:
    """Replays a product.

    Args:
      machine: where it runs.
      kernel: the structure of what computes it.
      shape: the product.
      raster: the order of the tiles.
      clock: a clock, or the data that the throttle law supposes: "normal" or "light".
      warm: the same product has just been computed on the same arrays, so that L2 holds of them
        what it can.
      record: keep all intervals, for a picture.
    """
    plan = schedule(machine, kernel, shape)
    loads = tuple(traffic(machine, kernel, shape, plan, raster, warm=warm))
    law = isinstance(clock, str)
    found = throttled(machine, 1.0, clock) if isinstance(clock, str) else clock
    for step in range(_CLOCK_STEPS if law else 1):
        last = step == (_CLOCK_STEPS if law else 1) - 1
        costs = Costs(machine, kernel, shape, plan, loads, found.ghz)
        outcome = replay(*agents(costs), record=record and last)
        time = outcome.time + machine["launch_ns"]
        used = _useful(costs) / time
        if not last and isinstance(clock, str):
            found = throttled(machine, used, clock)
    return Replay(time / 1000, used, found, shape, plan, outcome, costs)


def _useful(costs: Costs) -> float:
    """Nanoseconds that the tensor cores of an SM multiply, on average."""
    plan, kernel = costs.plan, costs.kernel
    sms = plan.tiles * kernel.ctas / costs.machine["sm_count"]
    rate = costs.machine["mma_cycles_per_column"] * kernel.block_n * kernel.mmas
    return sms * costs.blocks * costs.cycles(rate)
