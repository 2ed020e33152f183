"""fused_dot_general_p: a dot_general with an epilogue, in one kernel where one fits.

Like dot_general_p it stands for the operation until it is lowered; then it is one launch, or
XLA's operations by the same formula (epilogue.py). Its derivative is in fused.py.

It is not one primitive with dot_general_p. That one is bilinear in exactly two operands with one
result, so that JAX derives jvp, transposition and linear_transpose from two rules; this one has up
to eleven operands and four results, is linear in none of its epilogue, and has dead code and
batching rules that the other does not need. Merged, each rule but lowering and partitioning, which
they share already, would begin by asking which of the two it is for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from jaxbw._src import compat
from jaxbw._src.epilogue import Epilogue, Ranks, evaluate, saved_dtype, wide_dtype
from jaxbw._src.primitives import partitioning, serve
from jaxbw._src.primitives.dot_general import (
    batched_dimension_numbers,
    dot_general,
    lax_params,
)
from jaxbw._src.primitives.gemm import gemm
from jaxbw._src.primitives.transposition import kept
from jaxbw._src.problem import (
    TILES,
    DimensionNumbers,
    Operands,
    Reduction,
    reduce_dot_general,
)
from jaxbw._src.selection.choice import Choice
from jaxbw._src.selection.policy import Policy

fused_dot_general_p = Primitive("jaxbw_fused_dot_general")
fused_dot_general_p.multiple_results = True

Results = tuple[Any, ...]  # d, what the epilogue saves, and amax or tiles of scales
Multiply = Callable[[Any, Any, dict[str, Any]], Any]


def fused_dot_general(
    operands: Operands,
    epilogue: Epilogue,
    dimension_numbers: DimensionNumbers,
    *,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: Any,
    policy: Policy,
) -> Results:
    """Binds the primitive.

    c and residual are shaped as the dot_general. The bias lies along n, the last dimensions of rhs
    that are in the result, or along m, the last such dimensions of lhs. Scales are shaped as the
    result's batch dimensions and those of lhs, or of rhs; of blocks, the contracting one comes
    behind.
    """
    if epilogue.out_format is not None and compat.is_explicit(jax.typeof(operands.lhs)):
        # Whole blocks of a dimension that is padded need not be divisible among devices.
        params: Any = {"precision": precision, "preferred_element_type": preferred_element_type}
        params |= {"out_sharding": out_sharding, "policy": policy}
        params |= {"epilogue": epilogue, "dimension_numbers": dimension_numbers}
        return _apart_of_format(operands, **params)
    results = fused_dot_general_p.bind(
        *compat.insert_reshard(*operands.given()),
        epilogue=epilogue,
        dimension_numbers=dimension_numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
        policy=policy,
    )
    return tuple(results)


def matmul(operands: Operands, epilogue: Epilogue, params: Mapping[str, Any]) -> Any:
    """d, by the primitive that is needed, of operands as `fused_dot_general` has them.

    With an `out_scale`, d and amax; with an `out_format`, data and tiles of scales.
    """
    if epilogue.is_identity:
        return dot_general(operands.lhs, operands.rhs, **params)
    results = fused_dot_general(operands, epilogue, **params)
    return results if epilogue.has_more_results else results[0]


def ranks_of(lhs_rank: int, rhs_rank: int, dims: DimensionNumbers) -> Ranks:
    """How many dimensions of the dot_general there are of which kind."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dims
    return Ranks(
        len(lhs_batch),
        len(kept(lhs_rank, lhs_contract, lhs_batch)),
        len(kept(rhs_rank, rhs_contract, rhs_batch)),
    )


def _formula(
    operands: Operands,
    multiply: Multiply,
    *,
    epilogue: Epilogue,
    dimension_numbers: DimensionNumbers,
    in_bfloat16: bool = False,
    **params: Any,
) -> Results:
    """The operation in XLA's terms, over a matmul that gives the wide dtype.

    `in_bfloat16`: operands of block-scaled formats become that, which holds them exactly.
    """
    params["dimension_numbers"] = dimension_numbers
    types = jax.typeof(operands.lhs), jax.typeof(operands.rhs)
    output, _ = compat.dot_general_type(*types, lax_params(params))
    wide = params["preferred_element_type"] = wide_dtype(output.dtype)
    if epilogue.has_blocks:
        from jaxbw._src.primitives import dequantized  # wanted by few

        narrow = in_bfloat16 and len(epilogue.formats) == 2
        exact = jnp.bfloat16 if narrow else wide
        operands = dequantized.dequantized(operands, epilogue, dimension_numbers, exact)
        params["precision"] = dequantized.precision_of(params["precision"])
    lhs, rhs, rhs_up, *others, _, _, _ = operands
    return evaluate(
        epilogue,
        output.dtype,
        ranks_of(lhs.ndim, rhs.ndim, dimension_numbers),
        multiply(lhs, rhs, params),
        None if rhs_up is None else multiply(lhs, rhs_up, params),
        *others,
    )


def in_parts(operands: Operands, **params: Any) -> Results:
    """The matmul, and the epilogue by XLA."""

    def multiply(lhs: Any, rhs: Any, params: dict[str, Any]) -> Any:
        return dot_general(lhs, rhs, **params)

    return _formula(operands, multiply, **params)


def _abstract_eval(lhs: Any, rhs: Any, *_: Any, epilogue: Epilogue, **params: Any) -> Any:
    result, effects = compat.dot_general_type(lhs, rhs, lax_params(params))
    if epilogue.out_format is not None:
        from jaxbw._src import block_formats  # wanted by few

        data, tiles = block_formats.shapes(result.shape)
        in_tiles = result.update(shape=tiles, dtype=block_formats.E8M0)
        return [result.update(shape=data), in_tiles], effects
    saved = result.update(dtype=saved_dtype(result.dtype))
    results = [result, *[saved] * epilogue.saves]
    if epilogue.out_scale:
        batch = tuple(range(len(params["dimension_numbers"][1][0])))
        amax: Any = {"shape": tuple(result.shape[i] for i in batch), "dtype": np.dtype(np.float32)}
        if compat.is_explicit(result):
            amax["sharding"] = compat.permuted_sharding(result, batch)
        results.append(result.update(**amax))
    return results, effects


# What is not used is not computed: jax.checkpoint drops what its policy does not keep.


def _without_unused(used: list[bool], equation: Any) -> tuple[list[bool], Any]:
    params = dict(equation.params)
    epilogue: Epilogue = params["epilogue"]
    if not any(used):
        return [False] * len(equation.invars), None
    if epilogue.has_more_results:
        return [True] * len(equation.invars), equation
    uses_d, *uses_saved = used
    operands = Operands.of(epilogue, equation.invars)
    if epilogue.save and not any(uses_saved):
        epilogue = replace(epilogue, save=False)
    elif not uses_d and not epilogue.gated:  # z alone
        operands = operands._replace(residual=None)
        params["preferred_element_type"] = equation.outvars[1].aval.dtype
        epilogue = replace(epilogue, activation=None, residual=None, save=False)
    else:
        return [True] * len(equation.invars), equation
    kept_invars = operands.given()
    return [x in kept_invars for x in equation.invars], equation.replace(
        params={**params, "epilogue": epilogue},
        invars=kept_invars,
        outvars=[x for x, is_used in zip(equation.outvars, used, strict=True) if is_used],
    )


compat.register_dead_code_rule(fused_dot_general_p, _without_unused)


# Batching


def _batch(axis_data: Any, given: Any, batched: Any, **params: Any) -> Any:
    epilogue: Epilogue = params["epilogue"]
    if all(axis is None for axis in batched):
        results = fused_dot_general(Operands.of(epilogue, given), **params)
        return results, [None] * len(results)
    operands, axes = Operands.of(epilogue, given), Operands.of(epilogue, batched)
    if epilogue.gated and axes.rhs != axes.rhs_up:  # one kernel reads both right operands alike
        axis = axes.rhs if axes.rhs is not None else axes.rhs_up
        rhs, rhs_up = (
            _at(operands[i], axes[i], axis, axis_data.size)
            for i in (Operands._fields.index("rhs"), Operands._fields.index("rhs_up"))
        )
        operands, axes = (
            operands._replace(rhs=rhs, rhs_up=rhs_up),
            axes._replace(rhs=axis, rhs_up=axis),
        )
    if epilogue.formats:
        operands, axes = _with_batch_in_front(operands, axes)
    if not _stays_one(operands, axes, **params):
        return _apart(operands, axes, **params)

    dims, result = batched_dimension_numbers(
        (operands.lhs.ndim, operands.rhs.ndim),
        (axes.lhs, axes.rhs),
        params.pop("dimension_numbers"),
    )
    params["out_sharding"] = compat.vmapped_sharding(axis_data, params["out_sharding"], result)
    # Of those arrays that have the new dimension, where it is: scales of rhs have none of lhs.
    new = {"c": result, "residual": result}
    if axes.lhs is not None:
        new["lhs_scale"] = result
    if axes.rhs is not None:
        ranks = ranks_of(operands.lhs.ndim, operands.rhs.ndim, dims)
        in_columns = result if axes.lhs is not None else result - ranks.lhs
        new |= dict.fromkeys(("rhs_scale", "rhs_up_scale"), in_columns)
    operands = operands._replace(
        **{
            name: _at(getattr(operands, name), getattr(axes, name), axis, axis_data.size)
            for name, axis in new.items()
        }
    )
    results = fused_dot_general(operands, dimension_numbers=dims, **params)
    return results, [result] * len(results)


def _with_batch_in_front(operands: Operands, axes: Operands) -> tuple[Operands, Operands]:
    """Where an operand and its tiles have the new dimension, it becomes the first one of both."""
    for names in TILES.items():
        if any(getattr(axes, name) is None for name in names):
            continue
        moved = {n: jnp.moveaxis(getattr(operands, n), getattr(axes, n), 0) for n in names}
        operands, axes = operands._replace(**moved), axes._replace(**dict.fromkeys(names, 0))
    return operands, axes


def _at(x: Any, axis: int | None, wanted: int, size: int) -> Any:
    """An operand with the new dimension where it is wanted."""
    if x is None or axis == wanted:
        return x
    return jnp.moveaxis(
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else x, axis or 0, wanted
    )


def _stays_one(
    operands: Operands,
    axes: Operands,
    *,
    epilogue: Epilogue,
    dimension_numbers: DimensionNumbers,
    **_: Any,
) -> bool:
    """Whether the vmapped operation is one again.

    It is not where the matmul has no new dimension, or the bias has: it runs along the last
    dimensions of one operand. Nor is it where the new dimension has come among those, or a kernel
    would have several factors, or several scales of one row or column, or of a block; nor where an
    amax is of a part of one matrix, or tiles of scales are of its rows.
    """
    if epilogue.out_format is not None:
        return False
    if any(axis is not None for axis in (axes.bias, axes.alpha, axes.beta, axes.out_scale)):
        return False
    if epilogue.out_scale and (axes.lhs is None or axes.rhs is None):
        return False
    if axes.lhs is None and axes.rhs is None:
        return False
    if axes.lhs is None and axes.lhs_scale is not None:
        return False
    if axes.rhs is None and (axes.rhs_scale is not None or axes.rhs_up_scale is not None):
        return False
    of_tiles = zip(TILES.items(), (epilogue.lhs_format, *[epilogue.rhs_format] * 2), strict=True)
    if any(
        format is not None and getattr(axes, x) != getattr(axes, tiles)
        for (x, tiles), format in of_tiles
    ):
        return False
    if epilogue.bias is None or (axes.lhs is not None and axes.rhs is not None):
        return True
    along_m = epilogue.bias_axis == "m"
    x, axis = (operands.lhs, axes.lhs) if along_m else (operands.rhs, axes.rhs)
    if axis is None:
        return True
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
    contract, batch = (lhs_contract, lhs_batch) if along_m else (rhs_contract, rhs_batch)
    return bool(axis <= kept(x.ndim - 1, contract, batch)[-epilogue.bias_rank])


def _apart(operands: Operands, axes: Operands, **params: Any) -> Any:
    def apart(operands: Operands) -> Results:
        return in_parts(operands, **params)

    results = jax.vmap(apart, in_axes=(axes,))(operands)
    return results, [0] * len(results)


batching.fancy_primitive_batchers[fused_dot_general_p] = _batch


# Lowering


def _on_xla(params: dict[str, Any], platform: str | None) -> Callable[..., Any]:
    epilogue = params["epilogue"]
    options: Any = {"epilogue": epilogue, "in_bfloat16": platform == "cuda"}

    def multiply(lhs: Any, rhs: Any, params: dict[str, Any]) -> Any:
        return compat.lax_dot_general(lhs, rhs, params)

    def formula(*given: Any) -> Results:
        operands = Operands.of(epilogue, given)
        return _formula(operands, multiply, **options, **lax_params(params))

    return formula


def reduction(
    operands: Sequence[Any], results: Sequence[Any], params: Mapping[str, Any]
) -> Reduction:
    """The matmul as one GEMM with its epilogue, of the types of its operands and results."""
    lhs, rhs, *_ = operands
    return reduce_dot_general(
        lhs,
        rhs,
        params["dimension_numbers"],
        results[0].dtype,
        precision=params["precision"],
        epilogue=params["epilogue"],
    )


def _lower(platform: str | None, ctx: Any, *operands: Any, **params: Any) -> Any:
    epilogue: Epilogue = params["epilogue"]

    def on_kernel(reduced: Reduction, choice: Choice) -> Any:
        _, (batch, _) = params["dimension_numbers"]
        sizes = tuple(ctx.avals_in[0].shape[i] for i in batch)
        return lambda *given: gemm(reduced, choice, Operands.of(epilogue, given), sizes)

    return serve.lower(
        ctx,
        operands,
        partial(reduction, ctx.avals_in, ctx.avals_out, params),
        on_kernel,
        _on_xla(params, platform),
        partial(_on_devices, params),
        platform=platform,
        policy=params["policy"],
    )


def _on_devices(params: dict[str, Any], ctx: Any, operands: Any, platform: str) -> Any:
    """In a program of several devices: an amax over shards is XLA's, and so is the epilogue.

    Scales of blocks of 128 are, too, whose shards need not be whole blocks.
    """
    epilogue: Epilogue = params["epilogue"]
    if not (epilogue.has_more_results or epilogue.lhs_blocks or epilogue.rhs_blocks):
        return partitioning.lower(fused_dot_general_p, params, ctx, operands, platform)

    def apart(*given: Any) -> Results:
        return _apart_of_format(Operands.of(epilogue, given), **params)

    return mlir.lower_fun(apart, multiple_results=True)(ctx, *operands)


def _apart_of_format(operands: Operands, *, epilogue: Epilogue, **params: Any) -> Results:
    """As `in_parts`; but of operands that kernels multiply only what follows d is XLA's."""
    if epilogue.out_format is None or len(epilogue.formats) != 2:
        return in_parts(operands, epilogue=epilogue, **params)
    from jaxbw._src import block_formats  # wanted by few

    params |= {"preferred_element_type": np.dtype(np.float32)}
    d = matmul(operands, replace(epilogue, out_format=None), params)
    return block_formats.in_memory(d, block_formats.FORMATS[epilogue.out_format])


def _local(shards: Any, params: dict[str, Any], total: partitioning.Sum | None) -> Results:
    params = {**params}
    epilogue: Epilogue = params.pop("epilogue")
    operands = Operands.of(epilogue, shards)
    if total is None:
        return fused_dot_general(operands, epilogue, **params)
    formats = Epilogue(lhs_format=epilogue.lhs_format, rhs_format=epilogue.rhs_format)
    lhs, lhs_tiles = operands.lhs, operands.lhs_tiles

    def multiply(rhs: Any, rhs_tiles: Any, dtype: Any) -> Any:
        product = Operands(lhs, rhs, lhs_tiles=lhs_tiles, rhs_tiles=rhs_tiles)
        return total(matmul(product, formats, {**params, "preferred_element_type": dtype}))

    types = jax.typeof(lhs), jax.typeof(operands.rhs)
    output = compat.dot_general_type(*types, lax_params(params))[0].dtype
    if epilogue.is_product and output.itemsize > 1:  # of 8 bits parts of a sum are too few
        return (multiply(operands.rhs, operands.rhs_tiles, output),)
    wide, up = wide_dtype(output), operands.rhs_up
    return evaluate(
        epilogue,
        output,
        ranks_of(lhs.ndim, operands.rhs.ndim, params["dimension_numbers"]),
        multiply(operands.rhs, operands.rhs_tiles, wide),
        None if up is None else multiply(up, operands.rhs_up_tiles, wide),
        *operands[3:-3],
    )


fused_dot_general_p.def_effectful_abstract_eval(_abstract_eval)
serve.register(fused_dot_general_p, _lower)
partitioning.register(fused_dot_general_p, _local)
