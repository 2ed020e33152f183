"""The order in which tensor cores read the scales of blocks: tiles of 128 rows by 4 blocks of k.

A tile is 512 bytes, that of row r and block c at (r % 32) * 16 + (r // 32) * 4 + c; tiles follow
each other along k, then along the rows. What pads them is zero bytes, which are no NaN. cuBLAS
calls it the layout of 1D block scaling factors; CUTLASS and XLA's call of cuDNN have the same.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbw._src import compat

ROWS = 128
BLOCKS = 4
SIZE = ROWS * BLOCKS  # bytes
_LANES = 32  # of Tensor Memory: rows that far apart share 16 bytes


def shape(rows: Any, blocks: Any) -> tuple[Any, Any, int]:
    """That of the tiles of so many rows and blocks."""
    return -(-rows // ROWS), -(-blocks // BLOCKS), SIZE


def tiled(scale: Any) -> Any:
    """Scales `[..., rows, blocks]` as tiles, `[..., row tiles, k tiles, 512]`."""
    scale = compat.in_whole(scale, {-2: ROWS, -1: BLOCKS})
    *batch, rows, blocks = scale.shape
    row_tiles, k_tiles, _ = shape(rows, blocks)
    behind = (row_tiles * ROWS - rows, k_tiles * BLOCKS - blocks)
    if behind != (0, 0):
        zero = np.zeros((), np.uint8).view(scale.dtype)  # of e8m0 that is no 0, which it has not
        padding = [(0, 0, 0)] * len(batch) + [(0, more, 0) for more in behind]
        scale = lax.pad(scale, zero, padding)
    # Each dimension by itself: types of explicit meshes follow no other reshape.
    apart = scale.reshape(*batch, row_tiles, ROWS // _LANES, _LANES, k_tiles * BLOCKS)
    apart = apart.reshape(*apart.shape[:-1], k_tiles, BLOCKS)
    front = range(len(batch))
    tile, quarter, lane, k_tile, block = range(len(batch), len(batch) + 5)
    tiles = apart.transpose(*front, tile, k_tile, lane, quarter, block)
    return tiles.reshape(*batch, row_tiles, k_tiles, SIZE)


def of_blocks_of_128(scale: Any, rows: Any) -> Any:
    """Tiles of scales `[..., rows, blocks]`, or of 128 rows each, of blocks of 128 elements of k.

    Those are four blocks of 32, hence a tile.
    """
    scale = jnp.repeat(scale, BLOCKS, axis=-1)
    if scale.shape[-2] != rows:
        scale = jnp.repeat(scale, ROWS, axis=-2)[..., :rows, :]
    return tiled(scale)


def untiled(tiles: Any, rows: Any, blocks: Any) -> Any:
    """The inverse of `tiled`."""
    *batch, row_tiles, k_tiles, _ = tiles.shape
    apart = tiles.reshape(*batch, row_tiles, k_tiles, _LANES, ROWS // _LANES, BLOCKS)
    front = range(len(batch))
    tile, k_tile, lane, quarter, block = range(len(batch), len(batch) + 5)
    scale = apart.transpose(*front, tile, quarter, lane, k_tile, block)
    scale = scale.reshape(*batch, row_tiles * ROWS, k_tiles, BLOCKS)
    return scale.reshape(*scale.shape[:-2], k_tiles * BLOCKS)[..., :rows, :blocks]


def of_groups(tiles: Any, first: Any, stop: Any) -> Any:
    """Tiles none of which has rows of two groups: the i-th has those from first[i] up to stop[i].

    Behind these are zeros.

    Args:
      tiles: `[row tiles, k tiles, 512]`.
      first, stop: int32 `[count]`.
    """
    *grid, _ = tiles.shape
    words = lax.bitcast_convert_type(tiles.reshape(*grid, ROWS, BLOCKS), np.uint32)  # of each row
    quarters = ROWS // _LANES
    place = np.arange(ROWS, dtype=np.int32)
    rows = first[:, None] + (place % quarters * _LANES + place // quarters)
    row_tile, row = rows // ROWS, rows % ROWS
    place = row % _LANES * quarters + row // _LANES
    k_tile = np.arange(grid[1], dtype=np.int32)[:, None]
    found = words.at[row_tile[:, None], k_tile, place[:, None]].get(mode="clip")
    own = jnp.where((rows < stop[:, None])[:, None], found, np.uint32(0))
    return lax.bitcast_convert_type(own, tiles.dtype).reshape(len(first), grid[1], SIZE)


def of_rows(tiles: Any, count: int, rows: Any) -> Any:
    """The tiles of those of `count` rows that indices say; of one beyond them, the nearest's."""
    scale = untiled(tiles, count, tiles.shape[-2] * BLOCKS)
    return tiled(jnp.take(scale, rows, axis=-2, mode="clip"))
