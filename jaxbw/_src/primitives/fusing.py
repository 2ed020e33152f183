"""A function whose matmuls are computed with what follows them, by its jaxpr.

The function is traced as `accelerate` has it, and evaluated anew: where `patterns.py` finds a
matmul and its epilogue, one fused operation is bound in the place of the last of their equations,
which all operands precede. The rest is bound as it was. Programs within equations are rewritten
where that leaves their signature (`_BODIES`); those that a rule of derivation or a checkpoint
policy belongs to are left alone.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

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
            results = _evaluate(traced, *given)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return call


def _evaluate(program: ClosedJaxpr, *args: Any) -> list[Any]:
    jaxpr = program.jaxpr
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*program.consts, *args), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    found = [*fusions(jaxpr)]
    last = {max(each.eaten): each for each in found}
    eaten = {i for each in found for i in each.eaten}
    for i, equation in enumerate(jaxpr.eqns):
        if (fusion := last.get(i)) is not None:
            values[fusion.out] = _bind(fusion, read)
        elif i not in eaten:
            results = compat.bind_equation(_with_bodies(equation), read)
            values.update(zip(equation.outvars, results, strict=True))
    return [read(x) for x in jaxpr.outvars]


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
    programs = _programs(equation)
    if not any(map(_has_any, programs)):
        return equation
    name = _BODIES[equation.primitive]
    after: Any = tuple(map(_rewritten, programs))
    after = after if isinstance(equation.params[name], tuple) else after[0]
    rewritten: JaxprEqn = equation.replace(params={**equation.params, name: after})
    return rewritten


def _programs(equation: JaxprEqn) -> tuple[Any, ...]:
    name = _BODIES.get(equation.primitive)
    if name is None or equation.params.get("policy") is not None:
        return ()
    programs = equation.params[name]
    return programs if isinstance(programs, tuple) else (programs,)


def _has_any(program: Any) -> bool:
    jaxpr = compat.closed(program).jaxpr
    inner = (each for equation in jaxpr.eqns for each in _programs(equation))
    return any(True for _ in fusions(jaxpr)) or any(map(_has_any, inner))


def _rewritten(program: Any) -> Any:
    if not _has_any(program):
        return program
    closed = compat.closed(program)
    return compat.retraced(lambda *xs: _evaluate(closed, *xs), program)
