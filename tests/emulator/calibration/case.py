"""What a calibration case is: one launch of a micro-kernel, which a GPU and the emulator both make.

Nothing here needs a GPU, jaxbw or anything else but numpy.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

# The values of CUtensorMapDataType, and the size of an element in bytes.
TYPES = {
    "u8": (0, 1),
    "u16": (1, 2),
    "u32": (2, 4),
    "s32": (3, 4),
    "u64": (4, 8),
    "s64": (5, 8),
    "f16": (6, 2),
    "f32": (7, 4),
    "f64": (8, 8),
    "bf16": (9, 2),
    "f32.ftz": (10, 4),
    "tf32": (11, 4),
    "tf32.ftz": (12, 4),
    "16u4.align8": (13, 0.5),
    "16u4.align16": (14, 0.5),
    "16u6.align16": (15, 0.75),
}
# The values of CUtensorMapSwizzle.
SWIZZLES = {
    "none": 0,
    "32B": 1,
    "64B": 2,
    "128B": 3,
    "128B.atom32B": 4,
    "128B.atom32B.flip8B": 5,
    "128B.atom64B": 6,
}


@dataclass(frozen=True)
class MapFields:
    """The arguments of cuTensorMapEncodeTiled but the address, contiguous dimension first."""

    type: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] | None = None
    interleave: int = 0
    swizzle: str = "none"
    l2_promotion: int = 0
    fill: int = 0

    @property
    def steps(self) -> tuple[int, ...]:
        return self.element_strides or (1,) * len(self.extents)

    @property
    def box_bytes(self) -> int:
        """Bytes of shared memory that a box takes."""
        steps = (1, *self.steps[1:])
        counts = [-(-b // s) for b, s in zip(self.box, steps, strict=True)]
        return int(np.prod(counts) * TYPES[self.type][1])


@dataclass(frozen=True, eq=False)
class Buffer:
    """Device memory: its bytes before the launch, and whether those after it are the result."""

    data: Bytes
    result: bool = False


@dataclass(frozen=True)
class Map:
    """A tensor map of a buffer, as a kernel's parameter."""

    fields: MapFields
    buffer: Buffer


@dataclass(frozen=True)
class Case:
    """One launch.

    Attributes:
      arguments: buffers and maps; whole numbers are 32-bit parameters, bytes pass as they are.
      smem: bytes of dynamic shared memory.
      ulp: None where the result must be the same bit by bit; else float32 values, which may differ
        by so many units in the last place, or by `absolute`.
      refused: None, or the words in which the emulator says that it does not do this.
    """

    name: str
    module: str
    entry: str
    arguments: tuple[Buffer | Map | int | bytes, ...]
    grid: tuple[int, ...] = (1,)
    block: int = 128
    cluster: tuple[int, ...] = (1,)
    smem: int = 0
    ulp: int | None = None
    absolute: float = 0.0
    refused: str | None = None

    @property
    def buffers(self) -> list[Buffer]:
        """Every buffer once, in the order of the arguments."""
        seen: dict[int, Buffer] = {}
        for argument in self.arguments:
            buffer = argument.buffer if isinstance(argument, Map) else argument
            if isinstance(buffer, Buffer):
                seen[id(buffer)] = buffer
        return list(seen.values())


def noise(words: int, seed: int) -> npt.NDArray[np.uint32]:
    """Random words, the same in every release of numpy (splitmix64)."""
    with np.errstate(over="ignore"):
        z = (np.arange(words, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(16)).astype(np.uint32)


def integers(count: int, low: int, high: int, seed: int) -> npt.NDArray[np.int64]:
    """Random integers in low..high - 1, the same in every release of numpy."""
    return low + (noise(count, seed) % np.uint32(high - low)).astype(np.int64)


def as_bytes(array: npt.NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def blank(size: int) -> Buffer:
    """A result whose untouched bytes can be told."""
    return Buffer(np.full(size, 0xEE, np.uint8), result=True)


def words(values: Any) -> Buffer:
    return Buffer(as_bytes(np.asarray(values, np.uint32)))


@dataclass
class Seeds:
    """Numbers off different seeds, in order."""

    next: int = field(default=1)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.next += 1
        return self.next
