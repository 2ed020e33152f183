"""Orders that only one instruction gives: without it there is a finding, with it there is none.

These are what mutation testing of our kernels (mutation.py) depends on.
"""

import numpy as np
import pytest

from jaxbw import emulator

from .ptx import STORE_R0, module

LOADED = """
  mbarrier.init.shared::cta.b64 [memory + 1024], 1;
  fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [memory + 1024], 256;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
    [memory], [%out], 256, [memory + 1024];
WAIT:
  mbarrier.try_wait.parity{}.shared::cta.b64 %p1, [memory + 1024], 0;
  @!%p1 bra WAIT;
"""
# 4 x 256 bits from `memory` (0x400): two columns of core matrices, 128 bytes apart
COPIED = """
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [memory + 2048], 32;
  ld.shared.b32 %r1, [memory + 2048];
  elect.sync _|%p0, -1;
  @!%p0 bra END;
{loaded}
  {fence}
  mov.b64 %rd1, 0x0000400800080040;
  tcgen05.cp.cta_group::1.4x256b [%r1], %rd1;
  mbarrier.init.shared::cta.b64 [memory + 1032], 1;
  fence.mbarrier_init.release.cluster;
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [memory + 1032];
COPY:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [memory + 1032], 0;
  @!%p1 bra COPY;
  tcgen05.fence::after_thread_sync;
END:
  bar.warp.sync -1;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 32;
"""
SENT = """
  setp.ne.u32 %p0, %tid, 0;
  @%p0 bra END;
  mbarrier.init.shared::cta.b64 [memory + 1024], 1;
  fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [memory + 1024], 4;
  st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [memory], 7, [memory + 1024];
  {}
WAIT:
  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [memory + 1024], 0;
  @!%p1 bra WAIT;
  {}
END:
"""
STORED = """
  shl.b32 %r0, %tid, 2;
  add.u32 %r0, %r0, %shared;
  st.shared.b32 [%r0], %tid;
  bar.warp.sync -1;
  setp.gt.u32 %p0, %tid, 15;
  @%p0 bra UPPER;
  st.shared.b32 [%r0], 1;
  bra STORE;
UPPER:
  st.shared.b32 [%r0], 2;
STORE:
  {fence}
  {sync}
  setp.ne.u32 %p0, %tid, 0;
  @%p0 bra END;
  cp.async.bulk.global.shared::cta.bulk_group [%out], [memory], 128;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
END:
"""
MULTIPLIED = """
  shl.b32 %r0, %tid, 5;
  add.u32 %r0, %r0, %shared;
  st.shared.v4.b32 [%r0], {{%tid, %tid, %tid, %tid}};
  st.shared.v4.b32 [%r0 + 16], {{%tid, %tid, %tid, %tid}};
  fence.proxy.async.shared::cta;
  bar.sync 0;
  mov.b64 %rd1, 0x0000000800080040;
  setp.ne.u32 %p0, %tid, %tid;
  {}
  wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16
    {{%f0, %f1, %f2, %f3}}, %rd1, %rd1, %p0, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
"""
# Two products in turn: the sums of the first are used while the second is under way.
IN_TURN = MULTIPLIED.replace(
    "  wgmma.wait_group.sync.aligned 0;\n",
    """
  wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16
    {{%f4, %f5, %f6, %f7}}, %rd1, %rd1, %p0, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 1;
  {}
  wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16
    {{%f0, %f1, %f2, %f3}}, %rd1, %rd1, %p0, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
""",
)
USED = "add.f32 %f8, %f8, %f3;"
FENCE = "wgmma.fence.sync.aligned;"
# Four warps copy what they multiply.
COPIED_BY_THREADS = """
  shl.b32 %r0, %tid, 4;
  add.u32 %r0, %r0, %shared;
  setp.ne.u32 %p0, %tid, 0;
  @%p0 bra READY;
  mbarrier.init.shared::cta.b64 [memory + 3072], 128;
  fence.mbarrier_init.release.cluster;
READY:
  bar.sync 0;
  mul.wide.u32 %rd2, %tid, 0;
  add.u64 %rd2, %rd2, %out;
  cp.async.cg.shared.global [%r0], [%rd2], 16;
  cp.async.cg.shared.global [%r0 + 2048], [%rd2], 16, 0;
  {told}
  {fence}
  mov.b64 %rd1, 0x0000000800080040;
  setp.ne.u32 %p0, %tid, %tid;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16
    {{%f0, %f1, %f2, %f3}}, %rd1, %rd1, %p0, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
"""
BY_BARRIER = """
  cp.async.mbarrier.arrive.noinc.shared::cta.b64 [memory + 3072];
WAIT:
  mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p1, [memory + 3072], 0;
  @!%p1 bra WAIT;
"""
BY_GROUP = "cp.async.commit_group; cp.async.wait_group 0; {} bar.sync 0;"
PROXY = "fence.proxy.async.shared::cta;"
AFTER = "tcgen05.fence::after_thread_sync;"
CASES = [
    pytest.param(
        LOADED.format(".relaxed.cluster") + "ld.shared.b32 %r0, [memory];" + STORE_R0,
        LOADED.format(".acquire.cta") + "ld.shared.b32 %r0, [memory];" + STORE_R0,
        "race",
        1,
        id="a relaxed wait makes nothing visible",
    ),
    pytest.param(
        COPIED.format(loaded=LOADED.format(""), fence=""),
        COPIED.format(loaded=LOADED.format(""), fence=AFTER),
        "race",
        32,
        id="the tensor core knows of a wait by fence::after_thread_sync",
    ),
    pytest.param(
        STORED.format(fence=PROXY, sync=""),
        STORED.format(fence=PROXY, sync="bar.warp.sync -1;"),
        "race",
        32,
        id="a lane stores what others have yet to write",
    ),
    pytest.param(
        STORED.format(
            fence="fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;",
            sync="bar.warp.sync -1;",
        ),
        STORED.format(fence=PROXY, sync="bar.warp.sync -1;"),
        "race",
        32,
        id="an acquiring proxy fence hands nothing on",
    ),
    pytest.param(
        MULTIPLIED.format(""),
        MULTIPLIED.format(FENCE),
        "wgmma",
        128,
        id="wgmma needs a fence",
    ),
    pytest.param(
        IN_TURN.format(FENCE, USED),
        IN_TURN.format(FENCE, USED + FENCE),
        "wgmma",
        128,
        id="and another one where its registers were used",
    ),
    pytest.param(
        IN_TURN.format(FENCE, USED),
        IN_TURN.format(FENCE, "add.f32 %f8, %f8, %f9;"),
        "wgmma",
        128,
        id="not where others were",
    ),
    pytest.param(
        COPIED_BY_THREADS.format(told=BY_BARRIER, fence=""),
        COPIED_BY_THREADS.format(told=BY_BARRIER, fence=PROXY),
        "race",
        128,
        id="wgmma reads what threads have copied behind a fence of who waits for them",
    ),
    pytest.param(
        COPIED_BY_THREADS.format(told=BY_GROUP.format(""), fence=""),
        COPIED_BY_THREADS.format(told=BY_GROUP.format(PROXY), fence=""),
        "race",
        128,
        id="or of who has copied it",
    ),
    pytest.param(
        SENT.format("ld.shared.b32 %r0, [memory];", ""),
        SENT.format("", "ld.shared.b32 %r0, [memory];"),
        "race",
        32,
        id="a read waits for an async store",
    ),
]


@pytest.mark.parametrize(("bad", "good", "kind", "threads"), CASES)
def test_order(bad: str, good: str, kind: str, threads: int) -> None:
    def kinds(body: str) -> set[str]:
        found: set[str] = set()
        schedules = [("latest", 0), *(("random", seed) for seed in range(40))]
        for schedule, seed in schedules:
            out = emulator.empty(256, np.uint32)
            out[...] = 1
            report = module(body).launch(
                "kernel", grid=1, block=threads, args=[out], schedule=schedule, seed=seed
            )
            found |= {finding.kind for finding in report.findings}
        return found

    assert kinds(bad) == {kind}
    assert kinds(good) == set()
