"""Launches our GEMM kernels in the emulator: what cuda/host does on a GPU, restated in numpy."""

import struct
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from jaxbw import emulator

BF16 = np.dtype(ml_dtypes.bfloat16)
TYPES = {np.dtype(np.float16): 0, BF16: 1, np.dtype(np.float32): 2}  # DataType of cuda/params.h
SPAN = 128  # bytes of a swizzle span
GUARD = 256  # elements in front of the result and behind it


@dataclass(frozen=True)
class Family:
    """What the kernels of one architecture have in common (cuda/gemm/storage.h)."""

    threads: int
    epilogue_warps: int
    rows_per_warp: int
    max_columns: int
    persistent: bool


SM90 = Family(threads=384, epilogue_warps=8, rows_per_warp=16, max_columns=64, persistent=True)
SM100 = Family(threads=256, epilogue_warps=4, rows_per_warp=32, max_columns=32, persistent=False)


@dataclass(frozen=True)
class Config:
    """A launch configuration; the majors are 0 (K) or 1 (MN)."""

    family: Family
    block_m: int
    block_n: int
    cta_group: int = 1
    cluster: tuple[int, int] = (1, 1)
    stages: int = 3
    swizzle: int = 1
    lhs_major: int = 0
    rhs_major: int = 1
    output: np.dtype[Any] = BF16
    activation: int = 0


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _tensor_map(
    array: np.ndarray[Any, Any], contiguous: int, outer: int, box: tuple[int, int]
) -> emulator.TensorMap:
    pitch = max(16, _ceil_div(contiguous * array.itemsize, 16) * 16)
    return emulator.TensorMap.encode(
        array,
        box=(*box, 1),
        extents=(contiguous, outer, array.shape[0]),
        strides=(pitch, pitch * outer),
        swizzle=box[0] * array.itemsize,
    )


def _stored(values: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    array = emulator.empty(values.shape, dtype)
    array[...] = values
    return array


def run(
    module: emulator.Module,
    config: Config,
    lhs: np.ndarray[Any, Any],
    rhs: np.ndarray[Any, Any],
    dtype: np.dtype[Any],
    bias: np.ndarray[Any, Any] | None = None,
    sm_count: int = 8,
    **options: Any,
) -> tuple[np.ndarray[Any, Any], emulator.Report]:
    """Multiplies `[batch|1, m, k]` by `[batch|1, k, n]`; nothing around the result may change."""
    (lhs_batch, m, k), (rhs_batch, _, n) = lhs.shape, rhs.shape
    batch = max(lhs_batch, rhs_batch)
    c, family = config, config.family
    cluster_m, cluster_n = c.cluster
    rows, peers_b = c.block_m // c.cta_group, cluster_m // c.cta_group
    a = _stored(lhs.transpose(0, 2, 1) if c.lhs_major else lhs, dtype)
    b = _stored(rhs if c.rhs_major else rhs.transpose(0, 2, 1), dtype)
    guarded = emulator.empty(batch * m * n + 2 * GUARD, c.output)
    guarded.view(np.uint8)[...] = 0xA5
    d = guarded[GUARD:-GUARD].reshape(batch, m, n)
    columns = min(SPAN // c.output.itemsize, family.max_columns)
    maps = [
        _tensor_map(a, m, k, (64, 64 // cluster_n))
        if c.lhs_major
        else _tensor_map(a, k, m, (64, rows // cluster_n)),
        _tensor_map(b, n, k, (64, 64 // peers_b))
        if c.rhs_major
        else _tensor_map(b, k, n, (64, c.block_n // c.cta_group // peers_b)),
        _tensor_map(d, n, m, (columns, family.rows_per_warp)),
    ]
    tiles_m = _ceil_div(m, cluster_m * rows)
    tiles_n = _ceil_div(n, cluster_n * c.block_n)
    bias_address, bias_type = (0, 2) if bias is None else (bias.ctypes.data, TYPES[bias.dtype])
    parameters = b"".join(map_.encoded for map_ in maps)
    parameters += struct.pack("<QIIIxxxx", bias_address, bias_type, c.activation, TYPES[c.output])
    parameters += struct.pack("<6I", m, n, k, batch, lhs_batch > 1, rhs_batch > 1)
    parameters += struct.pack(
        "<6I", c.block_m, c.block_n, cluster_m, cluster_n, c.stages, c.swizzle
    )
    parameters += struct.pack("<5I", tiles_m, tiles_n, TYPES[dtype], c.lhs_major, c.rhs_major)
    parameters += bytes(-len(parameters) % 64)
    stage = (rows + c.block_n // c.cta_group) * SPAN
    staging = family.epilogue_warps * family.rows_per_warp * SPAN * 2
    clusters = tiles_m * tiles_n * batch
    size = cluster_m * cluster_n
    if family.persistent:
        clusters = min(clusters, sm_count // size)
    entry = module.entries()[0]
    report = module.launch(
        entry,
        grid=clusters * size,
        block=family.threads,
        cluster=size,
        dynamic_smem=c.stages * stage + staging + 1024,
        args=[parameters],
        buffers=[a, b, guarded] if bias is None else [a, b, guarded, bias],
        sm_count=sm_count,
        **options,
    )
    edges = np.concatenate([guarded[:GUARD], guarded[-GUARD:]])
    assert (edges.view(np.uint8) == 0xA5).all(), "the kernel wrote outside the result"
    return d, report


def integers(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    """Small integers: products and sums of them are exact in float32 in any order."""
    return rng.integers(-3, 4, shape).astype(np.float32)
