"""The matmuls of a function, found in its jaxpr: those that jaxbw serves, and lax's.

Under `jaxbw.accelerate` lax's are jaxbw's.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import jax
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params, primitives

from jaxbw._src.epilogue import IDENTITY
from jaxbw._src.primitives import (
    accelerate,
    dot_general,
    fused_dot_general,
    fused_tangent,
    ragged_dot,
    ragged_fused,
    ragged_gathered,
)
from jaxbw._src.problem import GemmProblem, Reduction
from jaxbw._src.ragged import RaggedProblem
from jaxbw._src.selection.policy import Policy

Problem = TypeVar("Problem", bound=GemmProblem | RaggedProblem)
_Rule = Callable[[Sequence[Any], Sequence[Any], Mapping[str, Any]], Reduction]
_RULES: dict[Any, _Rule] = {
    dot_general.dot_general_p: dot_general.reduction,
    fused_dot_general.fused_dot_general_p: fused_dot_general.reduction,
    primitives.dot_general_p: dot_general.reduction,
}


@dataclass(frozen=True)
class Found(Generic[Problem]):
    """A matmul, and how often one call of the function computes it, so far as that is known.

    The body of a `lax.scan` counts as often as it runs, that of a `lax.while_loop` once, and of the
    branches of a `lax.cond` each.
    """

    problem: Problem
    count: int

    @property
    def flops(self) -> int:
        """Floating-point operations of all of them; of a grouped one as if groups had all rows."""
        p = self.problem
        return 2 * p.batch * p.m * p.n * p.k * (2 if p.epilogue.gated else 1) * self.count


def matmuls(
    function: Callable[..., Any], *args: Any, lax: bool = False
) -> list[Found[GemmProblem | RaggedProblem]]:
    """The different matmuls of a function, the most expensive first.

    It is traced, not run. What `jax.grad` adds is seen where the function itself takes the
    gradient: pass the training step. Inside of a `jax.shard_map` a matmul is one device's part.

    Args:
      function: jittable.
      args: its arguments; of arrays only the types count, and `jax.ShapeDtypeStruct`s do.
      lax: also matmuls that are `jax.lax.dot_general`'s.
    """
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    grouped = ((each, times) for each, _, times in ragged_matmuls_in(jaxpr) if each.is_sized)
    return _different([*_dense(jaxpr, lax=lax), *grouped])


def dense_matmuls(
    function: Callable[..., Any], *args: Any, lax: bool = False
) -> list[Found[GemmProblem]]:
    """The same without grouped ones."""
    return _different(_dense(jax.make_jaxpr(function)(*args).jaxpr, lax=lax))


def _dense(jaxpr: Jaxpr, *, lax: bool) -> Iterator[tuple[GemmProblem, int]]:
    """Those of known sizes, but not of operands that XLA splits: what is launched is not all."""
    for problem, policy, times in matmuls_in(jaxpr):
        if problem.is_sized and problem.pieces is None and (policy is not None or lax):
            yield problem, times


def _different(problems: Iterable[tuple[Problem, int]]) -> list[Found[Problem]]:
    """Each of them once, the most expensive first."""
    found: dict[str, Found[Problem]] = {}
    for problem, times in problems:
        before = found.get(problem.key, Found(problem, 0))
        found[problem.key] = replace(before, count=before.count + times)
    return sorted(found.values(), key=lambda each: -each.flops)


def matmuls_in(jaxpr: Jaxpr) -> Iterator[tuple[GemmProblem, Policy | None, int]]:
    """Each matmul of a program, its policy, and how often it runs, as of `Found`.

    Without a policy it is lax's.
    """
    for equation, times in _equations(jaxpr, 1):
        if (rule := _RULES.get(equation.primitive)) is not None:
            operands, results = (
                [each.aval for each in ends] for ends in (equation.invars, equation.outvars)
            )
            policy = equation.params.get("policy") or accelerate.policy_of_equation(equation)
            yield rule(operands, results, equation.params).problem, policy, times


def ragged_matmuls_in(jaxpr: Jaxpr) -> Iterator[tuple[RaggedProblem, JaxprEqn, int]]:
    """Each grouped matmul of a program, its equation, and how often it runs, as of `Found`."""
    for equation, times in _equations(jaxpr, 1):
        operands = [each.aval for each in equation.invars]
        params, epilogue = equation.params, equation.params.get("epilogue", IDENTITY)
        if equation.primitive is ragged_gathered.ragged_gathered_p:
            yield ragged_gathered.problem_of_gathered(operands, epilogue, params), equation, times
        elif equation.primitive in (ragged_dot.ragged_dot_p, ragged_fused.ragged_fused_p):
            matmul = operands[: ragged_dot.OPERANDS]
            yield ragged_dot.problem_of(matmul, params, epilogue), equation, times


def _equations(jaxpr: Jaxpr, times: int) -> Iterator[tuple[JaxprEqn, int]]:
    """Every equation, those within others too, and how often it runs."""
    for equation in jaxpr.eqns:
        yield equation, times
        if equation.primitive.name == "pallas_call":
            continue  # its matmuls are of tiles, in a kernel of its own
        is_scan = equation.primitive is primitives.scan_p
        inner = times * equation.params["length"] if is_scan else times
        for each in jaxprs_in_params(equation.params):
            yield from _equations(each, inner)
        if equation.primitive is fused_tangent.fused_tangent_p:
            yield from _equations(fused_tangent.tangent_jaxpr(equation), times)
