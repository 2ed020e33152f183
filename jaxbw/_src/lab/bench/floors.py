"""Floors: what a matmul would take if arithmetic, or memory, were all that it waits for.

Williams, Waterman and Patterson's roofline (CACM 2009), as times. Tiles that a matmul does not
fill, waves that do not fill the GPU and the launch itself come on top.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

from jaxbw._src.lab.bench.case import Case
from jaxbw._src.lab.bench.results import Results
from jaxbw._src.selection.machine import Machine, machines, named_in

MMA_FLOPS = 2 * 128 * 16  # of a column: 128 rows and 16 elements of K, of two bytes each


class Floors(NamedTuple):
    """Microseconds of one matmul."""

    arithmetic: float  # every SM's tensor cores busy in every cycle
    memory: float  # operands read and results written once, at the measured rate of loads


@dataclass(frozen=True)
class Roof:
    """What a GPU can do at most.

    Args:
      machine: its constants.
      clock_ghz: of the SMs.
    """

    machine: Machine
    clock_ghz: float

    @classmethod
    def over(cls, results: Results) -> Self | None:
        """Of the GPU that results are from, at the clock that its driver told; None if unknown."""
        gpus = "\n".join(str(each["gpu"].get("name", "")) for each in results.sessions.values())
        machine = named_in(gpus, machines().values())
        if machine is None:
            return None
        told_mhz = [row.clocks["clocks.sm"][1] for row in results.rows if row.clocks]
        return cls(machine, max(told_mhz) / 1e3 if told_mhz else machine.max_clock_ghz)

    def floors(self, case: Case) -> Floors:
        """The floors of a matmul of 16-bit operands."""
        flops_per_ns = (
            self.machine.sm_count * self.clock_ghz * MMA_FLOPS / self.machine.mma_cycles_per_column
        )
        return Floors(
            arithmetic=case.flops / flops_per_ns / 1e3,
            memory=case.bytes / self.machine.dram_bytes_per_ns / 1e3,
        )
