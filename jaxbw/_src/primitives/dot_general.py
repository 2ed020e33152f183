"""dot_general_p: lax.dot_general's parameters, and what may serve it: a kernel or XLA.

Bilinear, so that JAX derives jvp, vjp, hessian and linear_transpose from two transposition rules
(jax.custom_vjp would lose all but one of these). Its type, and with it sharding and varying axes,
is that of lax.dot_general. Which implementation serves it is settled when it is lowered.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from jaxbw._src import compat
from jaxbw._src.primitives import partitioning, serve
from jaxbw._src.primitives.gemm import gemm
from jaxbw._src.primitives.originals import read_in_place
from jaxbw._src.primitives.transposition import backward_params, kept, transposition
from jaxbw._src.problem import DimensionNumbers, Operands, Reduction, reduce_dot_general
from jaxbw._src.selection.choice import Choice
from jaxbw._src.selection.policy import FREE, Policy

dot_general_p = Primitive("jaxbw_dot_general")

_LAX_PARAMS = ("dimension_numbers", "precision", "preferred_element_type", "out_sharding")


def dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: DimensionNumbers,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    policy: Policy = FREE,
) -> Any:
    """Binds the primitive. Every argument is canonical already."""
    operands, dimension_numbers = read_in_place(
        Operands(lhs, rhs), dimension_numbers, policy.config
    )
    lhs, rhs = compat.insert_reshard(operands.lhs, operands.rhs)
    return dot_general_p.bind(
        lhs,
        rhs,
        dimension_numbers=dimension_numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
        policy=policy,
    )


def lax_params(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters that lax.dot_general has too."""
    return {name: params[name] for name in _LAX_PARAMS}


def _abstract_eval(lhs: Any, rhs: Any, **params: Any) -> Any:
    return compat.dot_general_type(lhs, rhs, lax_params(params))


# Differentiation


def transpose_rule(
    multiply: Callable[..., Any], of_rhs: bool, cotangent: Any, lhs: Any, rhs: Any, **params: Any
) -> Any:
    """The cotangent of lhs, or of rhs, by a function that binds the transposed matmul."""
    x, y = (rhs, lhs) if of_rhs else (lhs, rhs)
    ranks = (np.ndim(y), x.aval.ndim) if of_rhs else (x.aval.ndim, np.ndim(y))
    plan = transposition(ranks, params["dimension_numbers"], of_rhs=of_rhs)
    matmul = multiply(
        *plan.operands(cotangent, y),
        plan.dimension_numbers,
        out_sharding=plan.sharding(x.aval),
        **backward_params(params, plan),
    )
    return plan.result(matmul, x.aval)


ad.defbilinear(dot_general_p, *(partial(transpose_rule, dot_general, x) for x in (False, True)))


# Batching


def batched_dimension_numbers(
    ranks: tuple[int, int], batched: tuple[int | None, int | None], dims: DimensionNumbers
) -> tuple[DimensionNumbers, int]:
    """The dot_general that `vmap` makes of one, and where the new dimension is in its result.

    Two batched operands have it as a batch dimension; one alone keeps it as its own.

    Args:
      ranks: of the operands, with the new dimension.
      batched: the new dimension of each operand; None where it has none.
      dims: of the matmul without it.
    """
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dims
    lhs_new, rhs_new = batched
    lhs_contract, lhs_batch = _shifted(lhs_contract, lhs_new), _shifted(lhs_batch, lhs_new)
    rhs_contract, rhs_batch = _shifted(rhs_contract, rhs_new), _shifted(rhs_batch, rhs_new)
    lhs_kept = kept(ranks[0], lhs_contract, lhs_batch)
    if lhs_new is not None and rhs_new is not None:
        result = 0
        lhs_batch, rhs_batch = (lhs_new, *lhs_batch), (rhs_new, *rhs_batch)
    elif lhs_new is not None:
        result = len(lhs_batch) + lhs_kept.index(lhs_new)
    else:
        assert rhs_new is not None
        rhs_kept = kept(ranks[1], rhs_contract, rhs_batch)
        result = len(lhs_batch) + len(lhs_kept) + rhs_kept.index(rhs_new)
    return ((lhs_contract, rhs_contract), (lhs_batch, rhs_batch)), result


def _shifted(dims: tuple[int, ...], new: int | None) -> tuple[int, ...]:
    return tuple(dim + (new is not None and dim >= new) for dim in dims)


def _batch(axis_data: Any, operands: Any, batched: Any, **params: Any) -> Any:
    lhs, rhs = operands
    if all(axis is None for axis in batched):
        return dot_general(lhs, rhs, **params), None
    dims, result = batched_dimension_numbers(
        (np.ndim(lhs), np.ndim(rhs)), batched, params.pop("dimension_numbers")
    )
    params["out_sharding"] = compat.vmapped_sharding(axis_data, params["out_sharding"], result)
    return dot_general(lhs, rhs, dims, **params), result


batching.fancy_primitive_batchers[dot_general_p] = _batch


# Lowering


def reduction(
    operands: Sequence[Any], results: Sequence[Any], params: Mapping[str, Any]
) -> Reduction:
    """The matmul as one GEMM, of the types of its operands and results."""
    lhs, rhs = operands
    return reduce_dot_general(
        lhs, rhs, params["dimension_numbers"], results[0].dtype, precision=params["precision"]
    )


def lower(platform: str | None, ctx: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
    """The lowering rule, with the primitive's parameters."""

    def on_kernel(reduced: Reduction, choice: Choice) -> Any:
        return lambda lhs, rhs: gemm(reduced, choice, Operands(lhs, rhs))

    def on_xla(lhs: Any, rhs: Any) -> Any:
        return (compat.lax_dot_general(lhs, rhs, lax_params(params)),)

    return serve.lower(
        ctx,
        (lhs, rhs),
        partial(reduction, ctx.avals_in, ctx.avals_out, params),
        on_kernel,
        on_xla,
        partial(partitioning.lower, dot_general_p, params),
        platform=platform,
        policy=params["policy"],
    )


def _local(shards: Any, params: dict[str, Any], total: partitioning.Sum | None) -> Sequence[Any]:
    if total is None:
        return [dot_general(*shards, **params)]
    dtype = jax.eval_shape(partial(dot_general, **params), *shards).dtype
    is_float8 = dtype.itemsize == 1 and jnp.issubdtype(dtype, jnp.floating)
    if is_float8:  # too few bits for parts of a sum
        params = params | {"preferred_element_type": np.dtype(np.float32)}
    return [total(dot_general(*shards, **params)).astype(dtype)]


dot_general_p.def_effectful_abstract_eval(_abstract_eval)
serve.register(dot_general_p, lower)
partitioning.register(dot_general_p, _local)
compat.register_remat_rule(dot_general_p)
