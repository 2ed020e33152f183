"""Arms and a timer that need no GPU: each arm says how long it takes."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jax import lax

from jaxbw._src.lab.bench.arms.arm import Arm
from jaxbw._src.lab.bench.arms.xla import matmul_function
from jaxbw._src.lab.bench.case import Case
from jaxbw._src.lab.bench.results import Config
from jaxbw._src.lab.bench.timer import Burst, Matmul, Rotation


@dataclass(frozen=True)
class FakeArm(Arm):
    """Computes with XLA, and takes as long as it is told to, by the name of a configuration.

    Args:
      candidate_us, variation_us: microseconds.
      refuses: why it computes nothing.
      fails: the configuration that cannot be compiled.
      off_by: what is added to its results.
      prepared: what was compiled.
    """

    candidate_us: dict[str, float] = field(default_factory=dict)
    variation_us: dict[str, float] = field(default_factory=dict)
    refuses: str = ""
    fails: str | None = None
    off_by: float = 0.0
    prepared: list[str] = field(default_factory=list)

    def refusal(self, case: Case) -> str | None:
        return self.refuses or None

    def candidates(self, case: Case) -> Sequence[Config]:
        return [{"tile": tile} for tile in self.candidate_us]

    def variations(self, case: Case, best: Config) -> Sequence[Config]:
        return [{"tile": tile} for tile in self.variation_us]

    def prepare(self, case: Case, config: Config) -> Matmul:
        if config["tile"] == self.fails:
            raise MemoryError("no shared memory is left\nfor this tile")
        self.prepared.append(config["tile"])
        us = (self.candidate_us | self.variation_us)[config["tile"]]
        matmul = matmul_function(case, lax.dot_general)

        def run(*operands: Any) -> Any:
            return matmul(*operands) + self.off_by

        return Matmul(run, details={"us": us})


class FakeTimer:
    """Gives the times of FakeArm, with a noise of one in a hundred."""

    def __init__(self) -> None:
        self._noise = random.Random(0)

    def burst(self, calls: Rotation, count: int) -> Burst:
        calls.repeat(1)
        us = calls.matmul.details["us"]
        return Burst(tuple(us * self._noise.gauss(1, 0.01) for _ in range(count)), ("kernel",))
