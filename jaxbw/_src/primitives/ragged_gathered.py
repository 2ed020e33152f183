"""ragged_gathered_p: a grouped matmul that chooses its rows, one kernel where there is one for it.

    out[0, r] = what `ragged_fused` makes of row clamp(lhs_rows[r]) of lhs[0]

`apart` says the same by a gather and a grouped matmul: it is what is computed where no kernel
gathers, under `vmap`, and where JAX asks for the derivative of an epilogue. Without an epilogue
it is bilinear.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad

from jaxbw._src import compat
from jaxbw._src.epilogue import Epilogue
from jaxbw._src.primitives.fused_tangent import of_some
from jaxbw._src.primitives.ragged_dot import OPERANDS, output_shape, problem_of, ragged_dot
from jaxbw._src.primitives.ragged_fused import ragged_fused, register, term_names
from jaxbw._src.ragged import RaggedProblem

ragged_gathered_p = Primitive("jaxbw_ragged_gathered")


def ragged_gathered(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    group_offset: Any,
    lhs_rows: Any,
    *,
    epilogue: Epilogue,
    terms: dict[str, Any],
    **params: Any,
) -> Any:
    """Binds the primitive.

    Args:
      lhs: [1, rows, k], of at least one row.
      lhs_rows: int32 [m].
      rhs, group_sizes, group_offset, params: as of `ragged_dot`, with a batch of 1.
      epilogue, terms: as of `ragged_fused`, or IDENTITY and none; all are of the m rows, but for
        "lhs_tiles", which are lhs's.
    """
    compat.register_float_check(ragged_gathered_p)
    given = [terms[name] for name in term_names(epilogue)]
    operands = compat.insert_reshard(lhs, rhs, group_sizes, group_offset, *given, lhs_rows)
    result: Any = ragged_gathered_p.bind(*operands, epilogue=epilogue, **params)
    return result


def rows_of(x: Any, rows: Any) -> Any:
    """Those rows of [batch, rows, ..], of indices beyond them the nearest."""
    return jnp.take(x, rows, axis=1, mode="clip")


def apart(lhs: Any, rhs: Any, *sizes_terms_and_rows: Any, epilogue: Epilogue, **params: Any) -> Any:
    """The same by a gather in front of a grouped matmul."""
    sizes, offset, *terms, rows = sizes_terms_and_rows
    operands = rows_of(lhs, rows), rhs, sizes, offset
    if epilogue.is_identity:
        return ragged_dot(*operands, **params)
    named = dict(zip(term_names(epilogue), terms, strict=True))
    if epilogue.lhs_format is not None:
        from jaxbw._src import scale_tiles  # wanted by few

        named["lhs_tiles"] = scale_tiles.of_rows(named["lhs_tiles"], lhs.shape[1], rows)
    return ragged_fused(*operands, epilogue=epilogue, terms=named, **params)


def problem_of_gathered(operands: Any, epilogue: Epilogue, params: Any) -> RaggedProblem:
    """What the selection is asked, of the types of the operands."""
    *others, rows = operands
    return problem_of(others[:OPERANDS], params, epilogue, rows)


def _abstract_eval(lhs: Any, rhs: Any, group_sizes: Any, *others: Any, **params: Any) -> Any:
    batch, _, n = output_shape(lhs, rhs, group_sizes, params)
    shape = (batch, others[-1].shape[0], n)
    return lhs.update(shape=shape, dtype=params["output"], weak_type=False)


# Transformations


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    integers = (2, 3, len(primals) - 1)
    moving = [i for i, x in enumerate(tangents) if i not in integers and type(x) is not ad.Zero]
    call = partial(ragged_gathered_p.bind, **params)
    if moving and not params["epilogue"].is_identity:
        at, along = ([xs[i] for i in moving] for xs in (primals, tangents))
        return jax.jvp(of_some(partial(apart, **params), primals, moving), at, along)
    out = call(*primals)
    parts = [call(*primals[:i], tangents[i], *primals[i + 1 :]) for i in moving]
    return out, sum(parts[1:], parts[0]) if parts else ad.Zero(jax.typeof(out))


register(
    ragged_gathered_p,
    abstract_eval=_abstract_eval,
    jvp=_jvp,
    apart=apart,
    problem=problem_of_gathered,
    how="gathered apart",
)
