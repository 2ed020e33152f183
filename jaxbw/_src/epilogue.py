"""Epilogue: what happens to a matmul on its way out; the one description that all layers use.

    z = alpha * (lhs @ rhs) + beta * c + bias
    d = cast(activation(z) + residual)                        saved: cast(z)

A gated matmul has a second right operand:

    z = alpha * (lhs @ rhs) + bias,  u = alpha * (lhs @ rhs_up)
    d = cast(activation(z) * u + residual)                    saved: cast(z), cast(u)

Everything up to the casts is float32 (float64 where the result is). The kernels' side of it is
`Epilogue` in cuda/params.h; `evaluate` is XLA's.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax

PREACTIVATION = "jaxbw_preactivation"  # the name of what is saved: jaxbw.checkpoint_policies

# "gelu" is jax.nn.gelu's default, the tanh approximation.
ACTIVATIONS: dict[str | None, Callable[[Any], Any]] = {
    None: lambda z: z,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "gelu_exact": partial(jax.nn.gelu, approximate=False),
}


@dataclass(frozen=True)
class Epilogue:
    """The formula above, with the dtype of each array in it; None where there is none.

    Attributes:
      alpha, beta: factors that are known when the program is compiled; None for a scalar array.
      c, residual: dtypes of arrays shaped as the result.
      bias: dtype of an array along `bias_axis`, "m" or "n".
      bias_rank: its dimensions: the last ones of those that make up m or n.
      activation: a name in `ACTIVATIONS`.
      gated: there is a second right operand.
      save: z, and u of a gated matmul, are results, too, in the dtype of d.
    """

    alpha: float | None = 1.0
    beta: float | None = 1.0
    c: np.dtype[Any] | None = None
    bias: np.dtype[Any] | None = None
    bias_axis: str = "n"
    bias_rank: int = 1
    activation: str | None = None
    residual: np.dtype[Any] | None = None
    gated: bool = False
    save: bool = False

    @property
    def is_identity(self) -> bool:
        """Whether the result is the matmul itself."""
        # Field by field: to NumPy, None is a dtype, and equal to float64.
        arrays = (self.c, self.bias, self.residual)
        plain = self.alpha == 1 and self.activation is None and all(x is None for x in arrays)
        return plain and not self.gated and not self.save

    @property
    def factors_in_memory(self) -> bool:
        """Whether a kernel reads its factors: all of them, if one of them is an array."""
        return self.alpha is None or self.beta is None

    @property
    def results(self) -> int:
        """How many arrays come out."""
        return 1 + self.save * (1 + self.gated)

    def saving(self) -> "Epilogue":
        """The same, with z (and u) as results."""
        return replace(self, save=True)

    def describe(self, matmul: str) -> str:
        """The formula in words, around a matmul's."""
        alpha, beta = _times("alpha", self.alpha), _times("beta", self.beta)
        z = f"{alpha}{matmul}"
        if self.c is not None:
            z += f" + {beta}c {self.c}"
        if self.bias is not None:
            z += f" + bias {self.bias}{' along m' if self.bias_axis == 'm' else ''}"
        d = z if self.activation is None else f"{self.activation}({z})"
        if self.gated:
            d += " * up"
        if self.residual is not None:
            d += f" + residual {self.residual}"
        return d


IDENTITY = Epilogue()


def _times(name: str, factor: float | None) -> str:
    return f"{name} * " if factor is None else f"{factor:g} * " if factor != 1 else ""


def wide_dtype(dtype: Any) -> Any:
    """The dtype of everything before the final cast: float32, or float64 where the result is."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def evaluate(
    epilogue: Epilogue,
    dtype: Any,
    bias_dimensions: tuple[int, ...],
    matmul: Any,
    up: Any = None,
    c: Any = None,
    bias: Any = None,
    residual: Any = None,
    alpha: Any = None,
    beta: Any = None,
) -> tuple[Any, ...]:
    """d, and what is saved, by XLA's operations.

    Args:
      epilogue: which of the arrays there are, and how they come together.
      dtype: of the results.
      bias_dimensions: those of the matmul along which the bias lies, in order.
      matmul, up: lhs @ rhs and lhs @ rhs_up, in `wide_dtype(dtype)`.
      c, residual: shaped as the matmul.
      bias: of the sizes of these dimensions.
      alpha, beta: scalar arrays, where the epilogue does not know them.
    """
    alpha = epilogue.alpha if alpha is None else alpha
    z = scaled(alpha, matmul)
    if c is not None:
        z = z + scaled(epilogue.beta if beta is None else beta, c.astype(z.dtype))
    if bias is not None:
        others = tuple(i for i in range(z.ndim) if i not in bias_dimensions)
        z = z + lax.expand_dims(bias.astype(z.dtype), others)
    d, saved = ACTIVATIONS[epilogue.activation](z), [z]
    if epilogue.gated:
        saved.append(scaled(alpha, up))
        d = d * saved[1]
    if residual is not None:
        d = d + residual.astype(z.dtype)
    return tuple(x.astype(dtype) for x in ([d, *saved] if epilogue.save else [d]))


def scaled(factor: Any, x: Any) -> Any:
    """A number, or a scalar array, times x, in the dtype of x; x itself where that is the same."""
    if isinstance(factor, float | int):
        return x if factor == 1 else factor * x
    return factor.astype(x.dtype) * x
