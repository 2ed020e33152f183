"""What compilers for sm_100 emit, one instruction each: taken, or refused as a gap of the emulator.

What is taken is only decoded here; other tests, and those at the end, ask what it does.
"""

import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxbw import emulator

from .ptx import STORE_R0, module

# ruff: noqa: E501 -- an instruction is a line
TAKEN = """
redux.sync.max.f32 %f1, %f0, -1;
redux.sync.min.abs.NaN.f32 %f1, %f0, -1;
sub.rn.f32.f16 %f1, %h0, %f0;
add.f32.bf16 %f1, %h0, %f0;
fma.rn.f32.f16 %f1, %h0, %h1, %f0;
cvt.rn.satfinite.e4m3x2.f32 %h0, %f0, %f1;
cvt.rn.f16x2.e4m3x2 %r0, %h0;
cvt.rn.satfinite.e2m1x2.f32 %b0, %f0, %f1;
cvt.rp.satfinite.ue8m0x2.f32 %h0, %f0, %f1;
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, {%r4,%r5}, {%f0,%f1,%f2,%f3};
atom.global.add.noftz.bf16 %h0, [%rd0], %h1;
add.rn.f32x2 %rd1, %rd2, %rd3;
fma.rn.f32x2 %rd1, %rd2, %rd3, %rd1;
ex2.approx.ftz.bf16x2 %r0, %r1;
tanh.approx.bf16x2 %r0, %r1;
max.f32 %f0, %f1, %f2, %f3;
tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r0], %rd1;
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd0], [%r0], 128;
fence.proxy.tensormap::generic.acquire.gpu [%rd0], 128;
cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes [%r0], [%rd0, {%r1,%r2,%r3,%r4,%r5}], [%r4];
cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r0], [%r1], 16, [%r2];
tcgen05.cp.cta_group::1.32x128b.warpx4 [%r0], %rd0;
ld.global.b128 %q0, [%rd0];
ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0,%r1}, [%r2];
stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r0], {%r1};
vote.sync.ballot.b32 %r0, %p, -1;
nanosleep.u32 20;
griddepcontrol.wait;
mov.u64 %rd0, %globaltimer;
mov.u32 %r0, %smid;
mov.u32 %r0, %dynamic_smem_size;
mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r0], 16;
"""
REFUSED = """
multimem.ld_reduce.global.add.f32 %f0, [%rd0];
multimem.red.global.add.f32 [%rd0], %f0;
cp.async.bulk.tensor.3d.shared::cta.global.im2col.mbarrier::complete_tx::bytes [%r0], [%rd0, {%r1,%r2,%r3}], [%r4], {%h0};
tcgen05.mma.ws.cta_group::1.kind::f16 [%r0], %rd0, %rd1, %r1, %p;
tcgen05.mma.sp.cta_group::1.kind::f16 [%r0], %rd0, %rd1, [%r2], %r1, %p;
tcgen05.mma.cta_group::1.kind::i8 [%r0], %rd0, %rd1, %r1, %p;
tcgen05.shift.cta_group::1.down [%r0];
tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32 {%f0, %f1}, %f2, [%r0];
wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%f0,%f1,%f2,%f3}, %rd0, %rd1, %r1, 0, 1, 1, 1, 0, 0;
st.bulk.weak.shared::cta [%r0], 16, 0;
movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r1;
dp2a.lo.u32.u32 %r0, %r1, %r2, %r3;
red.async.relaxed.cluster.global.shared::cluster.mbarrier::complete_tx::bytes.inc.u32 [%r0], %r1, [%r2];
red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r0], %r1, [%r2];
"""


def decode(instruction: str) -> None:
    registers = ".reg .pred %p; .reg .b8 %b0; .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .f32 %f<9>;"
    text = f"""
.version 9.0
.target sm_100a
.address_size 64
.visible .entry kernel() {{
  {registers} .reg .b64 %rd<9>; .reg .b128 %q0;
  setp.ne.u32 %p, 0, 0;
  @!%p ret;
  {instruction}
  ret;
}}"""
    emulator.Module(text).launch("kernel", grid=1, block=32)


def instructions(text: str) -> list[str]:
    return text.strip().splitlines()


@pytest.mark.parametrize("instruction", instructions(TAKEN))
def test_taken(instruction: str) -> None:
    decode(instruction)


@pytest.mark.parametrize("instruction", instructions(REFUSED))
def test_refused_as_a_gap(instruction: str) -> None:
    with pytest.raises(emulator.EmulatorError, match="the emulator does not know"):
        decode(instruction)


def run(body: str, first: Any, second: Any) -> Any:
    """%r1 and %r2 are a pair of words of each thread; its %r0 comes back."""
    out = emulator.empty((32, 2), np.uint32)
    out[:, 0], out[:, 1] = (np.asarray(each).view(np.uint32) for each in (first, second))
    load = (
        "mad.wide.u32 %rd0, %tid, 8, %out; ld.global.v2.b32 {%r1, %r2}, [%rd0]; bar.warp.sync -1;"
    )
    report = module(load + body + STORE_R0).launch("kernel", grid=1, block=32, args=[out])
    assert report.findings == []
    return out.reshape(-1)[:32].copy()


A, B = np.linspace(-3, 5, 32, dtype=np.float32), np.linspace(7, -2, 32, dtype=np.float32)


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("add.rn.f32x2 %rd3, %rd1, %rd2", lambda a, b: a + b),
        ("mul.rn.f32x2 %rd3, %rd1, %rd2", lambda a, b: a * b),
        (
            "fma.rn.f32x2 %rd3, %rd1, %rd1, %rd2",
            lambda a, b: (a.astype(float) * a + b).astype(np.float32),
        ),
    ],
)
def test_two_floats_at_once(operation: str, expected: Any, half: int) -> None:
    taken = ["{%r0, _}", "{_, %r0}"][half]
    body = f"mov.b64 %rd1, {{%r1, %r2}}; mov.b64 %rd2, {{%r2, %r1}}; {operation};"
    found = run(body + f"mov.b64 {taken}, %rd3;", A, B).view(np.float32)
    assert (found == (expected(A, B) if half == 0 else expected(B, A))).all()


def test_the_largest_of_three() -> None:
    body = (
        "mov.b32 %f1, %r1; mov.b32 %f2, %r2; max.f32 %f0, %f1, %f2, 0f3F800000; mov.b32 %r0, %f0;"
    )
    assert (run(body, A, B).view(np.float32) == np.maximum(np.maximum(A, B), 1)).all()


@pytest.mark.parametrize(
    ("operation", "function"), [("ex2.approx.ftz", np.exp2), ("tanh.approx", np.tanh)]
)
def test_functions_of_two_bfloat16(operation: str, function: Any) -> None:
    values = np.stack([A, -A], 1).astype(ml_dtypes.bfloat16)
    found = run(f"{operation}.bf16x2 %r0, %r1;", values.view(np.uint32)[:, 0], A)
    want = function(values.astype(np.float64))
    np.testing.assert_allclose(
        found.view(ml_dtypes.bfloat16).reshape(32, 2).astype(float), want, rtol=2**-7
    )


def test_arguments_as_a_runtime_has_them() -> None:
    """Bytes, and memory that is named apart: so a program's cudaLaunchKernel hands them over."""
    data = emulator.empty(64, np.uint32)
    data[...] = range(64)
    body = "ld.param.u32 %r5, [by]; mad.wide.u32 %rd0, %tid, 4, %out; ld.global.b32 %r0, [%rd0]; add.u32 %r0, %r0, %r5;"
    kernel = module(body + STORE_R0, parameters=".param .u64 out, .param .u32 by")
    arguments: list[Any] = [struct.pack("<Q", data.ctypes.data), struct.pack("<I", 7)]
    options: dict[str, Any] = dict(grid=1, block=64, args=arguments)
    assert kernel.launch("kernel", **options, buffers=[data]).findings == []
    assert (data == np.arange(64) + 7).all()
    with pytest.raises(emulator.EmulatorError, match="out-of-bounds"):
        kernel.launch("kernel", **options)
