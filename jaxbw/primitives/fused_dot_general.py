"""fused_dot_general_p: activation(dot_general(lhs, rhs) + bias) in one kernel, where one fits.

Like dot_general_p it stands for the operation until it is lowered; then it is one launch, or
XLA's operations by the same formula: float32 up to the cast. It is not differentiable: fused.py
says how the operation is.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from jaxbw import compat
from jaxbw.primitives import serve
from jaxbw.primitives.dot_general import batched_dimension_numbers, lax_params
from jaxbw.primitives.dot_general import dot_general as product
from jaxbw.primitives.gemm import gemm
from jaxbw.problem import DimensionNumbers, Reduction, reduce_dot_general
from jaxbw.selection.config import GemmConfig

fused_dot_general_p = Primitive("jaxbw_fused_dot_general")

# By name, as the kernels' epilogue has them. "gelu" is jax.nn.gelu's default, with tanh.
ACTIVATIONS: dict[str | None, Callable[[Any], Any]] = {
    None: lambda x: x,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
}


def fused_dot_general(
    lhs: Any,
    rhs: Any,
    bias: Any,
    dimension_numbers: DimensionNumbers,
    *,
    activation: str | None,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: Any,
    implementation: tuple[str, ...] | None,
    config: GemmConfig | None,
    target: str | None,
) -> Any:
    """Binds the primitive. `bias` is [n], n being the last dimension of the result, or None."""
    operands = (lhs, rhs) if bias is None else (lhs, rhs, bias)
    return fused_dot_general_p.bind(
        *compat.insert_reshard(*operands),
        dimension_numbers=dimension_numbers,
        activation=activation,
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
        implementation=implementation,
        config=config,
        target=target,
    )


def wide_dtype(dtype: Any) -> Any:
    """The dtype of everything before the final cast: float32, or float64 where the result is."""
    return jnp.promote_types(dtype, jnp.float32)


def _formula(lhs: Any, rhs: Any, bias: Any, multiply: Callable[..., Any], **params: Any) -> Any:
    """The operation in XLA's terms, over a product that gives the wide dtype."""
    activation = params.pop("activation")
    output, _ = compat.dot_general_type(jax.typeof(lhs), jax.typeof(rhs), lax_params(params))
    params["preferred_element_type"] = wide_dtype(output.dtype)
    z = multiply(lhs, rhs, params)
    if bias is not None:
        z = z + bias.astype(z.dtype)
    return ACTIVATIONS[activation](z).astype(output.dtype)


def _abstract_eval(lhs: Any, rhs: Any, *_: Any, **params: Any) -> Any:
    return compat.dot_general_type(lhs, rhs, lax_params(params))


def _batch(axis_data: Any, operands: Any, batched: Any, **params: Any) -> Any:
    lhs, rhs, *rest = operands
    bias = rest[0] if rest else None
    if all(axis is None for axis in batched):
        return fused_dot_general(lhs, rhs, bias, **params), None
    bias_batched = bool(rest) and batched[2] is not None
    # The bias runs along one dimension of one rhs. Where vmap adds to either, the product and the
    # epilogue part.
    if bias_batched or (batched[0] is None and bias is not None):

        def apart(lhs: Any, rhs: Any, *rest: Any) -> Any:
            def multiply(lhs: Any, rhs: Any, params: dict[str, Any]) -> Any:
                return product(lhs, rhs, **params)

            return _formula(lhs, rhs, rest[0] if rest else None, multiply, **params)

        return jax.vmap(apart, in_axes=tuple(batched))(*operands), 0

    dims, result = batched_dimension_numbers(
        (lhs.ndim, rhs.ndim), tuple(batched[:2]), params.pop("dimension_numbers")
    )
    params["out_sharding"] = compat.vmapped_sharding(axis_data, params["out_sharding"], result)
    return fused_dot_general(lhs, rhs, bias, dims, **params), result


batching.fancy_primitive_batchers[fused_dot_general_p] = _batch


def _on_xla(params: dict[str, Any]) -> Callable[..., Any]:
    formula = {**lax_params(params), "activation": params["activation"]}

    def multiply(lhs: Any, rhs: Any, params: dict[str, Any]) -> Any:
        return compat.lax_dot_general(lhs, rhs, params)

    return lambda lhs, rhs, bias=None: _formula(lhs, rhs, bias, multiply, **formula)


def _lower(platform: str | None, ctx: Any, *operands: Any, **params: Any) -> Any:
    def reduction() -> Reduction:
        lhs, rhs, *bias = ctx.avals_in
        (output,) = ctx.avals_out
        return reduce_dot_general(
            lhs,
            rhs,
            params["dimension_numbers"],
            output.dtype,
            precision=params["precision"],
            bias=bias[0].dtype if bias else None,
            activation=params["activation"],
        )

    def on_kernel(reduced: Reduction, choice: Any) -> Any:
        def fused(lhs: Any, rhs: Any, bias: Any = None) -> Any:
            n = reduced.problem.n
            if bias is not None and bias.shape[0] != n:  # several dimensions of rhs make up n
                bias = lax.reshape(jnp.broadcast_to(bias, (n // bias.shape[0], *bias.shape)), (n,))
            return gemm(reduced, choice, lhs, rhs, bias)

        return fused

    return serve.lower(
        ctx,
        operands,
        reduction,
        on_kernel,
        _on_xla(params),
        platform=platform,
        implementation=params["implementation"],
        config=params["config"],
        target=params["target"],
    )


fused_dot_general_p.def_effectful_abstract_eval(_abstract_eval)
compat.apply_eagerly(fused_dot_general_p)
mlir.register_lowering(fused_dot_general_p, partial(_lower, None))
for _platform in ("cuda", "cpu"):
    mlir.register_lowering(fused_dot_general_p, partial(_lower, _platform), platform=_platform)
