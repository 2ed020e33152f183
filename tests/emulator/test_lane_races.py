"""Races between lanes of one warp: what only bar.warp.sync orders, and its absence."""

import numpy as np
import pytest

from jaxbw import emulator

from .ptx import module

ALL = "bar.warp.sync -1;"
# These make the lanes wait for each other too, but order no memory (PTX 9.7.13.2).
NO_ORDER = {
    "nothing": "",
    "elect.sync": "elect.sync _|%p9, -1;",
    "shfl.sync": "shfl.sync.idx.b32 %r9, %tid, 0, 31, -1;",
    "vote.sync": "vote.sync.ballot.b32 %r9, %p0, -1;",
    "setmaxnreg": "setmaxnreg.inc.sync.aligned.u32 64;",
}
# %r0: a word of shared memory for each thread; %r1: that of a neighbour in the warp.
WORDS = """
  shl.b32 %r0, %tid, 2;
  add.u32 %r0, %r0, %shared;
  xor.b32 %r1, %r0, 4;
  setp.eq.u32 %p0, %tid, 0;
  and.b32 %r2, %tid, 31;
  setp.eq.u32 %p1, %r2, 0;
  setp.lt.u32 %p2, %tid, 32;
"""
BARRIERS = """
  @%p0 mbarrier.init.shared::cta.b64 [memory + 1024], 1;
  @%p0 mbarrier.init.shared::cta.b64 [memory + 1032], 32;
  @%p0 fence.mbarrier_init.release.cluster;
  bar.sync 0;
"""
AWAIT = """
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p5, [memory + {}], 0;
  @!%p5 bra WAIT;
"""
# Lanes write a box, one stores it.
STAGED = (
    WORDS
    + """
  st.shared.b32 [%r0], %tid;
  fence.proxy.async.shared::cta;
  {}
  elect.sync _|%p3, -1;
  @!%p3 bra END;
  cp.async.bulk.global.shared::cta.bulk_group [%out], [memory], 128;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
END:
"""
)
# One lane knows that the store has read the box, and all write it anew.
REUSED = (
    WORDS
    + """
  st.shared.b32 [%r0], %tid;
  fence.proxy.async.shared::cta;
  bar.warp.sync -1;
  @!%p0 bra STORED;
  cp.async.bulk.global.shared::cta.bulk_group [%out], [memory], 128;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group.read 0;
STORED:
  {}
  st.shared.b32 [%r0], 1;
"""
)
# Warp 0 reads, one of its lanes arrives; warp 1 waits and writes.
ARRIVES = (
    WORDS
    + "@%p2 st.shared.b32 [%r0], 1;"
    + BARRIERS
    + """
  @!%p2 bra WAIT;
  ld.shared.b32 %r3, [%r0];
  {}
  @%p0 mbarrier.arrive.shared::cta.b64 _, [memory + 1024];
  bra END;
"""
    + AWAIT.replace("{}", "1024")
    + """
  add.u32 %r0, %r0, -128;
  st.shared.b32 [%r0], 2;
END:
"""
)
# Warp 1 writes and arrives; one lane of warp 0 waits, all its lanes read.
WAITS = (
    WORDS
    + BARRIERS
    + """
  @%p2 bra READ;
  add.u32 %r0, %r0, -128;
  st.shared.b32 [%r0], 2;
  mbarrier.arrive.shared::cta.b64 _, [memory + 1032];
  bra END;
READ:
  @!%p0 bra KNOWN;
"""
    + AWAIT.replace("{}", "1032")
    + """
KNOWN:
  {}
  ld.shared.b32 %r3, [%r0];
END:
"""
)
# Warp 0 loads from tensor memory, one of its lanes arrives; warp 1 waits and frees it.
DRAINED = (
    WORDS
    + BARRIERS
    + """
  @!%p2 bra END;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [memory + 2048], 32;
END:
  bar.sync 0;
  ld.shared.b32 %r4, [memory + 2048];
  @!%p2 bra WAIT;
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4], {{%tid}};
  tcgen05.wait::st.sync.aligned;
  tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r3}}, [%r4];
  tcgen05.wait::ld.sync.aligned;
  tcgen05.fence::before_thread_sync;
  {}
  @%p0 mbarrier.arrive.shared::cta.b64 _, [memory + 1024];
  bra FREED;
"""
    + AWAIT.replace("{}", "1024")
    + """
  tcgen05.fence::after_thread_sync;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 32;
FREED:
"""
)
# Two CTAs leave 16 bytes of each lane; the last one, as lane 0 counts, reads those of the first.
SUMMED = """
  mul.wide.u32 %rd0, %tid, 16;
  add.u64 %rd0, %rd0, %out;
  mov.u32 %r2, %ctaid.x;
  mul.wide.u32 %rd1, %r2, 512;
  add.u64 %rd2, %rd0, %rd1;
  st.global.v4.b32 [%rd2], {{%tid, %tid, %tid, %tid}};
  {}
  mov.u32 %r0, 0;
  setp.eq.u32 %p0, %tid, 0;
  @%p0 atom.acq_rel.gpu.global.add.u32 %r0, [%out + 1024], 1;
  shfl.sync.idx.b32 %r1, %r0, 0, 31, -1;
  setp.eq.u32 %p1, %r1, 1;
  {}
  @!%p1 bra END;
  ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd0];
  ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd0 + 512];
END:
"""
# 16 bytes of global memory for each lane, and those of a neighbour.
GLOBAL = """
  shl.b32 %r0, %tid, 4;
  xor.b32 %r1, %r0, 16;
  cvt.u64.u32 %rd0, %r0;
  cvt.u64.u32 %rd1, %r1;
  add.u64 %rd0, %rd0, %out;
  add.u64 %rd1, %rd1, %out;
  st.global.v4.b32 [%rd0], {{%tid, %tid, %tid, %tid}};
  {}
  ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd1];
"""


def lines(*instructions: str) -> str:
    """Instructions, a line each: those of one line count as one."""
    return "\n".join(instructions)


def races(body: str, threads: int = 32, grid: int = 1, schedule: str = "latest") -> set[str]:
    """The kinds of findings of a kernel."""
    out = emulator.empty(512, np.uint32)
    out[:] = 0
    report = module(body).launch(
        "kernel",
        grid=grid,
        block=threads,
        args=[out],
        schedule=schedule,
        seed=3,
    )
    return {finding.kind for finding in report.findings}


@pytest.mark.parametrize("instead", NO_ORDER)
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("st.shared.b32 [%r0], %tid;", "ld.shared.b32 %r3, [%r1];"),
        ("st.shared.b32 [%r0], %tid;", "st.shared.b32 [%r1], 1;"),
        ("st.shared.b32 [%r0], %tid; ld.shared.b32 %r3, [%r0];", "st.shared.b32 [%r1], 1;"),
        ("st.shared.b32 [%r0], %tid;", "ld.shared.b16 %h0, [%r1];"),
    ],
    ids=["read of a write", "write of a write", "write of a read", "read of half a word"],
)
def test_lanes_of_a_warp_race(first: str, then: str, instead: str) -> None:
    assert races(lines(WORDS, first, NO_ORDER[instead], then)) == {"race"}
    assert races(lines(WORDS, first, ALL, then)) == set()
    assert races(lines(WORDS, first, "bar.sync 0;", then), threads=64) == set()
    assert races(lines(WORDS, first, then.replace("%r1", "%r0"))) == set()  # its own word


@pytest.mark.parametrize("schedule", ["latest", "random"])
@pytest.mark.parametrize("instead", NO_ORDER)
@pytest.mark.parametrize(
    ("body", "threads"),
    [(STAGED, 32), (REUSED, 32), (ARRIVES, 64), (WAITS, 64), (DRAINED, 64), (GLOBAL, 32)],
    ids=[
        "one lane stores what all wrote",
        "one lane waits for the store to read",
        "one lane arrives for all readers",
        "one lane waits for all readers",
        "one lane arrives for all that load from tensor memory",
        "global memory",
    ],
)
def test_one_lane_acts_for_its_warp_behind_a_barrier(
    body: str, threads: int, instead: str, schedule: str
) -> None:
    assert races(body.format(NO_ORDER[instead]), threads, schedule=schedule) == {"race"}
    assert races(body.format(ALL), threads, schedule=schedule) == set()


@pytest.mark.parametrize("schedule", ["latest", "random"])
def test_one_lane_counts_sums_for_its_warp(schedule: str) -> None:
    assert races(SUMMED.format("", ALL), grid=2, schedule=schedule) == {"race"}
    assert races(SUMMED.format(ALL, ""), grid=2, schedule=schedule) == {"race"}
    assert races(SUMMED.format(ALL, ALL), grid=2, schedule=schedule) == set()


def test_what_one_instruction_does_in_several_lanes_is_no_race_of_theirs() -> None:
    assert races("st.shared.b32 [memory], 1;") == set()


def test_lanes_that_arrive_each_for_itself_need_no_barrier() -> None:
    every = ARRIVES.replace("[memory + 1024], 1;", "[memory + 1024], 32;").replace(
        "@%p0 mbarrier.arrive", "mbarrier.arrive"
    )
    assert races(every.format(""), threads=64) == set()


def test_the_fence_of_a_relaxed_arrival_stands_behind_the_barrier() -> None:
    """Found in the sm_100 kernel, whose lanes fenced their reads of a response, met, and let one
    arrive: a relaxed arrival releases what is before the fence of its own thread (PTX 8.9.3).
    """
    body = ARRIVES.replace("mbarrier.arrive.", "mbarrier.arrive.relaxed.cta.")
    fence = "fence.release.cta;"
    assert races(body.format(fence + ALL), threads=64) == {"race"}
    assert races(body.format(ALL + fence), threads=64) == set()


def test_a_fence_of_one_lane_releases_nothing_of_the_others() -> None:
    """The detector once took it for one of the warp, where all lanes then arrived, relaxed."""
    body = ARRIVES.replace("[memory + 1024], 1;", "[memory + 1024], 32;").replace(
        "@%p0 mbarrier.arrive.", "mbarrier.arrive.relaxed.cta."
    )
    assert races(body.format("@%p0 fence.release.cta;"), threads=64) == {"race"}
    assert races(body.format("fence.release.cta;"), threads=64) == set()


def test_a_race_of_lanes_names_them() -> None:
    out = emulator.empty(64, np.uint32)
    body = lines(WORDS, "st.shared.b32 [%r0], %tid;", "ld.shared.b32 %r3, [%r1];")
    report = module(body).launch("kernel", grid=1, block=32, args=[out])
    assert report.findings[0].message.startswith(
        "a read of shared memory at 0x404 by CTA (0,0,0) warp 0 lane 0 is not ordered after the "
        "write by CTA (0,0,0) warp 0 lane 1 at line "
    )
