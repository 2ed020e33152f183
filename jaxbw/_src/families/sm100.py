"""Blackwell: tcgen05, accumulators in Tensor Memory, pairs of CTAs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jaxbw._src.families.family import (
    BF16,
    F16,
    F32,
    MAX_SPANS,
    SPAN_BYTES,
    Family,
    InstanceKey,
    Tile,
)

if TYPE_CHECKING:
    from jaxbw._src.selection.config import GemmConfig
    from jaxbw._src.selection.kernel_table import Kernel

# block_m by cta_group. The largest is two MMA tiles that share B and fill Tensor Memory.
BLOCK_M = {1: (64, 128, 256), 2: (128, 256, 512)}
_MAX_SPLIT = 16

# (block_m, cta_group) -> block_n. Steps of 16 where the tile is the usual one: against wave
# quantisation. Few where it is for a purpose: 64 rows for small products, the tall ones, which fill
# Tensor Memory, for few loads.
_TILES = {
    (256, 2): range(32, 257, 16),
    (128, 1): range(16, 257, 16),
    (64, 1): (8, 16, 24, 32, 48, 64, 96, 128),
    (512, 2): (128, 160, 192, 224, 256),
    (256, 1): (128, 192, 256),
    (128, 2): (64, 128, 192, 256),
}


class _Sm100(Family):
    def faults(self, config: GemmConfig) -> Iterator[str]:
        c = config
        block_m, block_n = c.tile
        if c.cta_group not in BLOCK_M:
            yield f"cta_group is {c.cta_group}; sm100 takes 1 or 2"
            return
        heights = BLOCK_M[c.cta_group]
        if block_m not in heights:
            listed = ", ".join(map(str, heights[:-1])) + f" or {heights[-1]}"
            yield f"block_m is {block_m}; cta_group {c.cta_group} computes {listed} rows"
        step, least = column_step(block_m, c.cta_group)
        if block_n % step or not least <= block_n <= 256:
            yield (
                f"block_n is {block_n}; {block_m} rows with cta_group {c.cta_group} take multiples "
                f"of {step} from {least} to 256"
            )
        if c.pingpong:
            yield "pingpong is True; it is for sm90"
        if c.accumulators not in (None, 1, 2):
            yield f"accumulators is {c.accumulators}; it is 1 or 2"
        if c.accumulators == 1 and block_m == heights[-1]:
            yield f"accumulators is 1; a tile of {block_m} rows fills both: leave it None"
        if c.block_k is not None and (c.block_k % 32 or not 32 <= c.block_k <= 64 * MAX_SPANS):
            yield (
                f"block_k is {c.block_k}; it is 1 to {MAX_SPANS} spans: multiples of 64 elements "
                "of 16 bits or of 32 of f32"
            )

    def gated_fault(self, config: GemmConfig) -> str | None:
        return None

    def tiles(self) -> Iterator[Tile]:
        for (block_m, cta_group), steps in _TILES.items():
            for width in sorted(steps, reverse=True):
                yield (block_m, width), cta_group, False

    def key_of(self, kernel: Kernel) -> InstanceKey:
        return (kernel.cta_group,)

    def key(self, block_m: Any, block_n: Any, cta_group: Any, pingpong: Any) -> tuple[Any, ...]:
        return (cta_group,)

    def fills_accumulators(self, config: GemmConfig) -> bool:
        return config.tile[0] == BLOCK_M[config.cta_group][-1]


def column_step(block_m: int, cta_group: int) -> tuple[int, int]:
    """The step and the least of block_n (PTX 9.7.16.2.1, and the epilogue's slices)."""
    if (block_m, cta_group) == (64, 1):
        return 8, 8
    # Each CTA's epilogue warps hold half of the columns each: PTX 9.7.16.10.5, M = 128 of a pair.
    return (32, 32) if (block_m, cta_group) == (128, 2) else (16, 16)


SM100 = _Sm100(
    name="sm100",
    emulator="emulator",
    capabilities=((10, 0), (10, 3)),
    gpus="10.0 or 10.3 (B200, GB200, B300)",
    default_target="B200",
    inputs={BF16: "16bit", F16: "16bit", F32: "tf32"},
    max_cluster=16,
    cluster_k=(1,),
    max_split=_MAX_SPLIT,
    min_shared_parts=_MAX_SPLIT + 1,
    min_reduced_parts=_MAX_SPLIT + 1,
    schedulers=("clc", "static", "none"),
    dynamic="clc",
    accumulators=2,
    column_span=SPAN_BYTES,
    has_tensor_memory=True,
    mma_rows=128,
    chunks=(64, 32, 16),
    clusters={
        1: ((1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1)),
        2: ((2, 1, 1), (2, 2, 1), (4, 1, 1), (4, 2, 1)),
    },
    splits=(1, 2, 3, 4, 5, 6, 8, 10, 12, 16),
    # Several spans in a stage pay where a tile's are small.
    stage_spans={1: 2**20, 2: 16 * 1024, 4: 12 * 1024},
)
