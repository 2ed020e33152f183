"""A machine for the tools that measure: its times are made up, its results right or not."""

from collections.abc import Callable, Sequence

from jaxbw._src.lab.tuning.launching import Chosen, Launch, Matmul
from jaxbw._src.problem import GemmProblem
from jaxbw._src.selection.config import GemmConfig


class MadeUpLaunch:
    """Remembers what it launches."""

    def __init__(self, config: GemmConfig) -> None:
        self.config = config

    def __call__(self, operands: int, result: int, wait: bool) -> None:
        raise AssertionError("nothing is launched here")


def config_of(launch: Launch) -> GemmConfig:
    assert isinstance(launch, MadeUpLaunch)
    return launch.config


class MadeUpGpu:
    """Takes as long for a configuration as a function says, and a second for XLA's form."""

    def __init__(self, microseconds: Callable[[GemmConfig], float]) -> None:
        self.microseconds = microseconds
        self.xla_us = 1e6
        self.wrong: GemmConfig | None = None
        self.bursts: list[list[GemmConfig]] = []

    def launch(self, problem: Matmul, choice: Chosen) -> Launch:
        assert choice.config is not None
        return MadeUpLaunch(choice.config)

    def time(self, bursts: Sequence[Sequence[Launch]], repeats: int) -> list[list[float]]:
        self.bursts += [[config_of(launch) for launch in burst] for burst in bursts]
        visits = [config_of(launch) for burst in bursts for launch in burst]
        return [[self.microseconds(config)] * repeats for config in visits]

    def deviations(self, problem: Matmul, launches: Sequence[Launch]) -> list[float]:
        return [float("inf") if config_of(launch) == self.wrong else 0.001 for launch in launches]

    def xla(self, problem: GemmProblem) -> float:
        return self.xla_us
