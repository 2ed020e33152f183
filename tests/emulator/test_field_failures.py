"""What has gone wrong in other people's GEMM kernels, and does not in ours: a test for each.

The list is from issue trackers. Heuristics that regress after a tuning change, the last of it, are
pinned by tests/selection.
"""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxbw._src.selection import manifest

from . import gemm_cases, gemm_launch, mutation, probe
from .gemm_cases import Case
from .installed import load, text
from .mutants import Mutant

SCHEDULES = [("eager", 0), ("latest", 0), ("random", 1), ("random", 2), ("pct", 3)]
SM100 = ("jaxbw_sm100_16bit_1cta", "jaxbw_sm100_16bit_2cta")
PAIR: dict[str, Any] = dict(block_m=256, cta_group=2, cluster=(2, 1))
SM90: dict[str, Any] = dict(family="sm90")


def check(case: Case, *schedules: tuple[str, int]) -> None:
    for schedule, seed in schedules or SCHEDULES[:1]:
        gemm_cases.check(load(case.kernel), case, schedule, seed)


@pytest.mark.parametrize("group", [dict(block_m=128), PAIR, SM90], ids=["1cta", "2cta", "sm90"])
def test_a_rare_corrupted_patch_of_128x32(group: dict[str, Any]) -> None:
    # A staging buffer that is written while TMA still stores it: many boxes, several tiles.
    width = 128 if group is SM90 else 256
    case = Case(512, 512, 64, output="bf16", block_n=width, **group)
    check(case, *SCHEDULES)


@pytest.mark.parametrize("name", SM100)
def test_a_race_for_the_address_of_tensor_memory(name: str) -> None:
    # Whoever reads it before the allocating warp has left it there: the named barrier between them
    # is what keeps them apart, and without it the emulator says so. So of the others, too, where
    # a CTA without peers starts and ends.
    lines = enumerate(text(name).split("\n"))
    barriers = [
        Mutant(number, "setup", line.strip(), "deleted", "")
        for number, line in lines
        if "barrier.cta.sync" in line
    ]
    assert barriers
    for barrier in barriers:
        outcome = mutation.examine(name, barrier, range(4), mutation.SCHEDULES[:9])
        assert outcome.found, outcome
    group = PAIR if name.endswith("2cta") else {}
    check(Case(256, 256, 64, output="bf16", **group), *SCHEDULES)


@pytest.mark.parametrize("cluster", [(2, 1), (2, 2), (4, 4), (8, 2)])
@pytest.mark.parametrize("group", [1, 2])
def test_expected_bytes_scaled_by_the_cluster(cluster: tuple[int, int], group: int) -> None:
    # Too many bytes are a deadlock. A stage has those of the CTAs that share an MMA, no others.
    shape: dict[str, Any] = dict(block_m=128 * group, block_n=128, cta_group=group)
    case = Case(128, 128, 128, layout="nt", cluster=cluster, **shape)
    expects = probe.Probe(text(case.kernel), dict(expect=probe.EXPECT), ctas=16)
    matmul = case.matmul()
    outcome = gemm_launch.launch(
        expects.module, case.config(), matmul, sm_count=16, more_buffers=expects.buffers
    )
    gemm_cases.verify(case, matmul, outcome)
    bytes_ = {seen.values[1] for seen in expects.seen("expect")}
    assert bytes_ == {(128 * group + 128) * gemm_launch.SPAN}


@pytest.mark.parametrize("n", [8, 24, 40, 72, 136, 264])
@pytest.mark.parametrize("output", ["bf16", "f32"])
def test_n_is_8_mod_16(n: int, output: str) -> None:
    for layout in ("nn", "nt"):
        check(Case(128, n, 64, layout=layout, output=output))
        check(Case(256, n, 64, layout=layout, output=output, **PAIR))
        check(Case(128, n, 64, layout="nn", output=output, **SM90))
    check(Case(64, n, 64, layout="nt", output=output, block_m=64, block_n=8))
    check(Case(64, n, 64, layout="nt", output=output, block_m=64, block_n=24, store="rows"))


@pytest.mark.parametrize("m", [1, 2, 7, 8, 9, 15, 16, 17, 31, 33])
def test_m_around_8(m: int) -> None:
    check(Case(m, 200, 136, output="bf16"))
    check(Case(m, 200, 136, output="bf16", **PAIR))
    check(Case(m, 136, 136, output="bf16", **SM90))
    for block_n in (8, 16, 32):
        case = Case(m, 200, 136, layout="nt", output="bf16", block_m=64, block_n=block_n)
        check(replace(case, swap_ab=True))


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 1, 64), (1, 3, 1), (3, 1, 7), (2, 2, 2), (5, 9, 3)]
)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_small_shapes(shape: tuple[int, int, int], layout: str) -> None:
    m, n, k = shape
    everything: dict[str, Any] = dict(c="f32", bias="bf16", residual="f16", save=True)
    for output in ("bf16", "f32"):
        case = Case(m, n, k, layout=layout, output=output)
        check(replace(case, **everything))
        check(replace(case, **PAIR))
        check(replace(case, block_m=64, block_n=64, swap_ab=True))
    if layout == "nn":
        check(Case(m, n, k, **SM90, **everything))


@pytest.mark.parametrize("block_n", [64, 96, 128, 192, 256])
def test_n_is_768(block_n: int) -> None:
    check(Case(256, 768, 64, layout="nt", output="bf16", block_n=block_n))
    check(Case(256, 768, 64, layout="nt", output="bf16", block_n=block_n, **PAIR))


def sm90_kernels() -> list[str]:
    return [kernel.name for kernel in manifest.kernels() if kernel.name.startswith("jaxbw_sm90_b")]


def test_registers_of_wgmma_that_are_used_again_too_early() -> None:
    # A from registers must stay there until the group has ended: ours comes from shared memory.
    for name in sm90_kernels():
        operands = re.findall(r"wgmma\.mma_async\S* {[^}]*}, ([%{])(\w+)", text(name))
        assert all(kind == "%" and register.startswith("rd") for kind, register in operands), name
    check(Case(200, 200, 200, output="bf16", **SM90), *SCHEDULES)


def test_named_barriers_of_two_consumers() -> None:
    # Two warpgroups that end on the same barrier let each other go too early: ours share none.
    for name in sm90_kernels():
        assert set(re.findall(r"\bbar(?:rier)?\.sync\S*\s+(\w+)", text(name))) <= {"0"}, name
    check(Case(520, 264, 64, output="bf16", **SM90 | dict(cluster=(2, 1))), *SCHEDULES)


@pytest.mark.parametrize("output", ["bf16", "f32"])
@pytest.mark.parametrize(
    "path", [dict(), dict(store="rows"), dict(swap_ab=True, block_m=64, block_n=64)]
)
def test_results_beyond_2_gib(path: dict[str, Any], output: str) -> None:
    # Rows that lie so far apart that the third one starts behind 2^31 elements; the pages between
    # them are never touched.
    case = Case(3, 40, 64, layout="nt", output=output, batch=1, **path)
    pitch = (1 << 30) + 64
    matmul = case.matmul()
    outcome = gemm_launch.launch(load(case.kernel), case.config(), matmul, pitch=pitch)
    gemm_cases.verify(case, matmul, outcome)
    assert outcome.d.strides[1] * 2 > 1 << 32


@pytest.mark.parametrize("name", [*SM100, "jaxbw_sm90_bf16_nn_64x128"])
def test_a_wait_for_the_preceding_kernel_that_comes_too_late(name: str) -> None:
    # Whole warps wait for it, once, and none that has not waited touches global memory.
    group = PAIR if name.endswith("2cta") else {}
    case = Case(128, 128, 64, output="bf16", bias="f32", family=name.split("_")[1], **group)
    sites = dict(wait=probe.UPSTREAM, load=probe.LOAD, read=probe.READ)
    waits = probe.Probe(text(name), sites, ctas=2, capacity=1 << 16)
    matmul = case.matmul()
    for ready in (False, True):
        outcome = gemm_launch.launch(
            waits.module,
            replace(case.config(), b_is_ready=ready),
            matmul,
            sm_count=2,
            more_buffers=waits.buffers,
        )
        gemm_cases.verify(case, matmul, outcome)
        threads: Counter[tuple[int, int]] = Counter()
        for seen in waits.seen():
            warp = seen.cta, seen.warp
            if seen.name == "wait":
                threads[warp] += 1
            else:
                assert threads[warp] == 32, f"{seen} before the wait"
        assert set(threads.values()) == {32}
        waits.clear()


def test_a_result_is_the_same_on_every_run() -> None:
    # Determinism is what users ask for first: real numbers, other orders, the same bits.
    case = Case(300, 264, 500, layout="nt", integers=False, bias="f32", activation="gelu")
    bits = {
        gemm_cases.check(load(case.kernel), case, schedule, seed).d.tobytes()
        for schedule, seed in SCHEDULES
    }
    assert len(bits) == 1
    assert not np.isnan(np.frombuffer(bits.pop(), np.float32)).any()
