"""Quantizing to blocks on several devices: a kernel for what each of them has, in whole tiles.

As of matmuls (partitioning.py), the array is given to a custom call that nobody executes, with a
sharding rule, and XLA's partitioner asks what one device does. That is the primitive again, of
shards. What the array's sharding does not divide in whole tiles is gathered first.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxbw._src import block_formats, compat, scale_tiles
from jaxbw._src.primitives.partitioning import bytecode, dimensions, placeholder, type_of
from jaxbw._src.primitives.quantize_blocks import PARTITIONED, Wanted, quantize_blocks_p
from jaxbw._src.primitives.shards import Axes, Tiling, common_axes

# Of each dimension of an array: the dimension of x that it is divided as, and of how many elements
# of that it has one; None where it is not divided.
Mapping = Sequence[tuple[int, int] | None]


@dataclass(frozen=True)
class Division:
    """How x, its divisor, and what is made of them may be divided.

    Attributes:
      sizes: of x's dimensions.
      units: how many elements of each stay together: all, where they are no whole tiles.
      arrays: of the operands, then of the results.
    """

    sizes: tuple[int, ...]
    units: tuple[int, ...]
    arrays: tuple[Mapping, ...]

    def axes(self, sizes: Sequence[int], tilings: Sequence[Tiling]) -> list[Axes]:
        """The axes of devices that divide each of x's dimensions: x's own first, then others'.

        Args:
          sizes: of the axes.
          tilings: of the arrays, as they are and as they are wanted.
        """
        found: list[Axes] = [()] * len(self.sizes)
        for mapping, tiling in zip(self.arrays, tilings, strict=True):
            pairs = zip(mapping, tiling, strict=True)
            for i, axis in ((of[0], axis) for of, dim in pairs if of is not None for axis in dim):
                more = (*found[i], axis)
                whole = self.units[i] * math.prod(sizes[each] for each in more)
                if self.sizes[i] % whole == 0 and not any(axis in each for each in found):
                    found[i] = more
        return found


def division(x: Any, divisor: Sequence[Any], params: dict[str, Any]) -> Division:
    """Of anything that has a shape, and the primitive's parameters."""
    *batch, rows, columns = range(len(x.shape))
    k_tile = scale_tiles.BLOCKS * block_formats.FORMATS[params["format"]].block
    front: Mapping = [(i, 1) for i in batch]
    arrays: list[Mapping] = [[*front, (rows, 1), (columns, 1)]]
    arrays += [front[: len(each.shape)] for each in divisor]
    units = [1] * len(x.shape)
    for wanted, row, k in ((params["columns"], rows, columns), (params["rows"], columns, rows)):
        tile = ((row, scale_tiles.ROWS), (k, k_tile))
        if wanted == Wanted.DATA_AND_SCALES:
            arrays.append([*front, (row, 1), (k, 1)])
        if wanted != Wanted.NOTHING:
            arrays.append([*front, *tile, None])
            for i, unit in tile:
                units[i] = math.lcm(units[i], unit)
    together = (size if size % unit else unit for size, unit in zip(x.shape, units, strict=True))
    return Division(tuple(x.shape), tuple(together), tuple(arrays))


def lower(ctx: Any, operands: Sequence[Any], platform: str | None, params: dict[str, Any]) -> Any:
    """The call that stands for the primitive until XLA partitions the program."""
    of = division(ctx.avals_in[0], ctx.avals_in[1:], params)
    counts = [size // unit for size, unit in zip(of.sizes, of.units, strict=True)]
    factors = {i: number for number, i in enumerate(i for i, n in enumerate(counts) if n > 1)}
    sizes = [counts[i] for i in factors]

    def mapped(mapping: Mapping, shape: Sequence[int]) -> Any:
        """Of each dimension the factor that counts units, and one of what it has of a unit."""
        found = []
        for each, extent in zip(mapping, shape, strict=True):
            count = () if each is None or each[0] not in factors else (factors[each[0]],)
            rest = extent // math.prod(sizes[factor] for factor in count)
            found.append(count if count and rest == 1 else (*count, len(sizes)))
            sizes.extend([rest] * (len(found[-1]) - len(count)))
        return dimensions(found)

    shapes = [each.shape for each in (*ctx.avals_in, *ctx.avals_out)]
    mappings = [mapped(each, shape) for each, shape in zip(of.arrays, shapes, strict=True)]
    return placeholder(
        *(ctx, operands, PARTITIONED, json.dumps([platform, params])),
        factor_sizes=sizes,
        operand_mappings=mappings[: len(operands)],
        result_mappings=mappings[len(operands) :],
        reduction_factors=[],
        need_replication_factors=[*range(len(factors), len(sizes))],
    )


def partition(
    arg_shapes: Sequence[Any],
    arg_shardings: Sequence[Any],
    result_shape: Any,
    result_sharding: Any,
    text: bytes,
) -> tuple[bytes, list[Any], Any]:
    """What one device does, and how its operands and results are to be sharded."""
    platform, params = json.loads(text)
    names = params["implementation"]
    params |= {
        "columns": Wanted(params["columns"]),
        "rows": Wanted(params["rows"]),
        "implementation": None if names is None else tuple(names),
    }
    given = [type_of(shape) for shape in arg_shapes]
    arrays = [*given, *(type_of(shape) for shape in result_shape.tuple_shapes())]
    shardings = [*arg_shardings, *result_sharding.tuple_elements()]
    of = division(given[0], given[1:], params)
    sizes, tilings = common_axes(
        [compat.tile_assignment(each) for each in shardings], [x.ndim for x in arrays]
    )
    axes = of.axes(sizes, tilings)
    chosen = [tuple(() if i is None else axes[i[0]] for i in mapping) for mapping in of.arrays]
    wanted = [compat.hlo_sharding(sizes, tiling) for tiling in chosen]
    shards = [
        jax.ShapeDtypeStruct(
            [
                n // math.prod(sizes[axis] for axis in dim)
                for n, dim in zip(x.shape, tiling, strict=True)
            ],
            x.dtype,
        )
        for x, tiling in zip(given, chosen, strict=False)
    ]
    return (
        bytecode(lambda *shards: quantize_blocks_p.bind(*shards, **params), shards, platform),
        wanted[: len(given)],
        compat.hlo_tuple_sharding(result_shape, wanted[len(given) :]),
    )
