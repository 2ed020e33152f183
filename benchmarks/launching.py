"""Launches of one product in many configurations, timed on the device, without compiling anything.

The direct launcher takes addresses: operands and results are cut out of large arrays that JAX has
allocated once, so that another product costs nothing and inputs rotate. Times are CUPTI's durations
of kernels, as in jaxbw/bench/timer.py: what a call takes on the device by itself, whatever the gaps
before it. (Events around launches in a row would show the throughput of launches that overlap, and
for small products the host.) CUPTI leaves out the memset of a split product's counters.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp

from jaxbw import _native, compat
from jaxbw.primitives.gemm import DATA_TYPES, call_attributes
from jaxbw.problem import GemmProblem
from jaxbw.selection.select import Choice

ROTATED = 400 * 10**6  # bytes that launches go through before they come back: over twice any L2
PAUSE_S = 0.012  # before a burst, thrice its length: the clock recovers
_OPERANDS = 2**30  # elements of 16 bits
_RESULTS = 2**30  # bytes, of each of results and workspaces
_DRAWN = 2**26  # of the operands, repeated
_LINE = 256  # XLA's alignment of buffers
_WINDOW = 2**20  # elements of a result that are compared, at either end


class Launch(Protocol):
    """Enqueues a product on one of its input sets."""

    def __call__(self, operands: int, result: int, wait: bool) -> None:
        """Takes the numbers of operands and of a place for the result, and whether to wait."""
        ...


class Bench(Protocol):
    """What measuring asks of a machine; tests have one that makes the times up."""

    def launch(self, problem: GemmProblem, choice: Choice) -> Launch:
        """The call that launches a choice."""
        ...

    def time(self, bursts: Sequence[Sequence[Launch]], repeats: int) -> list[list[float]]:
        """Microseconds of so many launches of each; there is a pause before each burst."""
        ...

    def deviations(self, problem: GemmProblem, launches: Sequence[Launch]) -> list[float]:
        """The norm of each result's difference from the first one, over the norm of that."""
        ...


class Gpu:
    """The first GPU of JAX."""

    def __init__(self) -> None:
        """Allocates; the operands are iid normal bfloat16."""
        draw = jax.random.normal(jax.random.key(0), (_DRAWN,), jnp.bfloat16)
        self._operands = jnp.tile(draw, _OPERANDS // _DRAWN)
        self._results = jnp.zeros(_RESULTS // 2, jnp.bfloat16)
        self._workspace = jnp.zeros(_RESULTS, jnp.uint8)
        jax.block_until_ready((self._operands, self._results, self._workspace))

    def launch(self, problem: GemmProblem, choice: Choice) -> Launch:
        """The call that launches a choice, for operands of 16 bits.

        Raises:
          ValueError: the product does not fit what is allocated.
        """
        p = problem
        attributes = call_attributes(p, choice)
        dtype = DATA_TYPES[p.lhs_dtype.name]
        workspace = _native.workspace_bytes(p.lhs_shape, p.rhs_shape, dtype, attributes)
        sizes = [2 * math.prod(shape) for shape in (p.lhs_shape, p.rhs_shape, p.output_shape)]
        lhs, rhs, size = (-(-bytes_ // _LINE) * _LINE for bytes_ in sizes)
        if lhs + rhs > 2 * _OPERANDS or max(size, workspace) > _RESULTS:
            raise ValueError(f"{p} does not fit the memory that is set aside")
        sets = max(2, math.ceil(ROTATED / (lhs + rhs + size)))
        sets = max(1, min(sets, 2 * _OPERANDS // (lhs + rhs)))
        places = max(1, min(sets, _RESULTS // size))
        scratch = [(self._workspace.unsafe_buffer_pointer(), (workspace,), None)]
        source = self._operands.unsafe_buffer_pointer()
        target = self._results.unsafe_buffer_pointer()

        def call(operands: int, result: int, wait: bool) -> None:
            at = source + operands % sets * (lhs + rhs)
            to = target + result % places * size
            _native.enqueue_gemm(
                [(at, p.lhs_shape, dtype), (at + lhs, p.rhs_shape, dtype)],
                [(to, p.output_shape, dtype), *scratch[: workspace > 0]],
                attributes,
                wait=wait,
            )

        return call

    def time(self, bursts: Sequence[Sequence[Launch]], repeats: int) -> list[list[float]]:
        """As in `Bench`: all kernels of a launch together, on input sets one after the other.

        One more launch goes ahead of those of each configuration: its code is not in the caches.

        Raises:
          RuntimeError: CUPTI did not see each of them.
        """
        each, at = 1 + repeats, 0
        compat.cupti_start()
        try:
            for burst in bursts:
                time.sleep(PAUSE_S)
                for number, launch in enumerate(burst, 1):
                    for repeat in range(each):
                        at += 1
                        launch(at, at, wait=number == len(burst) and repeat == repeats)
        finally:
            events = compat.cupti_stop()
        times = by_call(events, at)
        return [times[first + 1 : first + each] for first in range(0, at, each)]

    def deviations(self, problem: GemmProblem, launches: Sequence[Launch]) -> list[float]:
        """As in `Bench`; of the results' first and last elements. Infinity where one has NaN."""
        count = math.prod(problem.output_shape)
        launches[0](0, 0, True)
        expected = _ends(self._results, count)
        found = []
        for launch in launches:
            launches[0](1, 0, True)  # another product's result, which must be overwritten
            launch(0, 0, True)
            difference = float(_difference(_ends(self._results, count), expected))
            found.append(difference if math.isfinite(difference) else math.inf)
        return found


@jax.jit
def _ends(results: jax.Array, count: int) -> jax.Array:
    """The first and the last of so many elements."""
    inside = jnp.arange(_WINDOW) < count
    starts = (0, jnp.maximum(count - _WINDOW, 0))
    windows = [jax.lax.dynamic_slice(results, (start,), (_WINDOW,)) for start in starts]
    return jnp.stack([jnp.where(inside, window, 0).astype(jnp.float32) for window in windows])


@jax.jit
def _difference(found: jax.Array, expected: jax.Array) -> jax.Array:
    ratio: jax.Array = jnp.linalg.norm(found - expected) / jnp.linalg.norm(expected)
    return ratio


def by_call(events: Sequence[tuple[str, float]], count: int) -> list[float]:
    """Microseconds of each call from CUPTI's (kernel, milliseconds): repacks go before a product.

    Raises:
      RuntimeError: there are not so many calls.
    """
    times, pending = [], 0.0
    for name, milliseconds in events:
        pending += 1e3 * milliseconds
        if "repack" not in name:
            times.append(pending)
            pending = 0.0
    if len(times) != count or pending:
        raise RuntimeError(f"{len(events)} kernels in {count} launches: cannot tell them apart")
    return times
