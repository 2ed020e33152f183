"""Operands of a case, and what its result must be.

Values are iid normal: the power that a matmul draws, and with it the clock, depends on them. They
are drawn in float32 and rounded, since JAX draws bfloat16 from a few hundred values only.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from jaxbw._src.lab.bench.case import Case

ROTATED_BYTES = 400e6  # of all sets together: more than twice the L2 of any supported GPU
MOST_SETS = 256
CHECKED_ROWS, CHECKED_COLUMNS = 64, 2048
# A result rounded to bfloat16 has 1.7e-3; one whose matmul is rounded before its bias, 2.5e-3.
LARGEST_ERROR = 5e-3
FAST_SUM = 2.0**-13  # of a sum, that Hopper's tensor cores may lose at each 32 products of 8 bits

Operands = tuple[Any, ...]
_Matrix = npt.NDArray[np.float64]


def largest_error(case: Case) -> float:
    """A relative error that a result must not exceed."""
    fast = case.is_fp8 and not case.precise
    return LARGEST_ERROR + fast * FAST_SUM * case.plain.k / 32


def set_count(case: Case) -> int:
    """How many sets of operands a case rotates through."""
    return min(MOST_SETS, max(2, math.ceil(ROTATED_BYTES / case.bytes)))


def draw(case: Case, seed: int) -> list[Operands]:
    """The sets of operands, on the default device."""
    dtype = jnp.dtype(case.dtype)

    def one(key: jax.Array) -> Operands:
        keys = jax.random.split(key, len(case.operands))
        return tuple(
            jax.random.normal(each, shape, jnp.float32).astype(dtype)
            for each, shape in zip(keys, case.operands, strict=True)
        )

    keys = jax.random.split(jax.random.key(seed), set_count(case))
    compiled = jax.jit(one).lower(keys[0]).compile()
    return [compiled(key) for key in keys]


class Oracle:
    """The float64 result on some rows and columns, spread over all of it, its edges included."""

    def __init__(self, case: Case, operands: Operands) -> None:
        m, n, _, layout = case.plain
        self._rows, self._columns = _spread(m, CHECKED_ROWS), _spread(n, CHECKED_COLUMNS)
        lhs, rhs, *extra = (np.asarray(each) for each in operands)
        rows = (lhs if layout[0] == "n" else lhs.T)[self._rows].astype(np.float64)
        self._expected = rows @ self._right(rhs, layout)
        if case.epilogue == "swiglu":
            up = rows @ self._right(extra[0], layout)
            self._expected = _silu(self._expected) * up
        elif case.epilogue != "none":
            activation = {"bias_gelu": _gelu, "bias_silu": _silu}[case.epilogue]
            bias = extra[0][self._columns].astype(np.float64)
            self._expected = activation(self._expected + bias)

    def relative_error(self, result: Any) -> float:
        """The error's norm over the result's; infinite where a value is not finite."""
        found = np.asarray(jnp.from_dlpack(result))[np.ix_(self._rows, self._columns)]
        error = np.linalg.norm(found.astype(np.float64) - self._expected)
        relative = float(error / np.linalg.norm(self._expected))
        return relative if math.isfinite(relative) else math.inf

    def _right(self, rhs: npt.NDArray[Any], layout: str) -> _Matrix:
        columns: _Matrix = (rhs if layout[1] == "n" else rhs.T)[:, self._columns].astype(np.float64)
        return columns


def _spread(extent: int, count: int) -> Sequence[int]:
    return [int(i) for i in np.unique(np.linspace(0, extent - 1, min(extent, count)).round())]


def _silu(x: _Matrix) -> _Matrix:
    result: _Matrix = x / (1 + np.exp(-x))
    return result


def _gelu(x: _Matrix) -> _Matrix:
    """The tanh approximation, `jax.nn.gelu`'s default."""
    tanh = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    result: _Matrix = x / 2 * (1 + tanh)
    return result
