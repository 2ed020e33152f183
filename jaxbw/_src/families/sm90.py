"""Hopper: wgmma, accumulators in registers, two consumer warpgroups."""

from __future__ import annotations

from collections.abc import Iterator

from jaxbw._src.families.family import BF16, E4M3, E5M2, F16, F32, Family, Tile

# (block_m, pingpong) -> block_n.
_TILES = {
    (128, False): (320, 256, 192, 160, 128, 96, 64, 32),
    (192, False): (192,),
    (256, False): (128, 32),
    (192, True): (96,),
    (128, True): (160, 128),
    (64, True): (192, 160, 128, 96, 64, 32),
    # Of few rows, without TMA.
    **{(rows, False): (128, 64, 32) for rows in (8, 16, 32)},
}


class _Sm90(Family):
    def tiles(self) -> Iterator[Tile]:
        for (block_m, pingpong), widths in _TILES.items():
            yield from (((block_m, width), 1, pingpong) for width in widths)


SM90 = _Sm90(
    name="sm90",
    emulator="emulator-sm90",
    capabilities=((9, 0),),
    gpus="9.0 (H100, H200)",
    default_target="H200",
    inputs={BF16: "bf16", F16: "f16", E4M3: "8bit", E5M2: "8bit", F32: "tf32"},
    # cuBLAS rounds float32 to TF32, where wgmma truncates, and reads it MN-major. Its time over
    # ours on an H100, at 1024^3 and 4096^3: NT 1.06 and 0.98, NN 0.58 and 0.79
    # (benchmarks/results/2026-11-25_h100_bench_tf32.json).
    on_request=(F32,),
    k_major_only=(E4M3, E5M2, F32),
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
    stage_spans={1: 2**20, 2: 16 * 1024},  # two where tiles have few rows and columns
)
