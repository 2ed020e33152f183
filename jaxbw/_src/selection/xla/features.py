"""What the model of XLA's time knows of a problem: a rough time by formula, and what bends it."""

import itertools
import math
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxbw._native import Major
from jaxbw._src.problem import GemmProblem

Floats = NDArray[np.float64]

# Tiles as cuBLAS has them on Hopper (`nvjet_sm90_tst_256x128_...`), either side along m or n.
_ROWS, _COLUMNS = (64, 128, 192, 256, 320), (8, 16, 32, 64, 96, 128, 160, 192, 256)
_LARGEST = 320 * 128  # accumulators of two warpgroups
_PARTS = (1, 2, 4, 8, 16, 32)  # of K
_LEAST_K = 256  # of a part
SPAN = 128  # bytes of a row that a load takes whole
ALIGNED = 16  # bytes that rows are multiples of, or no TMA loads them


def is_aligned(problem: GemmProblem) -> bool:
    """Whether TMA loads and stores all rows."""
    return all(row % ALIGNED == 0 for row in _row_bytes(problem))


def _row_bytes(problem: GemmProblem) -> tuple[int, int, int]:
    """Of a row of lhs, rhs, and the result, as they lie in memory."""
    p = problem
    size = p.output.itemsize
    return size * p.lhs_shape[2], size * p.rhs_shape[2], size * p.output_shape[2]


class Rates(NamedTuple):
    """The constants of the formula, of one machine.

    Attributes:
      sm_count: tiles that run at a time.
      launch, reduce: microseconds of a kernel that computes nothing, and of adding up parts.
      flops: what an SM multiplies in a microsecond.
      load: outputs in whose time a row or a column of a tile is loaded.
      bytes: what memory gives in a microsecond.
    """

    sm_count: int
    launch: float
    reduce: float
    flops: float
    load: float
    bytes: float


FEATURES = (
    *("log2 m", "log2 n", "log2 k", "log2 mn", "log2 mnk"),
    *("lhs is K-major", "rhs is K-major"),
    *("log2 roughly us", "waves", "rows in tiles", "columns in tiles", "parts"),
    *("share of memory", "tiles of 128x128 in waves", "tiles of 128x256 in waves"),
    *("float16", "bias", "residual", "activation", "gated"),
    *("log2 alignment of lhs", "log2 alignment of rhs", "log2 alignment of the result"),
    "log2 bytes of memory per us",  # tells machines apart, whose matmuls the trees learn together
)


class Rough(NamedTuple):
    """The formula's time in microseconds, and of what it is made."""

    us: float
    waves: float
    rows: float  # of those that tiles have
    columns: float
    parts: float
    memory: float  # share of the time


def rough(problem: GemmProblem, rates: Rates) -> Rough:
    """The least, over tiles and parts of K, of a launch and waves of tiles, or memory's time."""
    p, tiles = problem, _tiles()
    rows, columns, parts = tiles.T
    outputs = p.m * p.n
    moved = p.lhs_dtype.itemsize * (p.m * p.k + (1 + p.epilogue.gated) * p.k * p.n + outputs)
    sums = np.where(parts > 1, 8.0 * outputs * parts, 0.0)
    memory = (moved + sums) / rates.bytes
    across, down = np.ceil(p.m / rows), np.ceil(p.n / columns)
    waves = across * down * parts / rates.sm_count
    outputs_of_tile = np.maximum(rows * columns, rates.load * (rows + columns))
    tile = 2.0 * outputs_of_tile * np.ceil(p.k / parts) / rates.flops * (1 + p.epilogue.gated)
    us = rates.launch + np.maximum(np.ceil(waves) * tile, memory) + rates.reduce * (parts > 1)
    us[(parts > 1) & (parts * _LEAST_K > p.k)] = np.inf
    best = int(us.argmin())
    filled = p.m / (across * rows), p.n / (down * columns)
    columns_of = (us, waves, *filled, parts, memory / us)
    return Rough(*(float(column[best]) for column in columns_of))


@cache
def _tiles() -> Floats:
    """Rows, columns and parts of K: of each tile as it is and turned, in each number of parts.

    The larger ones come first, and of equals are taken.
    """
    upright = [(r, c) for r, c in itertools.product(_ROWS, _COLUMNS) if r * c <= _LARGEST]
    either = {*upright, *((c, r) for r, c in upright)}
    return np.array(
        [(*tile, parts) for tile in sorted(either, reverse=True) for parts in _PARTS], np.float64
    )


def features(problem: GemmProblem, rates: Rates) -> Floats:
    """A row of FEATURES."""
    p, e, base = problem, problem.epilogue, rough(problem, rates)

    def filled(rows: int, columns: int) -> float:
        waves = math.ceil(p.m / rows) * math.ceil(p.n / columns) / rates.sm_count
        return waves / math.ceil(waves)

    return np.array(
        [
            *(math.log2(size) for size in (p.m, p.n, p.k, p.m * p.n, p.m * p.n * p.k)),
            *(major == Major.K for major in (p.lhs_major, p.rhs_major)),
            *(math.log2(base.us), base.waves, base.rows, base.columns, base.parts, base.memory),
            *(filled(128, 128), filled(128, 256)),
            *(p.lhs_dtype.name == "float16", e.bias is not None, e.residual is not None),
            *(e.activation is not None, e.gated),
            *(math.log2(math.gcd(row, SPAN)) for row in _row_bytes(p)),
            math.log2(rates.bytes),
        ],
        np.float64,
    )
