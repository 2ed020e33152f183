"""float32 matmuls by bfloat16 pieces: XLA's algorithms BF16_BF16_F32, with _X3, _X6 and _X9.

A float32 value is the sum of three bfloat16 ones, each of them what is left, rounded. So a matmul
is the sum of matmuls of pieces, of which an algorithm leaves the smallest out. Here they are one
bfloat16 GEMM: its K axis has them one behind the other, the smallest first, in one float32 sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

_LARGEST = float.fromhex("0x1.fep127")  # of bfloat16


@dataclass(frozen=True)
class Pieces:
    """An algorithm.

    Attributes:
      count: pieces of an operand; piece i is about 2^(-8 i) of the value.
      order: piece i of lhs meets piece j of rhs where i + j is at most this.
    """

    count: int
    order: int

    @property
    def matmuls(self) -> tuple[tuple[int, int], ...]:
        """Which piece of lhs meets which of rhs, the smallest matmuls first."""
        pairs = [(i, j) for i in range(self.count) for j in range(self.count)]
        return tuple(
            sorted((pair for pair in pairs if sum(pair) <= self.order), key=sum, reverse=True)
        )

    def operand(self, x: Any, *, of_rhs: bool, axis: int) -> Any:
        """The GEMM's operand, of a float32 one whose K axis this is.

        NaN and infinity are in the last matmul only, that of the first pieces: elsewhere their 0 *
        infinity would be NaN. XLA replaces that by zero.
        """
        if self.count == 1:
            return x.astype(jnp.bfloat16)
        is_finite = jnp.isfinite(x)
        rest, pieces = jnp.where(is_finite, x, 0), []
        for i in range(self.count):
            limit = _LARGEST * 2.0 ** (-8 * i)  # all limits together are below float32's
            within = jnp.clip(rest, -limit, limit)
            # Not a cast there and back, which XLA may leave out.
            piece = lax.reduce_precision(within, exponent_bits=8, mantissa_bits=7)
            pieces.append(piece.astype(jnp.bfloat16))
            rest = rest - piece
        *others, _ = (pieces[pair[of_rhs]] for pair in self.matmuls)
        first = jnp.where(is_finite, pieces[0], x.astype(jnp.bfloat16))
        return jnp.concatenate([*others, first], axis)


_ALGORITHMS: Mapping[lax.DotAlgorithmPreset, Pieces] = {
    lax.DotAlgorithmPreset.BF16_BF16_F32: Pieces(count=1, order=0),
    lax.DotAlgorithmPreset.BF16_BF16_F32_X3: Pieces(count=2, order=1),
    lax.DotAlgorithmPreset.BF16_BF16_F32_X6: Pieces(count=3, order=2),
    lax.DotAlgorithmPreset.BF16_BF16_F32_X9: Pieces(count=3, order=4),
}


def pieces_of(precision: lax.DotAlgorithmPreset, *dtypes: np.dtype[Any]) -> Pieces | None:
    """The algorithm that a precision asks for, of float32 operands; None for any other."""
    return _ALGORITHMS.get(precision) if {*dtypes} == {np.dtype(np.float32)} else None
