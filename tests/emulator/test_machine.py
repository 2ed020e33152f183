"""The machine: arithmetic, divergence, barriers, bulk copies, clusters; and what it refuses."""

from typing import Any

import numpy as np
import pytest

from jaxbw import emulator

from .ptx import STORE_R0, module

SCHEDULES = ["eager", "latest", "random", "pct"]


def run(
    body: str,
    *,
    block: int = 32,
    grid: int = 1,
    cluster: int = 1,
    data: Any = None,
    **options: Any,
) -> np.ndarray:
    """Runs a body that stores %r0 of each thread; returns what it stored."""
    out = emulator.empty(max(64, block * grid), np.uint32)
    out[...] = 0xDEAD
    if data is not None:
        out[: len(data)] = data
    report = module(body).launch(
        "kernel", grid=grid, block=block, cluster=cluster, args=[out], **options
    )
    assert report.findings == []
    return out


def float_bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


U32 = [
    ("add.u32 %r0, %tid, -1", lambda t: t - 1),
    ("mul.hi.u32 %r0, %r1, %r1", lambda t: (t * 0x9E3779B9 % 2**32) ** 2 >> 32),
    ("mad.lo.s32 %r0, %tid, 7, -3", lambda t: t * 7 - 3),
    ("mad24.lo.s32 %r0, %r2, 5, -7", lambda t: (t - 16) * 5 - 7),
    ("div.s32 %r0, %r2, 3", lambda t: int((t - 16) / 3)),
    ("rem.s32 %r0, %r2, 5", lambda t: int(np.fmod(t - 16, 5))),
    ("shl.b32 %r0, 1, %tid", lambda t: 1 << t),
    ("shr.s32 %r0, %r2, 40", lambda t: -1 if t < 16 else 0),
    ("min.s32 %r0, %r2, 3", lambda t: min(t - 16, 3)),
    ("bfe.u32 %r0, %r1, 4, 9", lambda t: (t * 0x9E3779B9 % 2**32) >> 4 & 0x1FF),
    ("bfe.s32 %r0, %r2, 0, 3", lambda t: (((t - 16) & 7) ^ 4) - 4),
    ("bfi.b32 %r0, %tid, -1, 8, 5", lambda t: (0xFFFFFFFF & ~(31 << 8)) | t << 8),
    ("lop3.b32 %r0, %r1, %tid, %r2, 0x96", lambda t: t * 0x9E3779B9 % 2**32 ^ t ^ (t - 16)),
    (
        "prmt.b32 %r0, %r1, %tid, 0x0123",
        lambda t: int.from_bytes((t * 0x9E3779B9 % 2**32).to_bytes(4, "little")),
    ),
    ("shf.l.wrap.b32 %r0, %r1, %tid, 8", lambda t: t << 8 | (t * 0x9E3779B9 % 2**32) >> 24),
    ("popc.b32 %r0, %tid", lambda t: t.bit_count()),
    ("clz.b32 %r0, %tid", lambda t: 32 - t.bit_length()),
    ("brev.b32 %r0, %tid", lambda t: int(f"{t:032b}"[::-1], 2)),
    ("bfind.u32 %r0, %tid", lambda t: t.bit_length() - 1),
    ("abs.s32 %r0, %r2", lambda t: abs(t - 16)),
    ("selp.b32 %r0, 5, %tid, %p0", lambda t: 5 if t < 7 else t),
    ("set.lt.u32.s32 %r0, %r2, -3", lambda t: 0xFFFFFFFF if t - 16 < -3 else 0),
    ("cvt.s32.s8 %r0, %r1", lambda t: ((t * 0x9E3779B9 & 255) ^ 128) - 128),
    ("cvt.rzi.s32.f32 %r0, %f0", lambda t: int((t - 16) * 0.75)),
    (
        "cvt.rni.f32.f32 %f1, %f0; mov.b32 %r0, %f1",
        lambda t: np.float32(np.rint((t - 16) * 0.75)).view(np.uint32),
    ),
    (
        "fma.rn.f32 %f1, %f0, %f0, 0f3F800000; mov.b32 %r0, %f1",
        lambda t: np.float32(((t - 16) * 0.75) ** 2 + 1).view(np.uint32),
    ),
    (
        "cvt.rn.bf16x2.f32 %r0, %f0, 0f3F800000",
        lambda t: (float_bits((t - 16) * 0.75) >> 16) << 16 | 0x3F80,
    ),
    # 1 + 2^-8 + 2^-9 and 1 + 2^-11 + 2^-12: upwards to nearest, off towards zero.
    ("cvt.rn.bf16x2.f32 %r0, 0f3F80C000, 0fBF80C000", lambda t: 0x3F81_BF81),
    ("cvt.rz.bf16x2.f32 %r0, 0f3F80C000, 0fBF80C000", lambda t: 0x3F80_BF80),
    ("cvt.rz.f16x2.f32 %r0, 0f3F801800, 0fBF801800", lambda t: 0x3C00_BC00),
    ("cvt.rz.relu.f16x2.f32 %r0, 0f3F801800, 0fBF801800", lambda t: 0x3C00_0000),
    ("cvt.rn.satfinite.f16x2.f32 %r0, 0f7F800000, 0fC77FF000", lambda t: 0x7BFF_FBFF),
    # The low half is subnormal in f16.
    ("mov.b32 %r0, 0x3C0003FF; add.ftz.f16x2 %r0, %r0, %r0", lambda t: 0x4000_0000),
    (
        "max.f32 %f1, %f0, 0f7FC00000; mov.b32 %r0, %f1",
        lambda t: np.float32((t - 16) * 0.75).view(np.uint32),
    ),
]


@pytest.mark.parametrize(
    ("instruction", "expected"), U32, ids=[row[0].split(" ")[0] for row in U32]
)
def test_arithmetic(instruction: str, expected: Any) -> None:
    out = run(
        f"""
        mul.lo.u32 %r1, %tid, 0x9E3779B9;
        sub.s32 %r2, %tid, 16;
        setp.lt.u32 %p0, %tid, 7;
        cvt.rn.f32.s32 %f0, %r2;
        mul.f32 %f0, %f0, 0f3F400000;
        {instruction};
        {STORE_R0}"""
    )
    assert out[:32].tolist() == [int(expected(t)) % 2**32 for t in range(32)]


def test_carries_go_on_to_the_next_word() -> None:
    out = run(f"add.cc.u32 %r1, %tid, 0xfffffff0; addc.u32 %r0, 0, 0; {STORE_R0}")
    assert out[:32].tolist() == [int(t >= 16) for t in range(32)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_loops_of_different_lengths(schedule: str) -> None:
    body = """
      mov.b32 %r0, 0;
      mov.b32 %r1, %tid;
    LOOP:
      setp.eq.u32 %p0, %r1, 0;
      @%p0 bra DONE;
      add.u32 %r0, %r0, %r1;
      sub.u32 %r1, %r1, 1;
      bra LOOP;
    DONE:
    """
    out = run(body + STORE_R0, block=64, schedule=schedule, seed=3)
    assert out[:64].tolist() == [t * (t + 1) // 2 for t in range(64)]


def test_indexed_branches() -> None:
    body = """
      and.b32 %r1, %tid, 3;
      TARGETS: .branchtargets A, B, C, B;
      brx.idx %r1, TARGETS;
    A: mov.b32 %r0, 10; bra END;
    B: mov.b32 %r0, 11; bra END;
    C: mov.b32 %r0, 12;
    END:
    """
    assert run(body + STORE_R0)[:8].tolist() == [10, 11, 12, 11] * 2


def test_inline_assembly_repeats_its_names() -> None:
    block = (
        "{ .reg .b32 %t; .reg .pred p; setp.lt.u32 p, %tid, 4; mov.b32 %t, 3; @p bra SKIP;"
        " mov.b32 %t, 5; SKIP: add.u32 %r0, %r0, %t; }"
    )
    out = run(f"mov.b32 %r0, 0; {block} {block} {STORE_R0}")
    assert out[:8].tolist() == [6] * 4 + [10] * 4


def test_a_lane_that_waits_for_another_lane_of_its_warp() -> None:
    """Lane 0 polls in front of the store of lane 1: taking the lowest pc first would hang."""
    body = f"""
      setp.ne.u32 %p0, %tid, 0;
      @%p0 bra OTHERS;
    POLL:
      ld.volatile.global.b32 %r0, [%out];
      setp.eq.u32 %p1, %r0, 0;
      @%p1 bra POLL;
      bra END;
    OTHERS:
      mov.b32 %r0, 9;
      setp.eq.u32 %p2, %tid, 1;
      @%p2 st.volatile.global.b32 [%out], %r0;
    END:
      {STORE_R0}"""
    for schedule in SCHEDULES:
        assert run(body, data=[0], schedule=schedule)[0] == 9


SLEEPER = """
  setp.ge.u32 %p0, %tid, 32;
  @%p0 bra POLL;
  setp.ne.u32 %p1, %tid, 0;
  @%p1 bra END;
  mbarrier.init.shared::cta.b64 [memory + 1024], 1;
  fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [memory + 1024], 16;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
      [memory], [%out], 16, [memory + 1024];
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [memory + 1024], 0;
  @!%p2 bra WAIT;
  mov.b32 %r1, 1;
  st.release.gpu.global.b32 [%out + 16], %r1;
  bra END;
POLL:
  nanosleep.u32 20;
  ld.acquire.gpu.global.b32 %r1, [%out + 16];
  setp.eq.u32 %p3, %r1, 0;
  @%p3 bra POLL;
END:
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_when_all_who_can_run_sleep_operations_go_on(schedule: str) -> None:
    """At once: a warp that sleeps says that it waits."""
    out = emulator.empty(64, np.uint32)
    out[...] = 0
    report = module(SLEEPER).launch("kernel", grid=1, block=128, args=[out], schedule=schedule)
    assert report.findings == []
    assert report.steps < (1000 if schedule in ("eager", "latest") else 100_000)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_elected_lane_goes_its_way_while_the_others_wait(schedule: str) -> None:
    body = """
      elect.sync %r1|%p0, 0xffffffff;
      mov.b32 %r0, 0;
      @!%p0 bra JOIN;
    LOOP:
      add.u32 %r0, %r0, 1;
      setp.lt.u32 %p1, %r0, 100;
      @%p1 bra LOOP;
    JOIN:
      bar.sync 0;
      shfl.sync.idx.b32 %r0, %r0, 0, 31, -1;
    """
    assert set(run(body + STORE_R0, schedule=schedule)[:32].tolist()) == {100}


def test_votes_and_shuffles() -> None:
    body = """
      setp.lt.u32 %p0, %tid, 5;
      vote.sync.ballot.b32 %r1, %p0, -1;
      shfl.sync.up.b32 %r2, %tid, 1, 0, -1;
      shfl.sync.bfly.b32 %r3|%p1, %tid, 16, 31, -1;
      shfl.sync.down.b32 %r4|%p2, %tid, 2, 0x1807, -1;
      redux.sync.add.u32 %r5, %tid, -1;
      add.u32 %r0, %r1, %r2;
      add.u32 %r0, %r0, %r3;
      add.u32 %r0, %r0, %r4;
      add.u32 %r0, %r0, %r5;
    """
    down = [t + 2 if t % 8 < 6 else t for t in range(32)]
    expected = [31 + max(t - 1, 0) + (t ^ 16) + down[t] + 496 for t in range(32)]
    assert run(body + STORE_R0)[:32].tolist() == expected


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_named_barriers_join_some_of_the_warps(schedule: str) -> None:
    body = """
      mov.b32 %r0, 0;
      setp.ge.u32 %p0, %tid, 64;
      @%p0 bra END;
      shl.b32 %r1, %tid, 2;
      add.u32 %r1, %r1, %shared;
      st.shared.b32 [%r1], %tid;
      bar.sync 3, 64;
      xor.b32 %r2, %tid, 32;
      shl.b32 %r2, %r2, 2;
      add.u32 %r2, %r2, %shared;
      ld.shared.b32 %r0, [%r2];
    END:
    """
    out = run(body + STORE_R0, block=96, schedule=schedule, seed=2)
    assert out[:96].tolist() == [t ^ 32 for t in range(64)] + [0] * 32


PING_PONG = """
  setp.ne.u32 %p0, %tid, 0;
  @%p0 bra READY;
  mbarrier.init.shared::cta.b64 [memory + 1024], 32;
  mbarrier.init.shared::cta.b64 [memory + 1032], 32;
READY:
  bar.sync 0;
  mov.b32 %r9, 0;
  setp.ge.u32 %p1, %tid, 32;
  @%p1 bra CONSUMER;
PRODUCER:
  and.b32 %r8, %r9, 1;
  xor.b32 %r7, %r8, 1;
EMPTY:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [memory + 1032], %r7;
  @!%p2 bra EMPTY;
  shl.b32 %r1, %tid, 2;
  add.u32 %r1, %r1, %shared;
  add.u32 %r2, %r9, %tid;
  st.shared.b32 [%r1], %r2;
  mbarrier.arrive.shared::cta.b64 _, [memory + 1024];
  add.u32 %r9, %r9, 1;
  setp.lt.u32 %p3, %r9, 10;
  @%p3 bra PRODUCER;
  mov.b32 %r0, 0;
  bra END;
CONSUMER:
  mov.b32 %r0, 0;
NEXT:
  and.b32 %r8, %r9, 1;
FULL:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [memory + 1024], %r8;
  @!%p2 bra FULL;
  sub.u32 %r1, %tid, 32;
  shl.b32 %r1, %r1, 2;
  add.u32 %r1, %r1, %shared;
  ld.shared.b32 %r2, [%r1];
  add.u32 %r0, %r0, %r2;
  mbarrier.arrive.shared::cta.b64 _, [memory + 1032];
  add.u32 %r9, %r9, 1;
  setp.lt.u32 %p3, %r9, 10;
  @%p3 bra NEXT;
END:
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_mbarriers_hand_a_buffer_to_and_fro(schedule: str) -> None:
    out = run(PING_PONG + STORE_R0, block=64, schedule=schedule, seed=11)
    assert out[32:64].tolist() == [45 + 10 * t for t in range(32)]


EACH_HALF_WAITS_FOR_ITS_OWN = """
  setp.ne.u32 %p0, %tid, 0;
  @%p0 bra READY;
  mbarrier.init.shared::cta.b64 [memory + 1024], 1;
  mbarrier.init.shared::cta.b64 [memory + 1032], 1;
READY:
  bar.sync 0;
  setp.ge.u32 %p1, %tid, 32;
  @%p1 bra ARRIVE;
  and.b32 %r1, %tid, 8;
  add.u32 %r1, %r1, %shared;
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1 + 1024], 0;
  @!%p2 bra WAIT;
  mov.b32 %r0, 1;
  bra END;
ARRIVE:
  setp.ne.u32 %p0, %tid, 32;
  @!%p0 mbarrier.arrive.shared::cta.b64 _, [memory + 1024];
  @!%p0 mbarrier.arrive.shared::cta.b64 _, [memory + 1032];
  mov.b32 %r0, 2;
END:
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lanes_wait_for_different_mbarriers_at_one_instruction(schedule: str) -> None:
    """They were parted and joined again for ever, where both could run and no lanes part by chance.

    A run of the sweep stood still for it: the loading warp of a kernel, one lane of it a stage
    behind the others, each group with nothing left to wait for (sm100 tf32, 512 x 179 x 153,
    clusters of 2x2, schedule "random 3").
    """
    for seed in range(8):
        out = run(
            EACH_HALF_WAITS_FOR_ITS_OWN + STORE_R0,
            block=64,
            schedule=schedule,
            seed=seed,
            step_limit=100_000,
        )
        assert out.tolist() == [1] * 32 + [2] * 32


TMA = """
.version 9.0
.target sm_100f
.address_size 64
.visible .entry kernel(.param .align 64 .b8 from[128], .param .align 64 .b8 to[128])
{
  .reg .pred %p<4>;
  .reg .b16 %h<2>;
  .reg .b32 %r<8>;
  .reg .b64 %rd<4>;
  .shared .align 1024 .b8 memory[4096];
  mov.b64 %rd1, from;  cvta.param.u64 %rd1, %rd1;
  mov.b64 %rd2, to;    cvta.param.u64 %rd2, %rd2;
  mov.u32 %r1, %tid.x;
  mov.u32 %r5, %cluster_ctarank;
  mov.u32 %r6, %clusterid.x;
  setp.ne.u32 %p0, %r1, 0;
  @%p0 bra READY;
  mbarrier.init.shared::cta.b64 [memory + 2048], 1;
  fence.mbarrier_init.release.cluster;
READY:
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  @%p0 bra END;
  shl.b32 %r2, %r6, 3;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [memory + 2048], 1024;
  setp.ne.u32 %p1, %r5, 0;
  mov.b16 %h1, 3;
  @%p1 bra WAIT;
  cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
        [memory], [%rd1, {-4, %r2}], [memory + 2048], %h1;
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [memory + 2048], 0;
  @!%p2 bra WAIT;
  shl.b32 %r3, %r6, 1;
  add.u32 %r3, %r3, %r5;
  shl.b32 %r3, %r3, 3;
  cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd2, {0, %r3}], [memory];
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group.read 0;
END:
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  ret;
}
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("swizzle", [0, 128])
def test_a_multicast_load_fills_both_ctas(schedule: str, swizzle: int) -> None:
    source = emulator.empty((24, 40), np.float32)
    source[...] = np.arange(source.size).reshape(source.shape)
    result = emulator.empty((64, 32), np.float32)
    result[...] = -1
    maps = [emulator.TensorMap.encode(x, box=(32, 8), swizzle=swizzle) for x in (source, result)]
    report = emulator.Module(TMA).launch(
        "kernel", grid=8, block=32, cluster=2, args=maps, schedule=schedule, seed=4, sm_count=4
    )
    assert report.findings == []
    padded = np.zeros((32, 32), np.float32)
    padded[:24, 4:] = source[:, :28]
    expected = np.repeat(padded.reshape(4, 1, 8, 32), 2, axis=1).reshape(64, 32)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_small_asynchronous_copies(schedule: str) -> None:
    body = """
      mul.wide.u32 %rd1, %tid, 4;
      add.u64 %rd1, %out, %rd1;
      shl.b32 %r1, %tid, 2;
      add.u32 %r1, %r1, %shared;
      cp.async.ca.shared.global [%r1], [%rd1], 4;
      cp.async.commit_group;
      setp.lt.u32 %p0, %tid, 16;
      selp.u32 %r2, 4, 0, %p0;
      cp.async.ca.shared.global [%r1 + 128], [%rd1], 4, %r2;
      cp.async.commit_group;
      cp.async.wait_group 1;
      ld.shared.b32 %r3, [%r1];
      cp.async.wait_all;
      ld.shared.b32 %r4, [%r1 + 128];
      add.u32 %r0, %r3, %r4;
    """
    out = run(body + STORE_R0, data=list(range(32)), schedule=schedule)
    assert out[:32].tolist() == [t + t * (t < 16) for t in range(32)]


def test_distributed_shared_memory() -> None:
    body = """
      mov.u32 %r5, %cluster_ctarank;
      shl.b32 %r1, %tid, 2;
      add.u32 %r1, %r1, %shared;
      mad.lo.u32 %r2, %r5, 100, %tid;
      st.shared.b32 [%r1], %r2;
      barrier.cluster.arrive.aligned;
      barrier.cluster.wait.aligned;
      xor.b32 %r6, %r5, 1;
      mapa.shared::cluster.u32 %r3, %r1, %r6;
      ld.shared::cluster.b32 %r0, [%r3];
      barrier.cluster.arrive.aligned;
      barrier.cluster.wait.aligned;
      mov.u32 %r7, %ctaid.x;
      shl.b32 %r7, %r7, 5;
      add.u32 %tid, %tid, %r7;
    """
    out = run(body + STORE_R0, grid=2, cluster=2)
    assert out[:64].tolist() == [100 + t for t in range(32)] + list(range(32))


ASYNC_STORE = """
  setp.eq.u32 %p0, %tid, 0;
  @%p0 mbarrier.init.shared::cta.b64 [memory + 1024], 1;
  @%p0 fence.mbarrier_init.release.cluster;
  barrier.cluster.arrive.relaxed.aligned;
  barrier.cluster.wait.acquire.aligned;
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [memory + 1024], 512;
  bar.warp.sync -1;
  mov.u32 %r5, %cluster_ctarank;
  xor.b32 %r6, %r5, 1;
  mapa.shared::cluster.u32 %r3, %shared, %r6;
  mad.lo.u32 %r4, %tid, 16, %r3;
  mad.lo.u32 %r1, %r5, 100, %tid;
  st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32
    [%r4], {%r1, %r5, %r5, %r1}, [%r3 + 1024];
WAIT:
  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [memory + 1024], 0;
  @!%p1 bra WAIT;
  mad.lo.u32 %r4, %tid, 16, %shared;
  ld.shared.v4.b32 {%r0, %r1, %r2, %r3}, [%r4];
  mad.lo.u32 %tid, %r5, 32, %tid;
"""


@pytest.mark.parametrize(("schedule", "seed"), [("eager", 0), ("latest", 0), ("random", 3)])
def test_async_stores_reach_a_peer(schedule: str, seed: int) -> None:
    out = run(ASYNC_STORE + STORE_R0, grid=2, cluster=2, schedule=schedule, seed=seed)
    assert out[:64].tolist() == [100 + t for t in range(32)] + list(range(32))


@pytest.mark.parametrize(
    ("of", "to", "message"),
    [
        ("[%r4], {", "[%r4 + 8], {", "no multiple of 16"),
        ("[%r3 + 1024];\nWAIT", "[%shared + 1024];\nWAIT", "the mbarrier must lie in the CTA that"),
    ],
)
def test_async_stores_that_go_astray(of: str, to: str, message: str) -> None:
    with pytest.raises(emulator.EmulatorError, match=message):
        run(ASYNC_STORE.replace(of, to) + STORE_R0, grid=2, cluster=2)


def test_atomics_of_all_threads() -> None:
    out = run(
        "atom.global.add.u32 %r1, [%out], 1; atom.global.max.u32 %r2, [%out + 4], %tid;"
        "red.global.add.u32 [%out + 8], 2;",
        block=128,
        grid=3,
        data=[0, 0, 0],
        schedule="random",
    )
    assert out[:3].tolist() == [384, 127, 768]


REFUSED = [
    ("frobnicate.b32 %r0, %r1;", "PTX has no 'frobnicate.b32'"),
    ("add.frob.u32 %r0, %r1, %r2;", "has the modifier .frob: PTX has no such modifier"),
    ("add.u32 %r0, %r1;", "takes 3 operands, not 2"),
    ("add.u32 %r0, %r1, %rd1;", "'%rd1' is .b64 where .u32 is meant"),
    ("add.u32 %r0, %r1, %nope;", "unknown special register '%nope'"),
    ("bra NOWHERE;", "'NOWHERE' is not declared"),
    ("ld.global.b32 %r0, %rd1;", "must be an address"),
    ("{ L: bra L; L: }", "defined twice"),
    ("mov.u32 %r0, 12abc;", "malformed number"),
    (
        "tcgen05.mma.cta_group::1.kind::i8 [%r0], %rd0, %rd1, %r1, %p0;",
        "has the modifier .kind::i8, which the emulator does not know here",
    ),
]


@pytest.mark.parametrize(("body", "message"), REFUSED)
def test_what_is_not_known_is_refused_with_its_line(body: str, message: str) -> None:
    with pytest.raises(emulator.EmulatorError, match=message) as caught:
        module(body).launch("kernel", grid=1, block=32, args=[emulator.empty(64, np.uint32)])
    assert str(caught.value).startswith("kernel.ptx:17: ")


def test_every_opcode_has_a_section_and_is_reached() -> None:
    from jaxbw._native import emulator as core

    mnemonics = [row[0] for row in core.opcodes()]
    assert len(set(mnemonics)) == len(mnemonics)
    assert all(row[3] and row[3][0] == "9" for row in core.opcodes())


BESIDE = """
.version 9.0
.target sm_100f
.address_size 64
.extern .shared .align 16 .b8 narrow[];
.extern .shared .align 1024 .b8 wide[];
.visible .entry kernel(.param .u64 out)
{
  .reg .b32 %r<8>;
  .reg .b64 %out;
  .shared .align 4 .b8 fixed[20];
  ld.param.u64 %out, [out];
  mov.u32 %r0, fixed;
  mov.u32 %r1, narrow;
  mov.u32 %r2, NAME;
  st.shared.b32 [%r0 + 16], 5;
  st.shared.b32 [%r2 + LAST], 7;
  ld.shared.b32 %r3, [%r1 + LAST];
  ld.shared.b32 %r4, [%r0 + 16];
  st.global.v4.b32 [%out], {%r1, %r2, %r3, %r4};
  ret;
}
"""


@pytest.mark.parametrize(("name", "begin"), [("wide", 1024), ("narrow", 32)])
def test_dynamic_shared_memory_begins_aligned_behind_what_is_static(name: str, begin: int) -> None:
    # Under every name at the same place; a name that the kernel does not use is no concern of it.
    size = 232448 - begin  # all that there is

    def launch(last: int, size: int) -> Any:
        kernel = emulator.Module(BESIDE.replace("NAME", name).replace("LAST", str(last)))
        out = emulator.empty(4, np.uint32)
        report = kernel.launch("kernel", grid=1, block=1, args=[out], dynamic_smem=size)
        assert report.findings == []
        return out

    assert launch(size - 4, size).tolist() == [0x400 + begin, 0x400 + begin, 7, 5]
    with pytest.raises(emulator.EmulatorError, match="out-of-bounds"):
        launch(size, size)
    with pytest.raises(emulator.EmulatorError, match="bytes of shared memory"):
        launch(0, size + 1)


def test_the_launch_is_checked() -> None:
    kernel = module("")
    out = emulator.empty(64, np.uint32)
    cases: list[tuple[dict[str, Any], str]] = [
        (dict(grid=3, block=32, cluster=2), "the grid is not a multiple of the cluster"),
        (dict(grid=1, block=2000), "1 to 1024 threads"),
        (dict(grid=1, block=32, dynamic_smem=300000), "bytes of shared memory"),
    ]
    for options, message in cases:
        with pytest.raises(emulator.EmulatorError, match=message):
            kernel.launch("kernel", args=[out], **options)
    with pytest.raises(ValueError, match="has 1 parameters, but 0 arguments"):
        kernel.launch("kernel", grid=1, block=1)


def test_the_same_seed_runs_the_same() -> None:
    counts = {
        tuple(
            module(PING_PONG + STORE_R0)
            .launch(
                "kernel",
                grid=1,
                block=64,
                args=[emulator.empty(64, np.uint32)],
                schedule="random",
                seed=9,
            )
            .waits.items()
        )
        for _ in range(3)
    }
    assert len(counts) == 1
