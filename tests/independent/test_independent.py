"""The emulator against kernels of other compilers, made from GEMMs written here in their languages.

Our kernels and the emulator could share a misreading of the PTX specification. What these compilers
emit runs on Blackwell GPUs every day, and their authors have never seen the emulator.
"""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from . import launching
from .launching import E4M3, E5M2, F16, Problem


@pytest.fixture(autouse=True, scope="module")
def _caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


def language(name: str, package: str) -> Any:
    pytest.importorskip(package, reason=f"{package} is missing: pip install 'jaxbw[independent]'")
    return importlib.import_module(f".{name}_kernels", __package__)


def check(kernel: launching.Kernel, problem: Problem) -> list[Any]:
    launch, reports = launching.launcher(kernel, problem), []
    for schedule, seed in launching.SCHEDULES:
        report = launch(schedule=schedule, seed=seed, checks="hardware")
        assert report.findings == [], (schedule, seed)
        reports.append(report)
    return reports


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("problem", "block"),
    [
        (Problem(200, 140, 200), (128, 128, 64)),
        (Problem(300, 72, 72, F16), (128, 64, 32)),
        (Problem(120, 264, 136), (64, 256, 64)),
    ],
)
def test_triton_with_pointers(problem: Problem, block: tuple[int, int, int]) -> None:
    check(language("triton", "triton").pointers(problem, block), problem)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("problem", "block", "specialize"),
    [
        (Problem(200, 136, 200), (128, 128, 64), False),
        (Problem(264, 264, 328, F16), (128, 64, 64), True),
        (Problem(136, 392, 136, lhs_transposed=True), (128, 256, 64), True),
        (Problem(200, 136, 264, F16, rhs_transposed=True), (128, 128, 128), False),
        (Problem(264, 72, 72, lhs_transposed=True, rhs_transposed=True), (64, 64, 64), False),
    ],
)
def test_triton_with_descriptors(
    problem: Problem, block: tuple[int, int, int], specialize: bool
) -> None:
    kernel = language("triton", "triton").descriptors(problem, block, specialize=specialize)
    check(kernel, problem)


@pytest.mark.parametrize("lhs", [E4M3, E5M2])
@pytest.mark.parametrize("rhs", [E4M3, E5M2])
@pytest.mark.parametrize("target", ["HOPPER", "BLACKWELL"])
def test_triton_with_fp8(lhs: Any, rhs: Any, target: str) -> None:
    triton = language("triton", "triton")
    problem = Problem(200, 80, 208, lhs, rhs_transposed=True, rhs_dtype=rhs)
    kernel = triton.descriptors(problem, (128, 64, 64), target=getattr(triton, target))
    assert ("wgmma" if target == "HOPPER" else "kind::f8f6f4") in kernel.ptx
    check(kernel, problem)


@pytest.mark.parametrize(("lhs_transposed", "rhs_transposed"), [(True, False), (False, False)])
def test_triton_with_fp8_along_m_and_n(lhs_transposed: bool, rhs_transposed: bool) -> None:
    problem = Problem(208, 144, 208, E4M3, lhs_transposed, rhs_transposed, E5M2)
    kernel = language("triton", "triton").descriptors(problem, (128, 128, 64))
    check(kernel, problem)


# (block_m of the cluster, block_n, block_k), CTAs of a cluster
GLUON = [
    (Problem(200, 296, 328), (128, 128, 64), 1),
    (Problem(136, 136, 200, F16), (64, 64, 64), 1),
    (Problem(328, 296, 328, F16), (256, 128, 64), 2),
    (Problem(264, 264, 200), (256, 256, 32), 2),
    (Problem(136, 136, 200), (128, 128, 64), 2),
    (Problem(584, 264, 200), (512, 128, 64), 4),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("problem", "block", "ctas"), GLUON)
def test_gluon_tile(problem: Problem, block: tuple[int, int, int], ctas: int) -> None:
    gluon = language("gluon", "triton")
    check(gluon.compiled(gluon.matmul_tile, problem, block, ctas), problem)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("problem", "block", "ctas"), GLUON)
def test_gluon_cluster_launch_control(
    problem: Problem, block: tuple[int, int, int], ctas: int
) -> None:
    gluon = language("gluon", "triton")
    reports = check(gluon.compiled(gluon.matmul_persistent, problem, block, ctas), problem)
    tiles = -(-problem.m // block[0]) * -(-problem.n // block[1])
    for report in reports:
        assert report.clusters_started + report.clusters_cancelled == tiles
    assert all(report.clusters_cancelled for report in reports)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("problem", "tile", "options"),
    [
        (Problem(256, 256, 192, rhs_transposed=True), (128, 128), {}),
        (Problem(256, 256, 256, lhs_transposed=True, rhs_transposed=True), (128, 64), {}),
        (Problem(256, 512, 256, F16, lhs_transposed=True), (128, 256), dict(stages=2)),
        (
            Problem(256, 512, 256, rhs_transposed=True),
            (128, 128),
            dict(cluster=(2, 2)),
        ),
        (Problem(256, 512, 256, lhs_transposed=True), (128, 128), dict(cluster=(2, 2))),
        (
            Problem(512, 256, 192, F16, rhs_transposed=True),
            (256, 128),
            dict(cluster=(2, 1), pair=True),
        ),
        (Problem(512, 256, 320), (256, 128), dict(cluster=(2, 1), pair=True, stages=4)),
        (
            Problem(512, 256, 192, lhs_transposed=True),
            (256, 256),
            dict(cluster=(2, 1), pair=True),
        ),
        (
            Problem(512, 512, 256, rhs_transposed=True),
            (256, 128),
            dict(cluster=(4, 2), pair=True),
        ),
        # Persistent: each CTA has two tiles.
        (Problem(256, 512, 192), (128, 128), dict(columns=2)),
        (Problem(256, 512, 192, F16), (128, 128), dict(columns=2, tma_store=True)),
        (
            Problem(512, 1024, 192),
            (256, 256),
            dict(cluster=(2, 1), pair=True, stages=4, columns=2, tma_store=True),
        ),
        (
            Problem(512, 512, 192, rhs_transposed=True),
            (256, 128),
            dict(cluster=(4, 2), pair=True, columns=2, tma_store=True),
        ),
    ],
)
def test_cute_dsl(problem: Problem, tile: tuple[int, int], options: dict[str, Any]) -> None:
    check(language("cute", "cutlass").compiled(problem, tile, **options), problem)
