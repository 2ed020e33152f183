"""Device time from CUPTI: the kernels that a block of code launches, and how long each took.

Whoever launches them, JAX, torch or Triton. Launch gaps and host time stay out. A memset is no
kernel. Where a kernel starts before the one ahead of it ends, their shared time counts twice.

Record ahead of any CUDA graph: once a process has launched one, JAX's binding finds that records
were dropped, throws out of CUPTI's C callback, and the process aborts.
"""

import contextlib
from collections.abc import Iterator, Sequence

from jaxbw._src import compat

Kernels = Sequence[tuple[str, float]]  # name and milliseconds of each, in the order of their starts


@contextlib.contextmanager
def recorded() -> Iterator[list[tuple[str, float]]]:
    """A list that has the kernels of this block at its end. Wait for them in the block.

    Raises:
      RuntimeError: this jaxlib has no CUPTI.
    """
    kernels: list[tuple[str, float]] = []
    compat.cupti_start()
    try:
        yield kernels
    finally:
        kernels += compat.cupti_stop()


def by_call(kernels: Kernels, count: int) -> list[list[tuple[str, float]]]:
    """The kernels of each of so many equal calls.

    Raises:
      RuntimeError: there are none, or not the same number for each call.
    """
    each, rest = divmod(len(kernels), count)
    if not each or rest:
        raise RuntimeError(f"CUPTI saw {len(kernels)} kernels in {count} calls")
    return [list(kernels[i : i + each]) for i in range(0, len(kernels), each)]


def microseconds(kernels: Kernels) -> float:
    """How long kernels took together."""
    return 1e3 * sum(milliseconds for _, milliseconds in kernels)
