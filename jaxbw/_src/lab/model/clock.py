"""At which clock a kernel is modelled: a fixed one, or what power leaves of it."""

from dataclasses import dataclass

import numpy as np

from jaxbw._src.lab.model.machine import Replayed

DATA = ("normal", "light")


@dataclass(frozen=True)
class Clock:
    """A clock and where it comes from.

    Attributes:
      ghz: the clock.
      law: "fixed", or "throttle": the cube-root law of docs/blackwell-model.md.
      data: what the operands hold: "normal", random and power-hungry; "light", which leaves the
        clock at its most.
    """

    ghz: float
    law: str
    data: str

    def __str__(self) -> str:
        return f"{self.ghz:.3f} GHz ({self.law}, {self.data} data)"


def fixed(ghz: float, data: str = "normal") -> Clock:
    """A clock that somebody has measured, or wants to assume."""
    return Clock(ghz, "fixed", data)


def throttled(machine: Replayed, utilisation: float, data: str = "normal") -> Clock:
    """The clock at which a kernel keeps the tensor cores so busy: `Machine.throttled_ghz`."""
    if data not in DATA:
        raise ValueError(f"data is {data!r}; it is one of {', '.join(DATA)}")
    if data == "light":
        return Clock(machine["max_clock_ghz"], "throttle", data)
    ghz = machine.shared.throttled_ghz(np.array(utilisation))
    return Clock(ghz.item(), "throttle", data)
