"""A matmul with an epilogue: the primitive that computes it, and its derivative.

Forward it is one kernel, differentiated or not: where the derivative needs z = alpha * lhs @ rhs +
beta * c + bias (and u, of a gated matmul), the same kernel writes it beside d, in d's dtype.

- Without activation nothing is saved.
- "relu" without residual: the sign of d says where the derivative is 1.
- Else z.

What is saved has a name for `jax.checkpoint`'s policies: `checkpoint_policies.PREACTIVATION`.

The tangent is one operation, fused_tangent_p, linear in the operands' tangents. Forward mode lowers
it to matmuls and XLA's operations. Reverse mode transposes it as a whole: were it those operations
from the start, reverse mode would save what each of them needs, in float32, and not z.

Transposed, XLA computes the cotangents of z, u and bias (in float32, summed in a fixed order) from
that of d in one fusion, and the kernels multiply them: alpha is their epilogue's, and the two
matmuls of a gated one's lhs are added up in place, as beta * c. All of this is operations that
have derivatives of their own.

The cotangent of alpha, where that is an array, takes no matmul beside the one of lhs: as z is
linear in both, alpha times the one is lhs times the other. It is right for an alpha of 0, which a
division by alpha would not be.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Jaxpr, JaxprEqn, Primitive
from jax.interpreters import ad, batching, mlir

from jaxbw._src import compat
from jaxbw._src.epilogue import ACTIVATIONS, Epilogue, scaled, wide_dtype
from jaxbw._src.primitives.dot_general import dot_general
from jaxbw._src.primitives.fused_dot_general import (
    bias_dimensions,
    fused_dot_general,
    fused_dot_general_p,
)
from jaxbw._src.primitives.transposition import backward_params, transposition
from jaxbw._src.problem import Operands
from jaxbw.checkpoint_policies import PREACTIVATION

fused_tangent_p = Primitive("jaxbw_fused_tangent")
fused_tangent_p.multiple_results = True


def matmul(operands: Operands, epilogue: Epilogue, params: Mapping[str, Any]) -> Any:
    """d, of operands as `primitives.fused_dot_general` has them."""
    if epilogue.is_identity:
        return dot_general(operands.lhs, operands.rhs, **params)
    return fused_dot_general(operands, epilogue, **params)[0]


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, epilogue: Epilogue, **params: Any
) -> Any:
    operands = Operands.of(epilogue, primals)
    moves = Operands.of(epilogue, [_or_none(x) for x in tangents])
    e = epilogue
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
    if e.activation is None and not e.gated:
        return range(0)
    # relu has at its result the slope that it has at z.
    d_will_do = e.activation == "relu" and e.residual is None and not e.gated
    return range(1) if d_will_do else range(1, 2 + e.gated)


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
    seen = [results[i] for i in _sees(e)]
    ranks = operands.lhs.ndim, operands.rhs.ndim
    along = bias_dimensions(e, *ranks, params["dimension_numbers"])
    return _tangents(
        _Kept(operands, seen), moves, epilogue=e, result=jax.typeof(d), bias_along=along, **params
    )


def _or_none(tangent: Any) -> Any:
    return None if type(tangent) is ad.Zero else tangent


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


# The tangent


class _Kept(NamedTuple):
    """What the tangents depend on beside the operands' tangents; None for what they do not.

    Attributes:
      operands: those that a tangent is multiplied by.
      seen: what the activation's derivative is a function of: z, d, z and u, or nothing.
    """

    operands: Operands
    seen: Sequence[Any]


def _tangents(kept: _Kept, moves: Operands, **params: Any) -> Sequence[Any]:
    """The tangents of the results.

    Args:
      kept: more than is needed for the operands that move is left out.
      moves: the operands' tangents; None where there is none.
      params: those of the matmul, its epilogue, the type of its results, and the dimensions along
        which the bias lies.
    """
    x = kept.operands
    right = _first(moves.rhs, moves.rhs_up)
    by_left, by_right = _first(moves.lhs, moves.alpha), _first(right, moves.alpha)
    needed = Operands(
        None if by_right is None else x.lhs,
        None if by_left is None else x.rhs,
        None if by_left is None else x.rhs_up,
        c=None if moves.beta is None else x.c,
        alpha=None if _first(moves.lhs, right) is None else x.alpha,
        beta=None if moves.c is None else x.beta,
    )
    given, tree = jax.tree.flatten((_Kept(needed, kept.seen), moves))
    tangents: Sequence[Any] = fused_tangent_p.bind(*given, tree=tree, **params)
    return tangents


def _first(*arrays: Any) -> Any:
    return next((x for x in arrays if x is not None), None)


def _formula(
    *given: Any, tree: Any, epilogue: Epilogue, result: Any, bias_along: Any, **params: Any
) -> list[Any]:
    """The operation in terms of others: at most three matmuls for each right operand."""
    (x, seen), moves = jax.tree.unflatten(tree, given)
    e, wide = epilogue, wide_dtype(result.dtype)
    params.update(preferred_element_type=wide, policy=params["policy"].for_gradients)
    zero = ad.zeros_like_aval(result.update(dtype=wide))
    alpha, beta = x.factors(e)

    def of_matmul(right: Any, right_moves: Any) -> Any:
        factors = ((moves.lhs, right), (x.lhs, right_moves))
        terms = [dot_general(x, y, **params) for x, y in factors if x is not None and y is not None]
        total = sum(terms, zero) if alpha is None else scaled(alpha, sum(terms, zero))
        if moves.alpha is not None and right is not None:
            total += scaled(moves.alpha, dot_general(x.lhs, right, **params))
        return total

    z = of_matmul(x.rhs, moves.rhs)
    for factor, c in ((beta, moves.c), (moves.beta, x.c)):
        if factor is not None and c is not None:
            z += scaled(factor, c.astype(wide))
    if moves.bias is not None:
        others = [i for i in range(z.ndim) if i not in bias_along]
        z += lax.expand_dims(moves.bias.astype(wide), others)
    saved = (z, of_matmul(x.rhs_up, moves.rhs_up)) if e.gated else (z,)
    d = _slope(e, [y.astype(wide) for y in seen], saved)
    if moves.residual is not None:
        d += moves.residual.astype(wide)
    return [y.astype(result.dtype) for y in (d, *saved)][: e.results]


def tangent_jaxpr(equation: JaxprEqn) -> Jaxpr:
    """What an equation of fused_tangent_p is lowered to."""
    operands = [x.aval for x in equation.invars]
    jaxpr: Jaxpr = jax.make_jaxpr(partial(_formula, **equation.params))(*operands).jaxpr
    return jaxpr


def _outer(epilogue: Epilogue, z: Any, *u: Any) -> Any:
    """What comes between z, or z and u, and the residual."""
    d = ACTIVATIONS[epilogue.activation](z)
    return d * u[0] if u else d


def _slope(epilogue: Epilogue, seen: Sequence[Any], moves: Sequence[Any]) -> Any:
    """The tangent of what comes there."""
    if not seen:
        return moves[0]
    return jax.jvp(partial(_outer, epilogue), tuple(seen), tuple(moves))[1]


def _jvp_of_tangent(
    primals: Sequence[Any], tangents: Sequence[Any], *, tree: Any, epilogue: Epilogue, **params: Any
) -> Any:
    """Linear in the operands' tangents, and in each of the operands; not in what is seen."""
    kept, moves = jax.tree.unflatten(tree, primals)
    kept_moves, moves_move = jax.tree.unflatten(tree, [_or_none(x) for x in tangents])
    curves = any(x is not None for x in kept_moves.seen)
    e = epilogue
    d, *saved = _tangents(kept, moves, epilogue=e.saving() if curves else e, **params)
    results = [d, *saved][: e.results]

    sums: list[Any] = [ad.Zero(jax.typeof(x)) for x in results]
    x, x_moves = kept.operands, kept_moves.operands
    terms = [(x, moves_move), (moves._replace(alpha=x.alpha), x_moves._replace(alpha=None))]
    if moves.alpha is not None:
        terms.append((x._replace(alpha=moves.alpha), Operands(*x_moves[:3])))
    if x_moves.alpha is not None:
        alone = Operands(None, None, alpha=x_moves.alpha)
        by_lhs, by_rhs = (moves.lhs, *x[1:3]), (x.lhs, *moves[1:3])
        terms += [
            (Operands(*y), alone) for y in (by_lhs, by_rhs) if None not in (y[0], _first(*y[1:]))
        ]
    for those, move in terms:
        if move.given():
            tangent = _tangents(_Kept(those, kept.seen), move, epilogue=e, **params)
            sums = list(map(ad.add_tangents, sums, tangent))
    if curves:
        wide = wide_dtype(d.dtype)
        by = [x.astype(wide) for x in saved]
        seen = [x.astype(wide) for x in kept.seen]
        seen_moves = [
            jnp.zeros_like(x) if move is None else move.astype(wide)
            for x, move in zip(seen, kept_moves.seen, strict=True)
        ]
        _, curve = jax.jvp(lambda *seen: _slope(e, seen, by), seen, seen_moves)
        sums[0] = ad.add_tangents(sums[0], curve.astype(d.dtype))
    return results, sums


def _transpose(bars: Sequence[Any], *given: Any, tree: Any, **params: Any) -> list[Any]:
    kept, moves = jax.tree.unflatten(tree, given)
    found = _cotangents(kept, _asked(moves), bars, **params)
    of_moves = [bar for bar, move in zip(found, moves, strict=True) if move is not None]
    return [None] * (len(given) - len(of_moves)) + of_moves


def _asked(operands: Operands) -> Operands:
    """The types of those operands of which JAX asks the cotangent; None for the others."""
    return Operands(*(x.aval if ad.is_undefined_primal(x) else None for x in operands))


def _cotangents(
    kept: _Kept,
    asked: Operands,
    bars: Sequence[Any],
    *,
    epilogue: Epilogue,
    result: Any,
    bias_along: tuple[int, ...],
    **params: Any,
) -> Operands:
    """The cotangents of operands, of those of the results; None for those that are not asked for.

    Args:
      kept, epilogue, result, bias_along, params: as of `_tangents`.
      asked: the types of the operands.
    """
    e, wide = epilogue, wide_dtype(result.dtype)
    d_bar, *saved_bars = map(ad.instantiate_zeros, bars)
    wide_bars = [d_bar.astype(wide)]
    if kept.seen:
        _, pull_back = jax.vjp(partial(_outer, e), *(x.astype(wide) for x in kept.seen))
        wide_bars = pull_back(wide_bars[0])
    if saved_bars:
        wide_bars = [x + y.astype(wide) for x, y in zip(wide_bars, saved_bars, strict=True)]
    bars = [x.astype(result.dtype) for x in wide_bars]

    operands = kept.operands
    _, beta = operands.factors(e)

    def operand_bar(
        x: Any,
        bars: Sequence[Any],
        others: Sequence[Any],
        *,
        of_rhs: bool,
        number: float | None = e.alpha,
        alpha: Any = operands.alpha,
    ) -> Any:
        """The sum of alpha * bar times the other operand."""
        if x is None:
            return None
        factors = [pair for pair in zip(bars, others, strict=False) if pair[1] is not None]
        ranks = (factors[0][1].ndim, x.ndim) if of_rhs else (x.ndim, factors[0][1].ndim)
        plan = transposition(ranks, params["dimension_numbers"], of_rhs=of_rhs)
        keywords = {
            **backward_params(params, plan),
            "dimension_numbers": plan.dimension_numbers,
            "out_sharding": plan.sharding(x),
        }
        total = None
        for bar, other in factors:
            summed = Epilogue(number, c=None if total is None else total.dtype)
            arrays = Operands(*plan.operands(bar, other), c=total, alpha=alpha)
            total = matmul(arrays, summed, keywords)
        return plan.result(total, x)

    z_bar, others = wide_bars[0], tuple(i for i in range(result.ndim) if i not in bias_along)
    lefts, rights = (operands.lhs,), (operands.rhs, operands.rhs_up)
    alpha_bar = None
    if asked.alpha is None:
        lhs_bar = operand_bar(asked.lhs, bars, rights, of_rhs=False)
    else:
        params["preferred_element_type"] = wide
        like_lhs = jax.typeof(operands.lhs).update(dtype=wide)
        unscaled = operand_bar(like_lhs, bars, rights, of_rhs=False, number=1.0, alpha=None)
        alpha_bar = (unscaled * operands.lhs.astype(wide)).sum()
        lhs_bar = None if asked.lhs is None else _like(asked.lhs, scaled(operands.alpha, unscaled))
    return Operands(
        lhs_bar,
        operand_bar(asked.rhs, bars[:1], lefts, of_rhs=True),
        operand_bar(asked.rhs_up, bars[1:], lefts, of_rhs=True),
        None if asked.c is None else _like(asked.c, scaled(beta, z_bar)),
        None if asked.bias is None else _like(asked.bias, z_bar.sum(axis=others)),
        None if asked.residual is None else _like(asked.residual, d_bar),
        None if alpha_bar is None else _like(asked.alpha, alpha_bar),
        None if asked.beta is None else _like(asked.beta, (z_bar * operands.c.astype(wide)).sum()),
    )


def _like(x: Any, bar: Any) -> Any:
    """A cotangent of type x: in an explicit mesh an operand may be less divided than the result."""
    bar = bar.astype(x.dtype)
    return bar if jax.typeof(bar).sharding == x.sharding else jax.sharding.reshard(bar, x.sharding)


def _transpose_linear(
    bars: Sequence[Any], *given: Any, epilogue: Epilogue, **params: Any
) -> list[Any]:
    """Of the matmul itself: without activation it is linear in one of each term's factors."""
    e, operands = epilogue, Operands.of(epilogue, given)
    asked = _asked(operands)
    terms = (asked.lhs, asked.rhs, asked.alpha), (asked.c, asked.beta)
    is_linear = all(sum(x is not None for x in factors) <= 1 for factors in terms)
    if e.activation is not None or e.gated or not is_linear:
        raise NotImplementedError(
            f"jaxbw: {e.describe('lhs @ rhs')} is not linear in what jax.linear_transpose is asked "
            "for; use jax.vjp"
        )
    lhs, rhs = (x if y is None else y for x, y in zip(operands[:2], asked, strict=False))
    found = _cotangents(
        _Kept(operands, ()),
        asked,
        bars,
        epilogue=e,
        result=next(jax.typeof(x) for x in bars if _or_none(x) is not None),
        bias_along=bias_dimensions(e, lhs.ndim, rhs.ndim, params["dimension_numbers"]),
        **params,
    )
    return [bar for bar, x in zip(found, operands, strict=True) if x is not None]


def _batch(given: Sequence[Any], axes: Sequence[Any], **params: Any) -> Any:
    tangents = jax.vmap(partial(_formula, **params), in_axes=tuple(axes))(*given)
    return tangents, [0] * len(tangents)


def _lower(ctx: Any, *given: Any, **params: Any) -> Any:
    with compat.without_error_checks():
        return mlir.lower_fun(partial(_formula, **params), multiple_results=True)(ctx, *given)


ad.primitive_jvps[fused_dot_general_p] = _jvp
ad.primitive_transposes[fused_dot_general_p] = _transpose_linear
compat.register_remat_rule(fused_dot_general_p, _save, _restore)

fused_tangent_p.def_abstract_eval(
    lambda *_, epilogue, result, **__: [result] * epilogue.results,
)
compat.apply_eagerly(fused_tangent_p)
mlir.register_lowering(fused_tangent_p, _lower)
ad.primitive_jvps[fused_tangent_p] = _jvp_of_tangent
ad.primitive_transposes[fused_tangent_p] = _transpose
batching.primitive_batchers[fused_tangent_p] = _batch
