"""Ladders of kernels that others have measured on a B200, as the model sees them.

Tiles, stages and data are those of the published sources, not of their prose alone: the sources'
benchmarks differ from their text in places (docs/blackwell-model.md). Where a source tunes, the
candidates that fit shared memory are all modelled, and the fastest stands for the rung.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from jaxbw._src.lab.model.clock import Clock, fixed
from jaxbw._src.lab.model.kernel import Kernel
from jaxbw._src.lab.model.schedule import Raster, Shape

SHARED_MEMORY = 227 * 1024
ALL = 1 << 20  # tiles: a band of all of them


@dataclass(frozen=True)
class Rung:
    """One published figure.

    Attributes:
      name: in its source.
      candidates: what it may have been, kernel and order of tiles; () for the kernel without tensor
        cores.
      shape, clock: as it was measured; a clock, or the data that the throttle law takes.
      published: TFLOP/s.
      warm: whether the same arrays are used by one launch after another.
      fitted: whether a constant was fitted to it.
      host_us: of the host, that its timer has seen.
    """

    name: str
    candidates: tuple[tuple[Kernel, Raster], ...]
    shape: Shape
    clock: Clock | str
    published: float
    warm: bool = True
    fitted: bool = False
    host_us: float = 0.0


def _fitting(kernels: Iterator[Kernel]) -> Iterator[Kernel]:
    for kernel in kernels:
        staging = 0 if kernel.chunk is None else kernel.chunk * kernel.buffers
        staging *= min(kernel.rows, 128) * kernel.output_size
        if kernel.stages * sum(kernel.loaded) + staging <= SHARED_MEMORY:
            yield kernel


def _pairs(kernels: Iterator[Kernel], *rasters: Raster) -> tuple[tuple[Kernel, Raster], ...]:
    return tuple(itertools.product(_fitting(kernels), rasters))


_N_FIRST, _M_FIRST = Raster("n", ALL), Raster("m", ALL)

# --- Modular, Matrix Multiplication on Blackwell 1-4: constant operands, which switch little

_CUBE = Shape(4096, 4096, 4096)
_LIGHT = fixed(1.965, "light")
_SERIAL = Kernel(
    64,
    256,
    stages=1,
    specialised=False,
    persistent=None,
    accumulators=1,
    own_epilogue=False,
    chunk=None,
    hidden_relaunch=True,  # all 512 columns are allocated
)
_TMA_STORE = replace(_SERIAL, chunk=256, buffers=1)
_PAIR = replace(_TMA_STORE, block_m=256, group=2, cluster=(2, 1))
_RING = replace(_PAIR, stages=5, specialised=True, own_epilogue=True, hidden_relaunch=False)
_CHUNKS = replace(_RING, chunk=32, buffers=2)
_CLC = replace(_CHUNKS, block_n=128, stages=8, persistent="clc", accumulators=2)


def _modular(
    name: str, kernel: Kernel, published: float, shape: Shape = _CUBE, fitted: bool = False
) -> Rung:
    return Rung(name, ((kernel, _N_FIRST),), shape, _LIGHT, published, fitted=fitted)


MODULAR = (
    Rung("K1 naive", (), _CUBE, _LIGHT, 5.6, fitted=True),
    _modular("K2 tensor cores", replace(_SERIAL, narrow=True), 155.0, fitted=True),
    _modular("K3 swizzle", _SERIAL, 288.3, fitted=True),
    _modular("K4 TMA store", _TMA_STORE, 293.6),
    _modular("K5 pair", _PAIR, 360.2, Shape(4096, 2560, 8192)),  # its benchmark's own shape
    _modular("K6 pipeline", _RING, 1429.6),
    _modular("K7 double output", _CHUNKS, 1493.0),
    _modular("K8 CLC", _CLC, 1772.9, fitted=True),
)

# --- Tilus, Blackwell tutorial V0-V6: profiled at 1.366 GHz, normal data

_TILUS_SHAPE = Shape(8192, 8192, 8192)
_TILUS_CLOCK = fixed(1.366)


def _tilus(name: str, published: float, kernels: Iterator[Kernel], *rasters: Raster) -> Rung:
    return Rung(name, _pairs(kernels, *rasters), _TILUS_SHAPE, _TILUS_CLOCK, published)


def _tilus_tiles(base: Kernel, stages: tuple[int, ...]) -> Iterator[Kernel]:
    for columns, depth in itertools.product((64, 128, 256), stages):
        ahead = 0 if base.specialised else depth - 1
        yield replace(base, block_n=columns, stages=depth, ahead=ahead)


_V0 = replace(_SERIAL, block_m=128, loads="copy", hidden_relaunch=False)
_V1 = replace(_V0, loads="tma", chunk=16, buffers=1)
_V3 = replace(_V1, specialised=True, own_epilogue=True)
_V5 = replace(_V3, persistent="clc", accumulators=2)
_BANDS = tuple(Raster("n", width) for width in (4, 8, 16))

TILUS = (
    _tilus("V0 minimal", 490.9, _tilus_tiles(_V0, (1,)), _M_FIRST),
    _tilus("V1 TMA", 454.3, _tilus_tiles(_V1, (1,)), _M_FIRST),
    _tilus("V2 stages", 1103.2, _tilus_tiles(_V1, (2, 3, 4)), _M_FIRST),
    _tilus("V3 warps", 1351.1, _tilus_tiles(_V3, (2, 3, 4)), _M_FIRST),
    _tilus("V4 bands", 1416.4, _tilus_tiles(_V3, (2, 3, 4)), *_BANDS),
    _tilus("V5 CLC", 1506.3, _tilus_tiles(_V5, (2, 3, 4)), *_BANDS),
    _tilus(
        "V6 pair",
        1610.2,
        (
            replace(_V5, block_m=256, block_n=256, group=2, cluster=(2, 1), stages=s, chunk=c)
            for s, c in itertools.product((5, 6), (16, 32))
        ),
        *_BANDS,
    ),
)

# --- JAX, Pallas guide to Blackwell: normal data. What it calls tensor-core utilisation is, in its
# benchmark (mgpu_examples_test.py of jax-ml/jax), TFLOP/s of a nominal peak.

_PALLAS_PEAK = 2250.0  # TFLOP/s
_PALLAS_SHAPE = Shape(4096, 8192, 4096)


def _pallas(name: str, percent: float, kernels: Iterator[Kernel], *rasters: Raster) -> Rung:
    pairs = _pairs(kernels, *(rasters or (_N_FIRST,)))
    return Rung(name, pairs, _PALLAS_SHAPE, "normal", percent / 100 * _PALLAS_PEAK)


def _pallas_tiles(base: Kernel, chunk: int | None = None) -> Iterator[Kernel]:
    for columns, depth in itertools.product((128, 256), (4, 6)):
        ahead = 0 if base.specialised else depth - 1
        yield replace(base, block_n=columns, stages=depth, ahead=ahead, chunk=chunk or columns)


_P0 = replace(_SERIAL, block_m=128, lag=1, buffers=1, hidden_relaunch=False)
_P1 = replace(_P0, specialised=True, own_epilogue=True)
_P3 = replace(_P1, block_m=256, group=2, cluster=(2, 1), stages=6, chunk=64, buffers=2)
_P4 = replace(_P3, persistent="static", own_epilogue=False)
_P5 = replace(_P4, own_epilogue=True, accumulators=2)
_SNAKES = tuple(Raster(across, width, snake=True) for across in "mn" for width in (1, 4, 12, 16))

PALLAS = (
    _pallas("0 basic", 37.62, _pallas_tiles(_P0)),
    _pallas("1 warps", 45.47, _pallas_tiles(_P1)),
    _pallas("2 tiled epilogue", 55.82, _pallas_tiles(replace(_P1, buffers=2), 64)),
    _pallas("3 pair", 59.41, iter((_P3,))),
    _pallas("4 persistent", 61.46, iter((_P4,))),
    _pallas("5 own epilogue", 63.38, iter((_P5,))),
    _pallas("6 snake", 69.44, iter((_P5,)), *_SNAKES),
)

# --- ThunderKittens, educational_b200: the ladder that was chosen, and frozen, before its figures
# were looked at. One launch between two readings of the host's clock, uniform data in +-0.5; levels
# 3 to 5 have no tcgen05 and are not modelled.

_ONE_LAUNCH_US = 10.0  # assumed: launch and wait, seen by the host
_L6 = replace(_SERIAL, block_m=128, block_n=128, chunk=128, buffers=1, hidden_relaunch=False)
_L7 = replace(_L6, specialised=True, own_epilogue=True, stages=3)
_L8 = replace(_L7, block_n=256, chunk=64, buffers=4)
_L9 = replace(_L8, block_m=512, group=2, cluster=(2, 1), stages=4, chunk=32, buffers=2)


def _kittens(name: str, kernel: Kernel | None, published: float) -> Rung:
    candidates = () if kernel is None else ((kernel, _N_FIRST),)
    return Rung(name, candidates, _CUBE, "light", published, host_us=_ONE_LAUNCH_US)


KITTENS = (
    _kittens("level 2 naive", None, 6),
    _kittens("level 6 tcgen05", _L6, 293),
    _kittens("level 7 ring", _L7, 731),
    _kittens("level 8 tiled epilogue", _L8, 1050),
    _kittens("level 9 pairs", _L9, 1285),
)

# --- ThunderKittens, bf16_b200: of its five sizes one has a published figure, known beforehand;
# buffers are rotated beyond L2

_T4 = replace(_CLC, block_m=512, block_n=256, stages=4, chunk=32, accumulators=1)

KITTENS_BEST = (Rung("bf16_b200", ((_T4, Raster("m", 4)),), _CUBE, "normal", 1540, warm=False),)

LADDERS = {
    "Modular": MODULAR,
    "Tilus": TILUS,
    "Pallas": PALLAS,
    "ThunderKittens educational": KITTENS,
    "ThunderKittens best": KITTENS_BEST,
}
