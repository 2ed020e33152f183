"""What the datapath tests compare with: PTX's tables and layouts, restated in numpy.

Nothing here is taken from the emulator's C++; each table names the place it was read in.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxbw._native import emulator

datapath: Any = emulator.datapath

Bytes = npt.NDArray[np.uint8]
Swizzle: Any = datapath.Swizzle

# PTX 5.5.7: which 16-byte chunk of the source stands at each place of a 128-byte line, line by
# line; the lines repeat.
SWIZZLE_TABLES = {
    Swizzle.NONE: [[0, 1, 2, 3, 4, 5, 6, 7]],
    Swizzle.B32: [[0, 1, 2, 3, 4, 5, 6, 7], [1, 0, 3, 2, 5, 4, 7, 6]],
    Swizzle.B64: [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [1, 0, 3, 2, 5, 4, 7, 6],
        [2, 3, 0, 1, 6, 7, 4, 5],
        [3, 2, 1, 0, 7, 6, 5, 4],
    ],
    Swizzle.B128: [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [1, 0, 3, 2, 5, 4, 7, 6],
        [2, 3, 0, 1, 6, 7, 4, 5],
        [3, 2, 1, 0, 7, 6, 5, 4],
        [4, 5, 6, 7, 0, 1, 2, 3],
        [5, 4, 7, 6, 1, 0, 3, 2],
        [6, 7, 4, 5, 2, 3, 0, 1],
        [7, 6, 5, 4, 3, 2, 1, 0],
    ],
    Swizzle.B128_ATOM_32B: [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [2, 3, 0, 1, 6, 7, 4, 5],
        [4, 5, 6, 7, 0, 1, 2, 3],
        [6, 7, 4, 5, 2, 3, 0, 1],
    ],
    Swizzle.B128_ATOM_64B: [[0, 1, 2, 3, 4, 5, 6, 7], [4, 5, 6, 7, 0, 1, 2, 3]],
}
# "similar to the 32-byte atomicity sub-mode except that there is a flip of adjacent 8-bytes within
# the 16-byte data at every alternate shared memory line"
SWIZZLE_TABLES[Swizzle.B128_ATOM_32B_FLIP_8B] = SWIZZLE_TABLES[Swizzle.B128_ATOM_32B]

SPAN = {Swizzle.NONE: 16, Swizzle.B32: 32, Swizzle.B64: 64}  # bytes; the others 128


def span(swizzle: Any) -> int:
    return SPAN.get(swizzle, 128)


def swizzled(linear: Bytes, swizzle: Any) -> Bytes:
    """The bytes of a region that starts at a multiple of 1024, as shared memory holds them."""
    lines = linear.reshape(-1, 8, 16)
    table = np.array(SWIZZLE_TABLES[swizzle])
    out = np.empty_like(lines)
    for line in range(len(lines)):
        out[line] = lines[line, table[line % len(table)]]
        if swizzle == Swizzle.B128_ATOM_32B_FLIP_8B and line % 2:
            out[line] = out[line].reshape(8, 2, 8)[:, ::-1].reshape(8, 16)
    return out.reshape(-1)


GLOBAL_BASE = 0x7F00_0000_0000
SHARED_BASE = 0x400


@dataclass
class Memory:
    """Global and shared memory, with the addresses of their first bytes."""

    global_bytes: Bytes
    shared: Bytes

    def load(self, fields: Any, coordinates: list[int], address: int) -> None:
        """Does what a TMA load does with the emulator's pieces."""
        for p in datapath.tma_pieces(fields, datapath.TmaDirection.LOAD, coordinates, address):
            piece = np.zeros(p.bytes, np.uint8)
            if p.count:
                first = p.global_address - GLOBAL_BASE
                piece[: p.count] = self.global_bytes[first : first + p.count]
            self.shared[p.shared - SHARED_BASE :][: p.bytes] = piece

    def store(self, fields: Any, coordinates: list[int], address: int) -> None:
        """Does what a TMA store does with the emulator's pieces."""
        for p in datapath.tma_pieces(fields, datapath.TmaDirection.STORE, coordinates, address):
            if p.count:
                first = p.global_address - GLOBAL_BASE
                source = p.shared - SHARED_BASE
                self.global_bytes[first : first + p.count] = self.shared[source : source + p.count]


UMMA_SWIZZLE_CODES = {
    Swizzle.NONE: 0,
    Swizzle.B128_ATOM_32B: 1,
    Swizzle.B128: 2,
    Swizzle.B64: 4,
    Swizzle.B32: 6,
}
WGMMA_SWIZZLE_CODES = {Swizzle.NONE: 0, Swizzle.B128: 1, Swizzle.B64: 2, Swizzle.B32: 3}


def umma_descriptor(
    start: int, leading: int, stride: int, swizzle: Any, base_offset: int = 0
) -> int:
    """The shared-memory descriptor of PTX table 40."""
    fields = (start & 0x3FFFF) >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | 1 << 46
    return fields | base_offset << 49 | UMMA_SWIZZLE_CODES[swizzle] << 61


def wgmma_descriptor(
    start: int, leading: int, stride: int, swizzle: Any, base_offset: int = 0
) -> int:
    """The matrix descriptor of PTX 9.7.15.5.1.2.2."""
    fields = (start & 0x3FFFF) >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32
    return fields | base_offset << 49 | WGMMA_SWIZZLE_CODES[swizzle] << 62


@dataclass
class Tile:
    """One operand of an MMA in shared memory: its descriptor fields, and how K advances."""

    address: int  # of the tile
    leading: int
    stride: int
    swizzle: Any
    k_steps: list[int]  # start addresses of consecutive MMAs, relative to `address`

    def umma(self, step: int) -> int:
        """The tcgen05 descriptor of one MMA."""
        start = self.address + self.k_steps[step]
        return umma_descriptor(start, self.leading, self.stride, self.swizzle)

    def wgmma(self, step: int) -> int:
        """The wgmma descriptor of one MMA."""
        start = self.address + self.k_steps[step]
        return wgmma_descriptor(start, self.leading, self.stride, self.swizzle)


def write_tile(
    memory: Memory, matrix: npt.NDArray[np.generic], k_major: bool, swizzle: Any, address: int
) -> Tile:
    """Loads matrix[mn, k] into shared memory with TMA, one box for each swizzle span.

    K spans a multiple of 32 bytes. The strides follow from PTX 9.7.16.3.
    """
    size = matrix.itemsize
    k = matrix.shape[1]
    contiguous = np.ascontiguousarray(matrix if k_major else matrix.T)
    memory.global_bytes[: contiguous.nbytes] = contiguous.reshape(-1).view(np.uint8)
    outer, inner = contiguous.shape
    width = span(swizzle) // size  # elements of a box's rows
    box_rows = min(outer, 256)
    fields = datapath.TensorMapFields(
        type={
            1: datapath.TensorMapType.UINT8,
            2: datapath.TensorMapType.UINT16,
            4: datapath.TensorMapType.FLOAT32,
        }[size],
        address=GLOBAL_BASE,
        extents=[inner, outer],
        strides=[inner * size],
        box=[width, box_rows],
        swizzle=swizzle,
    )
    box_bytes = outer * span(swizzle)
    for column in range(0, inner, width):
        memory.load(fields, [column, 0], address + column // width * box_bytes)
    k_step = 32 // size  # elements of K of one MMA
    steps = range(0, k, k_step)
    if k_major and swizzle == Swizzle.NONE:
        # One box is a column of 16-byte chunks; 8 rows are 128 bytes. An MMA takes two boxes.
        return Tile(address, box_bytes, 128, swizzle, [s // k_step * 2 * box_bytes for s in steps])
    if k_major:
        starts = [s * size // span(swizzle) * box_bytes + s * size % span(swizzle) for s in steps]
        return Tile(address, 0, 8 * span(swizzle), swizzle, starts)
    starts = [s * span(swizzle) for s in steps]  # a box holds the whole of K
    if swizzle == Swizzle.NONE:
        return Tile(
            address, 128, box_bytes, swizzle, starts
        )  # leading: between 8 k; stride: between chunks of MN
    lines = 4 if swizzle == Swizzle.B128_ATOM_32B else 8
    return Tile(address, box_bytes, lines * span(swizzle), swizzle, starts)
