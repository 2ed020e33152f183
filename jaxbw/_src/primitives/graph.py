"""A jaxpr as a graph: who makes a value and who reads it; and where in it another jaxpr occurs."""

from typing import Any

import jax
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal, primitives

from jaxbw._src import compat


class Graph:
    """The equations of a jaxpr that something needs, who makes each variable, and who reads it."""

    def __init__(self, jaxpr: Jaxpr) -> None:
        self.equations, self.taken = jaxpr.eqns, set[int]()
        self.makers: dict[Any, int] = {}
        self.uses: dict[Any, list[int]] = {}  # an equation as often as it reads it; -1: a result
        for atom in jaxpr.outvars:
            self._use(atom, -1)
        for i, equation in reversed([*enumerate(jaxpr.eqns)]):
            if equation.effects or any(x in self.uses for x in equation.outvars):
                self.makers |= dict.fromkeys(equation.outvars, i)
                for atom in equation.invars:
                    self._use(atom, i)

    def _use(self, atom: Any, i: int) -> None:
        if not isinstance(atom, Literal):
            self.uses.setdefault(atom, []).append(i)

    def maker(self, atom: Any) -> int | None:
        """The equation that an operand comes from; None for one that comes from outside."""
        return None if isinstance(atom, Literal) else self.makers.get(atom)

    def only_use(self, var: Any, primitive: Any) -> tuple[int, JaxprEqn] | None:
        """The one equation that reads a variable, once, if it is of this primitive."""
        use, *more = self.uses[var]
        if more or use < 0 or use in self.taken:
            return None
        equation = self.equations[use]
        return (use, equation) if equation.primitive is primitive else None


def occurrence(graph: Graph, z: Any, pattern: Jaxpr) -> tuple[Any, frozenset[int]] | None:
    """The result of a pattern that is applied to z, and its equations, if all else is theirs."""
    place: dict[Any, Any] = {pattern.invars[0]: z}
    eaten: set[int] = set()

    def reads(equation: JaxprEqn, wanted: JaxprEqn) -> bool:
        return len(equation.invars) == len(wanted.invars) and all(
            _same_literal(x, y) if isinstance(y, Literal) else x is place[y]
            for x, y in zip(equation.invars, wanted.invars, strict=True)
        )

    for wanted in pattern.eqns:
        known = next(place[x] for x in wanted.invars if not isinstance(x, Literal))
        for i in graph.uses.get(known, ()):
            equation = graph.equations[max(i, 0)]
            is_free = i >= 0 and i not in graph.taken and i not in eaten
            if is_free and reads(equation, wanted) and _same_operation(equation, wanted):
                eaten.add(i)
                place.update(zip(wanted.outvars, equation.outvars, strict=True))
                break
        else:
            return None
    (out,) = (place[x] for x in pattern.outvars)
    inside = (graph.uses[x] for x in place.values() if x is not out)
    return (out, frozenset(eaten)) if all(eaten.issuperset(uses) for uses in inside) else None


def _same_literal(x: Any, y: Literal) -> bool:
    return isinstance(x, Literal) and x.aval == y.aval and bool(np.all(x.val == y.val))


def _same_operation(x: JaxprEqn, y: JaxprEqn) -> bool:
    if x.primitive is not y.primitive:
        return False
    if x.primitive is primitives.jit_p:
        return compat.is_unplaced(x.params) and str(x.params["jaxpr"]) == str(y.params["jaxpr"])
    if x.primitive is primitives.custom_jvp_call_p:  # its derivative is what it is known by
        return len(x.invars) == 1 and _with_derivative(x) == _with_derivative(y)
    return x.params == y.params


def _with_derivative(equation: JaxprEqn) -> str:
    def function(x: Any) -> Any:
        return compat.bind_equation(equation, lambda _: x)

    x = equation.invars[0].aval
    return str(jax.make_jaxpr(lambda x, t: jax.jvp(function, (x,), (t,)))(x, x))
