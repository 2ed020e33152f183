"""Draws launches of our kernels from all that are legal."""

import random
from dataclasses import dataclass, replace
from typing import Any

from jaxbw._native import Violation, limits
from jaxbw._src.selection.kernel_table import Kernel

from . import gemm_launch
from .gemm_cases import (
    DTYPES,
    INPUT_TYPES,
    INPUTS,
    MX_BLOCKS,
    OPERANDS,
    Case,
    cta_tile,
    transposed,
)
from .gemm_launch import ACTIVATIONS, SM100, Config, ceil_div

OPTIONAL = (None, None, "f32", "f16", "bf16")
PLAIN = 0.3  # of the launches have an epilogue that only casts: kernels have a short cut for it
WORK = 1 << 24  # multiply-adds of a drawn case, about: a fraction of a second
AREA = 1 << 17  # elements of a cluster tile, likewise
CLUSTERS = tuple((m, n) for m in (1, 2, 4, 8, 16) for n in (1, 2, 4, 8, 16) if m * n <= 16)
MX_STEP = 32  # of the columns of a tile of MX formats
MX_GATED = {1: (128, 256), 2: (256,)}  # those of a gated one, by cta_group
NO_SCALES = {"lhs_scale": False, "rhs_scale": False}
PROPOSALS = 1000  # of launches, some tens of which are legal
SPAN_ELEMENTS = {1: 128, 2: 64, 4: 32}  # of a swizzle span, by their size


@dataclass(frozen=True)
class Gpu:
    """What a drawn launch of an sm90 kernel runs on, and what it may cost.

    `area` bounds the elements of a result, `work` the multiply-adds; `ks` are the contractions.
    """

    sm_count: int | None  # None: two clusters, or four small ones
    ks: tuple[int, ...]
    area: int
    work: int


# What kernels that serve some launches have in common, by role: fields of a case.
CAST: dict[str, Any] = dict(
    **{"activation": "none", "alpha": 1.0, "in_memory": False, "bias": None, "gated": False},
    **{"lhs_scale": False, "rhs_scale": False},
)
NO_C: dict[str, Any] = dict(c=None, in_place=False, out_scale=None)
NO_ARRAYS: dict[str, Any] = NO_C | dict(residual=None, save=False)
WHOLE: dict[str, Any] = dict(cluster_k=1, split_k=1, split_tail=False, swap_ab=False, store="tma")
SERVED: dict[str, dict[str, Any]] = {
    "plain": CAST | NO_ARRAYS | WHOLE,
    "elementwise": NO_ARRAYS | WHOLE,
    "fused": NO_C | WHOLE,
    "cast": CAST | NO_ARRAYS,
    "skinny": NO_C
    | dict(save=False, lhs_scale=False, rhs_scale=False)
    | dict(cluster=(1, 1), split_k=1, split_tail=False, swap_ab=False, stages=None)
    | dict(store="tma", b_is_ready=False),
}
EMULATED = Gpu(None, ks=(24, 64, 136, 200, 328), area=1 << 24, work=4 * WORK)


def widths(
    block_m: int, cta_group: int, rhs_mn_major: bool, gated: bool, itemsize: int
) -> list[int]:
    """The legal block_n of a tile of the sm100 kernel."""
    step = 16
    if block_m == 64:
        step = 8
    elif (block_m, cta_group) == (128, 2):
        step = 32
    if rhs_mn_major and itemsize == 1:
        step = max(step, 16 * cta_group)
    if gated:
        step = max(step, 32)
    # Gate and up lie side by side in a CTA alone, and nothing between them.
    if gated and cta_group == 1 and rhs_mn_major:
        step = 2 * SPAN_ELEMENTS[itemsize]
    return list(range(step, 257, step))


def shares(config: Config, gated: bool, itemsize: int) -> bool:
    """Whether the CTAs of a cluster can load equal parts of the tiles, in whole swizzle atoms."""
    c, span = config, SPAN_ELEMENTS[itemsize]
    b_extent = c.block_n // c.cta_group // (2 if gated and c.cta_group == 1 else 1)
    for major, extent, peers in (
        (c.lhs_major, c.block_m // c.cta_group, c.cluster[1]),
        (c.rhs_major, b_extent, c.cluster[0] // c.cta_group),
    ):
        rows = c.k_spans * span if major else extent
        if rows % (8 * peers) or rows // peers > 256:
            return False
    return True


def draw_case(rng: random.Random, kernel: str = "") -> Case:
    """A launch of an sm100 kernel, any that is legal; `rng` may be hypothesis'.

    Args:
      rng: draws.
      kernel: the name of the kernel; of any, where none is given.
    """
    group = rng.choice((1, 2) if not kernel else (int(kernel[-4]),))
    inputs = "_".join(kernel.split("_")[2:-1])
    mx = inputs in MX_BLOCKS
    block_m = rng.choice((64, 128, 256) if group == 1 else (128, 256, 512))
    block_m = 128 * group if mx else block_m
    inputs = inputs or rng.choice(("16bit", "16bit", "8bit", "tf32"))
    dtype, rhs_dtype = rng.choice(INPUTS[inputs])
    gated = (block_m, group) != (128, 2) and rng.random() < 0.25
    swap_ab = not gated and rng.random() < 0.2
    # Of the operands as the kernel sees them.
    itemsize = INPUT_TYPES[dtype].itemsize
    seen = (rhs_dtype, dtype) if swap_ab else (dtype, rhs_dtype)
    majors = tuple(0 if each in ("f32", "e2m1") else rng.randrange(2) for each in seen)
    if block_m // group % SPAN_ELEMENTS[itemsize]:  # an MN-major lhs is whole spans wide
        majors = (0, majors[1])
    layout = "nt"[majors[0]] + "tn"[majors[1]]
    steps = widths(block_m, group, majors[1] == 1, gated, itemsize)
    mx_steps = MX_GATED[group] if gated else range(MX_STEP, 257, MX_STEP)
    block_n = rng.choice([step for step in steps if not mx or step in mx_steps])
    k_spans = rng.choice((1, 1, 1, 2, 3, 4))
    clusters = [c for c in CLUSTERS if c[0] % group == 0]
    shape = Config(SM100, block_m, block_n, group, lhs_major=majors[0], rhs_major=majors[1])
    fitting = [
        cluster
        for cluster in clusters
        if shares(
            replace(shape, cluster=cluster, k_spans=k_spans),
            gated,
            itemsize,
        )
    ]
    # Most of the time a cluster whose tile the emulator computes quickly.
    area = block_m // group * block_n
    quick = [c for c in fitting if c[0] * c[1] * area <= AREA]
    cluster = rng.choice(quick if quick and rng.random() < 0.9 else fitting)
    deepest = gemm_launch.max_stages(replace(shape, k_spans=k_spans), itemsize)
    if not deepest:
        k_spans, deepest = 1, gemm_launch.max_stages(shape, itemsize)

    tile_m = cluster[0] * block_m // group
    tile_n = cluster[1] * (block_n // 2 if gated else block_n)
    block_k = k_spans * gemm_launch.span_elements(INPUT_TYPES[dtype], INPUT_TYPES[rhs_dtype])
    k = rng.choice((1, 8, block_k, 2 * block_k, 3 * block_k + 1, 5 * block_k - 7))
    k = max(1, min(k, WORK // (tile_m * tile_n)))
    if "e2m1" in (dtype, rhs_dtype):  # rows of 16 bytes
        k = ceil_div(k, 32) * 32
    tiles = max(1, min(6, WORK // (tile_m * tile_n * k), 4 * AREA // (tile_m * tile_n)))
    tiles_m = rng.randint(1, tiles)
    tiles_n = rng.randint(1, tiles // tiles_m)
    batch = rng.randint(1, max(1, min(3, tiles // tiles_m // tiles_n)))
    m = max(1, tiles_m * tile_m - rng.choice((0, 0, 1, 8, 60)))
    n = max(1, tiles_n * tile_n - rng.choice((0, 0, 4, 8, 13)))
    split_k = rng.choice((1, 1, 2, 3, 16)) if k > block_k else 1
    full = mma_tiles(block_m, group) == 2
    staged = block_n % 16 == 0 or swap_ab  # as results of 8 bits must be
    output = rng.choice(tuple(OPERANDS if staged else DTYPES))
    case = Case(
        m=n if swap_ab else m,
        n=m if swap_ab else n,
        k=k,
        batch=batch,
        shared=rng.choice(((), ("lhs",), ("rhs",))) if batch > 1 else (),
        layout=transposed(layout) if swap_ab else layout,
        dtype=dtype,
        rhs_dtype=None if rhs_dtype == dtype else rhs_dtype,
        mx=rng.choice(MX_BLOCKS[inputs]) if mx else 0,
        output=output,
        gated=gated,
        **_epilogue(rng, output, gated) | (NO_SCALES if mx else {}),
        integers=rng.random() < 0.5,
        block_m=block_m,
        block_n=block_n,
        cta_group=group,
        cluster=cluster,
        stages=rng.choice((1, min(2, deepest), None)),
        swizzle=rng.choice((1, 2, 4, 16)),
        raster=rng.choice("mn"),
        k_spans=k_spans,
        accumulators=2 if full else rng.choice((1, 2)),
        store=rng.choice(("tma", "tma", "rows")),
        scheduler=rng.choice(("clc", "static", "none")),
        split_k=min(split_k, ceil_div(k, block_k)),
        split_tail=split_k > 1 and k > block_k and rng.random() < 0.5,
        swap_ab=swap_ab,
        b_is_ready=rng.random() < 0.5,
    )
    if mx:
        case = _with_room_for_scales(rng, case)
        # Of numbers that are exact, as a scale's exponent is.
        exact: dict[str, Any] = {"integers": True, "activation": rng.choice(("none", "relu"))}
        alone: dict[str, Any] = {"save": False, "out_scale": None, "in_place": False}
        in_mxfp8 = replace(case, output="e4m3", out_mx=True, store="tma", **exact, **alone)
        refused = isinstance(in_mxfp8.planned(), Violation)
        return case if refused or rng.random() < 0.7 else in_mxfp8
    if not swap_ab:
        return case
    parts = rng.choice((2, 3, 5, 16))
    divided = replace(case, cluster_k=parts, split_k=1, split_tail=False)
    return case if isinstance(divided.planned(), Violation) else divided


def _with_room_for_scales(rng: random.Random, case: Case) -> Case:
    """The same with a ring and accumulators beside which Tensor Memory holds the scales."""
    for spans in (case.k_spans, 1):
        rings = [
            replace(case, k_spans=spans, accumulators=accumulators, stages=stages)
            for accumulators in (1, 2)
            for stages in range(1, gemm_launch.MAX_STAGES + 1)
        ]
        if legal := [ring for ring in rings if not isinstance(ring.planned(), Violation)]:
            return rng.choice((legal[0], legal[-1], rng.choice(legal)))
    raise ValueError(f"no legal launch was found: {case.planned()}")


def _epilogue(rng: random.Random, output: str, gated: bool) -> dict[str, Any]:
    """Fields of a case."""
    if rng.random() < PLAIN:
        return {}
    c = None if gated else rng.choice(OPTIONAL)
    return dict(
        activation=rng.choice(("none", "none", *ACTIVATIONS)),
        alpha=rng.choice((1.0, 1.0, 0.5, -2.0)),
        c=c,
        in_place=c == output and rng.random() < 0.5,
        bias=rng.choice(OPTIONAL),
        bias_along_m=rng.random() < 0.3,
        residual=rng.choice(OPTIONAL),
        save=rng.random() < 0.2,
        in_memory=rng.random() < 0.2,
        lhs_scale=rng.random() < 0.2,
        rhs_scale=rng.random() < 0.2,
        out_scale=rng.choice((None, 0.25, 64.0)) if OPERANDS[output].itemsize == 1 else None,
    )


def draw_sm90_case(rng: random.Random, kernel: Kernel, waves: float, gpu: Gpu = EMULATED) -> Case:
    """A launch of an sm90 kernel, any that the rules let pass.

    Args:
      rng: draws.
      kernel: the instance.
      waves: work items, in rounds of the clusters that the GPU holds.
      gpu: what it holds, and how much may be computed on it.
    """
    for _ in range(PROPOSALS):
        case = replace(_proposed_sm90_case(rng, kernel, waves, gpu), **SERVED.get(kernel.role, {}))
        if sm90_refusal(case) is None and case.kernel == kernel.name:
            return case
    raise ValueError(f"no legal launch of {kernel.name} was found: {sm90_refusal(case)}")


def sm90_refusal(case: Case) -> str | None:
    """Why a case cannot be launched, by the rules of jaxbw; None where it can."""
    found = case.planned()
    return str(found) if isinstance(found, Violation) else None


def _proposed_sm90_case(rng: random.Random, kernel: Kernel, waves: float, gpu: Gpu) -> Case:
    """What `sm90_refusal` has still to be asked about."""
    pingpong = kernel.role != "skinny" and rng.random() < 0.5
    block_m, block_n = cta_tile(kernel, pingpong=pingpong).values()
    most = limits("sm90")["max_cluster"]
    cluster_k = rng.choice((*(1,) * 4, *range(2, most + 1)))
    cluster = rng.choice([(m, n) for m, n in CLUSTERS if m * n * cluster_k <= most])
    size = cluster[0] * cluster[1] * cluster_k
    swap_ab = rng.random() < 0.2
    gated = not swap_ab and rng.random() < 0.3
    tile_m, tile_n = cluster[0] * block_m, cluster[1] * (block_n // 2 if gated else block_n)
    resident = (gpu.sm_count or max(4, 2 * size)) // size
    items = min(max(1, round(waves * resident)), max(1, gpu.area // (tile_m * tile_n)))
    tiles_m = rng.choice([d for d in range(1, items + 1) if items % d == 0])
    batch = rng.choice([d for d in (1, 2, 3) if items // tiles_m % d == 0])
    m = _extent(rng, tiles_m, tile_m)
    n = _extent(rng, items // tiles_m // batch, tile_n)
    k = max(1, min(rng.choice(gpu.ks), gpu.work // (batch * m * n)))
    output = rng.choice(tuple(OPERANDS))
    dtype, rhs_dtype = rng.choice(INPUTS[kernel.input])
    # Operands of 8 bits that are not K-major are repacked.
    fixed = dtype in DTYPES and kernel.layout != "any"
    layout = kernel.layout if fixed else rng.choice(("nt", "nt", "nn", "tn", "tt"))
    split_k = rng.choice((1, 1, 2, 3, 4, 6, limits("sm90")["max_split"]))
    epilogue = _epilogue(rng, output, gated)
    promoted = kernel.input == "8bit_promoted"
    blocks = promoted and not (gated or swap_ab) and rng.random() < 0.4
    if blocks:
        epilogue |= {"lhs_scale": False, "rhs_scale": False}
    return Case(
        m=n if swap_ab else m,
        n=m if swap_ab else n,
        k=k,
        batch=batch,
        shared=rng.choice(((), ("lhs",), ("rhs",))) if batch > 1 else (),
        layout=transposed(layout) if swap_ab else layout,
        dtype=dtype,
        rhs_dtype=None if rhs_dtype == dtype else rhs_dtype,
        promoted=promoted,
        output=output,
        gated=gated,
        blocks=blocks,
        **epilogue,
        integers=rng.random() < 0.5,
        family="sm90",
        block_m=block_m,
        block_n=block_n,
        pingpong=pingpong,
        cluster=cluster,
        cluster_k=cluster_k,
        stages=rng.choice((None, None, *range(2, gemm_launch.MAX_STAGES + 1))),
        swizzle=rng.choice((1, 2, 3, limits("sm90")["max_swizzle"])),
        raster=rng.choice("mn"),
        store=rng.choice(("tma", "tma", "rows")),
        scheduler=rng.choice(limits("sm90")["schedulers"]),
        split_k=split_k,
        split_tail=split_k > 1 and rng.random() < 0.5,
        swap_ab=swap_ab,
        b_is_ready=rng.random() < 0.5,
    )


def _extent(rng: random.Random, tiles: int, tile: int) -> int:
    """An extent of so many tiles, the last of which may be anything but empty."""
    most = tile * tiles
    least = most - tile + 1
    drawn = rng.randint(least, most)
    aligned = min(-(-drawn // 8) * 8, most)  # as TMA wants rows of 16 bits
    return rng.choice((most, least, drawn, aligned, aligned))


def mma_tiles(block_m: int, cta_group: int) -> int:
    """MMA tiles of a CTA's tile: two fill Tensor Memory."""
    return max(1, block_m // cta_group // gemm_launch.MMA_ROWS)
