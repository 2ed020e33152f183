"""A function whose matmuls are computed with what follows them, by its jaxpr.

The function is traced as `accelerate` has it, and evaluated anew: where `patterns.py` finds a
matmul and its epilogue, one fused operation is bound in the place of the last of their equations,
which all operands precede. The rest is bound as it was. Programs within equations are rewritten
where that leaves their signature (`_BODIES`); those that a rule of derivation or a checkpoint
policy belongs to are left alone.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, primitives

from jaxbw._src import compat
from jaxbw._src.primitives import accelerate, fused
from jaxbw._src.primitives.originals import read_in_place
from jaxbw._src.primitives.patterns import Fusion, fusions

# Primitives whose programs may be replaced by others of the same types: under which parameters.
_BODIES = {
    primitives.jit_p: "jaxpr",
    primitives.closed_call_p: "call_jaxpr",
    primitives.scan_p: "jaxpr",
    primitives.while_p: "body_jaxpr",
    primitives.cond_p: "branches",
    primitives.remat_p: "jaxpr",
}


def fusing(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, accelerated and fused; arrays among its arguments are traced."""

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, keywords))
        arrays = [i for i, x in enumerate(leaves) if isinstance(x, jax.Array | np.ndarray)]

        def of_arrays(*given: Any) -> Any:
            everything = [*leaves]
            for i, x in zip(arrays, given, strict=True):
                everything[i] = x
            args, keywords = jax.tree.unflatten(tree, everything)
            return function(*args, **keywords)

        given = [leaves[i] for i in arrays]
        with accelerate.block():
            traced, shape = jax.make_jaxpr(of_arrays, return_shape=True)(*given)
            results = _rewriting(traced).evaluate(*given)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return call


class _Rewriting(NamedTuple):
    """A program, the matmuls that are fused in it, and its equations with theirs rewritten."""

    program: ClosedJaxpr
    found: list[Fusion]
    equations: list[JaxprEqn]

    @property
    def changes(self) -> bool:
        """Whether anything is fused, in it or in a program within."""
        pairs = zip(self.equations, self.program.jaxpr.eqns, strict=True)
        return bool(self.found) or any(x is not y for x, y in pairs)

    def evaluate(self, *args: Any) -> list[Any]:
        """The results."""
        jaxpr, consts = self.program.jaxpr, self.program.consts
        values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else values[atom]

        last = {max(each.eaten): each for each in self.found}
        eaten = {i for each in self.found for i in each.eaten}
        for i, equation in enumerate(self.equations):
            if (fusion := last.get(i)) is not None:
                values[fusion.out] = _bind(fusion, read)
            elif i not in eaten:
                results = compat.bind_equation(equation, read)
                values.update(zip(equation.outvars, results, strict=True))
        return [read(x) for x in jaxpr.outvars]


def _rewriting(program: ClosedJaxpr) -> _Rewriting:
    jaxpr = program.jaxpr
    return _Rewriting(program, [*fusions(jaxpr)], [*map(_with_bodies, jaxpr.eqns)])


def _bind(fusion: Fusion, read: Callable[[Any], Any]) -> Any:
    policy = fusion.policy
    operands, dims = read_in_place(fusion.operands(read), fusion.dims, policy.config)
    params = {
        "dimension_numbers": dims,
        "precision": fusion.precision,
        "preferred_element_type": np.dtype(fusion.out.aval.dtype),
        "out_sharding": None,
        "policy": policy,
    }
    return fused.matmul(operands, fusion.epilogue, params)


def _with_bodies(equation: JaxprEqn) -> JaxprEqn:
    """An equation with fused matmuls in its programs; itself where there are none."""
    name = _BODIES.get(equation.primitive)
    if name is None or equation.params.get("policy") is not None:
        return equation
    value = equation.params[name]
    before = value if isinstance(value, tuple) else (value,)
    after = tuple(map(_rewritten, before))
    if all(x is y for x, y in zip(after, before, strict=True)):
        return equation
    params = {**equation.params, name: after if isinstance(value, tuple) else after[0]}
    rewritten: JaxprEqn = equation.replace(params=params)
    return rewritten


def _rewritten(program: Any) -> Any:
    """A program with its matmuls fused; itself where there are none."""
    rewriting = _rewriting(compat.closed(program))
    return compat.retraced(rewriting.evaluate, program) if rewriting.changes else program
