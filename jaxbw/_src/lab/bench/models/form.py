"""The forms of a model: the same layers with XLA's matmuls, with ours, and with ours fused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import jaxbw

_ACTIVATIONS = {None: lambda x: x, "gelu": jax.nn.gelu, "silu": jax.nn.silu}


@dataclass(frozen=True)
class Form:
    """How a model's layers are computed.

    Attributes:
      matmul: of two arrays.
      dense: activation(x @ w + bias) + residual, each of the last three optional.
      gated: activation(x @ gate) * (x @ up).
    """

    name: str
    matmul: Callable[..., Any]
    dense: Callable[..., Any]
    gated: Callable[..., Any]


def _separate(name: str, matmul: Callable[..., Any]) -> Form:
    """The form in which XLA computes everything around the matmuls."""

    def dense(
        x: Any, w: Any, bias: Any = None, activation: Any = None, residual: Any = None
    ) -> Any:
        y = matmul(x, w)
        if bias is not None:
            y = y + bias
        y = _ACTIVATIONS[activation](y)
        return y if residual is None else y + residual

    def gated(x: Any, gate: Any, up: Any, activation: str) -> Any:
        return _ACTIVATIONS[activation](matmul(x, gate)) * matmul(x, up)

    return Form(name, matmul, dense, gated)


def _fused_dense(
    x: Any, w: Any, bias: Any = None, activation: str | None = None, residual: Any = None
) -> Any:
    return jaxbw.matmul(x, w, bias=bias, activation=activation, residual=residual)


def _fused_gated(x: Any, gate: Any, up: Any, activation: str) -> Any:
    return jaxbw.gated_matmul(x, gate, up, activation=activation)


PLAIN = _separate("plain", jnp.matmul)
FORMS = (
    PLAIN,
    _separate("layers", jaxbw.matmul),
    Form("fused", jaxbw.matmul, _fused_dense, _fused_gated),
)
