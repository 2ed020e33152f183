"""XLA's form of a problem, as `implementation="xla"` lowers it: a competitor of the configurations.

XLA chooses its own kernels, and times some of them, when it compiles.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jaxbw._native import Major
from jaxbw._src.lab import cupti
from jaxbw._src.lab.tuning.arrays import Array
from jaxbw._src.primitives.dot_general import dot_general
from jaxbw._src.primitives.fused_dot_general import fused_dot_general
from jaxbw._src.problem import DimensionNumbers, GemmProblem, Operands
from jaxbw._src.selection.policy import Policy

ROUNDS = 8  # bursts, of which the median counts
REPEATS = 3  # calls of a burst, beside the first, whose code is not in the caches


def function(problem: GemmProblem) -> Callable[..., Any]:
    """The matmul by XLA's operations, of arrays as they lie in memory: of `arrays.operands`."""
    p, e = problem, replace(problem.epilogue, bias_rank=1)
    if e.factors_in_memory:
        e = replace(e, alpha=None, beta=1.0 if e.c is None else None)
    dims: DimensionNumbers = (
        ((int(p.lhs_major == Major.K),), (int(p.rhs_major == Major.K),)),
        ((), ()),
    )
    params: dict[str, Any] = {
        **{"dimension_numbers": dims, "precision": p.precision, "out_sharding": None},
        **{"preferred_element_type": p.output, "policy": Policy(("xla",))},
    }

    def one(operands: Operands) -> Any:
        if e.is_identity:
            return dot_general(operands.lhs, operands.rhs, **params)
        return fused_dot_general(operands, e, **params)

    def run(*arrays: Any) -> Any:
        given = Operands.of(e, arrays)
        batched = [p.lhs_batched, *[p.rhs_batched] * (1 + e.gated)]
        batched += [
            x is not given.bias for x in (given.c, given.bias, given.residual) if x is not None
        ]
        of_lhs, of_rhs = e.scaled_operands
        scales = [p.lhs_batched] * of_lhs + [p.rhs_batched] * of_rhs * (1 + e.gated)
        scales += [False] * e.out_scale
        batched += [False] * (len(arrays) - len(batched) - len(scales)) + scales
        is_stack = [p.batch > 1 and each for each in batched]
        whole = [
            x if keeps or x.ndim < 2 else x[0] for x, keeps in zip(arrays, is_stack, strict=True)
        ]
        if not any(is_stack):
            return one(Operands.of(e, whole))
        axes = Operands.of(e, [0 if keeps else None for keeps in is_stack])
        return jax.vmap(one, in_axes=(axes,))(Operands.of(e, whole))

    return run


def microseconds(
    problem: GemmProblem,
    arrays: Sequence[Array],
    drawn: jax.Array,
    *,
    rotated: float,
    pause_s: float,
) -> float:
    """The median device time of a call, of all its kernels, on one set of operands after another.

    Args:
      problem: what is computed.
      arrays: shape and dtype of each operand.
      drawn: values of which operands are cut.
      rotated: bytes of all sets together.
      pause_s: before each burst.

    Raises:
      RuntimeError: CUPTI did not see the same kernels in each call.
    """
    specs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in arrays]
    size = sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in specs)
    starts = np.random.default_rng(0).integers(
        0, drawn.size, (max(2, math.ceil(rotated / size)), len(specs)), np.int32
    )
    cut = jax.jit(lambda drawn, starts: cut_out(drawn, starts, specs))
    sets = [cut(drawn, each) for each in starts]
    call = jax.jit(function(problem)).lower(*specs).compile()
    times: list[float] = []
    for _ in range(ROUNDS):
        time.sleep(pause_s)
        with cupti.recorded() as kernels:
            results = []
            for _ in range(1 + REPEATS):
                sets.append(sets.pop(0))
                results.append(call(*sets[-1]))
            jax.block_until_ready(results)
        times += map(cupti.microseconds, cupti.by_call(kernels, 1 + REPEATS)[1:])
    return statistics.median(times)


def cut_out(drawn: Any, starts: Any, specs: Sequence[jax.ShapeDtypeStruct]) -> list[Any]:
    """Arrays of these types, each of the values from its start on, or from the last that fits."""
    return [
        jax.lax.dynamic_slice(drawn, (starts[i],), (math.prod(spec.shape),))
        .reshape(spec.shape)
        .astype(spec.dtype)
        for i, spec in enumerate(specs)
    ]
