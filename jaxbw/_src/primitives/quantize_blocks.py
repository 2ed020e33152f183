"""quantize_blocks_p: an array in a block-scaled format, by a kernel or by XLA with the same bits.

Which of them is settled when it is lowered. `quantize_blocks_call_p` is a call of the kernel.
"""

import math
from collections.abc import Sequence
from enum import IntEnum
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from jaxbw._src import block_formats, compat, stochastic
from jaxbw._src.primitives import quantizing, serve
from jaxbw._src.problem import describe

TARGET = "jaxbw_quantize_blocks_v1"
PARTITIONED = "jaxbw_partitioned_quantize_blocks_v1"  # stands for it on several devices
_ROLE = "quantize_blocks"  # of the kernels
_TILE = 128  # rows and columns of what a block of a launch makes

quantize_blocks_p = Primitive("jaxbw_quantize_blocks")
quantize_blocks_p.multiple_results = True
quantize_blocks_call_p = Primitive("jaxbw_quantize_blocks_call")
quantize_blocks_call_p.multiple_results = True


class Wanted(IntEnum):
    """What is wanted of blocks along a dimension; the numbers are the call's."""

    NOTHING = 0
    SCALES = 1
    DATA_AND_SCALES = 2


def quantize_blocks(
    x: Any,
    divisor: Any,
    format: str,
    *,
    columns: Wanted,
    rows: Wanted,
    square: bool,
    seed: Any,
    signs: Any,
    implementation: tuple[str, ...] | None,
    target: str | None,
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Binds the primitive: data and tiles of scales of columns and of rows, None if not wanted.

    Args:
      x: `[..., rows, columns]`.
      divisor: the global scale, a scalar; None of a format without.
      columns, rows: what is wanted of blocks along the last dimension, and then of those along the
        one before it, whose data are transposed.
      seed: int32 [2], with the points of which data are rounded stochastically; or None.
      signs: int32, with which x is rotated before (`stochastic.rotated`); or None.

    Raises:
      NotImplementedError: none of the strict implementations takes such an array.
    """
    quantizing.check(implementation, _ROLE, x, _refusal(x.dtype, x.shape))
    others = [each for each in (divisor, seed, signs) if each is not None]
    bound = quantize_blocks_p.bind(
        *compat.insert_reshard(x, *others),
        format=format,
        columns=columns,
        rows=rows,
        square=square,
        dithered=seed is not None,
        rotated=signs is not None,
        implementation=implementation,
        target=target,
    )
    results = iter(bound)

    def taken(wanted: Wanted) -> tuple[Any, Any]:
        data = next(results) if wanted is Wanted.DATA_AND_SCALES else None
        return data, next(results) if wanted is not Wanted.NOTHING else None

    return taken(columns), taken(rows)


def on_xla(
    x: Any,
    *others: Any,
    format: str,
    columns: Wanted,
    rows: Wanted,
    square: bool,
    dithered: bool,
    rotated: bool,
) -> list[Any]:
    """The same in XLA's operations. `others`: what there is of a divisor, a seed and signs."""
    chosen = block_formats.FORMATS[format]
    left = [*others]
    if rotated:
        x = stochastic.rotated(x, left.pop())
    points = stochastic.points(left.pop(), x.shape) if dithered else None
    divisor = [scale.reshape(scale.shape + (1,) * (x.ndim - scale.ndim)) for scale in left]
    if divisor and points is None:
        x = block_formats.divided(x, *divisor)
    results = []
    for wanted, along in ((columns, lambda x: x), (rows, jnp.matrix_transpose)):
        if wanted is not Wanted.NOTHING:
            dither = None if points is None else (along(points), *divisor)
            data, tiles = block_formats.in_memory(along(x), chosen, square=square, dither=dither)
            results += [data] if wanted is Wanted.DATA_AND_SCALES else []
            results += [tiles]
    return results


def _abstract_eval(*operands: Any, implementation: Any, target: Any, **params: Any) -> Any:
    """As XLA's form has them: also over which axes of a mesh they are sharded, or vary."""
    del implementation, target
    with compat.without_error_checks():
        return jax.make_jaxpr(partial(on_xla, **params))(*operands).out_avals


def _batch(operands: Any, batched: Any, **params: Any) -> Any:
    """Each array has its divisor, seed and signs, with the same new dimension in front."""
    size = next(x.shape[at] for x, at in zip(operands, batched, strict=True) if at is not None)
    moved = [
        jnp.broadcast_to(x, (size, *x.shape)) if at is None else jnp.moveaxis(x, at, 0)
        for x, at in zip(operands, batched, strict=True)
    ]
    results = quantize_blocks_p.bind(*moved, **params)
    return results, (0,) * len(results)


def _without_unused(used: list[bool], equation: Any) -> Any:
    """What is left of what is used: of data their scales are, too."""
    if not any(used):
        return [False] * len(equation.invars), None
    params, outvars, results = dict(equation.params), [], zip(equation.outvars, used, strict=True)
    for name in ("columns", "rows"):
        of_one = [next(results) for _ in range(params[name])]
        while of_one and not of_one[0][1]:
            of_one = of_one[1:]
        params[name] = Wanted(len(of_one))
        outvars += [x for x, _ in of_one]
    if Wanted.DATA_AND_SCALES not in params.values():  # a call has data
        return [True] * len(equation.invars), equation
    return [True] * len(equation.invars), equation.replace(params=params, outvars=outvars)


# Lowering


def _lower(platform: str | None, ctx: Any, *operands: Any, **params: Any) -> Any:
    names, target = params.pop("implementation"), params.pop("target")
    x = ctx.avals_in[0]
    refusal = partial(_refusal, x.dtype, x.shape)
    # A shard's points and blocks of rows depend on where it lies.
    of_shards = not (params["dithered"] or params["rotated"])
    kernel = quantizing.kernel(platform, ctx, _ROLE, names, target, refusal, of_shards=of_shards)
    if not compat.is_one_device(ctx) and not isinstance(kernel, str):
        from jaxbw._src.primitives import quantize_shards  # wanted by few

        params |= {"implementation": names, "target": target}
        return quantize_shards.lower(ctx, operands, platform, params)
    described = f"quantize {describe(x.dtype, x.shape)} to {params['format']}"
    forms = (partial(form, **params) for form in (on_xla, _on_kernel))
    return quantizing.lower(ctx, operands, kernel, names, described, *forms)


def _refusal(dtype: Any, shape: Sequence[Any]) -> str | None:
    """Why no kernel takes an array; None where one does."""
    if (refusal := quantizing.array_refusal(dtype, shape)) is not None:
        return refusal
    *batch, rows, columns = shape
    tiles = math.prod(batch) * -(-rows // _TILE) * -(-columns // _TILE)
    return "it has more tiles than a launch" if tiles >= 2**31 - _TILE else None


# The call


def _on_kernel(kernel: str, x: Any, *others: Any, **params: Any) -> list[Any]:
    """An array that no kernel refuses, as matrices one behind the other."""
    batch = x.shape[:-2]
    lead = others[0].ndim if others else 0  # what comes behind is of each
    flat = (each.reshape(-1, *each.shape[lead:]) for each in others)
    operands = (x.reshape(-1, *x.shape[-2:]), *flat)
    results = quantize_blocks_call_p.bind(*operands, kernel=kernel, **params)
    return [each.reshape(*batch, *each.shape[1:]) for each in results]


def _call_abstract_eval(*operands: Any, kernel: str, **params: Any) -> Any:
    del kernel
    x, *others = operands
    # Which array has which divisor has no part in the types.
    others = [each.update(shape=each.shape[1:]) for each in others]
    return _abstract_eval(x, *others, implementation=None, target=None, **params)


def _call_lower(
    ctx: Any,
    *operands: Any,
    kernel: str,
    columns: Wanted,
    rows: Wanted,
    square: bool,
    **implied: Any,
) -> Any:
    del implied  # by the arrays
    attributes = {"columns": columns, "rows": rows, "square": square}
    numbers = {name: np.int32(value) for name, value in attributes.items()}
    return jax.ffi.ffi_lowering(TARGET)(ctx, *operands, kernel=kernel, **numbers)


def _partition(*call: Any) -> Any:
    from jaxbw._src.primitives import quantize_shards

    return quantize_shards.partition(*call)


quantize_blocks_p.def_abstract_eval(_abstract_eval)
batching.primitive_batchers[quantize_blocks_p] = _batch
serve.register(quantize_blocks_p, _lower)
compat.register_dead_code_rule(quantize_blocks_p, _without_unused)
compat.register_partitioner(PARTITIONED, _partition)
quantize_blocks_call_p.def_abstract_eval(_call_abstract_eval)
for _platform in serve.SERVED:
    mlir.register_lowering(quantize_blocks_call_p, _call_lower, platform=_platform)
