"""What moves, and who tells whom: counted and read in running kernels, held to the articles.

Bytes come from the emulator's report, masks and arrival counts from probes in the kernel's PTX.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from ladder import run as ladder
from ladder.rungs import RUNGS

from jaxbw import emulator

from . import gemm_launch, probe
from .gemm_cases import Case
from .gemm_launch import MAX_STAGES
from .installed import load, text
from .protocol import K, Protocol, one_tile_each, run

EPILOGUE_WARPS = 4

# Cluster shape, cta_group, block_m, block_n: every cluster of up to 16 CTAs that a tile allows.
SHAPES = [
    *(((m, n), 1, 128, 128) for m in (1, 2, 4, 8, 16) for n in (1, 2, 4, 8, 16) if m * n <= 16),
    *(((m, n), 2, 256, 256) for m in (2, 4, 8, 16) for n in (1, 2, 4, 8) if m * n <= 16),
    ((4, 4), 1, 64, 64),
    ((4, 4), 2, 128, 128),
    ((4, 4), 1, 128, 256),
    ((2, 1), 1, 256, 256),
    ((2, 1), 2, 512, 256),
    ((4, 2), 2, 512, 128),
    ((3, 1), 1, 128, 96),
]


def name_of(shape: Any) -> str:
    (m, n), group, block_m, block_n = shape
    return f"{m}x{n} of {block_m}x{block_n}, cta_group {group}"


# --- bytes


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
def test_bytes(shape: Any) -> None:
    (cluster_m, cluster_n), group, block_m, block_n = shape
    case = one_tile_each(*shape)
    report = run(case, load(case.kernel))
    row = 2 * K  # bytes of a row of A, or column of B
    ctas = 2 * cluster_m * cluster_n
    # A cluster reads what its tile needs once, whoever of its CTAs does.
    cluster_rows = cluster_m * block_m // group
    assert report.bytes["global load"] == 2 * row * (cluster_rows + cluster_n * block_n)
    # Every CTA gets its rows of A, and of the columns of B its group's share: with pairs, half.
    assert report.bytes["tma load"] == ctas * row * (block_m // group + block_n // group)
    # Tensor cores read a stage once; two MMA tiles on top of each other read B twice.
    tiles = gemm_launch.mma_tiles(case.config())
    assert report.bytes["mma operands"] == ctas // group * row * (block_m + tiles * block_n)
    assert report.operations["mma"] == ctas // group * tiles * K // 16
    # Every accumulator is read once; 64 rows alone lie in half of the lanes that are read.
    lanes = 2 if (block_m, group) == (64, 1) else 1
    assert report.bytes["tmem load"] == lanes * 4 * case.m * case.n
    assert report.bytes["tma store"] == 2 * case.m * case.n


def test_multicast_reads_a_quarter_and_a_pair_halves_what_b_takes_in_shared_memory() -> None:
    def loads(cluster: tuple[int, int], group: int, block_m: int) -> emulator.Report:
        case = Case(1024, 1024, K, layout="nt", output="bf16", block_m=block_m, block_n=256)
        case = replace(case, cluster=cluster, cta_group=group)
        return run(case, load(case.kernel))

    alone, multicast = loads((1, 1), 1, 128), loads((4, 4), 1, 128)
    pair, pairs = loads((2, 1), 2, 256), loads((4, 4), 2, 256)
    assert alone.bytes["global load"] == 4 * multicast.bytes["global load"]
    assert multicast.bytes["global load"] == pairs.bytes["global load"]
    # 128 rows of A, and 256 columns of B or half of them: 384 against 256.
    for single, double in ((alone, pair), (multicast, pairs)):
        for engine in ("tma load", "mma operands"):
            assert 2 * single.bytes[engine] == 3 * double.bytes[engine]


def test_a_gated_matmul_reads_the_left_operand_once() -> None:
    for group, cluster in ((1, (2, 2)), (2, (2, 2))):
        case = Case(256, 256, K, layout="nt", gated=True, cluster=cluster, cta_group=group)
        case = replace(case, block_m=128 * group, block_n=256)
        report = run(case, load(case.kernel))
        assert report.bytes["global load"] == 2 * K * (case.m + 2 * case.n)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rung", RUNGS[1:], ids=lambda rung: rung.name)
def test_the_ladder_reads_what_its_formula_says(rung: Any) -> None:
    m, n = 1024, 1024
    lhs, rhs = ladder.operands(m, n, K)
    result, report = ladder.launch(rung, lhs, rhs)
    assert report.findings == []
    ladder.check(rung, result, lhs, rhs)
    assert report.bytes["global load"] == rung.bytes_loaded(m, n, K)


# --- masks and arrivals


@pytest.mark.parametrize(
    ("group", "cta", "a", "b", "sources", "arrivals"),
    [
        (1, 0, 0x1111, 0x000F, 0x111F, 7),
        (1, 11, 0x8888, 0x0F00, 0x8F88, 7),
        (2, 0, 0x1111, 0x0005, 0x333F, 5),
    ],
)
def test_the_articles_numbers_for_4x4(
    group: int, cta: int, a: int, b: int, sources: int, arrivals: int
) -> None:
    protocol = Protocol(((4, 4), group, 128 * group, 128 * group))
    assert protocol.load_masks(cta) == ({a}, {b})
    # The commit that frees a stage goes to all that have loaded for it; the other one, of the
    # accumulator, to the CTAs of the MMA.
    assert protocol.commits(cta) == {arrivals: {sources}, 1: {0b11 if group == 2 else 1 << cta}}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
def test_who_tells_whom(shape: Any) -> None:
    (cluster_m, cluster_n), group, block_m, block_n = shape
    protocol = Protocol(shape)
    size = cluster_m * cluster_n
    ranks = range(size)

    def row(rank: int) -> int:
        return int(rank % cluster_m)

    def column(rank: int) -> int:
        return int(rank // cluster_m)

    # Full: of all stages that there may be, accumulators, responses of launch control.
    # ... and of CTAs alone, sums of parts, of each epilogue warp.
    counts = Counter({1: MAX_STAGES + 2 + 2 + (EPILOGUE_WARPS if group == 1 else 0)})
    counts[cluster_n + cluster_m // group - 1] += MAX_STAGES  # empty, likewise
    counts[group * EPILOGUE_WARPS] += 2
    counts[size * (1 + EPILOGUE_WARPS) + size // group + 1] += 2

    def mask(members: Iterable[int]) -> int:
        return sum(1 << rank for rank in members)

    for rank in ranks:
        same_rows = [r for r in ranks if row(r) == row(rank)]
        same_columns = [
            r for r in ranks if column(r) == column(rank) and row(r) % group == row(rank) % group
        ]
        masks = tuple({mask(x)} if len(x) > 1 else set() for x in (same_rows, same_columns))
        assert protocol.load_masks(rank) == masks
        leads = row(rank) % group == 0
        pair = range(rank, rank + group) if leads else ()
        sources = {
            r
            for peer in pair
            for r in ranks
            if row(r) == row(peer)
            or (column(r) == column(peer) and row(r) % group == row(peer) % group)
        }
        arrivals = cluster_n + cluster_m // group - 1
        to: dict[int, set[int]] = {}
        to.setdefault(arrivals, set()).add(mask(sources))
        to.setdefault(1, set()).add(mask(pair))
        assert protocol.commits(rank) == (to if leads else {})
        assert Counter(count for _, count in protocol.of("init", rank)) == counts
        # Bytes of a stage: those of the whole group, on its leader, however large the cluster is.
        stage = (block_m + block_n) * 128
        assert {count for _, count in protocol.of("expect", rank)} == ({stage} if leads else set())


# --- rasterisation


@pytest.mark.parametrize(("swizzle", "rows", "columns"), [(1, 6, 2), (2, 5, 2)])
def test_block_swizzle_saves_the_loads_that_the_article_counts(
    swizzle: int, rows: int, columns: int
) -> None:
    # Part 4's example: 6 x 5 tiles, nine at a time. The first wave needs 6 tiles of A and 2 of B;
    # with a block swizzle of 2 it is 5 and 2.
    case = Case(6 * 64, 5 * 16, 64, layout="nt", output="bf16", block_m=64, block_n=16)
    case = replace(case, swizzle=swizzle, raster="n", scheduler="none")
    loads = probe.Probe(text(case.kernel), dict(load=probe.LOAD), ctas=30)
    run(case, loads.module, more_buffers=loads.buffers)
    wave = [s.values for s in loads.seen("load") if s.cta < 9]
    maps = sorted({which for _, which, *_ in wave})
    tiles = [{start for _, which, _, start, _ in wave if which == each} for each in maps]
    assert [len(starts) for starts in tiles] == [rows, columns]
