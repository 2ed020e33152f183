"""What an arm is. Those whose package is missing say so: they are named as absent."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from jaxbw._src.lab.bench.case import Case
from jaxbw._src.lab.bench.results import Config
from jaxbw._src.lab.bench.timer import Matmul


@dataclass(frozen=True)
class Arm:
    """Someone who can compute a case; its `prepare` compiles it.

    Args:
      name: in tables and results files.
      package: what must be installed.
      measures_to_compile: compiling it times kernels, so that nothing else may run meanwhile.
    """

    name: str
    package: ClassVar[str] = "jax"
    measures_to_compile: ClassVar[bool] = False

    def refusal(self, case: Case) -> str | None:
        """Why it cannot compute the case; None where it can."""
        if importlib.util.find_spec(self.package) is None:
            return f"{self.package} is not installed"
        return None

    def candidates(self, case: Case) -> Sequence[Config]:
        """The configurations of which the best is wanted."""
        return [{}]

    def variations(self, case: Case, best: Config) -> Sequence[Config]:
        """More to try, once the best candidate is known."""
        return []

    def prepare(self, case: Case, config: Config) -> Matmul:
        """Compiles the matmul."""
        raise NotImplementedError


def specs(case: Case) -> list[Any]:
    """The types of the operands."""
    return [jax.ShapeDtypeStruct(shape, case.dtype) for shape in case.operands]
