"""How a matmul is divided among devices: a pure function of how its arrays are.

A matmul is an einsum over *factors*: batch, m and n dimensions, and those of the contraction,
which its results do not have. Devices are numbered, and a number has digits: the *axes*, as those
of a mesh, the first one major. An array is tiled where some of its dimensions are divided along
axes, each axis along one dimension at most; along the other axes it is replicated.

`plan` gives each axis to one factor, or to none. Arrays that are tiled otherwise are resharded
first, and results afterwards; results of a divided contraction are summed. A factor that arrays of
tiles have, too, is divided in whole tiles, or not at all.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

Axes = tuple[int, ...]
Tiling = tuple[Axes, ...]  # of each dimension of an array

# Multiplications and additions in the time in which a device receives one byte from another: on an
# H200 989e12 a second (bfloat16, dense) beside 450e9 bytes over NVLink (NVIDIA's data sheet).
_OPERATIONS_PER_BYTE = 2198


@dataclass(frozen=True)
class Factors:
    """The factors of a matmul's arrays.

    Attributes:
      sizes: of each factor.
      operands: the factor of each dimension of each operand.
      result: likewise, of each of the results.
      operand_bytes: of one element of each operand; of tiles, for each element of its factors.
      result_bytes: of one element of each result.
      sum_bytes: of one element of a matmul that is summed where the contraction is divided.
      matmuls: how many matmuls there are: two in a gated one.
      units: by factor, how many of it stay together, where that is more than one.
    """

    sizes: tuple[int, ...]
    operands: tuple[tuple[int, ...], ...]
    result: tuple[int, ...]
    operand_bytes: tuple[float, ...]
    result_bytes: tuple[int, ...]
    sum_bytes: int
    matmuls: int = 1
    units: Mapping[int, int] = field(default_factory=dict)

    @property
    def contracted(self) -> tuple[int, ...]:
        """The factors of the matmul that the results do not have."""
        return tuple(f for f in self.operands[0] if f in self.operands[1] and f not in self.result)


@dataclass(frozen=True)
class Plan:
    """The axes along which each factor is divided."""

    axes: tuple[Axes, ...]

    def tiling(self, factors: Sequence[int]) -> Tiling:
        """Of an array with these factors."""
        return tuple(self.axes[factor] for factor in factors)

    def shard(
        self, shape: Sequence[int], factors: Sequence[int], sizes: Sequence[int]
    ) -> tuple[int, ...]:
        """The shape of the largest part of an array with these factors, for axes of these sizes."""
        return tuple(
            -(-extent // math.prod(sizes[axis] for axis in self.axes[factor]))
            for extent, factor in zip(shape, factors, strict=True)
        )

    def summed(self, factors: Factors) -> Axes:
        """The axes along which the contraction is divided."""
        return tuple(sorted(axis for f in factors.contracted for axis in self.axes[f]))


def common_axes(
    tile_assignments: Sequence[np.ndarray | None], ranks: Sequence[int]
) -> tuple[tuple[int, ...], list[Tiling]]:
    """The axes in which all of some arrays are tiled, and how they are.

    Args:
      tile_assignments: the number of the device of each tile, of as many dimensions as the array,
        and perhaps more for replicas; None for an array that is replicated everywhere.
      ranks: of the arrays.

    Returns:
      The sizes of the axes, and the tiling of each array. One that no axes describe which describe
      those before it is given as replicated, which costs a collective and is as right.
    """
    devices = max((tiles.size for tiles in tile_assignments if tiles is not None), default=1)
    cuts = {1, devices}
    digits: list[list[list[tuple[int, int]]]] = []
    for assignment, rank in zip(tile_assignments, ranks, strict=True):
        found = (None if assignment is None else _digits(assignment, rank)) or [[]] * rank
        more = {cut for dim in found for stride, size in dim for cut in (stride, stride * size)}
        if all(high % low == 0 for low, high in itertools.pairwise(sorted(cuts | more))):
            cuts |= more
        else:
            found = [[]] * rank
        digits.append(found)
    strides = sorted(cuts, reverse=True)[1:]
    tilings = [
        tuple(
            tuple(
                axis
                for stride, size in dim
                for axis, low in enumerate(strides)
                if stride <= low < stride * size
            )
            for dim in dims
        )
        for dims in digits
    ]
    return tuple(high // low for high, low in itertools.pairwise([devices, *strides])), tilings


def _digits(assignment: np.ndarray, rank: int) -> list[list[tuple[int, int]]] | None:
    """Each dimension's tiles as digits of the device number: (stride, size), the major one first.

    None where they are no digits.
    """
    rebuilt = np.zeros((1,) * assignment.ndim, int)
    found = []
    for dim, tiles in enumerate(assignment.shape):
        numbers = np.moveaxis(assignment, dim, 0).reshape(tiles, -1)[:, 0]
        digits: list[tuple[int, int]] = []
        done = 1
        while done < tiles:
            stride = int(numbers[done])
            size = 2
            while done * size < tiles and numbers[done * size] == size * stride:
                size += 1
            if stride <= 0 or tiles % (done * size):
                return None
            digits.insert(0, (stride, size))
            done *= size
        offsets = np.zeros(1, int)
        for stride, size in digits:
            offsets = (offsets[:, None] + stride * np.arange(size)).ravel()
        rebuilt = rebuilt + offsets.reshape([-1 if i == dim else 1 for i in range(assignment.ndim)])
        found.append(digits)
    return found[:rank] if np.array_equal(rebuilt, assignment) else None


def plan(factors: Factors, axes: Sequence[int], tilings: Sequence[Tiling]) -> Plan:
    """The division that costs least: bytes that a device receives, and operations.

    Args:
      axes: sizes of the axes.
      tilings: of the operands, then of the results, as they are and as they are wanted.
    """
    arrays = [*factors.operands, *[factors.result] * len(factors.result_bytes)]
    wanted: list[list[int]] = [[] for _ in factors.sizes]  # axes of each factor, results' first
    for array, tiling in reversed([*zip(arrays, tilings, strict=True)]):
        for factor, dim in zip(array, tiling, strict=True):
            wanted[factor] += [axis for axis in dim if axis not in wanted[factor]]
    agreed = _agreed(factors, tilings)

    def cost(candidate: Plan) -> tuple[int, float]:
        used = {axis for some in candidate.axes for axis in some}
        return len(agreed.keys() - used), _cost(factors, axes, tilings, candidate)

    return min(_candidates(factors, axes, wanted, agreed), key=cost)


def _agreed(factors: Factors, tilings: Sequence[Tiling]) -> dict[int, int]:
    """For each axis the factor that both operands have there; else what one has and the result.

    The other operand is gathered then: of parameters that lie in parts, to save memory, that is
    what is meant.
    """
    lhs, rhs, *_ = tilings
    left, right, result = (
        {axis: f for f, dim in zip(array, tiling, strict=True) for axis in dim}
        for array, tiling in (
            (factors.operands[0], lhs),
            (factors.operands[1], rhs),
            (factors.result, tilings[len(factors.operands)]),
        )
    )
    contracted = {axis: f for axis, f in left.items() if f == right.get(axis)}
    kept = {axis: f for axis, f in result.items() if f in (left.get(axis), right.get(axis))}
    return kept | contracted


def _candidates(
    factors: Factors,
    axes: Sequence[int],
    wanted: Sequence[Sequence[int]],
    agreed: dict[int, int],
) -> Iterator[Plan]:
    """Every plan that leaves axes where arrays agree, and gives others to those that have them."""
    units = dict.fromkeys(factors.contracted, 1) | dict(factors.units)
    takers = [
        [
            *(f for f, some in enumerate(wanted) if axis in some and f == agreed.get(axis, f)),
            None,
        ]
        for axis in range(len(axes))
    ]
    for taken in itertools.product(*takers):
        chosen = Plan(
            tuple(
                tuple(axis for axis in some if taken[axis] == factor)
                for factor, some in enumerate(wanted)
            )
        )
        # The last of the tiles would be padded by anything, which must not be summed.
        if all(
            factors.sizes[factor] % (unit * math.prod(axes[axis] for axis in chosen.axes[factor]))
            == 0
            for factor, unit in units.items()
        ):
            yield chosen


def _cost(factors: Factors, axes: Sequence[int], tilings: Sequence[Tiling], chosen: Plan) -> float:
    operations = 2 * factors.matmuls * math.prod(factors.sizes)
    used = {axis for some in chosen.axes for axis in some}
    cost = operations / math.prod(axes[axis] for axis in used) / _OPERATIONS_PER_BYTE
    count = len(factors.operands)

    def size(array: Sequence[int]) -> int:
        return math.prod(factors.sizes[f] for f in array)

    for array, itemsize, tiling in zip(
        factors.operands, factors.operand_bytes, tilings[:count], strict=True
    ):
        cost += size(array) * itemsize * _received(axes, tiling, chosen.tiling(array))
    result = chosen.tiling(factors.result)
    for itemsize, tiling in zip(factors.result_bytes, tilings[count:], strict=True):
        cost += size(factors.result) * itemsize * _received(axes, result, tiling)
    summed = size(factors.result) * factors.sum_bytes * factors.matmuls * _share(axes, result)
    return cost + 2 * summed * (1 - 1 / math.prod(axes[axis] for axis in chosen.summed(factors)))


def _share(axes: Sequence[int], tiling: Tiling) -> float:
    """The part of an array that a device has."""
    return 1 / math.prod(axes[axis] for dim in tiling for axis in dim)


def _received(axes: Sequence[int], source: Tiling, target: Tiling) -> float:
    """The part of an array that a device receives when it is resharded."""
    common = tuple(
        tuple(a for a, b in itertools.takewhile(lambda ab: ab[0] == ab[1], zip(x, y, strict=False)))
        for x, y in zip(source, target, strict=True)
    )
    gone = {axis for dim in source for axis in dim} - {axis for dim in target for axis in dim}
    if source == common:  # it is only divided further
        return 0
    if target == common or gone:  # gathered, then perhaps divided
        return _share(axes, common) - _share(axes, source)
    return _share(axes, target)  # all to all
