"""`jaxbw.ragged_dot` and its relatives: grouped matmuls, with `lax.ragged_dot`'s arguments."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbw._src import compat
from jaxbw._src.api import arguments
from jaxbw._src.api.arguments import MatmulArguments
from jaxbw._src.api.matmul import dot_general
from jaxbw._src.api.ragged_plan import plan_ragged
from jaxbw._src.epilogue import ACTIVATIONS, wide_dtype
from jaxbw._src.primitives.ragged_dot import ragged_dot as grouped
from jaxbw._src.primitives.transposition import kept
from jaxbw._src.problem import Operands, describe
from jaxbw._src.selection.implementations import Implementation
from jaxbw._src.selection.policy import Policy

_ROWS = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))
_ROWS_BY_TRANSPOSED = lax.RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), (0,), (0,))


class RaggedArguments(NamedTuple):
    """The arguments beside arrays, as they were given but hashable: `jit` keys with them."""

    matmul: MatmulArguments
    dims: lax.RaggedDotDimensionNumbers
    activation: str | None
    rows_per_group: int | None


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
    rows_per_group: int | None = None,
    implementation: Implementation = None,
) -> jax.Array:
    """`jax.lax.ragged_dot`: each group of rows by a matrix of its own, as of a mixture of experts.

        activation(lhs[r] @ rhs[group of r] + bias[group of r])

    The first `group_sizes[0]` rows are group 0, and so on. Rows behind the last group are zeros,
    and have zero gradients. Sizes are data: nothing is compiled for them, and nothing is trusted.
    Negative ones count as 0, and groups end at m. No value of a row or a matrix, NaN included,
    reaches another group's result or gradient. All derivatives work, of any order, in both modes,
    and `jax.vmap` over any of the arrays.

    Bias and activation are computed in float32, and by XLA: the kernel writes float32 for them.

    Args:
      lhs: `[m, k]`, of any dtype that `lax.ragged_dot` takes.
      rhs: `[g, k, n]`. Under `jit` a transposition of its last two dimensions is read in place.
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
      rows_per_group: how many rows are expected, for the choice of a kernel; default None, m / g.
      implementation: as of `matmul`, and as strict; default None.

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
    """
    call = "jaxbw.ragged_dot"
    dims = _ROWS
    original, permutation = compat.before_transposition(rhs)
    if permutation == (0, 2, 1):
        rhs, dims = original, _ROWS_BY_TRANSPOSED
    matmul = (precision, preferred_element_type, out_sharding, implementation)
    given = _given(call, dims, *matmul, activation=activation, rows_per_group=rows_per_group)
    arrays = _arrays(call, group_offset, lhs=lhs, rhs=rhs, group_sizes=group_sizes, bias=bias)
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
    rows_per_group: int | None = None,
    implementation: Implementation = None,
) -> jax.Array:
    """`activation(ragged_dot(lhs, rhs_gate)) * ragged_dot(lhs, rhs_up)`, in float32 up to the cast.

    The first half of an expert's gated feed-forward layer. The weights are two arrays, never
    interleaved. Each is a kernel of its own, which writes float32; XLA multiplies them.

    Args:
      lhs: `[m, k]`.
      rhs_gate, rhs_up: `[g, k, n]`, of one shape and one dtype.
      activation: as of `matmul`; default "silu".
      group_sizes, precision, preferred_element_type, group_offset, out_sharding, rows_per_group,
        implementation: as of `ragged_dot`.

    Returns:
      `[m, n]`.

    Raises:
      TypeError, ValueError, NotImplementedError: as `ragged_dot`.

    >>> x, w = jnp.ones((3, 2)), jnp.ones((2, 2, 1))
    >>> jaxbw.gated_ragged_dot(x, w, -w, jnp.array([1, 1]), activation="relu")[:, 0]
    Array([-4., -4.,  0.], dtype=float32)
    """
    call = "jaxbw.gated_ragged_dot"
    matmul = (precision, preferred_element_type, out_sharding, implementation)
    given = _given(call, _ROWS, *matmul, activation=activation, rows_per_group=rows_per_group)
    arrays = _arrays(
        call, group_offset, lhs=lhs, rhs_gate=rhs_gate, rhs_up=rhs_up, group_sizes=group_sizes
    )
    result: jax.Array = _gated(given, *arrays)
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
    rows_per_group: int | None = None,
    implementation: Implementation = None,
) -> jax.Array:
    """`jax.lax.ragged_dot_general`, with what `ragged_dot` has beyond `lax.ragged_dot`.

    Groups may be of a free dimension of lhs, as of `ragged_dot`; of a contracted one, as of the
    gradient of weights: `[m, k]` and `[m, n]` to `[g, k, n]`; or of a batch dimension, where it is
    `dot_general`, and the sizes do not matter.

    Args:
      lhs, rhs, group_sizes: as of `lax.ragged_dot_general`.
      ragged_dot_dimension_numbers: a `jax.lax.RaggedDotDimensionNumbers`.
      precision, preferred_element_type, rows_per_group, implementation: as of `ragged_dot`.
      group_offset: as of `ragged_dot`. Where a contracted dimension has groups, the result is of as
        many as `group_sizes`, from this one on; those that there are not are zeros.
      out_sharding: as of `lax.ragged_dot_general`, and as of `ragged_dot`.

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
    matmul = (precision, preferred_element_type, out_sharding, implementation)
    given = _given(call, dims, *matmul, activation=None, rows_per_group=rows_per_group)
    arrays = _arrays(call, group_offset, lhs=lhs, rhs=rhs, group_sizes=group_sizes)
    result: jax.Array = _ragged_dot(given, *arrays)
    return result


def _given(
    call: str,
    dims: lax.RaggedDotDimensionNumbers,
    *matmul: Any,
    activation: str | None,
    rows_per_group: int | None,
) -> RaggedArguments:
    arguments.check_activation(call, activation)
    hint = rows_per_group
    if hint is not None and (not isinstance(hint, int | np.integer) or hint < 0):
        raise ValueError(f"{call}: rows_per_group is {hint!r}; it is a number of rows, or None")
    return RaggedArguments(
        arguments.matmul(call, None, *matmul, None),
        dims,
        activation,
        None if hint is None else int(hint),
    )


def _arrays(call: str, group_offset: Any, **named: Any) -> tuple[Any, ...]:
    """The operands, arrays or None, and the offset."""
    operands = [
        None if x is None and name == "bias" else arguments.array(call, name, x)
        for name, x in named.items()
    ]
    if group_offset is not None:
        group_offset = jnp.asarray(group_offset)
        if group_offset.shape not in ((), (1,)) or not jnp.issubdtype(
            group_offset.dtype, jnp.integer
        ):
            kind = ValueError if jnp.issubdtype(group_offset.dtype, jnp.integer) else TypeError
            shown = describe(group_offset.dtype, group_offset.shape)
            raise kind(f"{call}: group_offset is {shown}; it is an integer, [] or [1]")
    return group_offset, *operands


@partial(jax.jit, static_argnums=0, inline=compat.INLINED)
def _ragged_dot(
    given: RaggedArguments,
    group_offset: Any,
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    bias: Any = None,
) -> Any:
    call = _Call(given, lhs, rhs, group_sizes, group_offset)
    if bias is not None:
        call.check_bias(bias)

    def compute(lhs: Any, rhs: Any, group_sizes: Any, group_offset: Any, bias: Any) -> Any:
        groups = group_sizes, group_offset
        if bias is None and given.activation is None:
            return call.matmul(lhs, rhs, *groups, call.result)
        z = call.matmul(lhs, rhs, *groups, call.wide)
        if bias is not None:
            z = z + call.rows_of(bias, *groups)
        return ACTIVATIONS[given.activation](z).astype(call.result.dtype)

    return call.placed(compute)(lhs, rhs, group_sizes, group_offset, bias)


@partial(jax.jit, static_argnums=0, inline=compat.INLINED)
def _gated(
    given: RaggedArguments,
    group_offset: Any,
    lhs: Any,
    rhs_gate: Any,
    rhs_up: Any,
    group_sizes: Any,
) -> Any:
    call = _Call(given, lhs, rhs_gate, group_sizes, group_offset)
    arguments.check_gated(given.matmul.call, Operands(lhs, rhs_gate, rhs_up))

    def compute(lhs: Any, rhs_gate: Any, rhs_up: Any, *groups: Any) -> Any:
        gate, up = (call.matmul(lhs, rhs, *groups, call.wide) for rhs in (rhs_gate, rhs_up))
        return (ACTIVATIONS[given.activation](gate) * up).astype(call.result.dtype)

    return call.placed(compute)(lhs, rhs_gate, rhs_up, group_sizes, group_offset)


class _Call:
    """A call whose arguments are checked: what its result is, and how a matmul of it is computed.

    Attributes:
      result: shape and dtype of the result.
      wide: the same in the dtype of everything before the cast.
    """

    def __init__(
        self, given: RaggedArguments, lhs: Any, rhs: Any, group_sizes: Any, group_offset: Any
    ) -> None:
        self._given = given
        self._params = arguments.matmul_params(given.matmul)
        self._types = tuple(jax.typeof(x) for x in (lhs, rhs, group_sizes))
        self.result = self._result(*self._types, has_offset=group_offset is not None)
        self.wide = jax.ShapeDtypeStruct(self.result.shape, wide_dtype(self.result.dtype))
        self._plan = plan_ragged(lhs, rhs, given.dims)
        if self._plan is None and group_offset is not None:
            raise ValueError(
                f"{given.matmul.call}: the ragged dimension is a batch dimension, whose groups do "
                "not matter; leave group_offset=None"
            )
        if given.activation is not None and not jnp.issubdtype(self.result.dtype, jnp.floating):
            self._refuse_epilogue()

    def _result(
        self, lhs: Any, rhs: Any, group_sizes: Any, *, has_offset: bool
    ) -> jax.ShapeDtypeStruct:
        """Raises what `lax.ragged_dot_general` would, and says where."""
        dims, params = self._given.dims, self._params
        sizes = jax.ShapeDtypeStruct(group_sizes.shape, group_sizes.dtype)
        grouped_dims = [i for i in dims.rhs_group_dimensions if i < rhs.ndim]
        if has_offset and grouped_dims and sizes.ndim > 0:  # rhs has some of the groups
            shape = (*sizes.shape[:-1], rhs.shape[grouped_dims[0]])
            sizes = jax.ShapeDtypeStruct(shape, sizes.dtype)
        names = "ragged_dot_dimension_numbers", "precision", "preferred_element_type"
        values = dims, params["precision"], params["preferred_element_type"]
        try:
            return compat.ragged_dot_general_type(
                lhs, rhs, sizes, dict(zip(names, values, strict=True))
            )
        except TypeError as error:
            shown = ", ".join(
                f"{name} {describe(x.dtype, x.shape)}"
                for name, x in zip(("lhs", "rhs", "group_sizes"), self._types, strict=True)
            )
            raise TypeError(f"{self._given.matmul.call}: {shown}: {error}") from None

    def _refuse_epilogue(self) -> None:
        raise TypeError(
            f"{self._given.matmul.call}: an epilogue needs a real floating result, and this one is "
            f"{self.result.dtype}; apply it to the matmul, or set preferred_element_type"
        )

    def check_bias(self, bias: Any) -> None:
        """Raises where a bias does not fit."""
        if not jnp.issubdtype(self.result.dtype, jnp.floating):
            self._refuse_epilogue()
        call, (_, rhs, _) = self._given.matmul.call, self._types
        if not jnp.issubdtype(bias.dtype, jnp.floating):
            raise TypeError(f"{call}: bias is {bias.dtype}; cast it to a real floating dtype")
        wanted = rhs.shape[0], self.result.shape[1]
        if bias.shape != wanted:
            raise ValueError(
                f"{call}: bias {describe(bias.dtype, bias.shape)} is not "
                f"[{wanted[0]},{wanted[1]}], a row for each group of rhs"
            )

    def matmul(
        self, lhs: Any, rhs: Any, group_sizes: Any, group_offset: Any, result: jax.ShapeDtypeStruct
    ) -> Any:
        """The grouped matmul, in the dtype of `result`."""
        plan, params, given = self._plan, self._params, self._given
        if plan is None:
            return dot_general(
                *(lhs, rhs, given.dims.dot_dimension_numbers),
                precision=params["precision"],
                preferred_element_type=result.dtype,
                implementation=given.matmul.implementation,
            )
        lhs, rhs = plan.operands(lhs, rhs)
        is_summed = plan.ragged_contraction and plan.fronts != 1
        product = grouped(
            *(lhs, rhs, plan.sizes(group_sizes, len(lhs)), _scalar(group_offset)),
            ragged_contraction=plan.ragged_contraction,
            groups=group_sizes.shape[-1] if plan.ragged_contraction else rhs.shape[1],
            output=wide_dtype(result.dtype) if is_summed else result.dtype,
            transposed=plan.transposed,
            precision=params["precision"],
            rows_per_group=given.rows_per_group,
            policy=params["policy"],
        )
        return plan.result(product, result)

    def rows_of(self, bias: Any, group_sizes: Any, group_offset: Any) -> Any:
        """The bias of each row: a column of ones by it, so that its gradient is a grouped matmul."""
        ones = jnp.ones((1, self.result.shape[0], 1), self.wide.dtype)
        assert self._plan is not None
        sizes = self._plan.sizes(group_sizes, 1)
        return grouped(
            *(ones, bias.astype(self.wide.dtype)[None, :, None], sizes, _scalar(group_offset)),
            ragged_contraction=False,
            groups=len(bias),
            output=self.wide.dtype,
            policy=Policy(("xla",)),
        )[0]

    def placed(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """A function that computes the result, with explicit axes of a mesh left to XLA inside."""
        out_sharding = self._params["out_sharding"]
        if out_sharding is None and any(map(compat.is_explicit, self._types)):
            out_sharding = self._derived_sharding()
        if out_sharding is None:
            return compute
        placed: Callable[..., Any] = jax.sharding.auto_axes(compute, out_sharding=out_sharding)
        return placed

    def _derived_sharding(self) -> jax.sharding.NamedSharding:
        """That of the result where no dimension is sharded that it does not have."""
        dims = self._given.dims
        contracting, batch = dims.dot_dimension_numbers
        left, right = (compat.spec_entries(x) for x in self._types[:2])
        groups = dims.rhs_group_dimensions
        gone = [left[i] for i in contracting[0]] + [right[i] for i in (*contracting[1], *groups)]
        if any(entry is not None for entry in gone):
            raise ValueError(
                f"{self._given.matmul.call}: a dimension is sharded that is contracted, or has the "
                "groups; pass out_sharding, or call it under jax.shard_map"
            )
        lhs, rhs, _ = self._types
        spec = [left[i] for i in (*batch[0], *kept(lhs.ndim, contracting[0], batch[0]))]
        spec += [right[i] for i in kept(rhs.ndim, contracting[1], batch[1], tuple(groups))]
        spec = [*[None] * (len(self.result.shape) - len(spec)), *spec]
        mesh = next(x.sharding.mesh for x in self._types if compat.is_explicit(x))
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))


def _scalar(group_offset: Any) -> Any:
    """An offset as the primitive takes it."""
    if group_offset is None:
        return np.int32(0)
    limits = jnp.iinfo(np.int32)
    inside = jnp.clip(
        group_offset.reshape(()),
        max(limits.min, jnp.iinfo(group_offset.dtype).min),
        min(limits.max, jnp.iinfo(group_offset.dtype).max),
    )
    return inside.astype(np.int32)
