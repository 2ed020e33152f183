"""activation(lhs @ rhs + bias) with its derivative, by jax.custom_vjp.

Not differentiated, it is one kernel. For its gradient:

- without activation, the forward pass is that kernel;
- "relu": the kernel, too; the sign of its output says where the gradient passes;
- "gelu", "silu": the kernel computes z = lhs @ rhs + bias in the result's dtype, which is saved,
  and XLA applies the activation to z. So the result may differ from the undifferentiated one by
  the rounding of z.

The backward products are those of dot_general_p, on kernels of the other layouts. Like every
jax.custom_vjp it has no forward-mode derivative.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax

from jaxbw.primitives.dot_general import dot_general
from jaxbw.primitives.fused_dot_general import ACTIVATIONS, fused_dot_general, wide_dtype


def matmul(lhs: Any, rhs: Any, bias: Any, activation: str | None, params: Mapping[str, Any]) -> Any:
    """The fused operation.

    Args:
      lhs, rhs: the operands of a dot_general.
      bias: [n] for the last dimension of its result; None for none.
      activation: a name in `ACTIVATIONS`.
      params: the other parameters of `primitives.dot_general.dot_general`.
    """
    return _fused((activation, tuple(params.items())), lhs, rhs, bias)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fused(static: Any, lhs: Any, rhs: Any, bias: Any) -> Any:
    activation, params = static
    return fused_dot_general(lhs, rhs, bias, activation=activation, **dict(params))


def _forward(static: Any, lhs: Any, rhs: Any, bias: Any) -> Any:
    activation, params = static
    if activation in (None, "relu"):
        out = _fused(static, lhs, rhs, bias)
        return out, (lhs, rhs, bias, out if activation == "relu" else None)
    z = _fused((None, params), lhs, rhs, bias)
    out = ACTIVATIONS[activation](z.astype(wide_dtype(z.dtype))).astype(z.dtype)
    return out, (lhs, rhs, bias, z)


def _backward(static: Any, residuals: Any, cotangent: Any) -> Any:
    activation, params = static
    lhs, rhs, bias, saved = residuals
    wide = cotangent.astype(wide_dtype(cotangent.dtype))
    if activation is not None:  # relu has at its output the slope that it has at z
        _, pull_back = jax.vjp(ACTIVATIONS[activation], saved.astype(wide.dtype))
        (wide,) = pull_back(wide)

    bias_cotangent = None
    if bias is not None:
        bias_cotangent = wide.sum(axis=tuple(range(wide.ndim - 1))).astype(bias.dtype)
    keywords: dict[str, Any] = dict(params)
    narrow = wide.astype(cotangent.dtype)
    (lhs_cotangent,) = jax.linear_transpose(lambda x: dot_general(x, rhs, **keywords), lhs)(narrow)
    (rhs_cotangent,) = jax.linear_transpose(lambda y: dot_general(lhs, y, **keywords), rhs)(narrow)
    return lhs_cotangent, rhs_cotangent, bias_cotangent


_fused.defvjp(_forward, _backward)
