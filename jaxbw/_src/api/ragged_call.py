"""A call of a grouped matmul, checked: what its result is, and how it is computed."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbw._src import compat
from jaxbw._src.api import arguments
from jaxbw._src.api.arguments import MatmulArguments
from jaxbw._src.api.matmul import dot_general
from jaxbw._src.api.ragged_plan import as_int32, plan_ragged
from jaxbw._src.epilogue import IDENTITY, Epilogue, scaled, wide_dtype
from jaxbw._src.primitives.ragged_dot import check, output_shape, ragged_dot
from jaxbw._src.primitives.ragged_fused import EXACT, ragged_fused
from jaxbw._src.primitives.ragged_gathered import ragged_gathered, rows_of
from jaxbw._src.primitives.transposition import kept
from jaxbw._src.problem import describe


class RaggedArguments(NamedTuple):
    """The arguments beside arrays, as they were given but hashable: `jit` keys with them."""

    matmul: MatmulArguments
    dims: lax.RaggedDotDimensionNumbers
    activation: str | None
    alpha: float
    rows_per_group: int | None
    formats: tuple[str, str] | None = None  # block-scaled, of lhs and rhs


class RaggedOperands(NamedTuple):
    """Operands of a call as arrays, and their scales.

    Attributes:
      operands: by their names.
      scales: by the names of terms.
      transposed: whether right operands are `[g, n, k]`.
      dtype: of the result.
      formats: those of lhs and rhs, where they are block-scaled.
    """

    operands: dict[str, Any]
    scales: dict[str, Any]
    transposed: bool
    dtype: Any
    formats: tuple[str, str] | None = None


class RaggedCall:
    """A call whose arguments are checked: what its result is, and how a matmul of it is computed.

    Attributes:
      result: shape and dtype of the result.
      wide: the same in the dtype of everything before the cast.
    """

    def __init__(
        self,
        given: RaggedArguments,
        lhs: Any,
        rhs: Any,
        group_sizes: Any,
        group_offset: Any,
        lhs_rows: Any = None,
    ) -> None:
        self._given = given
        self._params = arguments.matmul_params(given.matmul)
        self._types = tuple(jax.typeof(x) for x in (lhs, rhs, group_sizes))
        if lhs_rows is not None:
            self._types = (self._gathered(lhs, lhs_rows), *self._types[1:])
        self.result = self._result(*self._types, has_offset=group_offset is not None)
        self.wide = jax.ShapeDtypeStruct(self.result.shape, wide_dtype(self.result.dtype))
        self._plan = plan_ragged(lhs, rhs, given.dims)
        if self._plan is None and group_offset is not None:
            raise ValueError(
                f"{given.matmul.call}: the ragged dimension is a batch dimension, whose groups do "
                "not matter; leave group_offset=None"
            )

    def _result(
        self, lhs: Any, rhs: Any, group_sizes: Any, *, has_offset: bool
    ) -> jax.ShapeDtypeStruct:
        """Raises what `lax.ragged_dot_general` would, and says where."""
        dims, params = self._given.dims, self._params
        sizes = jax.ShapeDtypeStruct(group_sizes.shape, group_sizes.dtype)
        group_dims = [i for i in dims.rhs_group_dimensions if i < rhs.ndim]
        if has_offset and group_dims and sizes.ndim > 0:  # rhs has some of the groups
            shape = (*sizes.shape[:-1], rhs.shape[group_dims[0]])
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

    def _gathered(self, lhs: Any, lhs_rows: Any) -> Any:
        """The type of the rows of lhs that are multiplied, as a gather gives it."""
        call = self._given.matmul.call
        shown = describe(lhs_rows.dtype, lhs_rows.shape)
        if not jnp.issubdtype(lhs_rows.dtype, jnp.integer):
            raise TypeError(f"{call}: lhs_rows is {shown}; it is integers, [m]")
        if lhs_rows.ndim != 1:
            raise ValueError(f"{call}: lhs_rows is {shown}; it is [m]")
        if lhs.ndim != 2:
            return jax.typeof(lhs)  # which lax refuses
        if lhs.shape[0] == 0 != lhs_rows.shape[0]:
            of_lhs = describe(lhs.dtype, lhs.shape)
            raise ValueError(f"{call}: lhs is {of_lhs}; there is no row for lhs_rows {shown}")
        return jax.typeof(lhs).update(shape=(lhs_rows.shape[0], lhs.shape[1]))

    def check_terms(self, terms: dict[str, Any]) -> None:
        """Raises where the arrays of an epilogue do not fit, or there can be none."""
        given, (_, rhs, _) = self._given, self._types
        call = given.matmul.call
        has_any = bool({*terms} - {"lhs_rows"}) or given.activation is not None or given.alpha != 1
        if has_any and not jnp.issubdtype(self.result.dtype, jnp.floating):
            raise TypeError(
                f"{call}: an epilogue needs a real floating result, and this one is "
                f"{self.result.dtype}; apply it to the matmul, or set preferred_element_type"
            )
        for name, x in terms.items():
            if name in ("rhs_up", "lhs_rows") or name.endswith(("scale", "tiles")):
                continue
            if not jnp.issubdtype(x.dtype, jnp.floating):
                raise TypeError(f"{call}: {name} is {x.dtype}; cast it to a real floating dtype")
            of_bias = name == "bias"
            wanted = (rhs.shape[0], self.result.shape[1]) if of_bias else self.result.shape
            if x.shape != wanted:
                what = "a row for each group of rhs" if of_bias else "the result's shape"
                shown, needed = describe(x.dtype, x.shape), ",".join(map(str, wanted))
                raise ValueError(f"{call}: {name} {shown} is not [{needed}], {what}")

    def compute(
        self, lhs: Any, rhs: Any, group_sizes: Any, group_offset: Any, terms: dict[str, Any]
    ) -> Any:
        """The result, of arrays whose types were checked."""
        given, wide, dtype = self._given, self.wide.dtype, self.result.dtype
        residual = terms.get("residual")
        fused = {name: x for name, x in terms.items() if name not in ("residual", "lhs_rows")}
        lhs_format, rhs_format = given.formats or (None, None)
        epilogue = Epilogue(
            alpha=given.alpha,
            c=fused["c"].dtype if "c" in fused else None,
            bias=fused["bias"].dtype if "bias" in fused else None,
            activation=given.activation,
            gated="rhs_up" in fused,
            lhs_scale="lhs_scale" in fused,
            rhs_scale="rhs_scale" in fused,
            lhs_format=lhs_format,
            rhs_format=rhs_format,
        )
        matmul = (lhs, rhs, group_sizes, group_offset, terms.get("lhs_rows"))
        product = self._matmul(matmul, epilogue, fused, dtype if residual is None else wide)
        return product if residual is None else (product + residual.astype(wide)).astype(dtype)

    def _matmul(
        self, matmul: tuple[Any, ...], epilogue: Epilogue, terms: dict[str, Any], dtype: Any
    ) -> Any:
        """The grouped matmul of lhs, rhs, sizes, offset, and rows with its epilogue."""
        lhs, rhs, group_sizes, group_offset, lhs_rows = matmul
        plan, given, params = self._plan, self._given, self._params
        is_summed = plan is not None and plan.ragged_contraction and plan.fronts != 1
        if not epilogue.is_identity and (plan is None or is_summed):
            # Only of ragged_dot_general, which has alpha and c.
            z = scaled(given.alpha, self._matmul(matmul, IDENTITY, {}, self.wide.dtype))
            return sum((x.astype(z.dtype) for x in terms.values()), z).astype(dtype)
        if plan is None:
            return dot_general(
                *(lhs, rhs, given.dims.dot_dimension_numbers),
                precision=params["precision"],
                preferred_element_type=dtype,
                implementation=given.matmul.implementation,
            )
        left, right = plan.operands(lhs, rhs)
        operands = left, right, plan.sizes(group_sizes, len(left)), _offset(group_offset)
        of_primitive = {
            "ragged_contraction": plan.ragged_contraction,
            "groups": group_sizes.shape[-1] if plan.ragged_contraction else right.shape[1],
            "output": wide_dtype(dtype) if is_summed else dtype,
            "transposed": plan.transposed,
            "precision": params["precision"],
            "rows_per_group": given.rows_per_group,
            "policy": params["policy"],
        }
        result = jax.ShapeDtypeStruct(self.result.shape, dtype)
        types = [jax.typeof(x) for x in operands]
        if lhs_rows is not None:
            lhs_rows = as_int32(lhs_rows)
            types[0] = types[0].update(shape=(1, *self._types[0].shape))
        if given.formats is not None:  # what is multiplied where no kernel multiplies these
            types[:2] = (x.update(dtype=EXACT) for x in types[:2])
        check(given.matmul.call, types, of_primitive)
        if epilogue.is_identity and lhs_rows is None:
            return plan.result(ragged_dot(*operands, **of_primitive), result)
        n = output_shape(*operands[:3], of_primitive)[-1]

        def of_rows(x: Any) -> Any:
            each = jnp.broadcast_to(x, (left.shape[1], 1)).reshape(1, left.shape[1])
            return each if lhs_rows is None else rows_of(each, lhs_rows)

        def of_columns(x: Any) -> Any:  # with size 1 for k
            return jnp.broadcast_to(x, (right.shape[1], 1, n)).reshape(1, right.shape[1], n)

        def of_batch(x: Any) -> Any:
            return x[None]

        planned = {
            "rhs_up": lambda x: plan.operands(lhs, x)[1],
            "c": lambda x: plan.like_product(x, output_shape(*operands[:3], of_primitive)),
            "bias": of_batch,
            "lhs_scale": of_rows,
            "rhs_scale": of_columns,
            "rhs_up_scale": of_columns,
            "lhs_tiles": of_batch,
            "rhs_tiles": of_batch,
            "rhs_up_tiles": of_batch,
        }
        arrays = {name: planned[name](x) for name, x in terms.items()}
        of_primitive |= {"epilogue": epilogue, "terms": arrays}
        if lhs_rows is None:
            return plan.result(ragged_fused(*operands, **of_primitive), result)
        return plan.result(ragged_gathered(*operands, lhs_rows, **of_primitive), result)

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
        lhs, rhs, _ = self._types
        groups = tuple(dims.rhs_group_dimensions)
        gone: list[Any] = []
        spec: list[Any] = []
        sides = zip((lhs, rhs), *dims.dot_dimension_numbers, ((), groups), strict=True)
        for x, contracting, batch, its_groups in sides:
            entries = compat.spec_entries(x)
            gone += [entries[i] for i in (*contracting, *its_groups)]
            own = kept(x.ndim, tuple(contracting), tuple(batch), its_groups)
            spec += [entries[i] for i in (*(batch if x is lhs else ()), *own)]
        if any(entry is not None for entry in gone):
            raise ValueError(
                f"{self._given.matmul.call}: a dimension is sharded that is contracted, or has the "
                "groups; pass out_sharding, or call it under jax.shard_map"
            )
        spec = [*[None] * (len(self.result.shape) - len(spec)), *spec]
        mesh = next(x.sharding.mesh for x in self._types if compat.is_explicit(x))
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))


def _offset(given: Any) -> Any:
    """As the primitive takes it."""
    return np.int32(0) if given is None else as_int32(given.reshape(()))
