"""ragged_fused_p: a grouped matmul with an epilogue, one kernel where there is one for it.

    rows fall into groups:          out[b, r] = activation(z) (* u, of a gated matmul)
                                    z = alpha * lhs[b, r] @ rhs[b, group of r] + bias[b, group of r]
                                    u = alpha * lhs[b, r] @ rhs_up[b, group of r]
                                    both times lhs_scale[b, r] and rhs_scale[b, group of r]
                                    or lhs and rhs have the scales of block-scaled formats
    the contraction does:           out[b, g] = c[b, g] + alpha * lhs[b, rows of g]^T @ rhs[...]

`formula` says the same in grouped matmuls and XLA's operations: it is what is computed where no
kernel takes the epilogue, under `vmap`, and whenever JAX asks for a derivative, which needs z.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from jaxbw._src import compat, log
from jaxbw._src.epilogue import ACTIVATIONS, Epilogue, scaled, wide_dtype
from jaxbw._src.primitives import serve
from jaxbw._src.primitives.fused_tangent import of_some
from jaxbw._src.primitives.ragged_dot import (
    OPERANDS,
    choice_of,
    lower_kernel,
    output_shape,
    problem_of,
    ragged_dot,
)
from jaxbw._src.ragged import RaggedProblem
from jaxbw._src.selection.choice import Refusal
from jaxbw._src.selection.policy import Policy

ragged_fused_p = Primitive("jaxbw_ragged_fused")
EXACT = np.dtype("bfloat16")  # holds data of every block-scaled format times their scales


def ragged_fused(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    group_offset: Any,
    *,
    epilogue: Epilogue,
    terms: dict[str, Any],
    **params: Any,
) -> Any:
    """Binds the primitive.

    Args:
      lhs, rhs, group_sizes, group_offset, params: as of `ragged_dot`.
      epilogue: which terms there are, their dtypes, a known alpha, and the activation.
      terms: "rhs_up" is as rhs, of a gated matmul; "c" is shaped as the result; "bias" is
        `[batch or 1, groups, n]`, as are "rhs_scale" and "rhs_up_scale", which a gated matmul has
        both; "lhs_scale" is `[batch or 1, m]`. Scales are float32. "lhs_tiles", "rhs_tiles" and
        "rhs_up_tiles" are the scales of block-scaled formats, `[batch or 1, (groups,) row tiles, k
        tiles, 512]`, of an rhs that is transposed.
    """
    compat.register_float_check(ragged_fused_p)
    given = [terms[name] for name in term_names(epilogue)]
    operands = compat.insert_reshard(lhs, rhs, group_sizes, group_offset, *given)
    result: Any = ragged_fused_p.bind(*operands, epilogue=epilogue, **params)
    return result


def formula(*operands: Any, epilogue: Epilogue, output: Any, **params: Any) -> Any:
    """The same by grouped matmuls, each of `wide_dtype`, and XLA's operations."""
    e, wide = epilogue, wide_dtype(output)
    lhs, rhs, *sizes = operands[:OPERANDS]
    terms = dict(zip(term_names(e), operands[OPERANDS:], strict=True))
    if e.formats:
        from jaxbw._src.primitives import dequantized  # wanted by few

        lhs = dequantized.of_format(e.lhs_format, lhs, terms["lhs_tiles"], EXACT)
        rhs = dequantized.of_format(e.rhs_format, rhs, terms["rhs_tiles"], EXACT)
        if e.gated:
            up, tiles = terms["rhs_up"], terms["rhs_up_tiles"]
            terms["rhs_up"] = dequantized.of_format(e.rhs_format, up, tiles, EXACT)
        params["precision"] = dequantized.precision_of(params["precision"])

    def of_groups(name: str) -> Any:
        ones = jnp.ones((1, lhs.shape[1], 1), wide)
        return _outer(ones, terms[name].astype(wide)[:, :, None], sizes)

    def times(right: Any, scale: str) -> Any:
        product = ragged_dot(lhs, right, *sizes, output=wide, **params)
        if e.lhs_scale:  # of rows that have a group
            ones = jnp.ones((1, params["groups"], 1, 1), wide)
            product = product * _outer(terms["lhs_scale"].astype(wide)[:, :, None], ones, sizes)
        if e.rhs_scale:
            product = product * of_groups(scale)
        return scaled(e.alpha, product)

    z = times(rhs, "rhs_scale")
    if "c" in terms:
        z = z + terms["c"].astype(wide)
    if "bias" in terms:
        z = z + of_groups("bias")
    d = ACTIVATIONS[e.activation](z)
    if e.gated:
        d = d * times(terms["rhs_up"], "rhs_up_scale")
    return d.astype(output)


def term_names(epilogue: Epilogue) -> list[str]:
    """Those of the operands behind those of the matmul."""
    e = epilogue
    named = {"rhs_up": e.gated, "c": e.c is not None, "bias": e.bias is not None}
    named |= {"lhs_scale": e.lhs_scale, "rhs_scale": e.rhs_scale}
    named["rhs_up_scale"] = e.rhs_scale and e.gated
    named |= {"lhs_tiles": e.lhs_format is not None, "rhs_tiles": e.rhs_format is not None}
    named["rhs_up_tiles"] = e.rhs_format is not None and e.gated
    return [name for name, is_there in named.items() if is_there]


def _outer(of_rows: Any, of_groups: Any, sizes: Any) -> Any:
    """[batch, m, n] of what each row has, [.., m, 1], times what its group has, [.., g, 1, n].

    As a matmul, so that its derivative is one, too.
    """
    return ragged_dot(
        *(of_rows, of_groups, *sizes),
        ragged_contraction=False,
        groups=of_groups.shape[1],
        output=of_rows.dtype,
        policy=Policy(("xla",)),
    )


def _abstract_eval(lhs: Any, rhs: Any, group_sizes: Any, *_: Any, **params: Any) -> Any:
    shape = output_shape(lhs, rhs, group_sizes, params)
    return lhs.update(shape=shape, dtype=params["output"], weak_type=False)


# Transformations: those of the formula.


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    moving = [i for i, x in enumerate(tangents) if i not in (2, 3) and type(x) is not ad.Zero]
    if not moving:
        out = ragged_fused_p.bind(*primals, **params)
        return out, ad.Zero(jax.typeof(out))
    at, along = ([xs[i] for i in moving] for xs in (primals, tangents))
    return jax.jvp(of_some(partial(formula, **params), primals, moving), at, along)


def linear_transpose(function: Callable[..., Any], cotangent: Any, operands: Any) -> Any:
    """The cotangents of a function's operands, of those that it is linear in, as JAX marks them."""
    asked = [i for i, x in enumerate(operands) if ad.is_undefined_primal(x)]
    bars: list[Any] = [None] * len(operands)
    if type(cotangent) is ad.Zero:
        return bars
    types = [jax.ShapeDtypeStruct(operands[i].aval.shape, operands[i].aval.dtype) for i in asked]
    transposed = jax.linear_transpose(of_some(function, operands, asked), *types)
    for i, bar in zip(asked, transposed(cotangent), strict=True):
        bars[i] = bar
    return bars


def register(
    primitive: Primitive,
    *,
    abstract_eval: Callable[..., Any],
    jvp: Callable[..., Any],
    apart: Callable[..., Any],
    problem: Callable[..., RaggedProblem],
    how: str,
) -> None:
    """Says what becomes of a grouped matmul that is more than `ragged_dot_p`.

    Args:
      primitive: with the parameters of `ragged_dot_p`, and an epilogue.
      abstract_eval, jvp: its rules.
      apart: what says the same in other primitives: under `vmap`, of which cotangents are, and
        where no kernel takes it.
      problem: of the operands' types, the epilogue and the parameters, for the selection.
      how: the log's words where it is computed apart.
    """

    def transpose(cotangent: Any, *operands: Any, **params: Any) -> Any:
        return linear_transpose(partial(apart, **params), cotangent, operands)

    def batch(operands: Any, dims: Any, **params: Any) -> Any:
        return jax.vmap(partial(apart, **params), in_axes=tuple(dims))(*operands), 0

    def lower(
        platform: str | None, ctx: Any, *operands: Any, epilogue: Epilogue, **params: Any
    ) -> Any:
        asked = problem(ctx.avals_in, epilogue, params)
        choice = choice_of(platform, ctx, asked, params)
        if isinstance(choice, Refusal):
            log.once(lambda: f"{asked}: {how}: {choice.reason}")
            return compat.lower_unplaced(partial(apart, epilogue=epilogue, **params), ctx, operands)
        return lower_kernel(asked, choice, ctx, operands)

    primitive.def_abstract_eval(abstract_eval)
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = batch
    serve.register(primitive, lower)
    compat.register_remat_rule(primitive)


def _problem_of(operands: Any, epilogue: Epilogue, params: Any) -> RaggedProblem:
    return problem_of(operands[:OPERANDS], params, epilogue)


register(
    ragged_fused_p,
    abstract_eval=_abstract_eval,
    jvp=_jvp,
    apart=formula,
    problem=_problem_of,
    how="apart",
)
