"""Launches of one matmul in many configurations, timed on the device, without compiling anything.

The direct launcher takes addresses: operands and results are cut out of large arrays that JAX has
allocated once, so that another matmul costs nothing and inputs rotate. Times are CUPTI's durations
of kernels, as in lab/bench/timer.py: what a call takes on the device by itself, whatever the gaps
before it. (Events around launches in a row would show the throughput of launches that overlap, and
for small matmuls the host.) CUPTI leaves out the memset of a split matmul's counters.
"""

import itertools
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxbw import _native
from jaxbw._src import blocks
from jaxbw._src.lab import cupti
from jaxbw._src.lab.tuning import xla_form
from jaxbw._src.primitives.gemm import plan_of
from jaxbw._src.problem import DATA_TYPES, GemmProblem
from jaxbw._src.selection.choice import Choice

ROTATED = 400 * 10**6  # bytes that launches go through before they come back: over twice any L2
PAUSE_S = 0.012  # before a burst, thrice its length: the clock recovers
_OPERANDS = 2**30  # elements of 16 bits
_RESULTS = 2**30  # bytes, of each of results and workspaces
# Of the operands, repeated. Odd, or rows of both would be the same ones: a row times itself adds up
# what float8's short sums truncate, 9 % at a K of 16384.
_DRAWN = 2**26 - 1
_LINE = 256  # XLA's alignment of buffers
_WINDOW = 2**20  # elements of a result that are compared, at either end


class Launch(Protocol):
    """Enqueues a matmul on one of its input sets."""

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

    def xla(self, problem: GemmProblem) -> float:
        """Microseconds of the same by XLA's operations."""
        ...


class Gpu:
    """The first GPU of JAX."""

    def __init__(self, dtype: Any = jnp.bfloat16) -> None:
        """Allocates; the operands are iid normal, drawn in a dtype of the size they are read as."""
        count = _DRAWN * 2 // jnp.dtype(dtype).itemsize
        draw = jax.random.normal(jax.random.key(0), (count,), jnp.bfloat16).astype(dtype)
        draw = draw.view(jnp.bfloat16)
        self._operands = jnp.resize(draw, (_OPERANDS,))
        self._results = jnp.zeros(_RESULTS // 2, jnp.bfloat16)
        self._workspace = jnp.zeros(_RESULTS, jnp.uint8)
        jax.block_until_ready((self._operands, self._results, self._workspace))

    def launch(
        self,
        problem: GemmProblem,
        choice: Choice,
        profiling: tuple[str, int, int, int] | None = None,
    ) -> Launch:
        """The call that launches a choice; `profiling` is as of `_native.enqueue_gemm`.

        Raises:
          ValueError: the matmul does not fit what is allocated.
        """
        p = problem
        plan = plan_of(p, choice)
        attributes, workspace = plan.attributes, plan.workspace_bytes
        read, written = operands(p), p.results
        starts, size = _laid_out(read)
        result_starts, result_size = _laid_out(written)
        if size > 2 * _OPERANDS or max(result_size, workspace) > _RESULTS:
            raise ValueError(f"{p} does not fit the memory that is set aside")
        sets = max(2, math.ceil(ROTATED / (size + result_size)))
        sets = max(1, min(sets, 2 * _OPERANDS // size))
        places = max(1, min(sets, _RESULTS // result_size))
        scratch = [(self._workspace.unsafe_buffer_pointer(), (workspace,), None)]
        source = self._operands.unsafe_buffer_pointer()
        target = self._results.unsafe_buffer_pointer()

        enqueue = _native.enqueue_gemm
        if profiling is not None:
            enqueue = partial(enqueue, profiling=profiling)

        def call(operands: int, result: int, wait: bool) -> None:
            at = source + operands % sets * size
            to = target + result % places * result_size
            enqueue(
                _arrays(at, starts, read),
                [*_arrays(to, result_starts, written), *scratch[: workspace > 0]],
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
        with cupti.recorded() as kernels:
            for burst in bursts:
                time.sleep(PAUSE_S)
                for number, launch in enumerate(burst, 1):
                    for repeat in range(each):
                        at += 1
                        launch(at, at, wait=number == len(burst) and repeat == repeats)
        times = by_launch(kernels, at)
        return [times[first + 1 : first + each] for first in range(0, at, each)]

    def deviations(self, problem: GemmProblem, launches: Sequence[Launch]) -> list[float]:
        """As in `Bench`; of the results' first and last elements. Infinity where one has NaN."""
        count, dtype = math.prod(problem.output_shape), problem.output
        launches[0](0, 0, True)
        # Read before it is overwritten: XLA's streams are not ordered with the launches'.
        expected = jax.block_until_ready(_ends(self._results, count, dtype))
        found = []
        for launch in launches:
            launches[0](1, 0, True)  # another matmul's result, which must be overwritten
            launch(0, 0, True)
            difference = float(_difference(_ends(self._results, count, dtype), expected))
            found.append(difference if math.isfinite(difference) else math.inf)
        return found

    def xla(self, problem: GemmProblem) -> float:
        """As in `Bench`: bursts as of `time`, of the kernels that XLA takes."""
        return xla_form.microseconds(
            problem, operands(problem), self._operands, rotated=ROTATED, pause_s=PAUSE_S
        )


def operands(problem: GemmProblem) -> list[xla_form.Array]:
    """Shape and dtype of each operand of the custom call, in its order."""
    p, e = problem, problem.epilogue
    found: list[xla_form.Array] = [(p.lhs_shape, p.lhs_dtype), (p.rhs_shape, p.rhs_dtype)]
    if e.gated:
        found.append((p.rhs_shape, p.rhs_dtype))
    if e.c is not None:
        found.append((p.output_shape, e.c))
    if e.bias is not None:
        found.append(((p.m if e.bias_axis == "m" else p.n,), e.bias))
    if e.residual is not None:
        found.append((p.output_shape, e.residual))
    if e.factors_in_memory:
        found += [((), np.dtype(np.float32))] * (1 if e.c is None else 2)
    if e.lhs_scale:
        found.append(((p.batch if p.lhs_batched else 1, p.m), np.dtype(np.float32)))
    if e.rhs_scale:
        columns = (p.batch if p.rhs_batched else 1, p.n), np.dtype(np.float32)
        found += [columns] * (1 + e.gated)
    k_blocks = blocks.count(p.k)
    if e.lhs_blocks:
        found.append(((p.batch if p.lhs_batched else 1, p.m, k_blocks), np.dtype(np.float32)))
    if e.rhs_blocks:
        of_columns = (p.batch if p.rhs_batched else 1, blocks.count(p.n), k_blocks)
        found.append((of_columns, np.dtype(np.float32)))
    if e.out_scale:
        found.append(((), np.dtype(np.float32)))
    return found


def _laid_out(arrays: Sequence[xla_form.Array]) -> tuple[list[int], int]:
    """Where each array begins when they lie behind each other, and the bytes of all."""
    sizes = [-(-math.prod(shape) * dtype.itemsize // _LINE) * _LINE for shape, dtype in arrays]
    *starts, end = itertools.accumulate(sizes, initial=0)
    return starts, end


def _arrays(
    at: int, starts: Sequence[int], arrays: Sequence[xla_form.Array]
) -> list[tuple[int, tuple[int, ...], _native.DataType | None]]:
    """The arrays as the direct launcher takes them."""
    return [
        (at + start, shape, DATA_TYPES[dtype.name])
        for start, (shape, dtype) in zip(starts, arrays, strict=True)
    ]


@partial(jax.jit, static_argnums=2)
def _ends(results: jax.Array, count: int, dtype: np.dtype[Any]) -> jax.Array:
    """The first and the last of so many elements, as float32."""
    words = dtype.itemsize // results.dtype.itemsize
    inside = jnp.arange(_WINDOW) < count
    windows = []
    for start in (0, jnp.maximum(count - _WINDOW, 0)):
        window = jax.lax.dynamic_slice(results, (start * words,), (_WINDOW * words,))
        bits = window if words == 1 else window.reshape(_WINDOW, words)
        values = jax.lax.bitcast_convert_type(bits, dtype)
        windows.append(jnp.where(inside, values, 0).astype(jnp.float32))
    return jnp.stack(windows)


@jax.jit
def _difference(found: jax.Array, expected: jax.Array) -> jax.Array:
    ratio: jax.Array = jnp.linalg.norm(found - expected) / jnp.linalg.norm(expected)
    return ratio


def by_launch(kernels: cupti.Kernels, count: int) -> list[float]:
    """Microseconds of each launch of ours.

    Repacks go before a matmul, what adds up its parts behind it.

    Raises:
      RuntimeError: there are not so many calls.
    """
    times: list[float] = []
    pending = 0.0
    for name, milliseconds in kernels:
        microseconds = 1e3 * milliseconds
        if "repack" in name:
            pending += microseconds
        elif "reduce" in name and times:
            times[-1] += microseconds
        else:
            times.append(pending + microseconds)
            pending = 0.0
    if len(times) != count or pending:
        raise RuntimeError(f"{len(kernels)} kernels in {count} launches: cannot tell them apart")
    return times
