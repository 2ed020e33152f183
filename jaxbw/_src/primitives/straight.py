"""straight_p: a linear function whose transpose is given, beside the one that JAX would derive.

The derivative of a quantized matmul is that of the matmul, straight through the rounding; and its
transpose multiplies a cotangent that is quantized in turn. So neither is a derivative of the other
by rules. `jax.custom_derivatives.linear_call` is the same without `jax.vmap`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxbw._src import compat

straight_p = Primitive("jaxbw_straight")


class Rule(Protocol):
    """Two linear functions, each the other's transpose but for roundings; hashable."""

    def tangent(self, residuals: Any, moves: Sequence[Any]) -> Any:
        """That of the result. Of the operands' tangents some may be None."""

    def cotangents(self, residuals: Any, bar: Any, moving: Sequence[bool]) -> Sequence[Any]:
        """Those of the operands that move; None for the others."""


def straight(rule: Rule, residuals: Any, moves: Sequence[Any]) -> Any:
    """Binds the primitive: the tangent of a result.

    Args:
      rule: the two functions.
      residuals: a tree of arrays that they read.
      moves: the operands' tangents; None for those that are zero.
    """
    given, tree = jax.tree.flatten(residuals)
    moving = tuple(x is not None for x in moves)
    there = [x for x in moves if x is not None]
    return straight_p.bind(*given, *there, rule=rule, tree=tree, moving=moving)


def _parts(given: Sequence[Any], tree: Any, moving: Sequence[bool]) -> tuple[Any, list[Any]]:
    """Residuals, and tangents."""
    count: int = tree.num_leaves
    there = iter(given[count:])
    moves = [next(there) if is_there else None for is_there in moving]
    return jax.tree.unflatten(tree, given[:count]), moves


def _tangent(*given: Any, rule: Rule, tree: Any, moving: tuple[bool, ...]) -> Any:
    return rule.tangent(*_parts(given, tree, moving))


def _abstract_eval(*given: Any, **params: Any) -> Any:
    jaxpr = jax.make_jaxpr(lambda *given: _tangent(*given, **params))(*given)
    return jaxpr.out_avals[0]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, tree: Any, **params: Any) -> Any:
    count = tree.num_leaves
    if any(type(x) is not ad.Zero for x in tangents[:count]):
        raise TypeError("jaxbw: a block-scaled matmul has first derivatives only")
    result = straight_p.bind(*primals, tree=tree, **params)
    if all(type(x) is ad.Zero for x in tangents):
        return result, ad.Zero(jax.typeof(result))
    moves = [ad.instantiate_zeros(x) for x in tangents[count:]]
    return result, straight_p.bind(*primals[:count], *moves, tree=tree, **params)


def _transpose(bar: Any, *given: Any, rule: Rule, tree: Any, moving: tuple[bool, ...]) -> Any:
    count = tree.num_leaves
    if type(bar) is ad.Zero:
        return [None] * len(given)
    residuals = jax.tree.unflatten(tree, given[:count])
    found = [x for x in rule.cotangents(residuals, bar, moving) if x is not None]
    asked = given[count:]
    return [None] * count + [
        bar if ad.is_undefined_primal(x) else None for bar, x in zip(found, asked, strict=True)
    ]


# Batching


@dataclass(frozen=True)
class _Vmapped:
    """A rule for each index of the first dimension of result and tangents."""

    rule: Rule
    axes: tuple[int | None, ...]  # of the residuals

    def tangent(self, residuals: Any, moves: Sequence[Any]) -> Any:
        given, tree = jax.tree.flatten(residuals)

        def one(given: Any, moves: Any) -> Any:
            return self.rule.tangent(jax.tree.unflatten(tree, given), moves)

        return jax.vmap(one, (list(self.axes), 0))(given, list(moves))

    def cotangents(self, residuals: Any, bar: Any, moving: Sequence[bool]) -> Sequence[Any]:
        given, tree = jax.tree.flatten(residuals)

        def one(given: Any, bar: Any) -> Any:
            return self.rule.cotangents(jax.tree.unflatten(tree, given), bar, moving)

        found: Sequence[Any] = jax.vmap(one, (list(self.axes), 0))(given, bar)
        return found


def _batch(
    axis_data: Any,
    given: Sequence[Any],
    axes: Sequence[Any],
    *,
    rule: Rule,
    tree: Any,
    **params: Any,
) -> Any:
    count = tree.num_leaves
    moves = [
        jnp.broadcast_to(x, (axis_data.size, *x.shape))
        if axis is None
        else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(given[count:], axes[count:], strict=True)
    ]
    vmapped = _Vmapped(rule, tuple(axes[:count]))
    return straight_p.bind(*given[:count], *moves, rule=vmapped, tree=tree, **params), 0


def _lower(ctx: Any, *given: Any, **params: Any) -> Any:
    with compat.without_error_checks():
        lowered = mlir.lower_fun(lambda *given: _tangent(*given, **params), multiple_results=False)
        return lowered(ctx, *given)


straight_p.def_abstract_eval(_abstract_eval)
compat.apply_eagerly(straight_p)
mlir.register_lowering(straight_p, _lower)
ad.primitive_jvps[straight_p] = _jvp
ad.primitive_transposes[straight_p] = _transpose
batching.fancy_primitive_batchers[straight_p] = _batch
