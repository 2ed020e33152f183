"""Matmuls in programs that XLA partitions over several devices: the same matmuls, of shards.

There a matmul is lowered to a custom call that nobody executes. It has a sharding rule, so that
shardings propagate through it as through a dot_general; and when XLA divides the program among the
devices, it asks `_partition` for what one of them does. That is the primitive again, of shards, and
hence a kernel. Where the contraction is divided, it is the matmul alone, a sum over devices, and
the epilogue behind it by XLA.

jax.experimental.custom_partitioning, which stands on the same callback, would not do: a program
that has it can be lowered for real devices and one mesh only, and it cannot be exported; and inside
of a shard_map over some axes of a mesh it cannot tell which devices a sum is over.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.extend.mlir import ir, lower_with_sharding_in_types
from jax.extend.mlir.dialects import sdy, stablehlo
from jax.interpreters import mlir

from jaxbw._src import compat
from jaxbw._src.epilogue import IDENTITY, Epilogue, wide_dtype
from jaxbw._src.primitives.partitioned_call import PartitionedCall
from jaxbw._src.primitives.shards import Factors, common_axes, plan
from jaxbw._src.problem import TILES, DimensionNumbers, Operands

TARGET = "jaxbw_partitioned_v1"

Sum = Callable[[Any], Any]
# What a device does: the results of a primitive with these parameters, of shards of its operands.
# Where the contraction is divided there is also what adds up the devices' parts of a matmul.
Local = Callable[[Sequence[Any], dict[str, Any], Sum | None], Sequence[Any]]

_locals: dict[str, Local] = {}


def register(primitive: Primitive, local: Local) -> None:
    """Says what a device does of a primitive."""
    _locals[primitive.name] = local


def factors_of(
    operands: Sequence[Any], results: Sequence[Any], dims: DimensionNumbers, epilogue: Epilogue
) -> Factors:
    """The factors of a matmul with an epilogue, from anything that has shape and dtype."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dims
    given = Operands.of(epilogue, operands)
    of: tuple[dict[int, int], dict[int, int]] = {}, {}
    sizes: list[int] = []
    for i, j in zip((*lhs_batch, *lhs_contract), (*rhs_batch, *rhs_contract), strict=True):
        of[0][i] = of[1][j] = len(sizes)
        sizes.append(given.lhs.shape[i])
    result = [of[0][i] for i in lhs_batch]
    ends = []  # in the result, of the dimensions of lhs and of rhs
    for operand, its in zip((given.lhs, given.rhs), of, strict=True):
        for i in range(len(operand.shape)):
            if i not in its:
                its[i] = len(sizes)
                result.append(its[i])
                sizes.append(operand.shape[i])
        ends.append(len(result))
    lhs, rhs = (tuple(its[i] for i in range(len(its))) for its in of)
    e = epilogue
    end = ends[e.bias_axis == "n"]
    of_columns = (*result[: len(lhs_batch)], *result[ends[0] :])
    arrays = Operands(
        lhs,
        rhs,
        rhs if e.gated else None,
        None if e.c is None else tuple(result),
        None if e.bias is None else tuple(result[end - e.bias_rank : end]),
        None if e.residual is None else tuple(result),
        () if e.alpha is None else None,
        () if e.beta is None else None,
        tuple(result[: ends[0]]) if e.lhs_scale else None,
        of_columns if e.rhs_scale else None,
        of_columns if e.rhs_scale and e.gated else None,
        () if e.out_scale else None,
    )
    units: dict[int, int] = {}
    for name, of_tiles in TILES.items():
        if (tiles := getattr(given, of_tiles)) is not None:
            side = int(name != "lhs")
            format, (k,) = (e.lhs_format, e.rhs_format)[side], (lhs_contract, rhs_contract)[side]
            assert format is not None
            of_data = getattr(arrays, name)
            others = [f for i, f in enumerate(of_data) if i != k]
            found = _of_tiles(format, others, of_data[k], tiles.shape, sizes, units)
            arrays = arrays._replace(**{of_tiles: found})
    mappings = arrays.given()
    summed = results[0].dtype if e.is_product else np.dtype(wide_dtype(results[0].dtype))
    return Factors(
        sizes=tuple(sizes),
        operands=tuple(mappings),
        result=tuple(result),
        operand_bytes=tuple(
            x.dtype.itemsize * math.prod(x.shape) / max(math.prod(sizes[f] for f in mapping), 1)
            for x, mapping in zip(operands, mappings, strict=True)
        ),
        result_bytes=tuple(x.dtype.itemsize for x in results),
        sum_bytes=summed.itemsize,
        matmuls=1 + e.gated,
        units=units,
    )


def _of_tiles(
    format: str,
    others: Sequence[int],
    k: int,
    shape: Sequence[int],
    sizes: list[int],
    units: dict[int, int],
) -> tuple[int, ...]:
    """The factors of tiles of scales; `sizes` and `units` grow.

    Along rows and k they have those of their data, in whole tiles. Where these are not whole, what
    the data have is not divided, and neither is what tiles have in its place.

    Args:
      others, k: factors of the data.
      shape: of the tiles.
    """
    from jaxbw._src import block_formats, scale_tiles  # wanted by few

    def undivided(size: int) -> int:
        sizes.append(size)
        units[len(sizes) - 1] = size
        return len(sizes) - 1

    *batch, row_tiles, k_tiles, size = shape
    rows = others[len(batch)] if len(others) > len(batch) else None  # a vector has none
    of_k = scale_tiles.BLOCKS * block_formats.FORMATS[format].block
    found = [*others[: len(batch)]]
    for factor, unit, count in ((rows, scale_tiles.ROWS, row_tiles), (k, of_k, k_tiles)):
        if factor is not None and count > 1 and sizes[factor] == count * unit:
            units[factor] = unit
            found.append(factor)
            continue
        if factor is not None:
            units[factor] = sizes[factor]
        found.append(undivided(count))
    return (*found, undivided(size))


# Lowering


def lower(
    primitive: Primitive, params: dict[str, Any], ctx: Any, operands: Sequence[Any], platform: str
) -> Sequence[Any]:
    """The call that stands for a matmul until XLA partitions the program."""
    dims, epilogue = params["dimension_numbers"], params.get("epilogue", IDENTITY)
    factors = factors_of(ctx.avals_in, ctx.avals_out, dims, epilogue)
    sizes, parts = _in_units(factors)
    mappings = [
        _mapping(mapping, x.shape, factors, parts)
        for mapping, x in zip(factors.operands, ctx.avals_in, strict=True)
    ]
    mesh = compat.partly_manual_mesh(ctx)
    if mesh is not None:
        auto = [size for size, is_manual in mesh if not is_manual]
        mappings.append(dimensions([(len(sizes) + i,) for i in range(len(auto))]))
        sizes += auto
        operands = [*operands, _divided_by_all_axes(ctx)]
    call = PartitionedCall(primitive.name, platform, mesh, params).encoded()
    return placeholder(
        *(ctx, operands, TARGET, call),
        factor_sizes=sizes,
        operand_mappings=mappings,
        result_mappings=[_mapping(factors.result, x.shape, factors, parts) for x in ctx.avals_out],
        reduction_factors=sorted(part for f in factors.contracted for part in parts[f]),
        need_replication_factors=[
            f
            for f, size in enumerate(factors.sizes)
            if factors.units.get(f) == size and f not in factors.contracted
        ],
    )


def placeholder(
    ctx: Any, operands: Sequence[Any], target: str, text: str, **rule: Any
) -> Sequence[Any]:
    """A custom call that nobody executes, with what `register_partitioner` is told as its text.

    Args:
      rule: how shardings propagate through it, as of `sdy.OpShardingRuleAttr`.
    """
    op = stablehlo.CustomCallOp(
        [ir.RankedTensorType.get(x.shape, mlir.dtype_to_ir_type(x.dtype)) for x in ctx.avals_out],
        list(operands),
        call_target_name=ir.StringAttr.get(target),
        has_side_effect=ir.BoolAttr.get(False),
        api_version=mlir.i32_attr(2),  # the one that has a text as its backend_config
        backend_config=ir.StringAttr.get(text),
    )
    op.attributes["sdy.sharding_rule"] = sdy.OpShardingRuleAttr.get(**rule, is_custom=True)
    return [
        lower_with_sharding_in_types(ctx, result, aval)
        for result, aval in zip(op.results, ctx.avals_out, strict=True)
    ]


def _in_units(factors: Factors) -> tuple[list[int], list[tuple[int, ...]]]:
    """Sizes of the rule's factors, and which of them make up each factor: a count, and a unit."""
    sizes = [*factors.sizes]
    found: list[tuple[int, ...]] = [(f,) for f in range(len(sizes))]
    for f, unit in factors.units.items():
        if unit != factors.sizes[f]:
            sizes[f] //= unit
            found[f] = (f, len(sizes))
            sizes.append(unit)
    return sizes, found


def _mapping(
    mapping: Sequence[int], shape: Sequence[int], factors: Factors, parts: Sequence[tuple[int, ...]]
) -> Any:
    """Of an array with these factors; where it has a tile for each unit, it has the count alone."""
    pairs = zip(mapping, shape, strict=True)
    return dimensions([parts[f] if size == factors.sizes[f] else (f,) for f, size in pairs])


def dimensions(factors: Sequence[tuple[int, ...]]) -> Any:
    """For a sharding rule, the factors of each of an array's dimensions."""
    return sdy.TensorMappingAttr.get(
        dim_mappings=[sdy.DimMappingAttr.get(factor_indices=[*each]) for each in factors]
    )


def _divided_by_all_axes(ctx: Any) -> Any:
    """An operand that says which device is which, inside of a shard_map over some axes of a mesh.

    There XLA numbers the devices anew, those of one group, in an order that it does not tell. This
    array has a dimension for each axis that is left, divided along it.
    """
    mesh = compat.auto_mesh(ctx)
    names = [
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind == jax.sharding.AxisType.Auto
    ]

    def make() -> tuple[Any]:
        with jax.sharding.use_abstract_mesh(mesh):
            x = jax.lax.full([mesh.shape[name] for name in names], 0, np.int8)
            spec = jax.sharding.PartitionSpec(*names)
            return (jax.lax.with_sharding_constraint(x, spec),)

    lower_make = mlir.lower_fun(make, multiple_results=True)
    (value,) = lower_make(ctx.replace(primitive=None, avals_in=[], avals_out=None))
    return value


# Partitioning


def _partition(
    arg_shapes: Sequence[Any],
    arg_shardings: Sequence[Any],
    result_shape: Any,
    result_sharding: Any,
    text: bytes,
) -> tuple[bytes, list[Any], Any]:
    """What one device does, as bytecode, and how its operands and results are to be sharded."""
    call = PartitionedCall.decoded(text)
    several = result_shape.is_tuple()
    count = len(arg_shapes) - (call.mesh is not None)
    given = [type_of(shape) for shape in arg_shapes[:count]]
    results = [type_of(x) for x in (result_shape.tuple_shapes() if several else [result_shape])]
    shardings = [
        *arg_shardings[:count],
        *(result_sharding.tuple_elements() if several else [result_sharding]),
    ]
    ranks = [len(x.shape) for x in (*given, *results)]
    axes, tilings = common_axes([compat.tile_assignment(x) for x in shardings], ranks)

    epilogue = call.params.get("epilogue", IDENTITY)
    factors = factors_of(given, results, call.params["dimension_numbers"], epilogue)
    chosen = plan(factors, axes, tilings)
    groups = _groups(axes, chosen.summed(factors))
    if call.mesh is not None:
        groups = _everywhere(groups, call.mesh, compat.tile_assignment(arg_shardings[count]))

    def program(*shards: Any) -> Any:
        total = _all_reduce(groups) if chosen.summed(factors) else None
        out = _locals[call.primitive](shards[:count], call.params, total)
        return out if several else out[0]

    tiled = [chosen.tiling(array) for array in factors.operands]
    wanted = [compat.hlo_sharding(axes, tiling) for tiling in tiled]
    shards = [
        jax.ShapeDtypeStruct(chosen.shard(x.shape, array, axes), x.dtype)
        for x, array in zip(given, factors.operands, strict=True)
    ]
    if call.mesh is not None:
        wanted.append(arg_shardings[count])
        last = type_of(arg_shapes[count])
        shards.append(jax.ShapeDtypeStruct((1,) * last.ndim, last.dtype))
    result = compat.hlo_sharding(axes, chosen.tiling(factors.result))
    return (
        bytecode(program, shards, call.platform),
        wanted,
        compat.hlo_tuple_sharding(result_shape, [result] * len(results)) if several else result,
    )


def bytecode(program: Callable[..., Any], shards: Sequence[Any], platform: str) -> bytes:
    """A device's part of a program, as XLA is given it."""
    with compat.without_mesh():  # that of the block in which the program is compiled
        lowered = jax.jit(program).trace(*shards).lower(lowering_platforms=(platform,))
    code: bytes = mlir.module_to_bytecode(lowered.compiler_ir("stablehlo"))
    return code


def type_of(shape: Any) -> jax.ShapeDtypeStruct:
    """An XLA shape as JAX has it."""
    return jax.ShapeDtypeStruct(shape.dimensions(), shape.numpy_dtype())


Groups = tuple[tuple[int, ...], ...]


def _groups(axes: Sequence[int], summed: Sequence[int]) -> Groups:
    """The devices whose parts are added up: they differ along the summed axes only."""
    others = [axis for axis in range(len(axes)) if axis not in summed]
    numbers = np.arange(math.prod(axes)).reshape(axes).transpose(*others, *summed)
    rows = numbers.reshape(-1, math.prod(axes[axis] for axis in summed))
    return tuple(tuple(row) for row in rows.tolist())


def _everywhere(
    groups: Groups, mesh: Sequence[tuple[int, bool]], numbers: np.ndarray | None
) -> Groups:
    """Groups of all devices, from groups of those that XLA has numbered anew.

    Args:
      mesh: size of each axis, and whether it is manual.
      numbers: the new number of each device along the other axes.
    """
    auto = [axis for axis, (_, is_manual) in enumerate(mesh) if not is_manual]
    manual = [axis for axis, (_, is_manual) in enumerate(mesh) if is_manual]
    sizes = [size for size, _ in mesh]
    devices = np.arange(math.prod(sizes)).reshape(sizes).transpose(*manual, *auto)
    count = math.prod(sizes[axis] for axis in auto)
    order = np.arange(count) if numbers is None else np.argsort(numbers.ravel())
    return tuple(
        tuple(row[order[number]] for number in group)
        for row in devices.reshape(-1, count).tolist()
        for group in groups
    )


_all_reduce_p = Primitive("jaxbw_all_reduce")
_all_reduce_p.def_abstract_eval(lambda x, *, groups: x)


def _all_reduce(groups: Groups) -> Sum:
    """The sum over each of these groups of devices."""
    return lambda x: _all_reduce_p.bind(x, groups=groups)


def _lower_all_reduce(ctx: Any, x: Any, *, groups: Groups) -> Any:
    del ctx
    op = stablehlo.AllReduceOp(
        [x.type],
        [x],
        replica_groups=mlir.dense_int_elements(groups),
        channel_handle=stablehlo.ChannelHandle.get(1, mlir.DEVICE_TO_DEVICE_TYPE),
        use_global_device_ids=True,
    )
    scalar = ir.RankedTensorType.get([], ir.RankedTensorType(x.type).element_type)
    block = op.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        stablehlo.return_([stablehlo.add(*block.arguments)])
    return op.results


mlir.register_lowering(_all_reduce_p, _lower_all_reduce)
compat.register_partitioner(TARGET, _partition)
