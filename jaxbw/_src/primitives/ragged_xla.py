"""A grouped matmul by XLA's operations, for what no kernel takes: blocks of rows in a loop.

`lax.ragged_dot` masks its operands for each group: as many times the arithmetic and the memory as
there are groups; and what is masked is multiplied, so that NaN in one group's matrix is NaN in all.
Here each step of a loop multiplies a block of one group's rows, which it slices out of the
operands: hardly more than the arithmetic that is asked for, and nothing in memory but a block
beside operands and result (on CPUs a copy of what is 16 bits wide). Rows of other groups in a block
are selected away, never multiplied by zero.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# Rows of a block, at most: enough arithmetic for each load of a matrix of weights.
_MOST_ROWS = 512


class Steps(NamedTuple):
    """The blocks of rows to be multiplied, in the order of their rows; arrays [capacity] of int32.

    Attributes:
      group: of the block.
      first: its first row.
      stop: the row behind its group's last one; 0 of steps beyond `count`, which do nothing.
      count: how many blocks there are, int32 [].
    """

    group: Any
    first: Any
    stop: Any
    count: Any


@partial(jax.tree_util.register_dataclass, data_fields=["bits"], meta_fields=["dtype"])
@dataclass(frozen=True)
class Slices:
    """An array to be sliced along its first dimension.

    Narrow floats are sliced as integers: on a CPU XLA would do it in float32, and convert all of
    the array for it.
    """

    bits: Any
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, x: Any) -> "Slices":
        narrow = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4
        return cls(_bitcast(x, np.dtype(f"uint{8 * x.dtype.itemsize}")) if narrow else x, x.dtype)

    @property
    def array(self) -> Any:
        """All of it."""
        return _bitcast(self.bits, self.dtype)

    def rows(self, origin: Any, count: int) -> Any:
        """`count` of them, from this one on."""
        return _bitcast(lax.dynamic_slice_in_dim(self.bits, origin, count), self.dtype)

    def at(self, index: Any) -> Any:
        """One of them."""
        return _bitcast(lax.dynamic_index_in_dim(self.bits, index, keepdims=False), self.dtype)

    def updated(self, rows: Any, origin: Any) -> "Slices":
        """With these rows in the place of those from `origin` on."""
        bits = lax.dynamic_update_slice_in_dim(
            self.bits, _bitcast(rows, self.bits.dtype), origin, axis=0
        )
        return replace(self, bits=bits)


def _bitcast(x: Any, dtype: Any) -> Any:
    return x if x.dtype == dtype else lax.bitcast_convert_type(x, dtype)


def ragged_dot(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    group_offset: Any,
    *,
    ragged_contraction: bool,
    groups: int,
    transposed: bool,
    precision: Any,
    output: np.dtype[Any],
    counts_steps: bool,
) -> Any:
    """The operation of `primitives.ragged_dot`, of its operands.

    Args:
      counts_steps: the loop ends behind the last block, which a GPU would have to tell the host;
        else it always has the steps that the worst sizes need.
    """
    bounds = group_bounds(group_sizes, group_offset, groups, lhs.shape[1])
    multiply = partial(
        _weight_gradient if ragged_contraction else partial(_rows, transposed=transposed),
        precision=precision,
        output=output,
        counts_steps=counts_steps,
    )
    batch = group_sizes.shape[0]
    if batch == 1:
        return multiply(lhs[0], rhs[0], bounds[0])[None]
    each = [x if len(x) == batch else None for x in (lhs, rhs)]

    def one(given: Any) -> Any:
        left, right, its_bounds = given
        return multiply(
            lhs[0] if left is None else left, rhs[0] if right is None else right, its_bounds
        )

    return lax.map(one, (*each, bounds))


def group_bounds(group_sizes: Any, group_offset: Any, groups: int, m: int) -> Any:
    """The first row of each group, and the row behind the last one: int32 [batch, groups + 1].

    Negative sizes are 0, and groups end at m. Groups that `group_sizes` does not have are empty.
    """
    batch, total = group_sizes.shape
    sizes = jnp.clip(group_sizes, 0, m)
    zero = np.int32(0)
    window = max(total, 1)
    ends = lax.reduce_window(  # their sums so far, up to m: none is beyond the range of int32
        sizes,
        zero,
        lambda a, b: a + jnp.minimum(b, m - a),
        window_dimensions=(1, window),
        window_strides=(1, 1),
        padding=((0, 0), (window - 1, 0)),
    )
    starts_and_ends = jnp.concatenate([jnp.zeros((batch, 1), np.int32), ends], axis=1)
    offset = jnp.clip(group_offset, -groups, total)
    wanted = jnp.clip(offset + np.arange(groups + 1, dtype=np.int32), 0, total)
    return starts_and_ends[:, wanted]


def steps_of(bounds: Any, block: int, capacity: int) -> Steps:
    """The blocks of groups, of so many rows but for the last one of each.

    Args:
      bounds: as of `group_bounds`, of one batch index.
      capacity: as many as there may be.
    """
    starts, ends = bounds[:-1], bounds[1:]
    groups = starts.shape[0]
    blocks = -(-(ends - starts) // block)
    through = jnp.cumsum(blocks)
    step = np.arange(capacity, dtype=np.int32)
    group = jnp.searchsorted(through, step, side="right", method="compare_all").astype(np.int32)
    group = jnp.minimum(group, groups - 1)
    first = starts[group] + (step - (through - blocks)[group]) * block
    is_there = step < through[-1]
    return Steps(
        group, jnp.where(is_there, first, 0), jnp.where(is_there, ends[group], 0), through[-1]
    )


def _capacity(m: int, groups: int, block: int) -> int:
    """Of each group the last block may be partial; and none is empty."""
    return min(m, -(-m // block) + min(groups, m))


def _block(m: int, groups: int) -> int:
    """Rows of a block: a power of two near what a group has, so that no more than half is waste."""
    return min(m, _MOST_ROWS, 1 << max(m // groups, 1).bit_length() - 1)


def _rows(
    lhs: Any,
    rhs: Any,
    bounds: Any,
    *,
    transposed: bool,
    precision: Any,
    output: np.dtype[Any],
    counts_steps: bool,
) -> Any:
    """[m, k] by [g, k, n], or by [g, n, k] if `transposed`: [m, n]."""
    m, k = lhs.shape
    groups, n = rhs.shape[0], rhs.shape[1 if transposed else 2]
    zeros = jnp.zeros((m, n), output)
    if 0 in (m, k, n, groups):
        return zeros
    if k == 1:
        return _outer(lhs, rhs[:, :, 0] if transposed else rhs[:, 0], bounds, output)
    dims = (((1,), (1 if transposed else 0,)), ((), ()))
    block = _block(m, groups)
    steps = steps_of(bounds, block, _capacity(m, groups, block))
    lhs, rhs = Slices.of(lhs), Slices.of(rhs)

    def step(i: Any, out: Any) -> Any:
        origin, is_own = _window(steps, i, block, m)
        product = lax.dot_general(
            lhs.rows(origin, block),
            rhs.at(steps.group[i]),
            dims,
            precision=precision,
            preferred_element_type=output,
        )
        own = jnp.where(is_own, product, out.rows(origin, block))
        return out.updated(own, origin)

    out = lax.fori_loop(
        0, steps.count if counts_steps else len(steps.group), step, Slices.of(zeros)
    )
    return out.array


def _outer(lhs: Any, rhs: Any, bounds: Any, output: np.dtype[Any]) -> Any:
    """[m, 1] by [g, n], a bias of each group: no loop, so that XLA fuses it with what it is for."""
    row = np.arange(lhs.shape[0], dtype=np.int32)
    group = jnp.searchsorted(bounds[1:], row, side="right", method="compare_all")
    is_in_one = (bounds[0] <= row) & (row < bounds[-1])
    wide = _dtype_of_sums(lhs.dtype, rhs.dtype, output)
    product = lhs.astype(wide) * rhs.astype(wide)[jnp.minimum(group, len(rhs) - 1)]
    return jnp.where(is_in_one[:, None], product.astype(output), jnp.zeros((), output))


def _weight_gradient(
    lhs: Any,
    rhs: Any,
    bounds: Any,
    *,
    precision: Any,
    output: np.dtype[Any],
    counts_steps: bool,
) -> Any:
    """[m, k] and [m, n], of each group lhs^T @ rhs: [g, k, n]."""
    m, k = lhs.shape
    groups, n = len(bounds) - 1, rhs.shape[1]
    zeros = jnp.zeros((groups, k, n), output)
    if 0 in (m, k, n, groups):
        return zeros
    block = _block(m, groups)
    steps = steps_of(bounds, block, _capacity(m, groups, block))
    sums = _dtype_of_sums(lhs.dtype, rhs.dtype, output)
    lhs, rhs = Slices.of(lhs), Slices.of(rhs)

    def step(i: Any, carry: Any) -> Any:
        total, out = carry
        origin, is_own = _window(steps, i, block, m)
        # Both: a zero times NaN would be NaN.
        rows = [x.rows(origin, block) for x in (lhs, rhs)]
        left, right = (jnp.where(is_own, x, jnp.zeros_like(x)) for x in rows)
        part = lax.dot_general(
            *(left, right, (((0,), (0,)), ((), ()))),
            precision=precision,
            preferred_element_type=sums,
        )
        group = steps.group[i]
        goes_on = (i > 0) & (group == steps.group[i - 1])
        total = jnp.where(goes_on, jnp.add(total, part), part)
        # The group's last block writes last.
        return total, out.updated(total.astype(output)[None], group)

    count = steps.count if counts_steps else len(steps.group)
    _, out = lax.fori_loop(0, count, step, (jnp.zeros((k, n), sums), Slices.of(zeros)))
    return out.array


def _window(steps: Steps, i: Any, block: int, m: int) -> tuple[Any, Any]:
    """Where a step's slice of rows begins, and which of them are its own: [block, 1]."""
    first = steps.first[i]
    origin = jnp.minimum(first, m - block)  # the last slice begins earlier, rather than ends later
    rows = origin + np.arange(block, dtype=np.int32)
    return origin, ((first <= rows) & (rows < steps.stop[i]))[:, None]


def _dtype_of_sums(lhs: np.dtype[Any], rhs: np.dtype[Any], output: np.dtype[Any]) -> Any:
    """That of a group's sum over its blocks, which is rounded once, at its end."""
    if jnp.issubdtype(output, jnp.inexact):
        return np.dtype(np.float32) if output.itemsize < 4 else output
    # Integers of floats: not of the parts.
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(jnp.promote_types(lhs, rhs), output)
