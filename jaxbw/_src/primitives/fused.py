"""A matmul with an epilogue: the primitive that computes it, and its derivative.

Forward it is one kernel, differentiated or not: where the derivative needs z = alpha * scales *
lhs @ rhs + beta * c + bias (and u, of a gated matmul), the same kernel writes it beside d, in d's
dtype, or in bfloat16 beside a d of 8 bits.

- Without activation nothing is saved.
- "relu" without residual: the sign of d says where the derivative is 1.
- Else z.

- Beside scales of blocks nothing: the tangent is that of XLA's form.
- Beside an out_scale, or in an out_format: there is no derivative, as of `jaxbw.quantize`.

What is saved has a name for `jax.checkpoint`'s policies: `checkpoint_policies.PREACTIVATION`. The
tangent is one operation, fused_tangent_p.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from jaxbw._src import compat
from jaxbw._src.epilogue import PREACTIVATION, Epilogue
from jaxbw._src.primitives.fused_dot_general import (
    fused_dot_general,
    fused_dot_general_p,
    in_parts,
    ranks_of,
)
from jaxbw._src.primitives.fused_dot_general import matmul as matmul
from jaxbw._src.primitives.fused_tangent import Kept, asked_of, cotangents_of, or_none, tangents_of
from jaxbw._src.problem import Operands


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, epilogue: Epilogue, **params: Any
) -> Any:
    operands = Operands.of(epilogue, primals)
    moves = Operands.of(epilogue, [or_none(x) for x in tangents])
    e = epilogue
    if e.out_scale and moves.given():
        raise TypeError(
            "jaxbw: a matmul with an out_scale is differentiated, and float8 has no useful "
            "derivative; take jax.lax.stop_gradient of its operands, leave out_scale out, or use "
            "jaxbw.fp8_dot_general, whose gradients are scaled"
        )
    if e.out_format is not None and moves.given():
        raise TypeError(
            "jaxbw: a matmul with an out_format is differentiated, and quantized numbers have no "
            "useful derivative; take jax.lax.stop_gradient of its operands, or leave out_format out"
        )
    looks = _z_moves(moves) and _sees(e)
    results = fused_dot_general(operands, _saving(e) if looks else e, **params)
    if looks:  # one array each, under the name wherever it is used
        results = tuple(
            checkpoint_name(x, PREACTIVATION) if i in _sees(e) else x for i, x in enumerate(results)
        )
    return results[: e.results], _results_move(operands, moves, results, e, params)


def _z_moves(moves: Operands) -> bool:
    return any(x is not None for x in moves._replace(residual=None))


def _sees(epilogue: Epilogue) -> range:
    """Which of the results, d, z and u, the activation's derivative is a function of."""
    e = epilogue
    if (e.activation is None and not e.gated) or e.has_more_results or e.has_blocks:
        return range(0)
    # relu has at its result the slope that it has at z.
    result_suffices = e.activation == "relu" and e.residual is None and not e.gated
    return range(1) if result_suffices else range(1, 2 + e.gated)


def _saving(epilogue: Epilogue) -> Epilogue:
    """The same, with these among its results."""
    return epilogue.saving() if 1 in _sees(epilogue) else epilogue


def _results_move(
    operands: Operands, moves: Operands, results: Sequence[Any], e: Epilogue, params: Any
) -> Sequence[Any]:
    """The tangents of the results: of d, and what else the epilogue says; there may be more."""
    d = results[0]
    if not _z_moves(moves):
        still: list[Any] = [ad.Zero(jax.typeof(x)) for x in results[: e.results]]
        return still if moves.residual is None else [moves.residual.astype(d.dtype), *still[1:]]
    if e.has_blocks:
        return _move_of_parts(operands, moves, e, params)
    seen = [results[i] for i in _sees(e)]
    ranks = ranks_of(operands.lhs.ndim, operands.rhs.ndim, params["dimension_numbers"])
    return tangents_of(
        Kept(operands, seen), moves, epilogue=e, result=jax.typeof(d), ranks=ranks, **params
    )


def _move_of_parts(operands: Operands, moves: Operands, e: Epilogue, params: Any) -> Sequence[Any]:
    """Those of the matmul of dequantized operands."""
    params = {**params, "policy": params["policy"].for_gradients}
    moving = [name for name in Operands._fields if getattr(moves, name) is not None]

    def formula(*moved: Any) -> Sequence[Any]:
        changed = dict(zip(moving, moved, strict=True))
        return in_parts(operands._replace(**changed), epilogue=e, **params)

    primals, tangents = ([getattr(xs, name) for name in moving] for xs in (operands, moves))
    found: Sequence[Any] = jax.jvp(formula, primals, tangents)[1]
    return found


# Under jax_remat3 what is kept is d, and what its derivative looks at.


def _save(*given: Any, epilogue: Epilogue, **params: Any) -> tuple[list[Any], list[Any]]:
    results = list(fused_dot_general(Operands.of(epilogue, given), _saving(epilogue), **params))
    return results[: epilogue.results], results


def _restore(kept: list[Any], *given: Any, epilogue: Epilogue, **params: Any) -> list[Any]:
    e = epilogue

    @jax.custom_jvp
    def restored(kept: list[Any], *given: Any) -> list[Any]:
        return kept[: e.results]

    def jvp(primals: Any, tangents: Any) -> Any:
        (kept, *given), (_, *moves) = primals, tangents
        theirs = (None if isinstance(x, SymbolicZero) else x for x in moves)
        operands, moves = Operands.of(e, given), Operands.of(e, [*theirs])
        tangents = _results_move(operands, moves, kept, e, params)
        return kept[: e.results], [*map(ad.instantiate_zeros, tangents)]

    restored.defjvp(jvp, symbolic_zeros=True)
    out: list[Any] = restored(kept, *given)
    return out


# Transposition


def _transpose_linear(
    bars: Sequence[Any], *given: Any, epilogue: Epilogue, **params: Any
) -> list[Any]:
    """Of the matmul itself: without activation it is linear in one of each term's factors."""
    e, operands = epilogue, Operands.of(epilogue, given)
    asked = asked_of(operands)
    terms = (
        (asked.lhs, asked.rhs, asked.alpha, asked.lhs_scale, asked.rhs_scale),
        (asked.c, asked.beta),
    )
    is_linear = all(sum(x is not None for x in factors) <= 1 for factors in terms)
    if e.activation is not None or e.gated or e.has_blocks or not is_linear:
        raise NotImplementedError(
            f"jaxbw: {e.describe('lhs @ rhs')} is not linear in what jax.linear_transpose is asked "
            "for; use jax.vjp"
        )
    lhs, rhs = (x if y is None else y for x, y in zip(operands[:2], asked, strict=False))
    known = Operands(*(None if ad.is_undefined_primal(x) else x for x in operands))
    found = cotangents_of(
        Kept(known, ()),
        asked,
        bars,
        epilogue=e,
        result=next(jax.typeof(x) for x in bars if or_none(x) is not None),
        ranks=ranks_of(lhs.ndim, rhs.ndim, params["dimension_numbers"]),
        **params,
    )
    return [bar for bar, x in zip(found, operands, strict=True) if x is not None]


ad.primitive_jvps[fused_dot_general_p] = _jvp
ad.primitive_transposes[fused_dot_general_p] = _transpose_linear
compat.register_remat_rule(fused_dot_general_p, _save, _restore)
