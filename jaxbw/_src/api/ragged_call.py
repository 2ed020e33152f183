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
from jaxbw._src.epilogue import wide_dtype
from jaxbw._src.primitives.ragged_dot import check, ragged_dot
from jaxbw._src.primitives.transposition import kept
from jaxbw._src.problem import describe
from jaxbw._src.selection.policy import Policy


class RaggedArguments(NamedTuple):
    """The arguments beside arrays, as they were given but hashable: `jit` keys with them."""

    matmul: MatmulArguments
    dims: lax.RaggedDotDimensionNumbers
    activation: str | None
    rows_per_group: int | None


class RaggedCall:
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
        operands = lhs, rhs, plan.sizes(group_sizes, len(lhs)), _offset(group_offset)
        is_summed = plan.ragged_contraction and plan.fronts != 1
        of_primitive = {
            "ragged_contraction": plan.ragged_contraction,
            "groups": group_sizes.shape[-1] if plan.ragged_contraction else rhs.shape[1],
            "output": wide_dtype(result.dtype) if is_summed else result.dtype,
            "transposed": plan.transposed,
            "precision": params["precision"],
            "rows_per_group": given.rows_per_group,
            "policy": params["policy"],
        }
        check(given.matmul.call, operands, of_primitive)
        product = ragged_dot(*operands, **of_primitive)
        return plan.result(product, result)

    def rows_of(self, bias: Any, group_sizes: Any, group_offset: Any) -> Any:
        """The bias of each row: a column of ones by it, so that its derivative is a matmul, too."""
        ones = jnp.ones((1, self.result.shape[0], 1), self.wide.dtype)
        assert self._plan is not None
        sizes = self._plan.sizes(group_sizes, 1)
        return ragged_dot(
            *(ones, bias.astype(self.wide.dtype)[None, :, None], sizes, _offset(group_offset)),
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
