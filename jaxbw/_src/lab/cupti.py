"""Device time from CUPTI: the kernels that a block of code launches, and how long each took.

Whoever launches them, JAX, torch or Triton. Launch gaps and host time stay out. A memset is no
kernel. Where a kernel starts before the one ahead of it ends, their shared time counts twice.
"""

import contextlib
from collections.abc import Iterator, Sequence
from importlib import util
from pathlib import Path

from jaxbw import _native

Kernels = Sequence[tuple[str, float]]  # name and milliseconds of each, in the order of their starts

_SONAMES = ("libcupti.so.13", "libcupti.so.12")


def _libraries() -> list[str]:
    """CUPTI by names that the loader may know, and where pip puts it."""
    nvidia = util.find_spec("nvidia")
    folders = nvidia.submodule_search_locations or () if nvidia else ()
    found = (path for name in _SONAMES for f in folders for path in Path(f).glob(f"*/lib/{name}"))
    return [*_SONAMES, *map(str, found)]


@contextlib.contextmanager
def recorded() -> Iterator[list[tuple[str, float]]]:
    """A list that has the kernels of this block at its end. Wait for them in the block.

    Raises:
      RuntimeError: there is no CUPTI, another profiler uses it, or it has dropped records.
    """
    kernels: list[tuple[str, float]] = []
    _native.start_kernel_times(_libraries())
    try:
        yield kernels
    finally:
        found, dropped = _native.stop_kernel_times()
        kernels += [(name, 1e-6 * (end - start)) for name, start, end in sorted(found, key=_start)]
    if dropped:
        raise RuntimeError(f"CUPTI has dropped {dropped} records of {len(kernels)} kernels")


def _start(kernel: tuple[str, int, int]) -> int:
    return kernel[1]


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
