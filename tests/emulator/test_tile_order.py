"""The order of work items of a plan, against the coordinates that running kernels hand to TMA."""

from dataclasses import replace

import pytest

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


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_clusters_compute_what_the_order_says(case: Case) -> None:
    """With a cluster for each work item, cluster number i has item i."""
    plan = case.plan()
    ctas, items = plan.cluster_ctas, plan.work_items.tolist()
    loads = probe.Probe(text(case.kernel), {"load": probe.LOAD}, ctas=len(items) * ctas)
    matmul = case.matmul()
    outcome = gemm_launch.launch(
        loads.module,
        case.config(),
        matmul,
        sm_count=case.sm_count,
        more_buffers=loads.buffers,
    )
    gemm_cases.verify(case, matmul, outcome)

    # By cluster, the least coordinates of what its CTAs load of A and of B: K, then M or N, batch.
    found: dict[int, dict[int, list[tuple[int, int, int]]]] = {}
    for seen in loads.seen("load"):
        _, tensor_map, k, outer, batch = seen.values
        found.setdefault(seen.cta // ctas, {}).setdefault(tensor_map, []).append((k, outer, batch))
    maps = sorted({which for by_map in found.values() for which in by_map})
    assert len(maps) == 2
    rows, columns = plan.cluster_rows, plan.cluster_columns
    seen_items = []
    for cluster in range(len(items)):
        a, b = (found[cluster][which] for which in maps)
        (first_k, _, batch), row, column = min(a), min(o for _, o, _ in a), min(o for _, o, _ in b)
        seen_items.append((batch, row // rows, column // columns, first_k > 0))
    assert seen_items == [(i, row, column, part > 0) for i, row, column, part, _ in items]


def test_every_part_of_every_tile_is_there_once() -> None:
    for case in CASES:
        plan = case.plan()
        items = [tuple(item) for item in plan.work_items.tolist()]
        assert len(set(items)) == len(items) == plan.items
        assert len({item[:3] for item in items}) == plan.tiles
        assert sum(1 / parts for *_, parts in items) == pytest.approx(plan.tiles)


def test_only_the_last_wave_is_split() -> None:
    case = replace(SM100, m=190, n=48, k=128, split_k=2, split_tail=True)  # 3 x 3 tiles
    items = case.plan(resident=4).work_items
    assert items[:, 4].tolist() == [1] * 8 + [2, 2]
    assert items[-2:].tolist() == [[0, 2, 2, part, 2] for part in (0, 1)]
