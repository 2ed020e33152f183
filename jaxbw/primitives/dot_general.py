"""dot_general_p: lax.dot_general's parameters, and what may serve it: a kernel or XLA.

Bilinear, so that JAX derives jvp, vjp, hessian and linear_transpose from two transposition rules
(jax.custom_vjp would lose all but one of these). Its type, and with it sharding and varying axes,
is that of lax.dot_general. Which implementation serves it is settled when it is lowered.
"""

from functools import partial
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxbw import compat
from jaxbw.primitives import serve
from jaxbw.primitives.gemm import gemm
from jaxbw.problem import DimensionNumbers, Reduction, reduce_dot_general
from jaxbw.selection.config import GemmConfig

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
    implementation: tuple[str, ...] | None = None,
    config: GemmConfig | None = None,
    target: str | None = None,
) -> Any:
    """Binds the primitive. Every argument is canonical already."""
    lhs, rhs = compat.insert_reshard(lhs, rhs)
    return dot_general_p.bind(
        lhs,
        rhs,
        dimension_numbers=dimension_numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
        implementation=implementation,
        config=config,
        target=target,
    )


def lax_params(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters that lax.dot_general has too."""
    return {name: params[name] for name in _LAX_PARAMS}


def _abstract_eval(lhs: Any, rhs: Any, **params: Any) -> Any:
    return compat.dot_general_type(lhs, rhs, lax_params(params))


# Differentiation


def _transpose_lhs(cotangent: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = params.pop("dimension_numbers")
    dims = ((lhs_contract, rhs_contract), (lhs_batch, rhs_batch))
    return _transpose(cotangent, lhs.aval, rhs, dims, swapped=False, **params)


def _transpose_rhs(cotangent: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = params.pop("dimension_numbers")
    dims = ((rhs_contract, lhs_contract), (rhs_batch, lhs_batch))
    return _transpose(cotangent, rhs.aval, lhs, dims, swapped=True, **params)


def _transpose(
    cotangent: Any,
    x: Any,
    y: Any,
    dims: DimensionNumbers,
    *,
    swapped: bool,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: Any,
    implementation: tuple[str, ...] | None,
    config: GemmConfig | None,
    target: str | None,
) -> Any:
    """The cotangent of operand x, given operand y: a product of y and the result's cotangent.

    lax always multiplies cotangent by y, and transposes the product where that is not the order of
    x's dimensions. Here y by cotangent is the other candidate, so that each layout of a matrix
    product has two transposes that are written in place: the kernels read either operand in either
    major, while a transposed result would be a copy.

    Strictness ends here: the products of a cotangent of another dtype (of a float32 result of
    bfloat16 operands) are XLA's. A given configuration is for the product that it was given for.
    """
    del out_sharding, config  # of the product that is transposed
    (x_contract, y_contract), (x_batch, y_batch) = dims
    by_x = np.argsort(x_batch).tolist()  # batch dimensions come out in the order of x
    x_kept = _kept(x.ndim, x_contract, x_batch)
    y_kept = _kept(np.ndim(y), y_contract, y_batch)

    # The dimensions of the result: batch, then those kept of lhs and of rhs.
    first, second = (y_kept, x_kept) if swapped else (x_kept, y_kept)
    start = len(x_batch)
    middle = start + len(first)
    first_out = tuple(range(start, middle))
    second_out = tuple(range(middle, middle + len(second)))
    y_out = first_out if swapped else second_out

    x_contract_by_y = tuple(x_contract[i] for i in np.argsort(y_contract))
    batch_of_x = tuple(x_batch[i] for i in by_x)
    cotangent_first = (*batch_of_x, *x_kept, *x_contract_by_y)
    y_first = (*batch_of_x, *x_contract_by_y, *x_kept)

    cotangent_dims = (y_out, tuple(by_x))
    y_dims = (tuple(y_kept), tuple(y_batch[i] for i in by_x))
    if list(y_first) == sorted(y_first) and list(cotangent_first) != sorted(cotangent_first):
        operands, axes, (left, right) = (y, cotangent), y_first, (y_dims, cotangent_dims)
    else:
        operands, axes, (left, right) = (cotangent, y), cotangent_first, (cotangent_dims, y_dims)

    product = dot_general(
        *operands,
        ((left[0], right[0]), (left[1], right[1])),
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=compat.canonicalize_sharding(compat.permuted_sharding(x, axes), "dot_general"),
        implementation=_then_xla(implementation),
        target=target,
    )
    if list(axes) != sorted(axes):
        product = lax.transpose(product, np.argsort(axes).tolist())
    if product.dtype != x.dtype:
        product = compat.convert_element_type(product, x.dtype, x.weak_type)
    return product


def _kept(rank: int, *taken: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(i for i in range(rank) if not any(i in dims for dims in taken))


def _then_xla(implementation: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if implementation is None or "xla" in implementation:
        return implementation
    return (*implementation, "xla")


ad.defbilinear(dot_general_p, _transpose_lhs, _transpose_rhs)


# Batching


def batched_dimension_numbers(
    ranks: tuple[int, int], batched: tuple[int | None, int | None], dims: DimensionNumbers
) -> tuple[DimensionNumbers, int]:
    """The dot_general that `vmap` makes of one, and where the new dimension is in its result.

    Two batched operands have it as a batch dimension; one alone keeps it as its own.

    Args:
      ranks: of the operands, with the new dimension.
      batched: the new dimension of each operand; None where it has none.
      dims: of the product without it.
    """
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dims
    lhs_new, rhs_new = batched
    lhs_contract, lhs_batch = _shifted(lhs_contract, lhs_new), _shifted(lhs_batch, lhs_new)
    rhs_contract, rhs_batch = _shifted(rhs_contract, rhs_new), _shifted(rhs_batch, rhs_new)
    lhs_kept = _kept(ranks[0], lhs_contract, lhs_batch)
    if lhs_new is not None and rhs_new is not None:
        result = 0
        lhs_batch, rhs_batch = (lhs_new, *lhs_batch), (rhs_new, *rhs_batch)
    elif lhs_new is not None:
        result = len(lhs_batch) + lhs_kept.index(lhs_new)
    else:
        assert rhs_new is not None
        rhs_kept = _kept(ranks[1], rhs_contract, rhs_batch)
        result = len(lhs_batch) + len(lhs_kept) + rhs_kept.index(rhs_new)
    return ((lhs_contract, rhs_contract), (lhs_batch, rhs_batch)), result


def _shifted(dims: tuple[int, ...], new: int | None) -> tuple[int, ...]:
    return tuple(dim + (new is not None and dim >= new) for dim in dims)


def _batch(axis_data: Any, operands: Any, batched: Any, **params: Any) -> Any:
    lhs, rhs = operands
    if all(axis is None for axis in batched):
        return dot_general(lhs, rhs, **params), None
    dims, result = batched_dimension_numbers(
        (lhs.ndim, rhs.ndim), batched, params.pop("dimension_numbers")
    )
    params["out_sharding"] = compat.vmapped_sharding(axis_data, params["out_sharding"], result)
    return dot_general(lhs, rhs, dims, **params), result


batching.fancy_primitive_batchers[dot_general_p] = _batch


# Lowering


def _lower(platform: str | None, ctx: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
    def reduction() -> Reduction:
        (left, right), (output,) = ctx.avals_in, ctx.avals_out
        return reduce_dot_general(
            left, right, params["dimension_numbers"], output.dtype, precision=params["precision"]
        )

    def on_kernel(reduced: Reduction, choice: Any) -> Any:
        return lambda lhs, rhs: gemm(reduced, choice, lhs, rhs)

    def on_xla(lhs: Any, rhs: Any) -> Any:
        return compat.lax_dot_general(lhs, rhs, lax_params(params))

    return serve.lower(
        ctx,
        (lhs, rhs),
        reduction,
        on_kernel,
        on_xla,
        platform=platform,
        implementation=params["implementation"],
        config=params["config"],
        target=params["target"],
    )


dot_general_p.def_effectful_abstract_eval(_abstract_eval)
compat.apply_eagerly(dot_general_p)
mlir.register_lowering(dot_general_p, partial(_lower, None))
for _platform in ("cuda", "cpu"):
    mlir.register_lowering(dot_general_p, partial(_lower, _platform), platform=_platform)
