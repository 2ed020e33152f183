"""Blackwell: tcgen05, accumulators in Tensor Memory, pairs of CTAs."""

from __future__ import annotations

from collections.abc import Iterator

from jaxbw._src.families.family import BF16, E4M3, E5M2, F16, F32, Family, Tile

# (block_m, cta_group) -> block_n. Steps of 16 where the tile is the usual one: against wave
# quantisation. Few where it is for a purpose: 64 rows for small matmuls, the tall ones, which fill
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
    def tiles(self) -> Iterator[Tile]:
        for (block_m, cta_group), steps in _TILES.items():
            for width in sorted(steps, reverse=True):
                yield (block_m, width), cta_group, False


SM100 = _Sm100(
    name="sm100",
    emulator="emulator",
    capabilities=((10, 0), (10, 3)),
    gpus="10.0 or 10.3 (B200, GB200, B300)",
    default_target="B200",
    inputs={BF16: "16bit", F16: "16bit", E4M3: "8bit", E5M2: "8bit", F32: "tf32"},
    on_request=(),
    k_major_only=(F32,),
    has_tensor_memory=True,
    mma_rows=128,
    chunks=(64, 32, 16),
    clusters={
        1: (
            *((1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1)),
            *((1, 1, 2), (1, 1, 3), (1, 1, 4), (1, 1, 6), (1, 1, 8), (1, 1, 12), (1, 1, 16)),
        ),
        2: ((2, 1, 1), (2, 2, 1), (4, 1, 1), (4, 2, 1)),
    },
    splits=(1, 2, 3, 4, 5, 6, 8, 10, 12, 16),
    # Several spans in a stage pay where a tile's are small.
    stage_spans={1: 2**20, 2: 16 * 1024, 4: 12 * 1024},
)
