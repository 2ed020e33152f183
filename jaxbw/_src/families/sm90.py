"""Hopper: wgmma, accumulators in registers, two consumer warpgroups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxbw._src.families.family import BF16, F16, SPAN_BYTES, Family, InstanceKey, Tile

if TYPE_CHECKING:
    from jaxbw._src.selection.config import GemmConfig
    from jaxbw._src.selection.kernel_table import Kernel

# The widths that kernels are compiled for, by the rows of a consumer warpgroup.
WIDTHS = {64: (32, 64, 96, 128, 160, 192, 256), 128: (64, 96, 128)}

# (block_m, pingpong) -> block_n.
_TILES = {
    (128, False): (256, 192, 160, 128, 96, 64, 32),
    (256, False): (128,),
    (128, True): (128, 64),
    (64, True): (192, 160, 128, 96, 64, 32),
}


class _Sm90(Family):
    def faults(self, config: GemmConfig) -> Iterator[str]:
        c = config
        block_m, block_n = c.tile
        if c.cta_group != 1:
            yield f"cta_group is {c.cta_group}; sm90 takes 1"
        rows = tuple(WIDTHS) if c.pingpong else tuple(2 * rows for rows in WIDTHS)
        if block_m not in rows:
            yield (
                f"block_m is {block_m}; sm90 takes {rows[0]} or {rows[1]} with pingpong "
                f"{c.pingpong}"
            )
        elif block_n not in (widths := WIDTHS[c.team_rows]):
            yield f"block_n is {block_n}; sm90 takes {', '.join(map(str, widths))} here"
        if c.block_k not in (None, SPAN_BYTES // 2):
            yield f"block_k is {c.block_k}; sm90 kernels have {SPAN_BYTES // 2}"
        if c.accumulators not in (None, 1):
            yield f"accumulators is {c.accumulators}; sm90 has 1, in registers"

    def gated_fault(self, config: GemmConfig) -> str | None:
        block_n = config.tile[1]
        if block_n % 128:  # TMA brings an MN-major half in columns of 64
            return f"block_n is {block_n}; a gated product on sm90 takes 128 or 256"
        return None

    def tiles(self) -> Iterator[Tile]:
        for (block_m, pingpong), widths in _TILES.items():
            yield from (((block_m, width), 1, pingpong) for width in widths)

    def key_of(self, kernel: Kernel) -> InstanceKey:
        return kernel.block_m, kernel.block_n

    def key(self, block_m: Any, block_n: Any, cta_group: Any, pingpong: Any) -> tuple[Any, ...]:
        return np.where(pingpong, block_m, block_m // 2), block_n

    def fills_accumulators(self, config: GemmConfig) -> bool:
        return True


SM90 = _Sm90(
    name="sm90",
    emulator="emulator-sm90",
    capabilities=((9, 0),),
    gpus="9.0 (H100, H200)",
    default_target="H200",
    inputs={BF16: "bf16", F16: "f16"},
    max_cluster=8,
    cluster_k=(1, 2, 4, 8),
    max_split=64,
    min_shared_parts=5,
    min_reduced_parts=12,
    schedulers=("static", "none"),
    dynamic="none",
    accumulators=1,
    column_span=SPAN_BYTES // 2,
    has_tensor_memory=False,
    mma_rows=64,
    chunks=(64, 32),
    clusters={
        1: (
            *((1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1)),
            *((4, 1, 1), (1, 4, 1), (4, 2, 1), (2, 4, 1)),
            *((1, 1, 2), (1, 1, 4), (1, 1, 8), (2, 1, 2), (1, 2, 2), (2, 1, 4), (1, 2, 4)),
        ),
    },
    splits=(1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 15, 16, 22, 24, 30, 32, 48, 64),
    stage_spans={1: 2**20},
)
