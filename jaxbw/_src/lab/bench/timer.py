"""Device time: the summed durations of every kernel that a call launches, from CUPTI.

Pads, transposes and split-K reductions of a call are all in the numbers.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax

from jaxbw._src.lab import cupti
from jaxbw._src.lab.bench.inputs import Operands

KEPT_RESULTS = 32  # as many calls write to different memory


def _same(operand: Any) -> Any:
    return operand


@dataclass(frozen=True)
class Matmul:
    """A compiled matmul, of an arm, for a case.

    Args:
      run: from operands to result.
      adopt: an operand from a JAX array; default as it is.
      wait: until results are there; default JAX's.
      details: what a reader wants to know of it, for the results file.
    """

    run: Callable[..., Any]
    adopt: Callable[[jax.Array], Any] = _same
    wait: Callable[[Any], Any] = jax.block_until_ready
    details: dict[str, Any] = field(default_factory=dict)


class Rotation:
    """Calls of a matmul, on one set of operands after the other."""

    def __init__(self, matmul: Matmul, sets: Sequence[Operands]) -> None:
        self.matmul = matmul
        self._sets = [tuple(map(matmul.adopt, operands)) for operands in sets]
        self._next = 0

    def __call__(self) -> Any:
        """Launches the matmul on the next set; the result."""
        operands = self._sets[self._next % len(self._sets)]
        self._next += 1
        return self.matmul.run(*operands)

    def first(self) -> Any:
        """The result for the first set."""
        result = self.matmul.run(*self._sets[0])
        self.matmul.wait(result)
        return result

    def repeat(self, count: int) -> None:
        """Launches the matmul often, back to back, and waits for it."""
        results: deque[Any] = deque(maxlen=KEPT_RESULTS)
        for _ in range(count):
            results.append(self())
        self.matmul.wait(list(results))


@dataclass(frozen=True)
class Burst:
    """Microseconds of each call of a burst, and the kernels that one call launches."""

    microseconds: tuple[float, ...]
    kernels: tuple[str, ...]


class Timer(Protocol):
    """What takes the time of calls."""

    def burst(self, calls: Rotation, count: int) -> Burst:
        """Times `count` calls, back to back."""


def require_gpu() -> None:
    """Raises a ValueError where there is no GPU to measure on."""
    if jax.default_backend() != "gpu":
        raise ValueError(
            "there is no GPU that JAX can use; a results file from elsewhere is shown "
            "by --out FILE --report"
        )


class Cupti:
    """A timer that sees every kernel of the process.

    Raises:
      ValueError: there is no GPU.
    """

    def __init__(self) -> None:
        require_gpu()

    def burst(self, calls: Rotation, count: int) -> Burst:
        """Times `count` calls, back to back.

        Raises:
          RuntimeError: there were no kernels, or not the same number in each call.
        """
        with cupti.recorded() as kernels:
            calls.repeat(count)
        each = cupti.by_call(kernels, count)
        durations = (round(cupti.microseconds(call), 3) for call in each)
        return Burst(tuple(durations), tuple(name for name, _ in each[0]))
