"""Estimate: what a matmul would take on a GPU that is not at hand. Modelled, never measured."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sensitivity:
    """What a constant that nobody has measured does to the time.

    Attributes:
      constant: its name in the machine's tables; `confidence` there, and `source`.
      less, more: the change of the time, as a part of it, where the constant is 30 % less or more.
    """

    constant: str
    confidence: str
    source: str
    less: float
    more: float


@dataclass(frozen=True)
class Estimate:
    """A modelled time. docs/blackwell-model.md says from what, and how far it was off elsewhere.

    Attributes:
      us: microseconds; low_us to high_us: the interval in which the errors at published ladders
        would put it.
      tflops: at `us`.
      clock: at which it is modelled, in words; ghz: as a number.
      bound: what tiles wait for in the steady state; or, where that is less than half of the
        time, that the beginning and the end are.
      waves: tiles of the busiest cluster; filled: the part of all waves that has a tile.
      sensitivity: of the constants that were assumed, the largest first.
    """

    us: float
    low_us: float
    high_us: float
    tflops: float
    clock: str
    ghz: float
    bound: str
    waves: int
    filled: float
    sensitivity: tuple[Sensitivity, ...]

    def __str__(self) -> str:
        return (
            f"modelled {self.us:.1f} us ({self.low_us:.0f} to {self.high_us:.0f}), "
            f"{self.tflops:.0f} TFLOP/s at {self.clock}, bound by {self.bound}, "
            f"{self.waves} wave{'s' if self.waves > 1 else ''}, {100 * self.filled:.1f} % filled"
        )
