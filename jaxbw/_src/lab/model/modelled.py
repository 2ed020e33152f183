"""The modelled time of a matmul with a given kernel: clock, waves, traffic, replay."""

from dataclasses import dataclass, replace

from jaxbw._src.lab.model.clock import Clock, throttled
from jaxbw._src.lab.model.costs import Costs
from jaxbw._src.lab.model.kernel import Kernel
from jaxbw._src.lab.model.machine import Replayed
from jaxbw._src.lab.model.memory import Traffic, traffic
from jaxbw._src.lab.model.pipeline import agents
from jaxbw._src.lab.model.replay import Outcome, replay
from jaxbw._src.lab.model.schedule import Raster, Schedule, Shape, schedule

_PLAIN = Raster()
_MOST_WAVES = 24  # that are replayed one by one
_PERIOD = 8  # waves, whose time is that of the others
_FIRST_WAVES = 4  # in which operands come into L2
_CLOCK_STEPS = 4  # of the fixed point of clock and utilisation; it moves by less than 0.1 %


@dataclass(frozen=True)
class Replay:
    """A modelled run.

    Attributes:
      us: the modelled time, microseconds, with the launch.
      utilisation: the part of it in which the tensor cores multiply, on average over the machine.
      clock: at which it was modelled.
      shape, plan, outcome: the matmul, how it was cut, and what the replay found, of the
        waves that were replayed.
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
    """Replays a matmul.

    Args:
      machine: where it runs.
      kernel: the structure of what computes it.
      shape: the matmul.
      raster: the order of the tiles.
      clock: a clock, or the data that the throttle law supposes: "normal" or "light".
      warm: the same matmul has just been computed on the same arrays, so that L2 holds of them
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
        time, outcome = _replayed(costs, record and last)
        time += machine["launch_ns"]
        used = _useful(costs) / time
        if not last and isinstance(clock, str):
            found = throttled(machine, used, clock)
    return Replay(time / 1000, used, found, shape, plan, outcome, costs)


def _replayed(costs: Costs, record: bool) -> tuple[float, Outcome]:
    """Nanoseconds of all waves. Many are not all replayed: they are alike, once steady."""
    waves = costs.plan.waves
    if waves <= _MOST_WAVES:
        outcome = replay(*agents(costs), record=record)
        return outcome.time, outcome
    fewer = replay(*agents(_shortened(costs, _MOST_WAVES - _PERIOD)))
    outcome = replay(*agents(_shortened(costs, _MOST_WAVES)), record=record)
    wave = (outcome.time - fewer.time) / _PERIOD
    return outcome.time + (waves - _MOST_WAVES) * wave, outcome


def _shortened(costs: Costs, waves: int) -> Costs:
    """The first waves and the last one; those between have the traffic of the others."""
    plan, loads = costs.plan, costs.traffic
    rest = loads[_FIRST_WAVES:-1]
    usual = Traffic(
        sum(each.missed for each in rest) / len(rest), sum(each.late for each in rest) / len(rest)
    )
    kept = (*loads[:_FIRST_WAVES], *(usual,) * (waves - _FIRST_WAVES - 1), loads[-1])
    last = plan.active(plan.waves - 1)
    shorter = replace(plan, tiles=(waves - 1) * plan.resident + last, waves=waves)
    return replace(costs, plan=shorter, traffic=kept)


def _useful(costs: Costs) -> float:
    """Nanoseconds that the tensor cores of an SM multiply, on average."""
    plan, kernel = costs.plan, costs.kernel
    sms = plan.tiles * kernel.ctas / costs.machine["sm_count"]
    return sms * costs.blocks * kernel.mmas * costs.useful_mma(kernel.block_n)
