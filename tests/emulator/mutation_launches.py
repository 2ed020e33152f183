"""The launches of mutation testing: small matmuls that reach all synchronisation of a kernel."""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from jaxbw._native import Plan, limits

from .gemm_cases import MX_BLOCKS, Case, cta_tile, for_all, gemms, transposed
from .gemm_draw import sm90_refusal
from .ragged_launch import Ragged

Launch = Case | Ragged

TILES = {"nn": "64x64", "nt": "64x128", "tn": "128x128", "tt": "64x32"}
SM90_NAMES = tuple(f"jaxbw_sm90_bf16_{layout}_{tile}" for layout, tile in TILES.items())
MX_NAMES = tuple(f"jaxbw_sm100_{bits}bit_mx_{group}cta" for bits in (8, 4) for group in (1, 2))
GROUPED_MX_NAMES = tuple(name.replace("sm100", "sm100_grouped") for name in MX_NAMES)
GROUPED_NAMES = (
    "jaxbw_sm100_grouped_16bit_1cta",
    "jaxbw_sm100_grouped_16bit_2cta",
    "jaxbw_sm100_grouped_8bit_1cta",
    *GROUPED_MX_NAMES,
    "jaxbw_sm90_grouped_bf16_nn_64x256",
    "jaxbw_sm90_grouped_bf16_nt_64x128",
    "jaxbw_sm90_grouped_bf16_tn_64x256",
    "jaxbw_sm100_gathered_16bit_1cta",
    "jaxbw_sm90_gathered_bf16_nn_64x256",
)
FLOAT8_NAMES = (
    "jaxbw_sm100_8bit_1cta",
    "jaxbw_sm100_8bit_2cta",
    "jaxbw_sm90_8bit_nt_64x128",
    "jaxbw_sm90_8bit_promoted_nt_64x64",
)
SKINNY_NAMES = ("jaxbw_sm90_skinny_bf16_nn_8x32", "jaxbw_sm90_skinny_bf16_nt_16x128")
NAMES = (  # the kernels
    "jaxbw_sm100_16bit_1cta",
    "jaxbw_sm100_16bit_2cta",
    *SM90_NAMES,
    *MX_NAMES,
    *GROUPED_NAMES,
    *FLOAT8_NAMES,
    *SKINNY_NAMES,
)

OUTPUTS = ("bf16", "f16", "f32")
# SMs of the launch of grouped pairs in which stores are the last thing before the exit.
STORING_LAST = 8
# How an epilogue warp stores: by TMA, or in rows, of 4 bytes or of single elements at a time.
WAYS: tuple[dict[str, Any], ...] = ({}, {"store": "rows"}, {"n": 37})
# Everything that the epilogue may read.
FULL: dict[str, Any] = {
    "bias": "f32",
    "residual": "bf16",
    "c": "f16",
    "save": True,
    "activation": "relu",
}
SHARED: dict[str, Any] = dict(output="bf16", block_m=64, layout="nt", swap_ab=True, stages=2)


@functools.cache
def launches(name: str) -> tuple[Launch, ...]:
    """The launches of a kernel. Together they also wrap all its rings."""
    if name in GROUPED_NAMES:
        narrow = _grouped_mx if "mx" in name else _grouped_8bit if "8bit" in name else _grouped
        return tuple(narrow(name))
    if name in FLOAT8_NAMES:
        return tuple(_float8(name))
    if name in SKINNY_NAMES:
        return tuple(_skinny(name))
    if "sm90" in name:
        if for_all(name) == name:
            return tuple(_sm90(name))
        cases = dict.fromkeys((*_sm90(name), *_served(name)))
        legal = (case for case in cases if sm90_refusal(case) is None)
        return tuple(case for case in legal if case.kernel == name)
    group = 2 if "2cta" in name else 1
    return tuple(_mx(name, group)) if name in MX_NAMES else (*_sm100(group), *_brief(group))


def _ways(name: str) -> tuple[Case, Case]:
    """A small launch whose warpgroups share tiles, and one in which they take turns."""
    [kernel] = [kernel for kernel in gemms() if kernel.name == name]
    base = Case(
        3 * (kernel.block_m or 0) + 8,
        120,
        320,
        family="sm90",
        layout=kernel.layout,
        stages=2,
        output="bf16",
    )
    shared = replace(base, **cta_tile(kernel))
    return shared, replace(base, pingpong=True, **cta_tile(kernel, pingpong=True))


def _served(name: str) -> Iterator[Case]:
    """What kernels that serve some launches are for, in clusters: `_sm90` has few of most."""
    by_role: dict[str, dict[str, Any]] = {
        "elementwise": {"activation": "relu", "bias": "f32"},
        "fused": {"residual": "bf16", "k": 200},
    }
    asked = by_role.get(name.split("_")[2], {})
    for way in _ways(name):
        columns = way.block_n
        yield replace(way, **asked)
        yield replace(way, m=2 * way.m, output="f16", cluster=(2, 1), stages=4, **asked)
        yield replace(way, n=5 * columns, cluster=(1, 4), **asked)
        yield replace(way, m=8, n=4 * columns, cluster=(1, 4), **asked)
        yield replace(way, n=5 * columns - 8, **(asked | {"k": 40}))
        if "residual" not in asked:
            yield replace(way, m=2 * way.m, n=248, output="f32", cluster=(2, 2), **asked)


def _skinny(name: str) -> Iterator[Case]:
    """Every result, by vectors and one by one; alone and in parts, fewer and more than the ring."""
    [kernel] = [kernel for kernel in gemms() if kernel.name == name]
    tile = cta_tile(kernel)
    base = Case(
        *(tile["block_m"], 3 * tile["block_n"] - 8, 1096),
        family="sm90",
        layout=kernel.layout,
        output="bf16",
        **tile,
    )
    ways = [replace(base, cluster_k=cluster_k) for cluster_k in (1, 2, 8)]
    ways += [replace(way, bias="f32", activation="relu", residual="bf16") for way in ways]
    if base.block_n >= 128:
        ways += [replace(way, gated=True) for way in ways[-3:]]
    for way in ways:
        yield way
        yield replace(way, m=base.m - 3, n=base.n + 5, output="f32")
        yield replace(way, m=2 * base.m + 1, k=8 * 128, batch=2, shared=("lhs",), output="f16")
    yield replace(base, k=40)


def _sm90(name: str) -> Iterator[Case]:
    base, turns = _ways(name)
    layout = base.layout
    rows, columns = turns.block_m, turns.block_n  # of a warpgroup
    for way in (base, turns):
        yield way
        yield replace(way, m=2 * base.m, k=328, output="f16", cluster=(2, 1), stages=4)
        yield replace(way, m=2 * base.m, n=248, k=200, output="f32", cluster=(2, 2))
        yield replace(way, m=5 * base.m, k=136, cluster=(4, 2))
        yield replace(way, n=5 * columns, k=136, cluster=(1, 8))  # A alone is multicast
        # So few rows that warps have nothing to store between their last arrivals and the exit.
        yield replace(way, m=8, n=4 * columns, k=136, cluster=(1, 4))
        yield replace(way, n=117, k=136, split_k=2, activation="relu")
        yield replace(way, k=72, save=True, b_is_ready=True)
        # Epilogues: each type, each way to store it, with the whole formula and as a cast; so many
        # tiles that a staging buffer is used again while its last store is under way.
        many = replace(way, n=5 * columns - 8, k=40)
        yield replace(many, m=rows - 8, k=136, split_k=2, split_tail=True)
        yield replace(many, store="rows")
        yield replace(many, output="f16", store="rows")
        yield replace(many, output="f32", store="rows")
        below = replace(many, m=many.n, n=many.m, swap_ab=True, layout=transposed(layout))
        for output in OUTPUTS:
            yield replace(below, output=output)
            for store in WAYS:
                yield replace(many, output=output, save=True, **store)
                yield replace(many, output=output, **store)
                if columns % 128 == 0:
                    yield replace(many, output=output, gated=True, save=True, **store)
    # All slots of the deepest ring, and round it.
    deep = replace(turns, stages=None)
    yield replace(deep, m=rows, n=2 * columns, k=64 * 14)
    # The sums of a shared tile travel from one half of the ring to the other: 256 rows do not fit.
    small = turns if rows == 128 else base
    parts = replace(small, k=520, cluster_k=2, stages=None)
    yield parts
    yield replace(parts, k=1800)  # round the whole ring
    yield replace(parts, cluster=(2, 1), cluster_k=4, output="f32", split_k=2)
    yield replace(parts, save=True, b_is_ready=True, n=37)
    if rows < 128:
        yield replace(parts, pingpong=True, block_m=rows)  # one warpgroup has no tile
    yield replace(base, **FULL)
    yield replace(base, **FULL, swap_ab=True, layout=transposed(layout))
    # Whose parts another launch adds up.
    many_parts = limits("sm90")["min_reduced_parts"]
    yield replace(base, **FULL, k=64 * many_parts + 8, split_k=many_parts)
    # Whose parts share what is left to do.
    few_parts = limits("sm90")["min_shared_parts"]
    shared = replace(base, k=64 * few_parts, split_k=few_parts)
    yield replace(shared, **FULL)
    for output in OUTPUTS:
        yield replace(shared, n=5 * columns - 8, output=output)
    # ... behind whole tiles, some of which TMA may still be storing.
    yield replace(shared, m=3 * shared.block_m - 8, n=columns - 8, split_tail=True)
    # Sums of parts that are only cast, chunk after chunk, so that a staging buffer is used again.
    for output in OUTPUTS:
        cast = replace(base, n=5 * columns - 8, k=136, split_k=2, output=output)
        yield cast
        yield replace(cast, swap_ab=True, layout=transposed(layout))
    # Formulas in registers leave by TMA, too; then the general way takes the staging buffers.
    for way in (base, turns):
        many = replace(way, n=5 * columns - 8, k=136, bias="f32", activation="relu")
        yield replace(many, m=rows - 8, split_k=2, split_tail=True)
        for output in OUTPUTS[1:]:
            yield replace(many, output=output)
            if columns % 128 == 0:
                yield replace(many, output=output, gated=True)
        if columns % 128 == 0:
            for store in WAYS:
                yield replace(many, gated=True, **store)
    # Sums of a cluster's CTAs that are only cast.
    for output in OUTPUTS:
        cast = replace(parts, output=output)
        yield cast
        yield replace(cast, swap_ab=True, layout=transposed(layout))
    # Parts that are counted, the general way.
    yield replace(base, **FULL, k=136, split_k=2)
    # A residual that TMA brings, whose stages of the ring hold operands before and behind it.
    for way in (base, turns):
        # In the same slots in every tile, or in others.
        for stages in (4, 3):
            brought = replace(way, n=5 * columns - 8, k=136, stages=stages, residual="bf16")
            yield brought
            yield replace(brought, m=4 * base.m, cluster=(2, 1))
            yield replace(brought, cluster=(1, 2))


def _sm100(group: int) -> Iterator[Case]:
    def tiles(
        cluster: tuple[int, int],
        block_n: int,
        layout: str,
        counts: tuple[int, int, int],
        **more: Any,
    ) -> Case:
        """So many cluster tiles along M and N, and steps along K, but for an edge."""
        m, n, k = counts
        block_m = more.get("block_m", 128 * group)
        case = Case(
            cluster[0] * block_m // group * m - 8,
            cluster[1] * (block_n // 2 if more.get("gated") else block_n) * n - 8,
            64 * k - 24,
            layout=layout,
            block_m=128 * group,
            block_n=block_n,
            cta_group=group,
            cluster=cluster,
            stages=2,
            output="bf16",
        )
        return replace(case, **more)

    def alone(block_n: int, counts: tuple[int, int, int], **more: Any) -> Case:
        return tiles((group, 1), block_n, "nt", counts, **more)

    # Main loops: clusters, layouts, stages.
    yield alone(64, (2, 3, 5))
    yield tiles((2 * group, 1), 64, "nt", (1, 3, 5), stages=5)
    yield alone(32, (1, 2, 14), stages=None, block_m=64 * group)  # all slots of the deepest ring
    yield tiles((2, 2), 64, "nt", (2, 2, 3))
    yield tiles((2, 2) if group == 1 else (2, 1), 128, "tn", (2, 2, 3), output="f32")
    yield tiles((group, 1), 128 + 64 * group, "tn", (2, 2, 3))
    yield tiles((group, 2), 128 + 64 * group, "tn", (2, 1, 3))
    yield tiles((4, 2), 64, "nt", (1, 2, 3))
    yield tiles((4, 2), 256, "tn", (1, 2, 2))
    yield tiles((4, 4), 32 * group, "nt", (1, 2, 2))
    yield alone(64, (2, 2, 5), split_k=2, scheduler="static")
    # Nothing to wait for between the last arrivals at the leader of a pair and the exit. Multiply
    # has a loop for each number of MMA tiles, and for one span or several.
    for block_m in (128 * group, 256 * group):
        for spans in (1, 2):
            bare = alone(64, (3, 1, 3 * spans), scheduler="static", store="rows", block_m=block_m)
            yield replace(bare, k_spans=spans)
            yield replace(bare, k_spans=spans, n=184, scheduler="clc")
    yield tiles((group, 1), 128, "nn", (2, 2, 3), accumulators=1, k_spans=2)
    yield tiles((group, 1), 128, "nn", (2, 2, 3), gated=True, save=True)
    for cluster in ((4, 4), (2, 2)):  # of a gated matmul both operands are multicast
        yield tiles(cluster, 64, "nt", (1, 1, 5), gated=True)
        yield tiles(cluster, 128, "nn", (1, 1, 5), gated=True)
    # Load has a loop for each form of both operands: multicast or not, one box along K or several.
    # Round its ring, and an odd number of stages, so that the way to the exit is round it, too.
    for layout in ("nn", "nt", "tn", "tt"):
        for cluster in ((group, 1), (2 * group, 1), (group, 2), (2 * group, 2)):
            for gated in (False, True) if group == 1 else (False,):
                yield tiles(cluster, 128, layout, (1, 1, 5), gated=gated)

    # Epilogues: each width that is handled at a time, each type, each way to store it.
    for width in (32, 16, 8) if group == 1 else (32, 16):
        rows = {"block_m": 64} if width == 8 else {}
        yield alone(width, (2, 2, 2), **rows, **FULL)
        yield alone(width, (2, 2, 2), **rows, **FULL, swap_ab=True)
        yield alone(5 * width, (2, 1, 5), **rows, split_k=2, bias="f32")
        for output in OUTPUTS:
            for way in WAYS:
                yield alone(width, (2, 2, 2), **rows, output=output, save=True, **way)
                if width > 8:
                    yield alone(2 * width, (2, 2, 2), output=output, gated=True, save=True, **way)
        if width > 8:
            yield alone(2 * width, (2, 2, 5), gated=True, split_k=2)
    # Factor, bias and short activation, by TMA: several chunks of several tiles, and warps without
    # rows of D.
    for output in OUTPUTS:
        yield alone(96, (2, 4, 2), m=136 * group, output=output, bias="f32", activation="relu")
    # Those that only cast, and two MMA tiles on top of each other.
    for output in OUTPUTS:
        for way in WAYS:
            yield alone(64, (2, 2, 2), output=output, **way)
        yield alone(256, (2, 1, 1), output=output, block_m=256 * group)
    yield alone(192, (3, 2, 2), output="f16", block_m=256 * group)
    for output in OUTPUTS:  # warps without rows of D
        yield alone(128, (2, 4, 2), m=136 * group, output=output)
    yield tiles((group, 1), 128, "nn", (2, 2, 3), k_spans=2)
    if group == 1:  # parts of K in a cluster
        yield Case(5, 120, 500, **SHARED, block_n=8, cluster_k=3)
        yield Case(30, 120, 328, **SHARED, block_n=32, cluster_k=2, cluster=(2, 1), bias="f32")


def _float8(name: str) -> Iterator[Case]:
    """Those of 16 bits that are legal, whose spans have more numbers; scales, results of 8 bits."""
    group = 2 if "2cta" in name else 1
    promoted = "promoted" in name
    cases = list(_sm90(name)) if "sm90" in name else [*_sm100(group), *_brief(group)]
    scaled: dict[str, Any] = {"lhs_scale": True, "rhs_scale": True}
    some = replace(cases[0], n=9 * cases[0].block_n - 16)  # staging buffers are used again
    for output in ("e4m3", "e5m2"):
        result = replace(some, output=output, out_scale=2.0**-6)
        cases += [replace(result, **scaled), replace(result, save=True)]
        cases.append(replace(result, n=some.n + 1))
    cases.append(replace(some, **scaled, bias="f32", activation="relu"))
    if promoted:
        cases.append(replace(some, **scaled, blocks=True, k=2 * some.k))
        # Parts of two or three blocks, and of three or four: the main loop, two blocks long, waits
        # for the turn, and comes round the ring, at another of its places in each.
        parts = replace(cases[0], m=cases[0].block_m - 8, split_k=3)
        of_ten = replace(parts, k=64 * 10)
        cases += [replace(parts, k=64 * 8), replace(of_ten, blocks=True), of_ten]
        # Tiles of three blocks, each behind stores of the one before.
        cases.append(replace(some, m=parts.m, k=64 * 3, blocks=True))
    narrow = [replace(case, dtype="e4m3", promoted=promoted, k=2 * case.k) for case in cases]
    if "sm90" in name:
        # Each mix of types has a main loop of its own.
        loops = list(_promoted_loops(narrow[0])) if promoted else narrow[:1]
        for lhs, rhs in itertools.product(("e4m3", "e5m2"), repeat=2):
            mixed = [replace(x, dtype=lhs, rhs_dtype=rhs if rhs != lhs else None) for x in loops]
            narrow += [case for case in mixed if case not in narrow]
    yield from (case for case in narrow if isinstance(case.planned(), Plan))


def _promoted_loops(base: Case) -> Iterator[Case]:
    """Those that reach all of the main loop, and of the other one, of scales of blocks.

    It ends behind an even number of blocks or behind an odd one.
    """
    parts = replace(base, m=base.block_m - 8, split_k=3)
    brought = replace(base, block_m=base.block_m // 2, pingpong=True, n=5 * base.block_n - 8)
    brought = replace(brought, residual="bf16")
    # Tiles behind stores of the one before.
    stored = replace(parts, n=9 * base.block_n - 16, split_k=1)
    for blocks in (False, True):
        for k in (8, 10):
            yield replace(parts, blocks=blocks, k=128 * k)
        for k in (2, 3):
            # A tile takes all stages of the ring: the next one takes them at the other parity.
            yield replace(brought, blocks=blocks, k=128 * k, stages=k + 1)
            yield replace(stored, blocks=blocks, k=128 * k)


def _mx(name: str, group: int) -> Iterator[Case]:
    """Those of 16 bits that are legal for MX formats, whose spans have more numbers.

    Gated ones in the tiles that they have. And results in MXFP8.
    """
    of_4bit = itertools.cycle(MX_BLOCKS["4bit_mx"])
    cases = [*_sm100(group), *_in_mxfp8(group)]
    wide = [replace(case, block_n=256, accumulators=1) if case.gated else case for case in cases]
    alone = [case for case in cases if case.gated and group == 1 and case.output == "bf16"]
    narrow = [replace(case, block_n=128) for case in alone]
    if "4bit" in name:
        narrow += narrow[-1:]  # several tiles, in both formats
    for case in (*wide, *narrow, *_brief(group), *_in_turns(group)):
        found = replace(case, mx=32, dtype="e4m3", k=2 * case.k)
        if "4bit" in name:
            k = -(-4 * case.k // 32) * 32
            found = replace(case, mx=next(of_4bit), dtype="e2m1", layout="nt", k=k)
        if isinstance(found.planned(), Plan):
            yield found
    if "8bit" in name:
        yield from _beside_4_bits(group)


def _in_turns(group: int) -> Iterator[Case]:
    """Tiles of one accumulator at either end of Tensor Memory, several of a CTA.

    Behind one whose rows are all D's comes one of which most warps have no row, then another.
    """
    rows = 128 * group
    base = Case(2 * rows + 8, 8 // group * 256, 40, layout="nt", block_m=rows, cta_group=group)
    base = replace(base, block_n=256, cluster=(group, 1), accumulators=1, stages=2)
    base = replace(base, scheduler="static")
    yield replace(base, output="bf16")
    yield replace(base, output="f16")
    yield replace(base, output="bf16", bias="f32", activation="relu")
    yield base


def _beside_4_bits(group: int) -> Iterator[Case]:
    """Either operand in MXFP4, shared by all CTAs of a row or column."""
    rows = 128 * group
    base = Case(2 * rows - 8, 248, 288, mx=32, layout="nt", block_m=rows, cta_group=group)
    base = replace(base, cluster=(2 * group, 2), stages=2)
    yield replace(base, dtype="e4m3", rhs_dtype="e2m1")
    yield replace(base, dtype="e2m1", rhs_dtype="e5m2", k=320)


def _brief(group: int) -> Iterator[Case]:
    """Waits on the way to the exit: round no ring of two, and for arrivals that may still come."""
    rows = 128 * group
    base = Case(2 * rows - 8, 56, 168, layout="nt", block_m=rows, cta_group=group)
    base = replace(base, block_n=64, cluster=(group, 1), stages=2, output="bf16")
    yield replace(base, scheduler="static", store="rows")
    yield replace(base, m=rows - 8, n=120, k=104)
    # Round the ring as often as it has stages, so that the way to the exit is not round it.
    yield replace(base, m=8, n=72, k=128, cluster=(group, 2))


def _in_mxfp8(group: int) -> Iterator[Case]:
    rows = 128 * group
    base = Case(2 * rows - 8, 3 * 128 - 8, 104, layout="nt", block_m=rows, cta_group=group)
    base = replace(base, cluster=(group, 1), stages=2, output="e4m3", out_mx=True)
    yield base
    yield replace(base, gated=True)
    yield replace(base, k=296, split_k=2)
    yield replace(base, scheduler="static", bias="f32", residual="bf16", activation="relu")


def _grouped_8bit(name: str) -> Iterator[Ragged]:
    """Those of 16 bits that are legal, as deep, whose formulas also have scales."""
    for case in _grouped(name):
        if case.gated and not case.transposed and case.tile[1] < 256:  # gate and up are spans
            continue
        has_scales = case.bias is not None or (case.gated and case.output != "f16")  # or overflows
        scales = ("lhs", "rhs") if has_scales else ()
        yield replace(case, k=2 * case.k, scales=scales).of_8_bits(transposed=case.transposed)


def _grouped_mx(name: str) -> Iterator[Ragged]:
    """Those of rows, in the tiles that there are, and so many gates that both formats have some."""
    is_4bit = "4bit" in name
    formats = itertools.cycle(["mxfp4", "nvfp4"] if is_4bit else ["mxfp8"])
    for case in _grouped(name):
        if case.contraction:
            continue
        alpha = 2.0**-10 if case.gated and case.output == "f16" else 1.0  # or it overflows
        case = replace(case, tile=(case.tile[0], max(case.tile[1], 64)), alpha=alpha)
        if is_4bit:
            format, k = next(formats), -(-4 * case.k // 32) * 32
            scales = ("rhs",) if format == "nvfp4" else ()
            found = replace(case, dtype="e2m1", transposed=True, format=format, k=k, scales=scales)
            if isinstance(found.planned(), Plan):
                yield found
            continue
        found = replace(case, format=next(formats), k=2 * case.k)
        found = found.of_8_bits(transposed=case.transposed)
        if isinstance(found.planned(), Plan):
            yield found
    if not is_4bit:  # beside 4
        yield replace(found, k=384, rhs_dtype="e2m1", rhs_format="mxfp4", transposed=True)


def _grouped(name: str) -> Iterator[Ragged]:
    group = 2 if "2cta" in name else 1
    base = Ragged((37, 0, 150, 13), stages=2, sm_count=group, family=name.split("_")[1])
    base = replace(base, cta_group=group)
    several: tuple[Any, ...] = ((0, 90, 9, 0), (70, 0, 101, 0))
    if "_gathered_" in name:
        base, several = replace(base, source_rows=60), several[1]
    if base.family == "sm100":
        tiles, layouts = [(128 * group, 128), (128 * group, 256)], ["nn", "nt", "tn"]
        if base.source_rows is not None:
            layouts.remove("tn")
        deepest = (128 * group, 32)
    else:
        layout, tile = name.split("_")[-2:]
        columns = int(tile.split("x")[1])
        tiles, layouts = [(128, columns), (64, columns)], [layout]
        deepest = (64, columns)
    for rows, columns in tiles:
        of_tile = replace(base, tile=(rows, columns), n=columns + 8, pingpong=rows == 64)
        for layout in layouts:
            way = replace(of_tile, transposed=layout == "nt", contraction=layout == "tn")
            yield way
            yield replace(way, k=328, sm_count=2 * group)
            yield replace(way, scheduler="none", n=2 * columns + 8)
            yield replace(way, sizes=several, k=264, stages=3)
            for output in OUTPUTS:
                yield replace(way, output=output)
                if not way.contraction:
                    yield replace(way, output=output, bias="f32", activation="relu", k=136)
                    yield replace(way, output=output, gated=True, k=136, n=2 * columns)
            if group == 2 and not way.contraction:  # rows for both CTAs
                yield replace(way, sizes=(300, 0, 13), m=320)
            if group == 2 and way.contraction:
                yield replace(way, k=328, sm_count=STORING_LAST)
            if way.contraction:
                yield replace(way, sizes=(0, 0, 0))
                yield replace(way, sizes=(300, 0, 20), m=320, adds=True, output="f32")
                if base.family == "sm90":
                    yield replace(way, sizes=(300, 0, 20), m=320, split=2, sm_count=3)
    way = replace(base, tile=deepest, pingpong=deepest[0] == 64)
    way = replace(way, transposed=layouts[-1] == "nt", contraction=layouts == ["tn"])
    yield replace(way, stages=None, k=64 * 14)  # all slots of the deepest ring
