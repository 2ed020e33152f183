"""Epilogue: what happens to a matmul on its way out; the one description that all layers use.

    z = alpha * scales * (lhs @ rhs) + beta * c + bias
    d = cast(activation(z) + residual)                        saved: cast(z)

A gated matmul has a second right operand:

    z = alpha * scales * (lhs @ rhs) + bias,  u = alpha * scales_up * (lhs @ rhs_up)
    d = cast(activation(z) * u + residual)                    saved: cast(z), cast(u)

scales[i, j] = lhs_scale[i] * rhs_scale[j], of each batch index. Scales of blocks along k, of 128 or
of a block-scaled format, multiply their operands instead. Everything up to the casts is float32
(float64 where the result is). They are to d's dtype, of what is saved beside a d of 8 bits to
bfloat16. A d of 8 bits may have an out_scale: it is scaled_down of fp8.py, which saturates, and the
last result is its amax, finite_amax before that, of each batch index. Or an out_format: it is the
data of `quantized` of block_formats.py, and the last result is the tiles of scales.

The kernels' side of it is `Epilogue` in cuda/params.h; `evaluate` is XLA's.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

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
      lhs_scale, rhs_scale: rows have scales, or columns; of a gated matmul both operands' columns.
      lhs_blocks, rhs_blocks: rows, or columns, that share a scale of each 128 of k, 1 or 128; 0
        where there is none.
      e8m0_blocks: both have such, and in float8_e8m0fnu, which are powers of two.
      lhs_format, rhs_format: the names of block-scaled formats (block_formats.py), whose scales are
        in tiles; None where there is none.
      save: z, and u of a gated matmul, are results, too, of `saved_dtype`.
      out_scale: d has a scale, and its amax is a result.
      out_format: the name of the block-scaled format that d is in, along its last dimension, whose
        tiles of scales are a result; None where it is in none.
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
    lhs_scale: bool = False
    rhs_scale: bool = False
    lhs_blocks: int = 0
    rhs_blocks: int = 0
    e8m0_blocks: bool = False
    lhs_format: str | None = None
    rhs_format: str | None = None
    save: bool = False
    out_scale: bool = False
    out_format: str | None = None

    @property
    def is_identity(self) -> bool:
        """Whether the result is the matmul itself."""
        return self.is_product and not self.formats

    @property
    def is_product(self) -> bool:
        """The same, of operands that may have block-scaled formats."""
        # Field by field: to NumPy, None is a dtype, and equal to float64.
        arrays = (self.c, self.bias, self.residual)
        plain = self.alpha == 1 and self.activation is None and all(x is None for x in arrays)
        scales = self.is_scaled or self.lhs_blocks or self.rhs_blocks or self.has_more_results
        return plain and not (self.gated or scales or self.save)

    @property
    def is_scaled(self) -> bool:
        """Whether rows or columns have scales."""
        return self.lhs_scale or self.rhs_scale

    @property
    def scaled_operands(self) -> tuple[bool, bool]:
        """Whether lhs and rhs have scales of either kind: of rows and columns, or of blocks."""
        return self.lhs_scale or self.lhs_blocks != 0, self.rhs_scale or self.rhs_blocks != 0

    @property
    def has_blocks(self) -> bool:
        """Whether there are scales of blocks."""
        return bool(self.lhs_blocks or self.rhs_blocks or self.formats)

    @property
    def formats(self) -> tuple[str, ...]:
        """Those of the operands that have one."""
        return tuple(name for name in (self.lhs_format, self.rhs_format) if name is not None)

    @property
    def factors_in_memory(self) -> bool:
        """Whether a kernel reads its factors: all of them, if one of them is an array."""
        return self.alpha is None or self.beta is None

    @property
    def saves(self) -> int:
        """How many arrays are saved beside d."""
        return self.save * (1 + self.gated)

    @property
    def results(self) -> int:
        """How many arrays come out: d, what is saved, and amax or tiles of scales."""
        return 1 + self.saves + self.has_more_results

    @property
    def has_more_results(self) -> bool:
        """Whether something comes out that says what d is divided by; it has no derivative then."""
        return self.out_scale or self.out_format is not None

    def saving(self) -> "Epilogue":
        """The same, with z (and u) as results."""
        return replace(self, save=True)

    def describe(self, matmul: str) -> str:
        """The formula in words, around a matmul's."""
        alpha, beta = _times("alpha", self.alpha), _times("beta", self.beta)
        scales = "lhs_scale * " * self.lhs_scale + "rhs_scale * " * self.rhs_scale
        scales += "lhs_scale of blocks * " * bool(self.lhs_blocks)
        scales += "rhs_scale of blocks * " * bool(self.rhs_blocks)
        for name, format in (("lhs", self.lhs_format), ("rhs", self.rhs_format)):
            scales += "" if format is None else f"{name}_scale of {format} * "
        z = f"{alpha}{scales}{matmul}"
        if self.c is not None:
            z += f" + {beta}c {self.c}"
        if self.bias is not None:
            z += f" + bias {self.bias}{' along m' if self.bias_axis == 'm' else ''}"
        d = z if self.activation is None else f"{self.activation}({z})"
        if self.gated:
            d += " * up"
        if self.residual is not None:
            d += f" + residual {self.residual}"
        d = d if self.out_format is None else f"({d}) in {self.out_format}"
        return f"({d}) / out_scale" if self.out_scale else d


IDENTITY = Epilogue()


class Ranks(NamedTuple):
    """How many dimensions of a matmul are batch, of lhs and of rhs; they come in this order."""

    batch: int
    lhs: int
    rhs: int

    @property
    def rows(self) -> tuple[int, ...]:
        """The dimensions along which the scales of lhs lie."""
        return tuple(range(self.batch + self.lhs))

    @property
    def columns(self) -> tuple[int, ...]:
        """The dimensions along which those of rhs lie."""
        return (*range(self.batch), *range(self.batch + self.lhs, sum(self)))

    def of_bias(self, epilogue: Epilogue) -> tuple[int, ...]:
        """The dimensions along which the bias lies."""
        end = self.batch + self.lhs if epilogue.bias_axis == "m" else sum(self)
        return tuple(range(end - epilogue.bias_rank, end))

    def others(self, along: tuple[int, ...]) -> tuple[int, ...]:
        """All dimensions but these."""
        return tuple(i for i in range(sum(self)) if i not in along)

    def spread(self, x: Any, along: tuple[int, ...], dtype: Any) -> Any:
        """What lies along some dimensions, as it broadcasts over the others."""
        return lax.expand_dims(x.astype(dtype), self.others(along))

    def scaled(self, x: Any, lhs_scale: Any, rhs_scale: Any) -> Any:
        """x times the scales of its rows and columns, each of which may be None."""
        for scale, along in ((lhs_scale, self.rows), (rhs_scale, self.columns)):
            x = x if scale is None else x * self.spread(scale, along, x.dtype)
        return x


def _times(name: str, factor: float | None) -> str:
    return f"{name} * " if factor is None else f"{factor:g} * " if factor != 1 else ""


def wide_dtype(dtype: Any) -> Any:
    """The dtype of everything before the final cast: float32, or float64 where the result is."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def saved_dtype(dtype: Any) -> Any:
    """That of what is saved beside a d of this one: of 8 bits a derivative could make little."""
    return np.dtype("bfloat16") if np.dtype(dtype).itemsize == 1 else dtype


def evaluate(
    epilogue: Epilogue,
    dtype: Any,
    ranks: Ranks,
    matmul: Any,
    up: Any = None,
    c: Any = None,
    bias: Any = None,
    residual: Any = None,
    alpha: Any = None,
    beta: Any = None,
    lhs_scale: Any = None,
    rhs_scale: Any = None,
    rhs_up_scale: Any = None,
    out_scale: Any = None,
) -> tuple[Any, ...]:
    """d, what is saved, and amax or tiles of scales, by XLA's operations.

    Args:
      epilogue: which of the arrays there are, and how they come together.
      dtype: of d.
      ranks: of the matmul.
      matmul, up: lhs @ rhs and lhs @ rhs_up, in `wide_dtype(dtype)`.
      c, residual: shaped as the matmul.
      bias, lhs_scale, rhs_scale, rhs_up_scale: shaped as the dimensions along which they lie.
      alpha, beta: scalar arrays, where the epilogue does not know them.
      out_scale: a scalar, float32.
    """
    alpha = epilogue.alpha if alpha is None else alpha
    z = scaled(alpha, ranks.scaled(matmul, lhs_scale, rhs_scale))
    if c is not None:
        z = z + scaled(epilogue.beta if beta is None else beta, c.astype(z.dtype))
    if bias is not None:
        z = z + ranks.spread(bias, ranks.of_bias(epilogue), z.dtype)
    d, saved = ACTIVATIONS[epilogue.activation](z), [z]
    if epilogue.gated:
        saved.append(scaled(alpha, ranks.scaled(up, lhs_scale, rhs_up_scale)))
        d = d * saved[1]
    if residual is not None:
        d = d + residual.astype(z.dtype)
    saved = [x.astype(saved_dtype(dtype)) for x in saved] if epilogue.save else []
    if epilogue.out_format is not None:
        from jaxbw._src import block_formats  # wanted by few

        format_of_d = block_formats.FORMATS[epilogue.out_format]
        data, tiles = block_formats.in_memory(d, format_of_d)
        return (data, *saved, tiles)
    if out_scale is None:
        return (d.astype(dtype), *saved)
    from jaxbw._src import fp8  # wanted by few

    format = fp8.format_of(dtype)
    assert format is not None
    apart = tuple(range(ranks.batch, sum(ranks)))
    amax = lax.squeeze(fp8.finite_amax(d, apart), apart)
    return (fp8.scaled_down(d, out_scale, format), *saved, amax)


def scaled(factor: Any, x: Any) -> Any:
    """A number, or a scalar array, times x, in the dtype of x; x itself where that is the same."""
    if isinstance(factor, float | int):
        return x if factor == 1 else factor * x
    return factor.astype(x.dtype) * x
