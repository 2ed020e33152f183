"""A kernel without tensor cores: a thread for each element, two loads for a product."""

from jaxbw._src.lab.model.machine import Replayed
from jaxbw._src.lab.model.schedule import Shape

_LANES = 32


def naive_us(machine: Replayed, shape: Shape, ghz: float) -> float:
    """The modelled time: ordinary loads that hit L1 keep the load units busy, and nothing else.

    Neighbouring lanes have neighbouring columns, so one instruction of a warp is one access.
    """
    loads = shape.flops / _LANES  # instructions of warps: two for two operations
    cycles = loads * machine["load_wavefront_cycles"] / machine["sm_count"]
    return (cycles / ghz + machine["launch_ns"]) / 1000
