"""The kernels that ship, run as PTX: bit-exact on integers in every schedule, without a finding."""

import random
from dataclasses import replace
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from . import gemm_cases, gemm_draw, gemm_launch
from .gemm_cases import Case
from .installed import load

SCHEDULES = [("eager", 0), ("latest", 0), ("random", 1), ("random", 2), ("pct", 3)]


def check(case: Case, schedule: str = "eager", seed: int = 0) -> gemm_launch.Outcome:
    outcome: gemm_launch.Outcome = gemm_cases.check(load(case.kernel), case, schedule, seed)
    return outcome


ONE: dict[str, Any] = dict(output="bf16", stages=3)
PAIR: dict[str, Any] = dict(ONE, block_m=256, cta_group=2, cluster=(2, 1))
SMALL: dict[str, Any] = dict(ONE, block_m=64, block_n=64)
PROMOTED: dict[str, Any] = dict(dtype="e4m3", promoted=True, layout="nt")
BLOCKS: dict[str, Any] = dict(**PROMOTED, blocks=True)
SHARED: dict[str, Any] = dict(output="bf16", block_m=64, layout="nt", swap_ab=True)
SCALES: dict[str, Any] = dict(lhs_scale=True, rhs_scale=True)
ALL: dict[str, Any] = dict(
    c="f32", bias="bf16", residual="f16", save=True, alpha=0.5, activation="relu"
)
# Most results are within e4m3's range, and some beyond.
TO8: dict[str, Any] = dict(output="e4m3", stages=3, alpha=0.5)

# What one launch can be, a launch for each. The names are test ids.
SM100 = {
    # one CTA for each MMA, then pairs
    "one tile": Case(128, 128, 64, **ONE),
    "tn": Case(256, 512, 200, **ONE, block_n=256, layout="tn"),
    "nt": Case(200, 132, 72, block_n=64, layout="nt", stages=3),
    "tt": Case(136, 200, 136, block_n=96, layout="tt", dtype="f16", output="f16", stages=3),
    "2x2": Case(500, 520, 192, **ONE, cluster=(2, 2)),
    "4x1": Case(1024, 128, 64, **ONE, block_n=64, cluster=(4, 1), swizzle=2),
    "1x4": Case(128, 512, 128, batch=2, **ONE, block_n=64, cluster=(1, 4)),
    "pair": Case(256, 256, 128, **PAIR, block_n=256),
    "pair tn": Case(520, 264, 72, **PAIR | dict(output="f32"), layout="tn", dtype="f16"),
    "pair 4x1": Case(1024, 256, 192, **PAIR | dict(cluster=(4, 1))),
    "pair 2x2 nt": Case(
        512, 256, 320, batch=2, **PAIR | dict(cluster=(2, 2)), block_n=64, layout="nt"
    ),
    "pair 4x2": Case(600, 520, 64, **PAIR | dict(cluster=(4, 2))),
    "16 CTAs": Case(1000, 248, 136, **ONE, block_n=64, layout="nt", cluster=(8, 2)),
    "16 CTAs of pairs": Case(1000, 500, 72, **PAIR | dict(cluster=(4, 4)), layout="nt"),
    # tiles
    "64 rows": Case(200, 200, 136, **SMALL, cluster=(2, 2)),
    "64 rows, 8 columns": Case(72, 40, 72, **SMALL | dict(block_n=8), layout="nt"),
    "128 rows of a pair": Case(200, 360, 136, **PAIR | dict(block_m=128), block_n=96, layout="nt"),
    "16 columns of a pair": Case(300, 40, 72, **PAIR, block_n=16, layout="nt"),
    "full TMEM": Case(500, 520, 136, **ONE, block_m=256, block_n=256),
    "full TMEM of pairs": Case(1000, 250, 72, **PAIR | dict(block_m=512), block_n=192, layout="nt"),
    "four spans": Case(128, 96, 600, **SMALL | dict(block_n=32, k_spans=4), layout="nt"),
    "a ring of one stage": Case(200, 200, 200, **ONE | dict(stages=1)),
    "one accumulator": Case(300, 300, 72, **ONE, accumulators=1),
    "tf32": Case(200, 136, 100, layout="nt", dtype="f32", stages=3, integers=False),
    "tf32 pair": Case(
        300, 264, 68, layout="nt", dtype="f32", block_m=256, cta_group=2, cluster=(2, 1)
    ),
    # who computes what
    "static": Case(400, 400, 72, **ONE, scheduler="static"),
    "static pairs": Case(600, 600, 72, **PAIR, scheduler="static", raster="n", swizzle=2),
    "not persistent": Case(300, 300, 72, **ONE, scheduler="none"),
    "along n": Case(500, 500, 24, **SMALL, raster="n", swizzle=3),
    "split": Case(200, 200, 500, **ONE, split_k=4),
    "split of pairs": Case(500, 200, 400, **PAIR, split_k=3, scheduler="static"),
    "split tail": Case(600, 300, 264, **ONE, split_k=2, split_tail=True),
    "split of full TMEM": Case(300, 200, 264, **ONE, block_m=256, split_k=2),
    # operands of the epilogue, and ways out
    "epilogue": Case(200, 136, 72, **ONE, **ALL),
    "epilogue in place": Case(200, 136, 72, **SMALL, c="bf16", in_place=True, bias="f32"),
    "bias along m": Case(200, 136, 72, **ONE, bias="f32", bias_along_m=True),
    "odd rows": Case(200, 133, 72, **ONE | ALL),
    "rows without TMA": Case(200, 136, 72, **ONE, store="rows"),
    "factors": Case(200, 133, 72, **ONE | ALL, in_memory=True),
    "a factor": Case(300, 300, 72, **ONE, alpha=0.5, in_memory=True),
    "a factor of a pair": Case(500, 264, 136, **PAIR, block_n=256, alpha=-2.0, in_memory=True),
    # scales of rows and columns, each batch index's or one for all; with a factor of all in memory
    "scales": Case(200, 136, 72, batch=2, **ONE | ALL, **SCALES, in_memory=True),
    "scales of rows": Case(
        200, 133, 72, batch=2, shared=("lhs",), **ONE, lhs_scale=True, bias="f32", activation="silu"
    ),
    "scales of columns": Case(72, 40, 72, **SMALL | dict(block_n=8), layout="nt", rhs_scale=True),
    "scales of a pair": Case(
        500, 264, 136, batch=2, shared=("rhs",), **PAIR, **SCALES, integers=False, dtype="f16"
    ),
    "scales, 16 columns of a pair": Case(300, 40, 72, **PAIR, **SCALES, block_n=16, layout="nt"),
    "scales of full TMEM": Case(500, 250, 136, **ONE, **SCALES, block_m=256, bias="bf16"),
    "scales, split": Case(200, 200, 500, **ONE, **SCALES, split_k=4),
    "scales, swapped": Case(
        5, 200, 136, batch=2, **SMALL | dict(block_n=8) | ALL, **SCALES, layout="nt", swap_ab=True
    ),
    "scales of columns, swapped": Case(
        33, 200, 136, **SMALL, layout="tt", swap_ab=True, rhs_scale=True
    ),
    "scales, gated": Case(
        200, 120, 136, batch=2, **ONE, **SCALES, gated=True, activation="relu", save=True
    ),
    "scales, gated pair": Case(500, 200, 136, **PAIR, **SCALES, gated=True, bias="f32"),
    "scales, 8 bits": Case(
        200, 136, 136, **ONE, **SCALES, dtype="e4m3", rhs_dtype="e5m2", bias="bf16"
    ),
    "swapped": Case(5, 200, 136, **SMALL | dict(block_n=8) | ALL, layout="nt", swap_ab=True),
    "swapped, tt": Case(33, 200, 136, **SMALL, layout="tt", swap_ab=True, bias="f32"),
    "swapped and split": Case(
        16, 300, 500, **SMALL | dict(block_n=16), layout="nt", split_k=4, swap_ab=True
    ),
    # parts of K in the CTAs of a cluster: more slices of a warp than parts, fewer, of batches, of
    # clusters of several tiles, of 128 rows; as many parts as blocks of K
    "3 parts": Case(5, 200, 500, **SHARED, block_n=8, cluster_k=3),
    "16 parts": Case(9, 40, 1024, **SHARED, block_n=16, cluster_k=16, bias="f32"),
    "8 parts of 128 rows": Case(
        60, 200, 600, **SHARED | dict(block_m=128), block_n=64, cluster_k=8
    ),
    "2 parts of 2x2": Case(
        30, 200, 264, batch=2, **SHARED | ALL | SCALES, block_n=16, cluster=(2, 2), cluster_k=2
    ),
    "to 8 bits, 2 parts": Case(
        20, 72, 200, **SHARED | TO8 | dict(stages=None), block_n=24, cluster_k=2
    ),
    "gated": Case(200, 120, 136, **ONE, gated=True, activation="relu", save=True),
    "gated pair": Case(500, 200, 136, **PAIR, gated=True, bias="f32", residual="bf16"),
    "gated and split": Case(200, 120, 400, **ONE, gated=True, split_k=3),
    "gated of 4x2": Case(500, 120, 72, **ONE | dict(cluster=(4, 2)), gated=True, layout="nt"),
    # results of 8 bits: by TMA, of 32 columns at a time and of 16; by rows; by columns
    "to 8 bits": Case(200, 144, 136, batch=2, output="e4m3", stages=3),
    "to 8 bits of full TMEM": Case(500, 272, 136, **TO8, block_m=256, block_n=256, bias="bf16"),
    "to 8 bits of a pair": Case(500, 272, 136, **PAIR | TO8, dtype="f16", activation="gelu"),
    "to 8 bits, 16 columns": Case(72, 48, 72, **SMALL | TO8 | dict(block_n=16), layout="nt"),
    "to 8 bits, all": Case(200, 144, 72, **ALL | TO8, **SCALES, in_memory=True),
    "to 8 bits, odd rows": Case(200, 133, 72, **TO8 | dict(output="e5m2"), residual="f32"),
    "to 8 bits, narrow odd rows": Case(72, 45, 72, **SMALL | TO8 | dict(block_n=16), layout="nt"),
    "to 8 bits, rows without TMA": Case(200, 144, 72, **TO8, store="rows"),
    "to 8 bits, split": Case(200, 208, 500, **TO8, split_k=4),
    "to 8 bits, split tail": Case(600, 300, 264, **TO8, split_k=2, split_tail=True),
    "to 8 bits, swapped": Case(
        5, 200, 136, batch=2, **SMALL | TO8 | ALL | dict(block_n=8), layout="nt", swap_ab=True
    ),
    "to 8 bits, gated": Case(200, 120, 136, **TO8, gated=True, activation="relu", save=True),
    "8 bits to 8 bits": Case(200, 144, 264, **TO8, dtype="e4m3", rhs_dtype="e5m2"),
    "8 bits to 8 bits, pairs": Case(
        500, 272, 264, **PAIR | dict(output="e5m2"), alpha=8.0, dtype="e5m2"
    ),
}


@pytest.mark.sampled(len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("name", SM100)
def test_sm100(name: str, schedule: tuple[str, int]) -> None:
    check(SM100[name], *schedule)


SM90 = {
    # rows that start at any element, at words, and at vectors of 16 bytes
    **{
        f"rows of {n}, {store}": Case(
            70, n, 72, block_n=64, output="bf16", family="sm90", store=store, batch=2
        )
        for n, store in ((131, "tma"), (130, "tma"), (136, "rows"), (72, "rows"))
    },
    "rows of 33 floats": Case(70, 33, 72, block_n=64, family="sm90", layout="nt"),
    "vectors of floats": Case(70, 68, 72, block_n=64, family="sm90", store="rows"),
    "plain": Case(256, 392, 136, output="bf16"),
    "2x1": Case(520, 264, 320, cluster=(2, 1)),
    "1x2": Case(200, 520, 64, batch=2, output="bf16", cluster=(1, 2), stages=4),
    "epilogue": Case(200, 136, 72, output="bf16", **ALL),
    "odd rows": Case(200, 133, 72, output="bf16"),
    "split": Case(300, 200, 500, output="bf16", split_k=3),
    "swapped": Case(100, 200, 136, output="bf16", layout="nn", swap_ab=True),
    # K has more blocks than the ring has stages: a warpgroup that did not await its turn would take
    # the round before for its own, since parities of the ring tell only two rounds apart.
    "pingpong": Case(320, 512, 200, block_m=64, block_n=256, pingpong=True, stages=2),
    "pingpong 2x1": Case(700, 264, 136, **ONE, block_m=64, pingpong=True, cluster=(2, 1)),
    "pingpong split": Case(200, 264, 500, **ONE, block_m=64, pingpong=True, split_k=3),
    "pingpong epilogue": Case(
        200, 136, 72, batch=3, output="bf16", block_m=64, block_n=64, pingpong=True, **ALL
    ),
    "two m64": Case(300, 264, 200, **ONE, block_m=256, split_k=2),
    "two m64 pingpong": Case(300, 264, 200, **ONE, block_m=128, pingpong=True, cluster=(1, 2)),
    "two m64 epilogue": Case(300, 264, 72, output="bf16", block_m=256, **ALL),
    # CTAs have several tiles, whose boxes are stored beside the next one's matmuls: K is shorter
    # than there are such boxes, and longer; the last tiles are split.
    "delayed": Case(520, 512, 64, output="bf16", block_n=256),
    "delayed, two m64": Case(700, 264, 200, output="f16", block_m=256),
    "delayed, then split": Case(
        650, 512, 200, output="bf16", block_n=192, split_k=2, split_tail=True
    ),
    # Scales of rows and columns: vectors, elements, those of one row or column beside each other.
    "scales": Case(200, 136, 72, batch=2, output="bf16", **ALL, **SCALES, in_memory=True),
    "scales of rows": Case(
        200, 133, 72, batch=2, shared=("lhs",), lhs_scale=True, bias="f32", activation="silu"
    ),
    "scales of columns": Case(140, 200, 72, batch=2, shared=("rhs",), rhs_scale=True),
    "scales, two m64": Case(
        300, 264, 200, batch=2, output="bf16", block_m=256, **SCALES, integers=False
    ),
    "scales, pingpong": Case(320, 264, 136, **ONE, **SCALES, block_m=64, pingpong=True),
    "scales, split": Case(300, 200, 500, output="bf16", **SCALES, split_k=3, bias="bf16"),
    "scales, shared parts": Case(200, 264, 500, **SCALES, split_k=6),
    "scales behind 12 parts": Case(70, 72, 800, batch=2, **SCALES, split_k=12, alpha=0.5),
    "scales of a cluster's parts": Case(200, 200, 200, output="bf16", **SCALES, cluster_k=2),
    "scales, swapped": Case(
        100, 200, 136, batch=2, output="bf16", layout="nn", swap_ab=True, **SCALES, **ALL
    ),
    "scales of rows, swapped": Case(
        70, 149, 136, batch=2, layout="nn", swap_ab=True, lhs_scale=True, bias="f32"
    ),
    "scales, gated": Case(
        300, 250, 136, batch=2, block_n=256, **SCALES, gated=True, activation="relu", bias="bf16"
    ),
    "scales, gated and saved": Case(
        140, 72, 136, **SCALES, gated=True, save=True, layout="nt", residual="f32"
    ),
    "scales, 8 bits": Case(
        200, 136, 136, output="bf16", **SCALES, dtype="e4m3", rhs_dtype="e5m2", layout="nt"
    ),
    "scales, promoted": Case(200, 136, 264, output="bf16", **SCALES, **PROMOTED, bias="f32"),
    "scales, promoted in turns, swapped": Case(
        70, 149, 264, block_m=64, pingpong=True, swap_ab=True, **SCALES, **PROMOTED, integers=False
    ),
    "scales of columns, promoted, gated": Case(
        200, 250, 264, output="bf16", gated=True, rhs_scale=True, activation="relu", **PROMOTED
    ),
    "blocks": Case(200, 264, 400, **BLOCKS, output="bf16"),
    "blocks, real values": Case(70, 100, 1100, **BLOCKS, integers=False, block_n=64),
    "blocks, pingpong": Case(200, 400, 272, **BLOCKS, block_m=64, pingpong=True, batch=2),
    "blocks, one of lhs, epilogue": Case(
        70, 200, 264, **BLOCKS | {"layout": "nn"}, batch=2, shared=("lhs",), block_n=32, bias="f32"
    ),
    "blocks, one of rhs, to 8 bits": Case(
        200, 144, 264, **BLOCKS, batch=2, shared=("rhs",), output="e5m2", out_scale=64.0
    ),
    "blocks, split": Case(130, 136, 900, **BLOCKS, split_k=3, residual="bf16", activation="relu"),
    "blocks, a cluster's parts": Case(130, 136, 900, **BLOCKS, cluster_k=2),
    "blocks, multicast": Case(300, 264, 400, **BLOCKS, cluster=(2, 1), rhs_dtype="e5m2"),
    # Formulas that are computed in the accumulators' registers, whatever becomes of the results.
    "in registers": Case(
        520, 512, 200, output="bf16", block_n=256, bias="bf16", activation="gelu", alpha=0.5
    ),
    "in registers, floats": Case(140, 200, 72, bias="f32", bias_along_m=True, activation="silu"),
    "in registers, two m64": Case(
        700, 264, 72, output="f16", block_m=256, bias="f16", activation="relu"
    ),
    "in registers, odd rows": Case(200, 133, 72, output="bf16", bias="bf16", activation="relu"),
    "in registers, swapped": Case(
        70, 149, 136, output="bf16", layout="nn", swap_ab=True, bias="f32", activation="relu"
    ),
    "in registers, pingpong": Case(
        320, 264, 136, **ONE, block_m=64, pingpong=True, bias="bf16", activation="silu"
    ),
    "in registers, then split": Case(
        650, 512, 200, output="bf16", block_n=192, split_k=2, split_tail=True, bias="f16"
    ),
    "gated in registers": Case(
        300, 250, 136, output="bf16", block_n=256, gated=True, bias="bf16", activation="silu"
    ),
    "gated in registers, two m64": Case(
        300, 200, 136, output="bf16", block_m=256, gated=True, activation="relu", alpha=0.5
    ),
    "gated in registers, floats": Case(
        140, 72, 136, gated=True, bias="f32", bias_along_m=True, layout="nt"
    ),
    "gated in registers, odd rows": Case(140, 133, 136, output="bf16", gated=True),
    # A residual that the load role brings behind the last block of K: in one stage of the ring and
    # in two, as many as it has but one, of which K fills less or more; each CTA of a cluster its
    # own, of tiles that lie outside, too; beside other arrays of the formula.
    "factors": Case(200, 133, 72, output="bf16", **ALL, in_memory=True),
    "a factor in registers": Case(300, 264, 72, **ONE, alpha=0.5, in_memory=True, bias="f32"),
    "a factor, gated": Case(140, 200, 136, **ONE, alpha=-2.0, in_memory=True, gated=True),
    "factors behind 12 parts": Case(70, 72, 800, c="f32", alpha=0.5, in_memory=True, split_k=12),
    "residual": Case(520, 512, 200, output="bf16", block_n=256, residual="bf16"),
    "residual, short K": Case(
        300, 512, 64, batch=2, output="bf16", block_n=256, residual="bf16", bias="f32"
    ),
    "residual, three stages": Case(
        520, 392, 328, output="f16", block_n=256, residual="f16", stages=3, activation="relu"
    ),
    "residual 2x1": Case(700, 264, 136, output="bf16", cluster=(2, 1), residual="bf16"),
    "residual 1x2": Case(300, 600, 200, output="bf16", cluster=(1, 2), residual="bf16", alpha=0.5),
    "residual 4x1": Case(
        1200, 200, 264, **ONE, block_n=64, cluster=(4, 1), residual="bf16", raster="n", swizzle=2
    ),
    "residual 1x4 pingpong": Case(
        200, 600, 264, **ONE, block_m=64, block_n=64, pingpong=True, cluster=(1, 4), residual="bf16"
    ),
    "residual, two m64": Case(700, 264, 200, **ONE, block_m=256, residual="bf16", bias="bf16"),
    "residual, two m64 2x1": Case(
        900, 200, 72, output="bf16", block_m=256, cluster=(2, 1), residual="f16"
    ),
    "residual, floats": Case(
        140, 200, 72, residual="bf16", bias="f32", bias_along_m=True, activation="relu"
    ),
    "residual, rows": Case(300, 264, 136, output="bf16", residual="bf16", store="rows"),
    "residual, many boxes": Case(520, 512, 72, output="bf16", block_n=256, residual="f16"),
    "residual, pingpong": Case(
        320, 600, 200, **ONE, block_m=64, block_n=256, pingpong=True, residual="bf16"
    ),
    "residual, pingpong of two stages": Case(
        320, 264, 328, output="bf16", block_m=64, pingpong=True, residual="bf16", stages=2
    ),
    "residual, pingpong, short K": Case(
        400, 264, 64, output="f16", block_m=64, pingpong=True, residual="f16", activation="silu"
    ),
    "residual, pingpong 1x2": Case(
        500,
        264,
        136,
        **ONE,
        block_m=64,
        block_n=64,
        pingpong=True,
        cluster=(1, 2),
        residual="bf16",
    ),
    "residual, pingpong 2x1, two m64": Case(
        700, 264, 200, **ONE, block_m=128, pingpong=True, cluster=(2, 1), residual="bf16", batch=2
    ),
    "residual, 96 columns": Case(
        500, 200, 136, **ONE, block_n=96, layout="nt", residual="bf16", cluster=(2, 1)
    ),
    "residual, 96 columns pingpong": Case(
        500, 200, 136, **ONE, block_m=64, block_n=96, layout="nt", residual="f16", pingpong=True
    ),
    "residual, 32 columns": Case(
        264, 104, 136, output="bf16", layout="nt", block_n=32, residual="f16"
    ),
    "residual, gated": Case(
        300, 248, 136, output="bf16", block_n=256, gated=True, bias="bf16", residual="bf16"
    ),
    "residual, gated pingpong": Case(
        300,
        200,
        136,
        **ONE,
        block_m=64,
        gated=True,
        residual="f16",
        pingpong=True,
        activation="relu",
    ),
    # It goes the general way where rows are not for TMA, and where sums of parts come together.
    "residual, odd rows": Case(200, 133, 72, output="bf16", residual="bf16"),
    # The CTA across the corner of 2x2 would be overwritten (sm90_residual.cuh).
    "residual 2x2": Case(600, 328, 264, **ONE, block_n=64, cluster=(2, 2), residual="bf16"),
    "residual, no stage left": Case(
        140, 520, 200, output="bf16", block_n=256, stages=2, residual="bf16"
    ),
    "residual, split": Case(300, 200, 500, output="bf16", split_k=3, residual="bf16"),
    "residual, split tail": Case(
        650, 512, 200, output="bf16", block_n=192, split_k=2, split_tail=True, residual="bf16"
    ),
    "residual, 2 parts": Case(200, 200, 200, output="bf16", cluster_k=2, residual="bf16"),
    "residual, swapped": Case(
        100, 200, 136, output="bf16", layout="nn", swap_ab=True, residual="bf16"
    ),
    "32 columns": Case(264, 100, 136, output="bf16", layout="nt", block_n=32),
    "32 columns swapped": Case(
        16, 264, 136, output="bf16", layout="nn", block_n=32, swap_ab=True, **ALL
    ),
    # Results of exchanged operands whose rows begin in the middle of a word, cast only.
    "32 columns swapped, odd": Case(
        20, 133, 136, output="bf16", layout="nn", block_n=32, swap_ab=True
    ),
    "swapped, odd, float32": Case(70, 133, 136, layout="nn", swap_ab=True, split_k=2),
    "swapped, odd, 2 parts": Case(
        70, 149, 264, output="f16", layout="nn", swap_ab=True, cluster_k=2, block_n=64
    ),
    "swapped, odd, wide": Case(300, 133, 136, output="bf16", layout="tn", swap_ab=True),
    # tiles that no other is a multiple of
    "96 columns": Case(300, 200, 136, **ONE, block_n=96, layout="nt", cluster=(2, 1)),
    "96 columns pingpong": Case(
        200, 300, 136, **ONE, block_m=64, block_n=96, layout="nt", pingpong=True, cluster=(4, 1)
    ),
    "96 columns, swapped and split": Case(
        96, 264, 500, **ONE, block_n=96, layout="nn", swap_ab=True, split_k=3
    ),
    "96 columns, swapped, 4 parts": Case(
        90, 264, 500, output="bf16", block_n=96, layout="nn", swap_ab=True, cluster_k=4, bias="f32"
    ),
    "96 columns, formula in registers": Case(
        300, 200, 72, **ONE, block_n=96, layout="nt", bias="bf16", activation="silu"
    ),
    # an MN-major rhs that is no whole number of swizzle spans wide: half spans, the 64-byte swizzle
    "32 columns, nn": Case(300, 72, 136, **ONE, block_n=32, cluster=(4, 1)),
    "96 columns, nn": Case(300, 264, 200, **ONE, block_n=96, cluster=(2, 1)),
    "160 columns, nn": Case(300, 392, 200, batch=2, **ONE, block_n=160, cluster=(2, 2)),
    "160 columns, pingpong": Case(
        200, 392, 264, **ONE, block_m=64, block_n=160, pingpong=True, bias="bf16", activation="gelu"
    ),
    "160 columns, delayed, then split": Case(
        700, 392, 500, output="bf16", block_n=160, layout="tt", split_k=3, split_tail=True
    ),
    "160 columns, 2 parts": Case(200, 300, 200, output="bf16", block_n=160, cluster_k=2, **ALL),
    # eight CTAs
    "4x2": Case(1000, 200, 136, **ONE, block_m=64, block_n=64, pingpong=True, cluster=(4, 2)),
    # parts of K in the CTAs of a cluster
    "2 parts": Case(200, 200, 200, output="bf16", cluster_k=2),
    "4 parts": Case(128, 133, 300, cluster_k=4, bias="f32", activation="relu", stages=4),
    "8 parts": Case(72, 264, 520, batch=2, output="f16", cluster_k=8, **ALL),
    "2 parts of 2x1": Case(300, 140, 200, cluster=(2, 1), cluster_k=2, swizzle=2),
    "2 parts of 2x2": Case(260, 260, 136, output="bf16", cluster=(2, 2), cluster_k=2),
    "4 parts, narrow": Case(100, 300, 264, block_n=64, output="bf16", cluster_k=4),
    "4 parts, gated": Case(200, 100, 300, output="bf16", cluster_k=4, gated=True, save=True),
    "4 parts, swapped": Case(
        16, 200, 300, output="bf16", block_n=32, layout="nn", cluster_k=4, swap_ab=True
    ),
    "4 parts, pingpong": Case(
        16,
        200,
        300,
        block_m=64,
        block_n=32,
        layout="nn",
        cluster_k=4,
        swap_ab=True,
        pingpong=True,
        **ALL,
    ),
    "2 parts, pingpong": Case(
        200, 200, 300, output="bf16", block_m=64, cluster_k=2, pingpong=True, split_k=2
    ),
    "4 parts, split": Case(200, 200, 900, cluster_k=4, split_k=3),
    "2 parts, split and gated": Case(136, 72, 500, cluster_k=2, split_k=3, gated=True, save=True),
    "2 parts, split tail": Case(136, 392, 300, cluster_k=2, split_k=2, split_tail=True),
    # Boxes that TMA does not store, several tiles to a CTA: elements, words, and vectors.
    "odd rows, many tiles": Case(520, 509, 64, output="bf16", block_n=256),
    "rows of words, two m64": Case(700, 260, 200, output="f16", block_m=256),
    "rows of vectors, then split": Case(
        650, 488, 200, output="bf16", block_n=192, split_k=2, split_tail=True, store="rows"
    ),
    # Results of 8 bits, all of them the general way: vectors and elements, rows and columns.
    "to 8 bits": Case(200, 144, 136, batch=2, output="e4m3"),
    "to 8 bits, pingpong": Case(320, 264, 136, **TO8, block_m=64, pingpong=True, dtype="f16"),
    "to 8 bits, all": Case(200, 264, 72, **ALL | TO8, **SCALES, in_memory=True),
    "to 8 bits, odd rows": Case(200, 133, 72, **TO8 | dict(output="e5m2"), residual="bf16"),
    "to 8 bits, two m64": Case(700, 264, 72, **TO8, block_m=256, bias="f16", activation="silu"),
    "to 8 bits, split": Case(300, 200, 500, **TO8, split_k=3),
    "to 8 bits, shared parts": Case(200, 264, 500, **TO8, split_k=6),
    "to 8 bits, behind 12 parts": Case(70, 72, 800, batch=2, **TO8, split_k=12),
    "to 8 bits, a cluster's parts": Case(200, 200, 200, **TO8 | dict(stages=None), cluster_k=2),
    "to 8 bits, swapped": Case(
        100, 200, 136, batch=2, layout="nn", swap_ab=True, **ALL | TO8, rhs_scale=True
    ),
    "to 8 bits, swapped, odd": Case(
        70, 149, 136, **TO8 | dict(output="e5m2"), layout="nn", swap_ab=True
    ),
    "to 8 bits, gated and saved": Case(140, 72, 136, **TO8, gated=True, save=True, bias="bf16"),
    "8 bits to 8 bits": Case(200, 144, 264, **TO8, dtype="e4m3", rhs_dtype="e5m2", layout="nt"),
    "8 bits to 8 bits, promoted": Case(200, 136, 264, output="e5m2", alpha=8.0, **PROMOTED),
    "odd rows, formula in registers": Case(
        520, 389, 136, batch=2, output="f16", block_n=192, bias="f32", activation="relu"
    ),
}


@pytest.mark.sampled(len(SCHEDULES))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("name", SM90)
def test_sm90(name: str, schedule: tuple[str, int]) -> None:
    check(replace(SM90[name], family="sm90"), *schedule)


@pytest.mark.parametrize("name", ["blocks, real values", "blocks, one of rhs, to 8 bits"])
def test_sums_of_blocks_have_13_fraction_bits(name: str) -> None:
    case = replace(SM90[name], family="sm90", integers=False)
    gemm_cases.check(load(case.kernel), case, sums="fused")


LAUNCHES = {f"sm100 {name}": case for name, case in SM100.items()} | {
    f"sm90 {name}": replace(case, family="sm90") for name, case in SM90.items()
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", LAUNCHES)
def test_hardware_finds_nothing_either(name: str) -> None:
    case, schedule = LAUNCHES[name], SCHEDULES[len(name) % len(SCHEDULES)]
    gemm_cases.check(load(case.kernel), case, *schedule, checks="hardware")


@hypothesis.given(st.randoms(use_true_random=False), st.sampled_from(SCHEDULES))
def test_whatever_is_legal(draw: random.Random, schedule: tuple[str, int]) -> None:
    check(gemm_draw.draw_case(draw), *schedule)


# --- rows that TMA does not store


@pytest.mark.parametrize("output", ["bf16", "f32"])
@pytest.mark.parametrize("block_n", [32, 64])
def test_narrow_results(block_n: int, output: str) -> None:
    for n in range(1, 71):
        check(Case(21, n, 16, family="sm90", layout="nt", block_n=block_n, output=output))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("output", ["f16", "f32"])
@pytest.mark.parametrize("block_n", [32, 64, 96, 128, 160, 192, 256])
def test_rows_that_start_anywhere(block_n: int, output: str) -> None:
    # Of elements from any multiple of the element's size on, in steps of it and of 4, 8, 16, 32.
    for more in (1, 2, 3, 4, 8, 16, 31, -1, -6):
        n = 2 * block_n + more
        case = Case(
            70, n, 16, dtype="bf16", family="sm90", layout="nt", block_n=block_n, output=output
        )
        check(replace(case, store="rows"), *SCHEDULES[more % len(SCHEDULES)])
        if block_n % 128 == 0:
            check(replace(case, n=n // 2, gated=True, store="rows"))


@pytest.mark.parametrize("output", ["bf16", "f32"])
@pytest.mark.parametrize("block_n", [32, 128])
def test_columns_that_start_anywhere(block_n: int, output: str) -> None:
    for n in (1, 2, 7, 15, 16, 17, 33, 63, 68, 100, 135, 136, 144):
        check(
            Case(
                35, n, 16, family="sm90", layout="nn", block_n=block_n, output=output, swap_ab=True
            )
        )


# --- results of 8 bits


@pytest.mark.parametrize("swap_ab", [False, True])
@pytest.mark.parametrize("output", ["e4m3", "e5m2"])
@pytest.mark.parametrize("family", ["sm90", "sm100"])
def test_results_of_8_bits_are_rounded_as_by_lax(family: str, output: str, swap_ab: bool) -> None:
    # Of all signs, exponents and eight bits of the fraction: what overflows, the middles between
    # neighbours, and beside them, subnormal numbers, infinity and NaN.
    bits = np.arange(1 << 17, dtype=np.uint32) << 15
    values = bits.view(np.float32).reshape(1, 512, 256)
    values = np.where(np.isnan(values), np.float32(np.nan), values)
    case = Case(512, 256, 8, family=family, output=output, layout="nn", swap_ab=swap_ab)
    zeros = np.zeros((1, 512, 8)), np.zeros((1, 8, 256))
    for nudge in (0, 1, -1):
        residual = (values.view(np.int32) + nudge).view(np.float32)
        residual = np.where(np.isnan(values), values, residual)
        matmul = gemm_launch.Matmul(*zeros, gemm_launch.BF16, residual=residual)
        found = gemm_launch.launch(load(case.kernel), case.config(), matmul).d
        with np.errstate(all="ignore"):
            expected = residual.astype(gemm_cases.OPERANDS[output])
        np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))


# --- scheduling


def test_tiles_are_taken_over_from_clusters_that_have_not_started() -> None:
    case = Case(512, 256, 64, **ONE, block_n=64)
    report = check(case).report
    assert (report.clusters_started, report.clusters_cancelled) == (4, 12)


def test_a_refused_request_leaves_its_cluster_to_start() -> None:
    case = Case(512, 256, 64, **ONE, block_n=64)
    started = set()
    for seed in range(12):
        report = check(case, "random", seed).report
        assert report.clusters_started + report.clusters_cancelled == 16
        started.add(report.clusters_started)
    assert max(started) > 4, "no schedule refused a request"


def test_the_parts_of_a_tile_are_added_in_one_order() -> None:
    # Real numbers, whose sum depends on the order: bits must not depend on who comes last.
    case = Case(200, 200, 1000, integers=False, layout="nt", split_k=5)
    bits = {check(case, "random", seed).d.tobytes() for seed in range(8)}
    assert len(bits) == 1
