"""What a launch tells: counts for each role, and its timeline."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxbw import emulator
from jaxbw._src.emulator import report, timeline

from . import gemm_launch
from .gemm_launch import BF16, SM100, Config
from .installed import load
from .ptx import module

SIZE = 256
TILE = 128


@pytest.fixture(scope="module")
def traced() -> emulator.Report:
    rng = np.random.default_rng(0)
    lhs, rhs = (gemm_launch.integers(rng, 1, SIZE, SIZE) for _ in range(2))
    kernel = load("jaxbw_sm100_16bit_1cta")
    config = Config(SM100, block_m=TILE, block_n=TILE)
    options: dict[str, Any] = dict(schedule="random", seed=7, sm_count=2, trace=True)
    return gemm_launch.run(kernel, config, lhs, rhs, BF16, **options)[1]


def test_roles_of_our_kernel(traced: emulator.Report) -> None:
    warps = {role.name: role.warps for role in traced.roles}
    assert warps == {
        "load": (0,),
        "multiply": (1,),
        "schedule": (2,),
        "allocate": (3,),
        "epilogue": (4, 5, 6, 7),
    }
    assert sum(role.instructions for role in traced.roles) == traced.steps
    multiply = next(role for role in traced.roles if role.name == "multiply")
    mma = [n for opcode, n in multiply.operations.items() if opcode.startswith("tcgen05.mma")]
    assert sum(mma) == traced.operations["mma"] == (SIZE // TILE) ** 2 * SIZE // 16
    assert traced.waits["mbarrier"] == sum(role.waits.get("mbarrier", 0) for role in traced.roles)


def test_bytes_by_engine(traced: emulator.Report) -> None:
    tiles = (SIZE // TILE) ** 2
    assert traced.bytes["tma load"] == tiles * 2 * TILE * SIZE * 2
    assert traced.bytes["tma store"] == SIZE * SIZE * 2
    assert traced.bytes["tmem load"] == SIZE * SIZE * 4


@pytest.mark.parametrize(
    ("opcode", "engine"),
    [
        ("cp.async.bulk.tensor.3d.shared::cluster.global.tile.bulk_group", "TMA load"),
        ("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group", "TMA store"),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32", "TMA store"),
        ("tcgen05.mma.cta_group::1.kind::f16", "tensor core"),
        ("tcgen05.ld.sync.aligned.32x32b.x1.b32", "TMEM load"),
        ("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16", "tensor core"),
        ("clusterlaunchcontrol.try_cancel.async", "launch control"),
    ],
)
def test_engines(opcode: str, engine: str) -> None:
    assert report.engine(opcode) == engine


def test_a_warp_with_several_jobs_has_their_names() -> None:
    store = "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group"
    assert report.role(["wgmma.mma_async.sync.aligned", store]) == "multiply + epilogue"
    assert report.role([]) == "other"


def test_tracks_name_who_completes_a_barrier_and_who_waits(traced: emulator.Report) -> None:
    names = [track.name for track in timeline.tracks(traced, 0) if track.group == "mbarrier"]
    pairs = {name.split(maxsplit=1)[1] for name in names}
    assert {"tensor core → epilogue", "tensor core → load", "TMA load → multiply"} <= pairs, pairs


def test_bars_of_a_lane_follow_each_other(traced: emulator.Report) -> None:
    for track in timeline.tracks(traced, 0):
        for lane in track.lanes:
            for before, after in pairwise(lane):
                assert before.begin <= before.end <= after.begin, track.name


def test_the_trace_is_one_that_perfetto_reads(traced: emulator.Report, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    traced.timeline(path, ctas=[0])
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert any(name.endswith("load") for name in names.values())
    bars = [e for e in events if e["ph"] == "X"]
    assert len(bars) > 100
    assert all(e["dur"] >= 0 and e["tid"] in names for e in bars)
    assert {e["pid"] for e in events} == {0}


def test_the_picture_is_drawn(traced: emulator.Report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws it, and is missing")
    traced.timeline(png=tmp_path / "all.png", ctas=[0], window=(0, 5000))
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")


def test_a_finding_is_marked(tmp_path: Path) -> None:
    body = "bar.sync 0; st.shared.b32 [memory], %tid;"
    out = emulator.empty(64, np.uint32)
    found = module(body).launch("kernel", grid=1, block=64, args=[out], trace=True)
    assert [finding.kind for finding in found.findings] == ["race"]
    marks = [mark for track in timeline.tracks(found, 0) for mark in track.findings]
    assert len(marks) == 1
    assert "race, PTX line" in marks[0][1]
    found.timeline(tmp_path / "trace.json")
    assert "finding: race" in (tmp_path / "trace.json").read_text()


def test_a_launch_without_trace_has_no_timeline() -> None:
    quiet = module("bar.sync 0;").launch(
        "kernel", grid=1, block=32, args=[emulator.empty(1, np.uint32)]
    )
    with pytest.raises(ValueError, match=r"trace=True"):
        quiet.timeline("trace.json")
