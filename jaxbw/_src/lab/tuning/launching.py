"""Launches of one matmul in many configurations, timed on the device, without compiling anything.

The direct launcher takes addresses: operands and results are cut out of large arrays that JAX has
allocated once, so that another matmul costs nothing and inputs rotate. Times are CUPTI's durations
of kernels, as in lab/bench/timer.py: what a call takes on the device by itself, whatever the gaps
before it. (Events around launches in a row would show the throughput of launches that overlap, and
for small matmuls the host.)
"""

import math
import statistics
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxbw import _native
from jaxbw._native import Plan, Untyped
from jaxbw._src.lab import cupti, group_sizes
from jaxbw._src.lab.tuning import arrays, xla_form
from jaxbw._src.primitives import gemm
from jaxbw._src.problem import GemmProblem
from jaxbw._src.ragged import RaggedProblem
from jaxbw._src.selection import ragged
from jaxbw._src.selection.choice import Choice
from jaxbw._src.selection.ragged import RaggedChoice

Matmul = GemmProblem | RaggedProblem
Chosen = Choice | RaggedChoice

ROTATED = 400 * 10**6  # bytes that launches go through before they come back: over twice any L2
PAUSE_S = 0.012  # before a burst, thrice its length: the clock recovers
_OPERANDS = 2**30  # elements of 16 bits, and more where a matmul's are
_RESULTS = 2**30  # bytes, of each of results and workspaces, and more of results likewise
_COUNTERS = 2**20  # more than the parts have that fit the workspace
# Of the operands, repeated. Odd, or rows of both would be the same ones: a row times itself adds up
# what float8's short sums truncate, 9 % at a K of 16384.
_DRAWN = 2**26 - 1
_WINDOW = 2**20  # elements of a result that are compared, at three places


class Launch(Protocol):
    """Enqueues a matmul on one of its input sets."""

    def __call__(self, operands: int, result: int, wait: bool) -> None:
        """Takes the numbers of operands and of a place for the result, and whether to wait."""
        ...


class Bench(Protocol):
    """What measuring asks of a machine; tests have one that makes the times up."""

    def launch(self, problem: Matmul, choice: Chosen) -> Launch:
        """The call that launches a choice."""
        ...

    def time(self, bursts: Sequence[Sequence[Launch]], repeats: int) -> list[list[float]]:
        """Microseconds of so many launches of each; there is a pause before each burst."""
        ...

    def deviations(self, problem: Matmul, launches: Sequence[Launch]) -> list[float]:
        """The norm of each result's difference from the first one, over the norm of that."""
        ...

    def xla(self, problem: GemmProblem) -> float:
        """Microseconds of the same by XLA's operations."""
        ...


class Gpu:
    """The first GPU of JAX."""

    def __init__(
        self, dtype: Any = jnp.bfloat16, sizes: str | group_sizes.Sizes = group_sizes.DEFAULT
    ) -> None:
        """Allocates; the operands are iid normal, drawn in a dtype of the size they are read as.

        `sizes`: of grouped matmuls, as of `group_sizes.of_problem`.

        Raises:
          ValueError: there is no such kind.
        """
        self._sizes = group_sizes.known(sizes) if isinstance(sizes, str) else sizes
        count = _DRAWN * 2 // jnp.dtype(dtype).itemsize
        draw = jax.random.normal(jax.random.key(0), (count,), jnp.bfloat16).astype(dtype)
        self._draw = draw.view(jnp.bfloat16)
        self._operands = _repeated(self._draw, _OPERANDS)
        self._results = jnp.zeros(_RESULTS // 2, jnp.bfloat16)
        self._workspace = jnp.zeros(_RESULTS, jnp.uint8)
        self._counters = jnp.zeros(_COUNTERS, jnp.uint32)
        jax.block_until_ready((self._operands, self._results, self._workspace, self._counters))

    def launch(
        self,
        problem: Matmul,
        choice: Chosen,
        profiling: tuple[str, int, int, int] | None = None,
    ) -> Launch:
        """The call that launches a choice; `profiling` is as of `_native.enqueue_gemm`.

        Raises:
          ValueError: the matmul does not fit the GPU's memory.
        """
        p = problem
        plan = plan_of(p, choice)
        attributes, workspace = plan.attributes, plan.workspace_bytes
        read, written = arrays.operands(p), p.results
        starts, size = arrays.laid_out(read)
        result_starts, result_size = arrays.laid_out(written)
        self._make_room(p, size, result_size, workspace)
        room, result_room = self._operands.nbytes, self._results.nbytes
        sets = max(2, math.ceil(ROTATED / (size + result_size)))
        sets = max(1, min(sets, room // size))
        places = max(1, min(sets, result_room // result_size))
        if plan.counters > _COUNTERS:
            raise ValueError(f"{p} has {plan.counters} counters; {_COUNTERS} are set aside")
        memory = self._operands, self._results, self._workspace, self._counters
        indices = jax.block_until_ready([*map(jnp.asarray, arrays.indices(p, self._sizes))])

        enqueue = _native.enqueue_gemm
        if profiling is not None:
            enqueue = partial(enqueue, profiling=profiling)

        def call(operands: int, result: int, wait: bool) -> None:
            source, target, scratch, counters = (x.unsafe_buffer_pointer() for x in memory)
            given = arrays.placed(source + operands % sets * size, starts, read)
            found = arrays.placed(target + result % places * result_size, result_starts, written)
            if arrays.adds_in_place(p):
                given.insert(2, found[0])
            given += [(x.unsafe_buffer_pointer(), x.shape, Untyped.INT32) for x in indices]
            if workspace > 0:
                found.append((scratch, (workspace,), Untyped.BYTES))
            enqueue(given, found, attributes, counters=counters, wait=wait)

        return call

    def _make_room(self, problem: Matmul, size: int, result_size: int, workspace: int) -> None:
        """Sets more memory aside where a matmul's arrays do not fit: all experts, for one.

        Raises:
          ValueError: there is not as much.
        """
        grows = [size > self._operands.nbytes, result_size > self._results.nbytes]
        wanted = 2 * max(size, self._operands.nbytes) + max(result_size, self._results.nbytes)
        has_room = not any(grows) or wanted <= _memory() - self._workspace.nbytes
        if workspace > self._workspace.nbytes or not has_room:
            raise ValueError(f"{problem} does not fit the memory that is set aside")
        if grows[0]:
            self._operands = self._draw  # what was there is free, but for launches of it
            self._operands = _repeated(self._draw, -(-size // 2))
        if grows[1]:
            self._results = self._draw
            self._results = jnp.zeros(-(-result_size // 2), jnp.bfloat16)
        jax.block_until_ready((self._operands, self._results))

    def kernels(self, launch: Launch, repeats: int) -> dict[str, float]:
        """By name of a launch's kernels the median of so many times, in microseconds."""
        with cupti.recorded() as kernels:
            for number in range(repeats + 1):
                launch(number, number, wait=number == repeats)
        times: dict[str, list[float]] = {}
        for each in cupti.by_call(kernels, repeats + 1)[1:]:
            for name, milliseconds in each:
                times.setdefault(name, []).append(1e3 * milliseconds)
        return {name: statistics.median(found) for name, found in times.items()}

    def time(self, bursts: Sequence[Sequence[Launch]], repeats: int) -> list[list[float]]:
        """As in `Bench`: all kernels of a launch together, on input sets one after the other.

        One more launch goes ahead of those of each configuration: its code is not in the caches.

        Raises:
          RuntimeError: CUPTI did not see each of them.
        """
        each, at = 1 + repeats, 0
        with cupti.recorded() as kernels:
            for burst in bursts:
                time.sleep(PAUSE_S)
                for number, launch in enumerate(burst, 1):
                    for repeat in range(each):
                        at += 1
                        launch(at, at, wait=number == len(burst) and repeat == repeats)
        times = by_launch(kernels, at)
        return [times[first + 1 : first + each] for first in range(0, at, each)]

    def deviations(self, problem: Matmul, launches: Sequence[Launch]) -> list[float]:
        """As in `Bench`; of three parts of the results. Infinity where one has NaN.

        Each launch must write all of its result: none adds to what is there.
        """
        count, dtype = math.prod(problem.output_shape), problem.output
        launches[0](0, 0, True)
        # Read before it is overwritten: XLA's streams are not ordered with the launches'.
        expected = jax.block_until_ready(_parts(self._results, count, dtype))
        found = []
        for launch in launches:
            launches[0](1, 0, True)  # another matmul's result, which must be overwritten
            launch(0, 0, True)
            difference = float(_difference(_parts(self._results, count, dtype), expected))
            found.append(difference if math.isfinite(difference) else math.inf)
        return found

    def xla(self, problem: GemmProblem) -> float:
        """As in `Bench`: bursts as of `time`, of the kernels that XLA takes."""
        return xla_form.microseconds(
            problem, arrays.operands(problem), self._operands, rotated=ROTATED, pause_s=PAUSE_S
        )


def plan_of(problem: Matmul, choice: Chosen) -> Plan:
    """What the launch that was chosen for a matmul will do."""
    if isinstance(problem, RaggedProblem):
        assert isinstance(choice, RaggedChoice)
        return ragged.plan_of(problem, choice)
    assert isinstance(choice, Choice)
    return gemm.plan_of(problem, choice)


@partial(jax.jit, static_argnums=1)
def _repeated(draw: jax.Array, count: int) -> jax.Array:
    """So many elements, which may be more than 32 bits count."""
    whole = jax.lax.concatenate([draw] * -(-count // draw.size), 0)
    return jax.lax.slice_in_dim(whole, 0, count)


def _memory() -> int:
    """Bytes that JAX allocates from, of the first GPU."""
    known = jax.local_devices()[0].memory_stats() or {}
    return int(known.get("bytes_limit", 0))


@partial(jax.jit, static_argnums=(1, 2))
def _parts(results: jax.Array, count: int, dtype: np.dtype[Any]) -> jax.Array:
    """The first, the middle and the last of so many elements, as float32.

    Of a contraction whose rows are all in one group, matrices but the middle one are zeros.
    """
    words = dtype.itemsize // results.dtype.itemsize
    inside = jnp.arange(_WINDOW) < count
    windows = []
    behind = max(count - _WINDOW, 0)
    for start in (0, behind // 2, behind):
        window = jax.lax.slice_in_dim(results, start * words, (start + _WINDOW) * words)
        bits = window if words == 1 else window.reshape(_WINDOW, words)
        values = jax.lax.bitcast_convert_type(bits, dtype)
        windows.append(jnp.where(inside, values, 0).astype(jnp.float32))
    return jnp.stack(windows)


@jax.jit
def _difference(found: jax.Array, expected: jax.Array) -> jax.Array:
    """In the norm, relative; infinite for anything but zeros where zeros are expected."""
    difference = jnp.linalg.norm(found - expected)
    return jnp.where(difference == 0, 0, difference / jnp.linalg.norm(expected))


def by_launch(kernels: cupti.Kernels, count: int) -> list[float]:
    """Microseconds of each launch of ours.

    Repacks and tables of groups go before a matmul, what adds up its parts behind it.

    Raises:
      RuntimeError: there are not so many calls.
    """
    times: list[float] = []
    pending = 0.0
    for name, milliseconds in kernels:
        microseconds = 1e3 * milliseconds
        if "repack" in name or "group_table" in name:
            pending += microseconds
        elif "reduce" in name and times:
            times[-1] += microseconds
        else:
            times.append(pending + microseconds)
            pending = 0.0
    if len(times) != count or pending:
        raise RuntimeError(f"{len(kernels)} kernels in {count} launches: cannot tell them apart")
    return times
