"""Rules of the primitives for jax.experimental: jet, sparse.sparsify, roofline and checkify.

Their registries are filled once a program has loaded them, which jaxbw does not do: sparse alone
takes as long as all of jaxbw. So `register` is called wherever a call is traced. What `jax.jit`
traced before such a module was loaded, and does not trace again, may find none. For jet and
sparsify the epilogue is operations of JAX's own.
"""

from dataclasses import replace
from typing import Any

from jax import lax

from jaxbw._src import compat
from jaxbw._src.epilogue import IDENTITY, Epilogue
from jaxbw._src.primitives.dot_general import dot_general_p, lax_params
from jaxbw._src.primitives.fused_dot_general import fused_dot_general_p, in_parts
from jaxbw._src.primitives.fused_tangent import fused_tangent_p
from jaxbw._src.problem import Operands


def register() -> None:
    """Fills the registries of the modules that are loaded."""
    if (jet := compat.experimental("jet")) is not None:
        jet.jet_rules.setdefault(dot_general_p, _bilinear_series)
        jet.jet_rules.setdefault(fused_dot_general_p, _series_in_parts)
    if (sparse := compat.experimental("sparse.transform")) is not None:
        for rules in (sparse.sparse_rules_bcoo, sparse.sparse_rules_bcsr):
            rules.setdefault(dot_general_p, _sparse(rules[lax.dot_general_p]))
            rules.setdefault(fused_dot_general_p, _sparse_in_parts)
    # The rules of JAX's own primitives are loaded with the module beside this one.
    if (roofline := compat.experimental("roofline.roofline")) is not None:
        for primitive in (dot_general_p, fused_dot_general_p):
            roofline._rooflines.setdefault(primitive, _roofline)
    for primitive in (dot_general_p, fused_dot_general_p, fused_tangent_p):
        compat.register_float_check(primitive)


def _bilinear_series(primals: Any, series: Any, **params: Any) -> Any:
    """Taylor coefficients of a bilinear operation, of those of its operands."""
    (lhs, rhs), (lhs_terms, rhs_terms) = primals, series
    left, right = [lhs, *lhs_terms], [rhs, *rhs_terms]
    out, *terms = (
        sum(dot_general_p.bind(left[i], right[order - i], **params) for i in range(order + 1))
        for order in range(len(left))
    )
    return out, terms


def _in_parts(epilogue: Epilogue, params: Any) -> Any:
    return lambda *given: in_parts(Operands.of(epilogue, given), epilogue=epilogue, **params)


def _series_in_parts(primals: Any, series: Any, *, epilogue: Epilogue, **params: Any) -> Any:
    jet = compat.experimental("jet").jet
    # Rules have Taylor coefficients; users see derivatives.
    return jet(_in_parts(epilogue, params), primals, series, factorial_scaled=False)


def _sparse_in_parts(env: Any, *operands: Any, epilogue: Epilogue, **params: Any) -> Any:
    transform = compat.experimental("sparse.transform")
    results, _ = transform.sparsify_raw(_in_parts(epilogue, params))(env, *operands)
    return results


def _sparse(rule: Any) -> Any:
    """What serves lax.dot_general of sparse operands."""
    return lambda env, *operands, **params: rule(env, *operands, **lax_params(params))


def _roofline(ctx: Any, *operands: Any, epilogue: Epilogue = IDENTITY, **params: Any) -> Any:
    """As of lax.dot_general; an epilogue adds its arrays, and its arithmetic counts as nothing."""
    rules = compat.experimental("roofline.roofline")._rooflines
    rule = rules[lax.dot_general_p]
    matmul = rule(
        replace(ctx, avals_in=ctx.avals_in[:2], avals_out=ctx.avals_out[:1]),
        *operands[:2],
        **lax_params(params),
    )
    others = (*ctx.avals_in[2:], *ctx.avals_out[1:])
    more = sum(x.size * x.dtype.itemsize for x in others)
    return replace(
        matmul,
        flops=matmul.flops * (1 + epilogue.gated),
        unfused_flops=matmul.unfused_flops * (1 + epilogue.gated),
        hbm_bytes=matmul.hbm_bytes + more,
        unfused_hbm_bytes=matmul.unfused_hbm_bytes + more,
    )
