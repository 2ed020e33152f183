"""jaxbw/_src/selection/tile_order.py against the coordinates that running kernels hand to TMA."""

from dataclasses import replace

import pytest

from jaxbw._src.selection.tile_order import Grid, WorkItem, work_items

from . import gemm_cases, gemm_launch, probe
from .gemm_cases import Case
from .installed import text

SM100 = Case(
    300, 90, 64, layout="nt", output="bf16", block_m=64, block_n=16, scheduler="none", stages=2
)
SM90 = Case(
    600, 300, 128, layout="nt", output="bf16", family="sm90", block_m=128, block_n=64, stages=2
)
CASES = [
    *(replace(SM100, swizzle=s, raster=r) for s in (1, 2, 3, 16) for r in ("m", "n")),
    replace(SM100, swizzle=2, cluster=(2, 1)),
    replace(SM100, swizzle=2, raster="n", cluster=(1, 2)),
    replace(SM100, swizzle=2, swap_ab=True),
    replace(SM100, swizzle=3, batch=2),
    replace(SM100, m=600, block_m=256, cta_group=2, cluster=(2, 1), swizzle=2, block_n=32),
    replace(SM100, k=256, swizzle=2, split_k=2),
    replace(SM100, k=256, swizzle=2, split_k=3, split_tail=True),
    replace(SM90, swizzle=2, scheduler="none"),
    replace(SM90, swizzle=3, raster="n", scheduler="none", split_k=2),
    replace(SM90, swizzle=2, cluster_k=2, stages=None, scheduler="none"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_clusters_compute_what_the_order_says(case: Case) -> None:
    """With a cluster for each work item, cluster number i has item i."""
    config, ctas = case.gemm_config(), case.cluster[0] * case.cluster[1] * case.cluster_k
    grid = Grid.of(config, case.batch, case.m, case.n)
    items = work_items(grid, config, case.sm_count // ctas)
    loads = probe.Probe(text(case.kernel), {"load": probe.LOAD}, ctas=len(items) * ctas)
    product = case.product()
    outcome = gemm_launch.launch(
        loads.module,
        case.config(),
        product,
        sm_count=case.sm_count,
        more_buffers=loads.buffers,
    )
    gemm_cases.verify(case, product, outcome)

    # By cluster, the least coordinates of what its CTAs load of A and of B: K, then M or N, batch.
    found: dict[int, dict[int, list[tuple[int, int, int]]]] = {}
    for seen in loads.seen("load"):
        _, tensor_map, k, outer, batch = seen.values
        found.setdefault(seen.cta // ctas, {}).setdefault(tensor_map, []).append((k, outer, batch))
    maps = sorted({which for by_map in found.values() for which in by_map})
    assert len(maps) == 2
    rows, columns = grid.tile
    seen_items = []
    for cluster in range(len(items)):
        a, b = (found[cluster][which] for which in maps)
        (first_k, _, batch), row, column = min(a), min(o for _, o, _ in a), min(o for _, o, _ in b)
        seen_items.append((batch, row // rows, column // columns, first_k > 0))
    assert seen_items == [(i.batch, i.row, i.column, i.part > 0) for i in items]


def test_every_part_of_every_tile_is_there_once() -> None:
    for case in CASES:
        config = case.gemm_config()
        grid = Grid.of(config, case.batch, case.m, case.n)
        items = work_items(grid, config, resident=4)
        assert len(set(items)) == len(items)
        tiles = {(i.batch, i.row, i.column) for i in items}
        assert len(tiles) == grid.batch * grid.rows * grid.columns
        assert sum(1 / i.parts for i in items) == pytest.approx(len(tiles))


def test_only_the_last_wave_is_split() -> None:
    config = replace(SM100.gemm_config(), split_k=2, split_tail=True)
    items = work_items(Grid(1, 3, 3, (64, 16)), config, resident=4)
    assert [i.parts for i in items] == [1] * 8 + [2, 2]
    assert items[-2:] == [WorkItem(0, 2, 2, part, 2) for part in (0, 1)]
