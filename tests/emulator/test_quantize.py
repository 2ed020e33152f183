"""The quantize kernels' PTX in the emulator: any grid, any slices, nothing else touched.

Against the documented formula, bit by bit. What the host plans is tested through the custom
call (tests/jax/test_quantize_kernel.py).
"""

import math
import struct
from enum import IntEnum
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxbw._src.selection import manifest
from jaxbw.emulator import Module

from ..alignment import aligned
from ..quantized import quantized

THREADS = 256
FAMILIES = ("sm90", "sm100")
DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
FORMATS = {"e4m3": 8, "e5m2": 9}  # DataType in cuda/params.h


class Pass(IntEnum):  # QuantizePass there
    GROUPS = 0
    AMAX = 1
    DATA = 2
    BOTH = 3


@cache
def loaded(kernel: str) -> Module:
    return Module((manifest.directory() / f"{kernel}.ptx").read_text(), f"{kernel}.ptx")


def any_bits(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    """Every kind of number: infinities, NaN and subnormals too. The first group is of zeros."""
    x = aligned(shape, jnp.dtype(dtype))
    bits = np.dtype(f"u{x.dtype.itemsize}")
    random = np.random.default_rng(seed)
    x[...] = random.integers(0, 2 ** (8 * bits.itemsize), shape, bits).view(x.dtype)
    x[0] = 0
    # The second group has numbers alone, or its amax were always nearly the largest one.
    x[1:2] = random.standard_normal(x[1:2].shape).astype(x.dtype)
    return x


def check(
    kind: str,
    name: str,
    shape: tuple[int, ...],
    *,
    slice_: int = 0,
    lanes: int = THREADS,
    family: str = "sm100",
    **launch: Any,
) -> None:
    """Quantizes [groups, group], or with four dimensions [groups, matrices, rows, columns]."""
    kernel = f"jaxbw_{family}_quantize_{kind}"
    module = loaded(kernel)
    x = any_bits(shape, DTYPES[kind])
    x.flags.writeable = False
    group = math.prod(shape[1:])
    slices = -(-group // slice_) if slice_ else 0
    matrices, rows, columns = shape[1:] if len(shape) == 4 else (0, 0, 0)
    guard = 64
    data, turned = (aligned((x.size + guard,), np.uint8) for _ in range(2))
    scale = aligned((shape[0] + guard,), np.float32)
    maxima = aligned((shape[0] * slices + guard,), np.uint32)
    for array in (data, turned, scale, maxima):
        array.view(np.uint8)[...] = 0xA5

    last = Pass.GROUPS if not slices else Pass.BOTH if matrices else Pass.DATA
    for step in (last,) if last is Pass.GROUPS else (Pass.AMAX, last):
        params = struct.pack(
            "<QQQQQQIIQIIIIII",
            *(a.ctypes.data for a in (x, data, turned, scale, maxima)),
            *(group, shape[0], slices, slice_),
            *(lanes, matrices, rows, columns, step, FORMATS[name]),
        )
        buffers = [x, data, turned, scale, maxima]
        report = module.launch(
            kernel, block=THREADS, args=[params], buffers=buffers, **{"grid": 2} | launch
        )
        assert not report.findings

    bits, scales = quantized(x, name, tuple(range(1, x.ndim)))
    assert_bits(data, bits)
    assert_bits(turned, bits.swapaxes(-1, -2) if last is Pass.BOTH else bits[:0])
    assert_bits(scale.view(np.uint8), scales)


def assert_bits(got: Any, wanted: Any) -> None:
    wanted = np.ascontiguousarray(wanted).reshape(-1).view(np.uint8)
    np.testing.assert_array_equal(got[: wanted.size], wanted)
    assert (got[wanted.size :] == 0xA5).all()


# Groups that begin at every alignment, shorter than a vector and longer than a block's first loads.
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize(
    ("groups", "group", "lanes"),
    [(5, 1, 16), (40, 3, 16), (9, 8, 16), (33, 17, 16), (20, 129, 16), (3, 700, 32), (5, 1003, 64)],
)
def test_groups(kind: str, name: str, groups: int, group: int, lanes: int) -> None:
    check(kind, name, (groups, group), lanes=lanes)


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize(
    ("groups", "group", "slice_"), [(3, 1000, 24), (2, 40, 40), (1, 4097, 4096), (2, 9001, 8192)]
)
def test_slices(kind: str, groups: int, group: int, slice_: int) -> None:
    check(kind, "e4m3", (groups, group), slice_=slice_)


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize(
    ("shape", "slice_"),
    [
        ((1, 1, 4, 4), 8),
        ((2, 1, 128, 128), 4096),
        ((2, 2, 8, 12), 64),
        ((2, 1, 12, 8), 16),
        ((2, 1, 132, 136), 5000),
        ((1, 2, 128, 260), 5000),
    ],
)
def test_both_directions(kind: str, shape: tuple[int, ...], slice_: int) -> None:
    check(kind, "e5m2", shape, slice_=slice_)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("grid", [1, 3, 40])
@pytest.mark.parametrize("seed", [0, 1])
def test_any_grid_and_schedule(family: str, grid: int, seed: int) -> None:
    launch: Any = {"family": family, "grid": grid, "schedule": "random", "seed": seed}
    check("bf16", "e4m3", (9, 530), lanes=64, **launch)
    check("bf16", "e4m3", (3, 1000), slice_=96, **launch)
    check("f16", "e5m2", (2, 1, 140, 152), slice_=4096, **launch)
