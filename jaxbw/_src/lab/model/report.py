"""What the model says of a configuration: time with interval, bound, what the assumptions do."""

from dataclasses import replace

import numpy as np

from jaxbw._src.lab.model.clock import Clock
from jaxbw._src.lab.model.ours import refusal
from jaxbw._src.selection.candidates import Candidates
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.cost_model import BOUNDS, evaluate
from jaxbw._src.selection.estimate import Estimate, Sensitivity
from jaxbw._src.selection.machine import Machine, constants
from jaxbw._src.selection.workload import Workload

# The third freeze (benchmarks/results/2026-11-22_model_ladders_freeze3.json): published rungs were
# modelled 18 % too slow to 27 % too fast. A time that is modelled is between these parts of it.
INTERVAL = (0.82, 1.27)
FIXED = "launch, set-up, first load and last epilogue"
UNDECIDED = 0.10  # a modelled difference below this says nothing
_VARIED = 0.3
FAMILY = "sm100"
_BOUNDS = dict(
    zip(BOUNDS, ("tensor cores", "SM port", "L2", "memory", "loads in flight"), strict=True)
)


def estimated(
    machine: Machine, work: Workload, config: GemmConfig, clock: Clock | None = None
) -> Estimate:
    """The estimate of one configuration.

    Args:
      machine, work: where, and what.
      config: every field filled in.
      clock: a fixed clock; None for the throttle law with normal data.
    """
    assumed = [
        each for each in constants(machine.name) if each.confidence == "L" and each.name in _NUMBERS
    ]
    factors = np.ones((len(assumed), 1 + 2 * len(assumed)))
    for row in range(len(assumed)):
        factors[row, 1 + 2 * row : 3 + 2 * row] = 1 - _VARIED, 1 + _VARIED
    varied = {each.name: each.value * row for each, row in zip(assumed, factors, strict=True)}
    count = factors.shape[1]
    table = Candidates.of([config] * count, machine.family, work.itemsize)
    order = np.full(count, int(config.raster == "n")), np.full(count, config.swizzle)
    costs = evaluate(
        work, replace(machine, **varied), table, order, None if clock is None else clock.ghz
    )
    us, ghz = float(costs.total[0]) / 1000, float(costs.ghz[0])
    bounds = {name: float(getattr(costs, name)[0]) for name in BOUNDS}
    bounds["epilogue"] = float(costs.epilogue[0])
    longest = max(bounds, key=bounds.__getitem__)
    change = costs.total[1:] / costs.total[0] - 1
    sensitivity = sorted(
        (
            Sensitivity(c.name, c.confidence, c.source, float(less), float(more))
            for c, less, more in zip(assumed, change[::2], change[1::2], strict=True)
        ),
        key=lambda each: -max(abs(each.less), abs(each.more)),
    )
    return Estimate(
        us=us,
        low_us=us * INTERVAL[0],
        high_us=us * INTERVAL[1],
        tflops=2.0 * work.m * work.n * work.k * work.batch / us / 1e6,
        clock=str(clock or Clock(ghz, "throttle", "normal")),
        ghz=ghz,
        bound=_BOUNDS.get(longest, longest) if bounds[longest] > us * 1000 / 2 else FIXED,
        waves=int(costs.waves[0]),
        filled=float(costs.efficiency[0]),
        sensitivity=tuple(sensitivity),
    )


def estimate_of(machine: Machine, work: Workload, config: GemmConfig) -> Estimate | None:
    """The estimate of a configuration of ours; None where there is no interval for it.

    Args:
      machine: of the selection, where the matmul runs.
      work: the matmul, as the selection sees it.
      config: every field filled in.
    """
    plain = not work.activated and not work.extra_bytes and not work.repacks
    if machine.family != FAMILY or not plain or config.scheduler == "none" or not work.tma_rows:
        return None
    if refusal(config, gated=work.gated) is not None:
        return None
    return estimated(machine, work, config)


# Constants that plain matmuls depend on; the others do nothing to them.
_NUMBERS = frozenset(
    {
        *(
            "throttle_exponent",
            "mma_issue_cycles",
            "stage_issue_cycles",
            "tmem_bytes_per_cycle",
            "tmem_latency_cycles",
        ),
        *("tma_issue_cycles", "wake_cycles", "remote_cycles", "single_setup_ns"),
        *("stage_bytes_per_cycle", "chunk_cycles", "store_read_cycles", "store_visible_cycles"),
        *("launch_ns", "dram_bytes_per_ns_sm"),
    }
)
