"""Bulk stores that all lanes of a warp issue: compilers that leave election to ptxas emit them."""

from typing import Any

import numpy as np
import pytest

from jaxbw import emulator

from .ptx import module

ORDERS = [("eager", 0), ("latest", 0), ("pct", 1), ("pct", 2)]
SCHEDULES = ORDERS + [("random", seed) for seed in range(8)]
COPY = "cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r4], 128;"
ADD = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd0], [%r4], 128;"
TILE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%out, {%r5, %r6}], [%r4];"
WAIT = "cp.async.bulk.wait_group{} 0;"
# Warp 0 fills 128 bytes and every lane of it stores them; behind a barrier warp 1 writes them anew.
BODY = """
  and.b32 %r5, %tid, 31;
  shl.b32 %r2, %r5, 2;
  add.u32 %r3, %shared, %r2;
  mov.u32 %r4, %shared;
  setp.ge.u32 %p0, %tid, 32;
  setp.eq.u32 %p2, %tid, 0;
  mul.wide.u32 %rd1, %r5, {step};
  add.u64 %rd0, %out, %rd1;
  mov.u32 %r5, 0;
  mov.u32 %r6, 0;
  @%p0 bra SYNC;
  st.shared.b32 [%r3], %tid;
  bar.warp.sync -1;
  fence.proxy.async.shared::cta;
  bar.warp.sync -1;
  {store}
  cp.async.bulk.commit_group;
  {wait}
SYNC:
  bar.sync 0;
  @!%p0 bra DONE;
  st.shared.b32 [%r3], 0;
DONE:
"""


def reports(store: str = COPY, wait: str = WAIT.format(".read"), step: int = 128) -> Any:
    kernel = module(BODY.format(store=store, wait=wait, step=step))
    for schedule, seed in SCHEDULES:
        out = emulator.empty(1024, np.uint32)
        out[...] = 0
        options: dict[str, Any] = dict(schedule=schedule, seed=seed)
        yield options, out, kernel.launch("kernel", grid=1, block=64, args=[out], **options)


@pytest.mark.parametrize("read", [".read", ""])
def test_no_race_behind_every_lane_s_own_wait(read: str) -> None:
    for options, out, report in reports(wait=WAIT.format(read)):
        assert report.findings == [], options
        assert (out.reshape(32, 32) == np.arange(32)).all(), options
        assert report.bytes["tma store"] == 32 * 128


@pytest.mark.parametrize("step", [0, 128])
def test_no_race_where_one_lane_stores(step: int) -> None:
    for options, out, report in reports(store="@!%p2 bra SYNC;" + COPY, step=step):
        assert report.findings == [], options
        assert (out[:32] == np.arange(32)).all(), options
        assert report.bytes["tma store"] == 128


@pytest.mark.parametrize("read", [".read", ""])
@pytest.mark.parametrize("step", [0, 128])
@pytest.mark.parametrize("who", ["nobody", "lane 0", "the others"])
def test_a_race_where_a_lane_has_not_waited(who: str, step: int, read: str) -> None:
    guard = {"nobody": "", "lane 0": "@%p2 ", "the others": "@!%p2 "}[who]
    wait = guard + WAIT.format(read) if guard else ""
    found = [
        any(f.kind == "race" for f in report.findings)
        for options, _, report in reports(wait=wait, step=step)
        if options["schedule"] == "pct"
    ]
    assert all(found)


@pytest.mark.parametrize("read", [".read", ""])
def test_the_same_bytes_to_the_same_place_are_one_store(read: str) -> None:
    for options, out, report in reports(step=0, wait=WAIT.format(read)):
        assert report.findings == [], options
        assert (out[:32] == np.arange(32)).all(), options
        # Lanes that the schedule has parted execute the instruction apart.
        if options["schedule"] != "random":
            assert report.bytes["tma store"] == 128
            assert report.operations["tma store"] == 1


def test_the_same_box_to_the_same_place_is_one_store() -> None:
    body = BODY.format(store=TILE.replace("%out", "%rd2"), wait=WAIT.format(""), step=0)
    body = "mov.b64 %rd2, map; cvta.param.u64 %rd2, %rd2;" + body
    kernel = module(body, parameters=".param .u64 out, .param .align 64 .b8 map[128]")
    for schedule, seed in SCHEDULES:
        out = emulator.empty((4, 32), np.uint32)
        args: list[Any] = [out, emulator.TensorMap.encode(out, box=(32, 1), swizzle=0)]
        report = kernel.launch("kernel", grid=1, block=64, args=args, schedule=schedule, seed=seed)
        assert report.findings == []
        assert (out[0] == np.arange(32)).all()
        assert schedule == "random" or report.bytes["tma store"] == 128


def test_each_lane_s_reduction_counts() -> None:
    for options, out, _ in reports(store=ADD, step=0):
        assert (out[:32] == 32 * np.arange(32)).all(), options


def test_a_part_of_the_operands_differs() -> None:
    # The same place, from bytes that differ by lane: whose are there in the end is not known.
    differing = "st.shared.b32 [%r3 + 512], %tid; shl.b32 %r7, %tid, 4; add.u32 %r4, %r4, %r7;"
    narrow = COPY.replace("128;", "16;")
    for options, _, report in reports(store=differing + narrow, step=0, wait=WAIT.format("")):
        races = [f for f in report.findings if f.kind == "race" and "global" in f.message]
        assert races, options
