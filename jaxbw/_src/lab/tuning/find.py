"""The products of a function, found in its jaxpr: those that jaxbw serves, and if asked lax's."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params, primitives

from jaxbw._src.primitives import dot_general, fused, fused_dot_general
from jaxbw._src.problem import GemmProblem, Reduction
from jaxbw._src.selection.tuned_products import product_key

_Rule = Callable[[Sequence[Any], Sequence[Any], Mapping[str, Any]], Reduction]
_OURS: dict[Any, _Rule] = {
    dot_general.dot_general_p: dot_general.reduction,
    fused_dot_general.fused_dot_general_p: fused_dot_general.reduction,
}
_LAX: dict[Any, _Rule] = {primitives.dot_general_p: dot_general.reduction}


@dataclass(frozen=True)
class Found:
    """A product, and how often one call of the function computes it, so far as that is known.

    The body of a `lax.scan` counts as often as it runs, that of a `lax.while_loop` once, and of the
    branches of a `lax.cond` each.
    """

    problem: GemmProblem
    count: int

    @property
    def flops(self) -> int:
        """Floating-point operations of all of them."""
        p = self.problem
        return 2 * p.batch * p.m * p.n * p.k * (2 if p.epilogue.gated else 1) * self.count


def products(function: Callable[..., Any], *args: Any, lax: bool = False) -> list[Found]:
    """The different products of a function, the most expensive first.

    It is traced, not run. What `jax.grad` adds is seen where the function itself takes the
    gradient: pass the training step. Inside of a `jax.shard_map` a product is one device's part.

    Args:
      function: jittable.
      args: its arguments; of arrays only the types count, and `jax.ShapeDtypeStruct`s do.
      lax: also products that are `jax.lax.dot_general`'s.
    """
    rules = {**_OURS, **(_LAX if lax else {})}
    found: dict[str, Found] = {}
    for equation, times in _equations(jax.make_jaxpr(function)(*args).jaxpr, 1):
        if equation.primitive not in rules:
            continue
        operands, results = (
            [each.aval for each in ends] for ends in (equation.invars, equation.outvars)
        )
        problem = rules[equation.primitive](operands, results, equation.params).problem
        if not problem.is_sized:
            continue
        key = product_key(problem)
        before = found.get(key, Found(problem, 0))
        found[key] = replace(before, count=before.count + times)
    return sorted(found.values(), key=lambda each: -each.flops)


def _equations(jaxpr: Jaxpr, times: int) -> Iterator[tuple[JaxprEqn, int]]:
    """Every equation, those within others too, and how often it runs."""
    for equation in jaxpr.eqns:
        yield equation, times
        is_scan = equation.primitive is primitives.scan_p
        inner = times * equation.params["length"] if is_scan else times
        for each in jaxprs_in_params(equation.params):
            yield from _equations(each, inner)
        if equation.primitive is fused.fused_tangent_p:
            yield from _equations(fused.tangent_jaxpr(equation), times)
