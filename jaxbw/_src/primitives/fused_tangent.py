"""fused_tangent_p: the tangent of a matmul with an epilogue, and its transposition.

It is one operation, linear in the operands' tangents. Forward mode lowers it to matmuls and XLA's
operations. Reverse mode transposes it as a whole: were it those operations from the start, reverse
mode would save what each of them needs, in float32, and not z.

Transposed, XLA computes the cotangents of z, u and bias (in float32, summed in a fixed order) from
that of d in one fusion, and the kernels multiply them: alpha is their epilogue's, and the two
matmuls of a gated one's lhs are added up in place, as beta * c. All of this is operations that
have derivatives of their own.

The cotangent of alpha, where that is an array, takes no matmul beside the one of lhs: as z is
linear in both, alpha times the one is lhs times the other. It is right for an alpha of 0, which a
division by alpha would not be. Those of scales take the matmul itself, once more.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Primitive
from jax.interpreters import ad, batching, mlir

from jaxbw._src import compat
from jaxbw._src.epilogue import ACTIVATIONS, Epilogue, Ranks, saved_dtype, scaled, wide_dtype
from jaxbw._src.primitives.dot_general import dot_general
from jaxbw._src.primitives.fused_dot_general import matmul
from jaxbw._src.primitives.transposition import backward_params, transposition
from jaxbw._src.problem import Operands

# XLA for GPUs sums up to 4,096 rows in one kernel, whose threads walk far: 4096 x 1152 take an H100
# 20.8 us, and 6.3 in two steps. More rows XLA divides by itself (benchmarks/NOTEBOOK.md).
_DIVIDED_ROWS = range(512, 4097)
_PARTS_OF_ROWS = (64, 48, 32, 24, 16)  # about the root of these

fused_tangent_p = Primitive("jaxbw_fused_tangent")
fused_tangent_p.multiple_results = True


def or_none(tangent: Any) -> Any:
    """A tangent; None for one that is zero."""
    return None if type(tangent) is ad.Zero else tangent


def of_some(
    function: Callable[..., Any], operands: Sequence[Any], numbers: Sequence[int]
) -> Callable[..., Any]:
    """The function of the operands of these numbers alone; the others are as given."""

    def of_those(*xs: Any) -> Any:
        given = [*operands]
        for i, x in zip(numbers, xs, strict=True):
            given[i] = x
        return function(*given)

    return of_those


class Kept(NamedTuple):
    """What the tangents depend on beside the operands' tangents; None for what they do not.

    Attributes:
      operands: those that a tangent is multiplied by.
      seen: what the activation's derivative is a function of: z, d, z and u, or nothing.
    """

    operands: Operands
    seen: Sequence[Any]


def tangents_of(kept: Kept, moves: Operands, **params: Any) -> Sequence[Any]:
    """The tangents of the results.

    Args:
      kept: more than is needed for the operands that move is left out.
      moves: the operands' tangents; None where there is none.
      params: those of the matmul, its epilogue, the type of its results, and its ranks.
    """
    x = kept.operands
    right = _first(moves.rhs, moves.rhs_up)
    scale = _first(moves.lhs_scale, moves.rhs_scale, moves.rhs_up_scale)
    factor = _first(moves.alpha, scale)
    by_left, by_right = _first(moves.lhs, factor), _first(right, factor)
    needed = Operands(
        None if by_right is None else x.lhs,
        None if by_left is None else x.rhs,
        None if by_left is None else x.rhs_up,
        c=None if moves.beta is None else x.c,
        alpha=None if _first(moves.lhs, right, scale) is None else x.alpha,
        beta=None if moves.c is None else x.beta,
    )
    if _first(by_left, right) is not None:
        needed = needed._replace(
            lhs_scale=x.lhs_scale, rhs_scale=x.rhs_scale, rhs_up_scale=x.rhs_up_scale
        )
    given, tree = jax.tree.flatten((Kept(needed, kept.seen), moves))
    tangents: Sequence[Any] = fused_tangent_p.bind(*given, tree=tree, **params)
    return tangents


def _first(*arrays: Any) -> Any:
    return next((x for x in arrays if x is not None), None)


def _formula(
    *given: Any, tree: Any, epilogue: Epilogue, result: Any, ranks: Ranks, **params: Any
) -> list[Any]:
    """The operation in terms of others: at most three matmuls for each right operand."""
    (x, seen), moves = jax.tree.unflatten(tree, given)
    e, wide = epilogue, wide_dtype(result.dtype)
    params.update(preferred_element_type=wide, policy=params["policy"].for_gradients)
    zero = ad.zeros_like_aval(result.update(dtype=wide))
    alpha, beta = x.factors(e)

    def of_matmul(right: str, scale: str) -> Any:
        rhs, rhs_moves = getattr(x, right), getattr(moves, right)
        scales, scale_moves = (x.lhs_scale, getattr(x, scale)), getattr(moves, scale)
        factors = ((moves.lhs, rhs), (x.lhs, rhs_moves))
        terms = [dot_general(x, y, **params) for x, y in factors if x is not None and y is not None]
        total = ranks.scaled(sum(terms, zero), *scales)
        total = total if alpha is None else scaled(alpha, total)
        if rhs is None or _first(moves.alpha, moves.lhs_scale, scale_moves) is None:
            return total
        matmul = dot_general(x.lhs, rhs, **params)
        if moves.alpha is not None:
            total += scaled(moves.alpha, ranks.scaled(matmul, *scales))
        if moves.lhs_scale is not None:
            total += scaled(alpha, ranks.scaled(matmul, moves.lhs_scale, scales[1]))
        if scale_moves is not None:
            total += scaled(alpha, ranks.scaled(matmul, scales[0], scale_moves))
        return total

    z = of_matmul("rhs", "rhs_scale")
    for factor, c in ((beta, moves.c), (moves.beta, x.c)):
        if factor is not None and c is not None:
            z += scaled(factor, c.astype(wide))
    if moves.bias is not None:
        z += ranks.spread(moves.bias, ranks.of_bias(e), wide)
    saved = (z, of_matmul("rhs_up", "rhs_up_scale")) if e.gated else (z,)
    d = _slope(e, [y.astype(wide) for y in seen], saved)
    if moves.residual is not None:
        d += moves.residual.astype(wide)
    saves = [y.astype(saved_dtype(result.dtype)) for y in saved]
    return [d.astype(result.dtype), *saves][: e.results]


def tangent_jaxpr(equation: JaxprEqn) -> Jaxpr:
    """What an equation of fused_tangent_p is lowered to."""
    operands = [x.aval for x in equation.invars]
    jaxpr: Jaxpr = jax.make_jaxpr(partial(_formula, **equation.params))(*operands).jaxpr
    return jaxpr


def outer(activation: str | None, z: Any, *u: Any) -> Any:
    """What comes between z, or z and u, and the residual."""
    d = ACTIVATIONS[activation](z)
    return d * u[0] if u else d


def _slope(epilogue: Epilogue, seen: Sequence[Any], moves: Sequence[Any]) -> Any:
    """The tangent of what comes there."""
    if not seen:
        return moves[0]
    return jax.jvp(partial(outer, epilogue.activation), tuple(seen), tuple(moves))[1]


def _jvp_of_tangent(
    primals: Sequence[Any], tangents: Sequence[Any], *, tree: Any, epilogue: Epilogue, **params: Any
) -> Any:
    """Linear in the operands' tangents, and in each of the operands; not in what is seen."""
    kept, moves = jax.tree.unflatten(tree, primals)
    kept_moves, moves_move = jax.tree.unflatten(tree, [or_none(x) for x in tangents])
    curves = any(x is not None for x in kept_moves.seen)
    e = epilogue
    if e.is_scaled:
        return _jvp_of_formula(primals, tangents, tree=tree, epilogue=e, **params)
    d, *saved = tangents_of(kept, moves, epilogue=e.saving() if curves else e, **params)
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
            tangent = tangents_of(Kept(those, kept.seen), move, epilogue=e, **params)
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


def _jvp_of_formula(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    """Where scales are factors, too, the second derivative is that of the operations."""
    moving = [i for i, x in enumerate(tangents) if or_none(x) is not None]
    formula = of_some(partial(_formula, **params), primals, moving)
    inputs, moves = ([xs[i] for i in moving] for xs in (primals, tangents))
    return fused_tangent_p.bind(*primals, **params), jax.jvp(formula, inputs, moves)[1]


def _transpose(bars: Sequence[Any], *given: Any, tree: Any, **params: Any) -> list[Any]:
    kept, moves = jax.tree.unflatten(tree, given)
    found = cotangents_of(kept, asked_of(moves), bars, **params)
    of_moves = [bar for bar, move in zip(found, moves, strict=True) if move is not None]
    return [None] * (len(given) - len(of_moves)) + of_moves


def asked_of(operands: Operands) -> Operands:
    """The types of those operands of which JAX asks the cotangent; None for the others."""
    return Operands(*(x.aval if ad.is_undefined_primal(x) else None for x in operands))


def cotangents_of(
    kept: Kept,
    asked: Operands,
    bars: Sequence[Any],
    *,
    epilogue: Epilogue,
    result: Any,
    ranks: Ranks,
    **params: Any,
) -> Operands:
    """The cotangents of operands, of those of the results; None for those that are not asked for.

    Args:
      kept, epilogue, result, ranks, params: as of `tangents_of`.
      asked: the types of the operands.
    """
    e, wide = epilogue, wide_dtype(result.dtype)
    if result.dtype.itemsize == 1:  # as d, a gradient would overflow to NaN
        params["preferred_element_type"] = saved_dtype(result.dtype)
    d_bar, *saved_bars = map(ad.instantiate_zeros, bars)
    wide_bars = [d_bar.astype(wide)]
    if kept.seen:
        _, pull_back = jax.vjp(partial(outer, e.activation), *(x.astype(wide) for x in kept.seen))
        wide_bars = pull_back(wide_bars[0])
    if saved_bars:
        wide_bars = [x + y.astype(wide) for x, y in zip(wide_bars, saved_bars, strict=True)]

    operands = kept.operands
    alpha_of_z, beta = operands.factors(e)
    lefts, rights = (operands.lhs,), (operands.rhs, operands.rhs_up)
    right_scales = operands.rhs_scale, operands.rhs_up_scale
    bars = [
        ranks.scaled(bar, operands.lhs_scale, scale).astype(saved_dtype(result.dtype))
        for bar, scale in zip(wide_bars, right_scales, strict=False)
    ]

    def operand_bar(
        x: Any,
        bars: Sequence[Any],
        others: Sequence[Any],
        *,
        of_rhs: bool,
        scales: bool = True,
    ) -> Any:
        """The sum of alpha * bar times the other operand; or without alpha, in the wide dtype."""
        if x is None:
            return None
        number, alpha = (e.alpha, operands.alpha) if scales else (1.0, None)
        factors = [pair for pair in zip(bars, others, strict=False) if pair[1] is not None]
        ranks = (factors[0][1].ndim, x.ndim) if of_rhs else (x.ndim, factors[0][1].ndim)
        plan = transposition(ranks, params["dimension_numbers"], of_rhs=of_rhs)
        keywords = {
            **backward_params(params, plan),
            "dimension_numbers": plan.dimension_numbers,
            "out_sharding": plan.sharding(x),
        }
        if not scales:
            keywords["preferred_element_type"] = wide
        total = None
        for bar, other in factors:
            summed = Epilogue(number, c=None if total is None else total.dtype)
            arrays = Operands(*plan.operands(bar, other), c=total, alpha=alpha)
            total = matmul(arrays, summed, keywords)
        return plan.result(total, x)

    def scale_bars() -> tuple[Any, Any, Any]:
        """Of the scales of rows, and of both operands' columns: by the matmul itself."""
        if _first(asked.lhs_scale, asked.rhs_scale, asked.rhs_up_scale) is None:
            return None, None, None
        keywords = {
            **params,
            "preferred_element_type": wide,
            "policy": params["policy"].for_gradients,
        }
        of_rows, of_columns = 0.0, [None, None]
        for i, (bar, scale) in enumerate(zip(wide_bars, right_scales, strict=False)):
            product = scaled(alpha_of_z, bar * dot_general(operands.lhs, rights[i], **keywords))
            of_rows += ranks.scaled(product, None, scale).sum(ranks.others(ranks.rows))
            by_rows = ranks.scaled(product, operands.lhs_scale, None)
            of_columns[i] = by_rows.sum(ranks.others(ranks.columns))
        scales = (asked.lhs_scale, asked.rhs_scale, asked.rhs_up_scale)
        found = zip(scales, (of_rows, *of_columns), strict=True)
        of_lhs, of_rhs, of_up = (None if x is None else _like(x, bar) for x, bar in found)
        return of_lhs, of_rhs, of_up

    z_bar = wide_bars[0]
    alpha_bar = None
    if asked.alpha is None:
        lhs_bar = operand_bar(asked.lhs, bars, rights, of_rhs=False)
    else:
        like_lhs = jax.typeof(operands.lhs).update(dtype=wide)
        unscaled = operand_bar(like_lhs, bars, rights, of_rhs=False, scales=False)
        alpha_bar = (unscaled * operands.lhs.astype(wide)).sum()
        lhs_bar = None if asked.lhs is None else _like(asked.lhs, scaled(operands.alpha, unscaled))
    return Operands(
        lhs_bar,
        operand_bar(asked.rhs, bars[:1], lefts, of_rhs=True),
        operand_bar(asked.rhs_up, bars[1:], lefts, of_rhs=True),
        None if asked.c is None else _like(asked.c, scaled(beta, z_bar)),
        None
        if asked.bias is None
        else _like(asked.bias, _sum_of_rows(z_bar, ranks.others(ranks.of_bias(e)))),
        None if asked.residual is None else _like(asked.residual, d_bar),
        None if alpha_bar is None else _like(asked.alpha, alpha_bar),
        None if asked.beta is None else _like(asked.beta, (z_bar * operands.c.astype(wide)).sum()),
        *scale_bars(),
    )


def _sum_of_rows(x: Any, axes: Sequence[int]) -> Any:
    """The sum over some dimensions: in two steps where XLA would be slow at it in one."""
    parts = _parts_of_rows(x, axes)
    if parts is None:
        return x.sum(axes)
    first, end = axes[0], axes[-1] + 1
    divided = x.reshape(*x.shape[:first], parts, -1, *x.shape[end:])
    # Without the barrier XLA makes one sum of both.
    return jax.lax.optimization_barrier(divided.sum(first + 1)).sum(first)


def _parts_of_rows(x: Any, axes: Sequence[int]) -> int | None:
    """None where they stay whole.

    Rows are neighbors above the last dimension, along which XLA is quick. Where a mesh divides them
    explicitly, a reshape would have to say what becomes of that.
    """
    are_rows = len(axes) > 0 and axes[-1] - axes[0] == len(axes) - 1 and axes[-1] < x.ndim - 1
    if not are_rows or any(jax.typeof(x).sharding.spec[axis] is not None for axis in axes):
        return None
    sizes = [x.shape[axis] for axis in axes]
    if not all(isinstance(size, int) for size in sizes) or math.prod(sizes) not in _DIVIDED_ROWS:
        return None
    return next((parts for parts in _PARTS_OF_ROWS if math.prod(sizes) % parts == 0), None)


def _like(x: Any, bar: Any) -> Any:
    """A cotangent of type x: in an explicit mesh an operand may be less divided than the result."""
    bar = bar.astype(x.dtype)
    return bar if jax.typeof(bar).sharding == x.sharding else jax.sharding.reshard(bar, x.sharding)


def _batch(given: Sequence[Any], axes: Sequence[Any], **params: Any) -> Any:
    tangents = jax.vmap(partial(_formula, **params), in_axes=tuple(axes))(*given)
    return tangents, [0] * len(tangents)


def _lower(ctx: Any, *given: Any, **params: Any) -> Any:
    with compat.without_error_checks():
        return mlir.lower_fun(partial(_formula, **params), multiple_results=True)(ctx, *given)


fused_tangent_p.def_abstract_eval(
    lambda *_, epilogue, result, **__: [
        result,
        *[result.update(dtype=saved_dtype(result.dtype))] * (epilogue.results - 1),
    ],
)
compat.apply_eagerly(fused_tangent_p)
mlir.register_lowering(fused_tangent_p, _lower)
ad.primitive_jvps[fused_tangent_p] = _jvp_of_tangent
ad.primitive_transposes[fused_tangent_p] = _transpose
batching.primitive_batchers[fused_tangent_p] = _batch
