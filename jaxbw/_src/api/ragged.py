"""`jaxbw.ragged_dot` and its relatives: grouped matmuls, with `lax.ragged_dot`'s arguments."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbw._src import compat
from jaxbw._src.api import arguments
from jaxbw._src.api.arguments import WithScales
from jaxbw._src.api.ragged_call import RaggedArguments, RaggedCall, RaggedOperands
from jaxbw._src.problem import Operands, describe
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.implementations import Implementation

_ROWS = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))
_ROWS_BY_TRANSPOSED = lax.RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), (0,), (0,))


def ragged_dot(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    out_sharding: Any = None,
    *,
    bias: Any = None,
    activation: str | None = None,
    alpha: float = 1.0,
    residual: Any = None,
    lhs_rows: Any = None,
    rows_per_group: int | None = None,
    implementation: Implementation = None,
    config: GemmConfig | None = None,
) -> jax.Array:
    """`jax.lax.ragged_dot`: each group of rows by a matrix of its own, as of a mixture of experts.

        activation(alpha * lhs[r] @ rhs[group of r] + bias[group of r]) + residual[r]

    The first `group_sizes[0]` rows are group 0, and so on. Rows behind the last group are zeros,
    and have zero gradients. Sizes are data: nothing is compiled for them, and nothing is trusted.
    Negative ones count as 0, and groups end at m. No value of a row or a matrix, NaN included,
    reaches another group's result or gradient. All derivatives work, of any order, in both modes,
    and `jax.vmap` over any of the arrays.

    All of the formula is float32 up to the cast. The kernel computes it, but for "gelu_exact" and
    the residual; where a derivative is wanted it writes float32, and XLA computes the rest.

    Args:
      lhs: `[m, k]`, of any dtype that `lax.ragged_dot` takes; either operand may be what `quantize`
        returns, with scales that are shared along k: they multiply the sums. Both may be in
        block-scaled formats, in blocks along k; one alone is dequantized.
      rhs: `[g, k, n]`. Under `jit` a transposition of its last two dimensions is read in place.
        Hopper takes float8 where it lies as `[g, n, k]`: such a transposition, or `both=True`.
      group_sizes: integers `[g]`; with a `group_offset` those of all groups, `[G]`.
      precision: as of `lax.ragged_dot`; default None.
      preferred_element_type: dtype of the result; default as of `lax.ragged_dot`. For a float32
        result of bfloat16 operands the cotangent is rounded to bfloat16, so that a kernel takes
        it, unless the precision is HIGHEST.
      group_offset: an integer array `()` or `(1,)`, which may be traced: rhs has the groups
        `group_offset` to `group_offset + g - 1` of G. Rows of other groups are zeros: with each
        device's experts under `jax.shard_map`, the sum over devices is the result. Default 0.
      out_sharding: as of `lax.ragged_dot`; default None, and in explicit mode derived where rows of
        lhs and columns of rhs are all that is sharded.
      bias: `[g, n]`, a real floating dtype; default none.
      activation: as of `matmul`; default None.
      alpha: a number; default 1.
      residual: `[m, n]`, a real floating dtype; default none.
      lhs_rows: integers `[m]`, each the number of a row of an lhs that may have any number of them:
        row r above is `lhs[lhs_rows[r]]`. A negative one is the first row, one beyond the last the
        last. Kernels read the rows where they lie, and no copy is written; but for float8 on
        Hopper, under `vmap`, and for an epilogue's derivative XLA gathers them first.
        Default None, all rows in order.
      rows_per_group: how many rows are expected, for the choice of a kernel; default None, m / g.
      implementation: as of `matmul`, and as strict; default None.
      config: the kernel's tile; default None, chosen. It is not for the backward pass.

    Returns:
      `[m, n]`.

    Raises:
      TypeError: shapes or dtypes that do not fit, as `lax.ragged_dot`.
      ValueError: an unknown name; a bias or a `group_offset` of another shape.
      NotImplementedError: a strict implementation that cannot run it.

    >>> x, experts = jnp.ones((5, 3)), jnp.stack([jnp.ones((3, 2)), -jnp.ones((3, 2))])
    >>> jaxbw.ragged_dot(x, experts, jnp.array([1, 3]))[:, 0]
    Array([ 3., -3., -3., -3.,  0.], dtype=float32)
    >>> jaxbw.ragged_dot(x, experts[1:], jnp.array([1, 3]), group_offset=1)[:, 0]
    Array([ 0., -3., -3., -3.,  0.], dtype=float32)
    >>> tokens, chosen = jnp.eye(3), jnp.array([2, 0, 0])
    >>> jaxbw.ragged_dot(tokens, tokens[None], jnp.array([3]), lhs_rows=chosen).argmax(1)
    Array([2, 0, 0], dtype=int32)
    """
    call = "jaxbw.ragged_dot"
    found, dims = _of_rows(call, preferred_element_type, lhs=lhs, rhs=rhs)
    matmul = (precision, found.dtype, out_sharding, implementation, config)
    given = _given(call, dims, *matmul, activation, alpha, rows_per_group, found.formats)
    terms = {"bias": bias, "residual": residual, "lhs_rows": lhs_rows} | found.scales
    arrays = _arrays(call, group_offset, terms, **found.operands, group_sizes=group_sizes)
    result: jax.Array = _ragged_dot(given, *arrays)
    return result


def gated_ragged_dot(
    lhs: Any,
    rhs_gate: Any,
    rhs_up: Any,
    group_sizes: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    out_sharding: Any = None,
    *,
    activation: str | None = "silu",
    lhs_rows: Any = None,
    rows_per_group: int | None = None,
    implementation: Implementation = None,
    config: GemmConfig | None = None,
) -> jax.Array:
    """`activation(ragged_dot(lhs, rhs_gate)) * ragged_dot(lhs, rhs_up)`, in float32 up to the cast.

    The first half of an expert's gated feed-forward layer. The weights are two arrays, never
    interleaved. It is one kernel, but for "gelu_exact"; where a derivative is wanted it is two,
    which write float32 for XLA to multiply.

    Args:
      lhs: as of `ragged_dot`.
      rhs_gate, rhs_up: `[g, k, n]`, of one shape and one dtype; likewise.
      activation: as of `matmul`; default "silu".
      group_sizes, precision, preferred_element_type, group_offset: as of `ragged_dot`.
      out_sharding, lhs_rows, rows_per_group, implementation, config: as of `ragged_dot`.

    Returns:
      `[m, n]`.

    Raises:
      TypeError, ValueError, NotImplementedError: as `ragged_dot`.

    >>> x, w = jnp.ones((3, 2)), jnp.ones((2, 2, 1))
    >>> jaxbw.gated_ragged_dot(x, w, -w, jnp.array([1, 1]), activation="relu")[:, 0]
    Array([-4., -4.,  0.], dtype=float32)
    """
    call = "jaxbw.gated_ragged_dot"
    operands = {"lhs": lhs, "rhs_gate": rhs_gate, "rhs_up": rhs_up}
    found, dims = _of_rows(call, preferred_element_type, **operands)
    matmul = (precision, found.dtype, out_sharding, implementation, config)
    given = _given(call, dims, *matmul, activation, 1.0, rows_per_group, found.formats)
    terms = found.scales | {"lhs_rows": lhs_rows}
    group_offset, terms, lhs, rhs_gate, rhs_up, group_sizes = _arrays(
        call, group_offset, terms, **found.operands, group_sizes=group_sizes
    )
    terms["rhs_up"] = rhs_up
    result: jax.Array = _ragged_dot(given, group_offset, terms, lhs, rhs_gate, group_sizes)
    return result


def ragged_dot_general(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    ragged_dot_dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    out_sharding: Any = None,
    *,
    c: Any = None,
    alpha: float = 1.0,
    rows_per_group: int | None = None,
    implementation: Implementation = None,
    config: GemmConfig | None = None,
) -> jax.Array:
    """`alpha * jax.lax.ragged_dot_general + c`, with what `ragged_dot` has beyond `lax.ragged_dot`.

    Groups may be of a free dimension of lhs, as of `ragged_dot`; of a contracted one, as of the
    gradient of weights: `[m, k]` and `[m, n]` to `[g, k, n]`; or of a batch dimension, where it is
    `dot_general`, and the sizes do not matter.

    Gradients of weights, summed over microbatches: with a float32 c and `preferred_element_type`
    float32 the kernel adds to c in place, where the program has no other use for it.

    Args:
      lhs, rhs, group_sizes: as of `lax.ragged_dot_general`.
      ragged_dot_dimension_numbers: a `jax.lax.RaggedDotDimensionNumbers`.
      precision, preferred_element_type, rows_per_group, implementation, config: as of
        `ragged_dot`.
      group_offset: as of `ragged_dot`. Where a contracted dimension has groups, the result is of as
        many as `group_sizes`, from this one on; those that there are not are zeros.
      out_sharding: as of `lax.ragged_dot_general`, and as of `ragged_dot`.
      c: shaped as the result, a real floating dtype; default none.
      alpha: a number; default 1.

    Returns:
      As `lax.ragged_dot_general`.

    Raises:
      TypeError, ValueError, NotImplementedError: as `ragged_dot`.

    >>> contraction = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
    >>> x, dy = jnp.ones((5, 3)), jnp.ones((5, 2))
    >>> jaxbw.ragged_dot_general(x, dy, jnp.array([1, 3]), contraction)[:, 0, 0]
    Array([1., 3.], dtype=float32)
    """
    call = "jaxbw.ragged_dot_general"
    dims = ragged_dot_dimension_numbers
    if not isinstance(dims, lax.RaggedDotDimensionNumbers):
        raise TypeError(
            f"{call}: ragged_dot_dimension_numbers is {arguments.shown(dims)}; it is a "
            "jax.lax.RaggedDotDimensionNumbers"
        )
    matmul = (precision, preferred_element_type, out_sharding, implementation, config)
    given = _given(call, dims, *matmul, None, alpha, rows_per_group)
    arrays = _arrays(call, group_offset, {"c": c}, lhs=lhs, rhs=rhs, group_sizes=group_sizes)
    result: jax.Array = _ragged_dot(given, *arrays)
    return result


def _of_rows(
    call: str, dtype: Any, **operands: Any
) -> tuple[RaggedOperands, lax.RaggedDotDimensionNumbers]:
    """Operands as they lie, with the scales that they have, and dimension numbers."""
    found = RaggedOperands(operands, {}, False, dtype)
    if any(isinstance(x, WithScales) for x in operands.values()):
        from jaxbw._src.api import group_scales  # wanted by few

        found = group_scales.unquantized(call, operands, dtype)
    rights = {name: x for name, x in found.operands.items() if name != "lhs"}
    before = {name: compat.before_transposition(x) for name, x in rights.items()}
    if not found.transposed and all(turned == (0, 2, 1) for _, turned in before.values()):
        originals = {name: original for name, (original, _) in before.items()}
        found = found._replace(operands=found.operands | originals, transposed=True)
    return found, _ROWS_BY_TRANSPOSED if found.transposed else _ROWS


def _given(
    call: str,
    dims: lax.RaggedDotDimensionNumbers,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: Any,
    implementation: Implementation,
    config: GemmConfig | None,
    activation: str | None,
    alpha: float,
    rows_per_group: int | None,
    formats: tuple[str, str] | None = None,
) -> RaggedArguments:
    arguments.check_activation(call, activation)
    factor = arguments.terms(call, alpha, 1.0, -1, None).alpha
    if factor is None:
        raise TypeError(f"{call}: alpha is an array; it is a number. Scale an operand by arrays")
    hint = rows_per_group
    if hint is not None and (not isinstance(hint, int | np.integer) or hint < 0):
        raise ValueError(f"{call}: rows_per_group is {hint!r}; it is a number of rows, or None")
    return RaggedArguments(
        arguments.matmul(
            call, None, precision, preferred_element_type, out_sharding, implementation, config
        ),
        dims,
        activation,
        factor,
        None if hint is None else int(hint),
        formats,
    )


def _arrays(
    call: str, group_offset: Any, terms: dict[str, Any], **operands: Any
) -> tuple[Any, ...]:
    """All as arrays: the offset or None, those of the terms that there are, and the operands."""
    given = [arguments.array(call, name, x) for name, x in operands.items()]
    terms = {name: arguments.array(call, name, x) for name, x in terms.items() if x is not None}
    if group_offset is not None:
        group_offset = jnp.asarray(group_offset)
        is_integer = jnp.issubdtype(group_offset.dtype, jnp.integer)
        if group_offset.shape not in ((), (1,)) or not is_integer:
            kind = ValueError if is_integer else TypeError
            shown = describe(group_offset.dtype, group_offset.shape)
            raise kind(f"{call}: group_offset is {shown}; it is an integer, [] or [1]")
    return group_offset, terms, *given


@partial(jax.jit, static_argnums=0, inline=compat.INLINED)
def _ragged_dot(
    given: RaggedArguments,
    group_offset: Any,
    terms: dict[str, Any],
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
) -> Any:
    """`terms`: of the epilogue, by `ragged_fused`'s names, and the residual and lhs_rows."""
    call = RaggedCall(given, lhs, rhs, group_sizes, group_offset, terms.get("lhs_rows"))
    call.check_terms(terms)
    if "rhs_up" in terms:
        arguments.check_gated(given.matmul.call, Operands(lhs, rhs, terms["rhs_up"]))
    return call.placed(call.compute)(lhs, rhs, group_sizes, group_offset, terms)
