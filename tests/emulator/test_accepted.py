"""What compilers for sm_100 emit, against Python: it runs as on a GPU, at every level."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxbw import emulator

from .ptx import STORE_R0, module

LEVELS = ("off", "hardware", "strict")
F32 = np.float32


def run(body: str, data: Any, block: int = 32, **options: Any) -> Any:
    """32-bit words that each thread finds in `%r1` and leaves in `%r0`; no finding at any level."""
    load = "mul.wide.u32 %rd30, %tid, 4; add.u64 %rd30, %out, %rd30; ld.global.b32 %r1, [%rd30];"
    results = []
    for checks in LEVELS:
        out = emulator.empty(block, np.uint32)
        out[...] = np.resize(np.asarray(data).view(np.uint32), block)
        kernel = module(load + body + STORE_R0)
        report = kernel.launch("kernel", grid=1, block=block, args=[out], checks=checks, **options)
        assert report.findings == [], checks
        results.append(out)
    for other in results[1:]:
        assert (other == results[0]).all()
    return results[0]


VALUES = np.array(
    [
        *(0, -0.0, 1, -1, 0.5, 1.5, -2.5, 3.25, 447, 448, 449, 464, 465, 1e6, -1e6, math.inf),
        *(-math.inf, math.nan, 57344, 61440, 2.0**-6, 2.0**-9, 2.0**-10, 3 * 2.0**-10),
        *(-(2.0**-11), 0.0625, 0.25, 0.75, 5, 6, 7, 28),
    ],
    F32,
)


@pytest.mark.parametrize(
    ("name", "modifiers", "expected"),
    [
        ("max", "max", np.float32(math.inf)),
        ("min", "min", np.float32(-math.inf)),
        ("absolute", "min.abs", np.float32(0)),
        ("NaN", "max.abs.NaN", None),
    ],
)
def test_redux_of_floats(name: str, modifiers: str, expected: np.float32 | None) -> None:
    out = run(f"redux.sync.{modifiers}.f32 %r0, %r1, -1;", VALUES)
    assert (out == (0x7FFFFFFF if expected is None else expected.view(np.uint32))).all()


def test_redux_of_floats_knows_the_sign_of_zero() -> None:
    zeros = np.array([0.0, -0.0] * 16, F32)
    assert (run("redux.sync.min.f32 %r0, %r1, -1;", zeros) == 0x80000000).all()
    assert (run("redux.sync.max.f32 %r0, %r1, -1;", zeros) == 0).all()


@pytest.mark.parametrize(("name", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
@pytest.mark.parametrize("operation", ["add", "sub", "fma.rn"])
def test_mixed_precision(operation: str, name: str, dtype: Any) -> None:
    # The 16-bit operand is the low half of the word, 1.5 the f32 one; fma squares the half.
    halves = np.arange(-16, 16).astype(dtype)
    words = halves.view(np.uint16).astype(np.uint32)
    twice = "%h0, %h0" if operation == "fma.rn" else "%h0"
    body = (
        f"cvt.u16.u32 %h0, %r1; {operation}.f32.{name} %f0, {twice}, 0f3FC00000; mov.b32 %r0, %f0;"
    )
    a, c = halves.astype(F32), F32(1.5)
    want = {"add": a + c, "sub": a - c, "fma.rn": a * a + c}[operation]
    assert (run(body, words).view(F32) == want).all()


@pytest.mark.parametrize(
    ("name", "dtype", "largest"),
    [
        ("e4m3x2", ml_dtypes.float8_e4m3fn, 448),
        ("e5m2x2", ml_dtypes.float8_e5m2, 57344),
        ("e2m3x2", ml_dtypes.float6_e2m3fn, 7.5),
        ("e3m2x2", ml_dtypes.float6_e3m2fn, 28),
        ("e2m1x2", ml_dtypes.float4_e2m1fn, 6),
    ],
)
def test_conversion_to_and_from_small_floats(name: str, dtype: Any, largest: float) -> None:
    # Every value, the ties between them, and what lies next to these; positive and negative.
    sizes = np.unique(np.abs(np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)))
    finite = sizes[np.isfinite(sizes)]
    ties = (finite[1:] + finite[:-1]) / 2
    near = [np.nextafter(ties, F32(side)) for side in (-math.inf, math.inf)]
    numbers = np.concatenate([finite, ties, *near])
    numbers = np.concatenate([VALUES, numbers, -numbers])
    register, bits = ("%b0", 4) if name == "e2m1x2" else ("%h0", 8)
    declare = ".reg .b8 %b0; "
    widen = "mov.b32 %r0, {%b0, %b0, %b0, %b0};" if bits == 4 else "cvt.u32.u16 %r0, %h0;"
    body = f"{declare} mov.b32 %f0, %r1; cvt.rn.satfinite.{name}.f32 {register}, %f0, 0f3F800000;"
    halves = [numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]]
    out = np.concatenate([run(body + widen, half, block=len(half)) for half in halves])
    with np.errstate(all="ignore"):
        want = np.clip(numbers, -largest, largest).astype(dtype).view(np.uint8)
    # A NaN becomes the format's, or its largest value.
    has_nan = name in ("e4m3x2", "e5m2x2")
    top = np.asarray([largest], F32).astype(dtype).view(np.uint8)[0]
    want = np.where(np.isnan(numbers), 0x7F if has_nan else top, want)
    assert ((out >> bits & (1 << bits) - 1) == want).all()
    one = np.asarray([1], F32).astype(dtype).view(np.uint8)[0]
    assert ((out & (1 << bits) - 1) == one).all()

    narrow = "mov.b32 {%b0, _, _, _}, %r1;" if bits == 4 else "cvt.u16.u32 %h0, %r1;"
    codes = np.arange(256, dtype=np.uint32) & (
        (1 << {"e2m1x2": 4, "e2m3x2": 6, "e3m2x2": 6}.get(name, 8)) - 1
    )
    back = run(f"{declare} {narrow} cvt.rn.f16x2.{name} %r0, {register};", codes, block=256)
    decoded = codes.astype(np.uint8).view(dtype).astype(np.float16)
    low = (back & 0xFFFF).astype(np.uint16).view(np.float16)
    assert np.array_equal(low, decoded, equal_nan=True)


@pytest.mark.parametrize(
    ("name", "dtype", "largest"),
    [("e4m3x2", ml_dtypes.float8_e4m3fn, 448), ("e5m2x2", ml_dtypes.float8_e5m2, 57344)],
)
def test_conversion_of_halves_to_fp8(name: str, dtype: Any, largest: float) -> None:
    # Every sign and exponent, five bits of mantissa, and the last bit, which breaks ties.
    bits = np.arange(2**11, dtype=np.uint16) << 5
    pairs = np.stack([bits, bits | 1], 1).view(np.float16)
    body = f"cvt.rn.satfinite.{name}.f16x2 %h0, %r1; cvt.u32.u16 %r0, %h0;"
    out = np.concatenate([run(body, part, block=1024) for part in np.split(pairs, 2)])
    with np.errstate(all="ignore"):
        clipped = np.clip(pairs, -largest, largest).astype(np.float32).astype(dtype)
    want = np.where(np.isnan(pairs), 0x7F, clipped.view(np.uint8)).astype(np.uint32)
    assert (out == (want[:, 0] | want[:, 1] << 8)).all()


@pytest.mark.parametrize(("rounding", "up"), [("rz", False), ("rp", True)])
def test_scales(rounding: str, up: bool) -> None:
    numbers = np.array(
        [1, 1.5, 2, -3, 2.0**-126, 2.0**-127, 1.5 * 2.0**-127, 0, 3e38, math.inf], F32
    )
    out = run(
        f"mov.b32 %f0, %r1; cvt.{rounding}.satfinite.ue8m0x2.f32 %h0, %f0, 0f40000000;"
        "cvt.u32.u16 %r0, %h0;",
        np.resize(numbers, 32),
    )[: len(numbers)]
    exact = [127, 127, 128, 128, 1, 0, 0, 0, 254, 254]
    raised = [127, 128, 128, 129, 1, 0, 1, 0, 254, 254]
    assert (out >> 8).tolist() == (raised if up else exact)
    assert (out & 0xFF == 128).all()
    back = run(
        "cvt.u16.u32 %h0, %r1; cvt.rn.bf16x2.ue8m0x2 %r0, %h0;", np.arange(32, dtype=np.uint32)
    )
    decoded = (back & 0xFFFF).astype(np.uint16).view(ml_dtypes.bfloat16).astype(np.float64)
    assert decoded.tolist() == [2.0 ** (code - 127) for code in range(32)]


@pytest.mark.parametrize(("name", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_atomic_addition_of_one_half(name: str, dtype: Any) -> None:
    out = emulator.empty(4, dtype)
    out[...] = [1, 2, 3, 4]
    one = int(np.asarray([0.5], dtype).view(np.uint16)[0])
    body = f"mov.b16 %h0, {one}; atom.global.add.noftz.{name} %h1, [%out + 2], %h0;"
    module(body).launch("kernel", grid=1, block=32, args=[out])
    assert out.astype(F32).tolist() == [1, 18, 3, 4]


CLC = """
  mbarrier.init.shared::cta.b64 [memory + 1024], 1;
  fence.proxy.async.shared::cta;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [memory + 1024], 16;
  clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128
    [memory], [memory + 1024];
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [memory + 1024], 0;
  @!%p1 bra WAIT;
  ld.shared.b128 %q0, [memory];
  clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %q0;
"""
FIRST = [
    "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r3, %q0;",
    "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r3, %r4, %r5, _}, %q0;",
]


@pytest.mark.parametrize("query", FIRST)
@pytest.mark.parametrize("checks", LEVELS)
def test_the_first_cta_of_a_refused_request_may_be_asked_for(query: str, checks: str) -> None:
    out = emulator.empty(32, np.uint32)
    kernel = module(CLC + query + "selp.b32 %r0, %r3, 77, %p2;" + STORE_R0)
    report = kernel.launch("kernel", grid=1, block=1, args=[out], checks=checks)
    assert report.findings == []
    assert out[0] == 77


@pytest.mark.parametrize("query", FIRST)
def test_the_first_cta_of_a_refused_request_must_not_be_used(query: str) -> None:
    out = emulator.empty(32, np.uint32)
    kernel = module(CLC + query + "mov.b32 %r0, %r3;" + STORE_R0)
    report = kernel.launch("kernel", grid=1, block=1, args=[out], checks="hardware")
    assert [finding.kind for finding in report.findings] == ["poison"]


@pytest.mark.parametrize(("taken", "kinds"), [(1, []), (0, ["poison"])])
def test_a_selection_is_as_defined_as_what_it_takes(taken: int, kinds: list[str]) -> None:
    body = f"setp.ne.u32 %p0, {taken}, 0; selp.b32 %r0, %tid, %r9, %p0;"
    report = module(body + STORE_R0).launch(
        "kernel", grid=1, block=32, args=[emulator.empty(32, np.uint32)], checks="hardware"
    )
    assert [finding.kind for finding in report.findings] == kinds


LANES = """
  setp.ge.u32 %p0, %tid, 32;
  @%p0 bra ALLOCATED;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [memory], 32;
ALLOCATED:
  bar.sync 0;
  ld.shared.b32 %r2, [memory];
  ADDRESS
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%r5], {%tid};
  tcgen05.wait::st.sync.aligned;
  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r3}, [%r5];
  USE
  tcgen05.fence::before_thread_sync;
  bar.sync 0;
  tcgen05.fence::after_thread_sync;
  @%p0 bra DONE;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32;
DONE:
"""
OWN_LANES = "and.b32 %r5, %tid, -32; shl.b32 %r5, %r5, 16; add.u32 %r5, %r5, %r2;"
WAITED = "tcgen05.wait::ld.sync.aligned; mov.b32 %r0, %r3;" + STORE_R0
SCHEDULES = [("eager", 0), ("latest", 0), ("random", 1), ("random", 2), ("pct", 1)]


def tmem(address: str, use: str, **options: Any) -> tuple[list[str], Any]:
    out = emulator.empty(128, np.uint32)
    kernel = module(LANES.replace("ADDRESS", address).replace("USE", use))
    report = kernel.launch("kernel", grid=1, block=128, args=[out], **options)
    return [finding.kind for finding in report.findings], out


@pytest.mark.parametrize("address", ["mov.b32 %r5, %r2;", "add.u32 %r5, %r2, 0x600000;", OWN_LANES])
@pytest.mark.parametrize("checks", LEVELS)
def test_the_quarter_that_a_tmem_address_names_is_ignored(address: str, checks: str) -> None:
    found, out = tmem(address, WAITED, checks=checks)
    assert out.tolist() == list(range(128))
    assert found == (["tmem", "tmem"] if checks == "strict" and address != OWN_LANES else [])


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_a_mov_passes_a_register_in_flight_on(schedule: str, seed: int) -> None:
    # nvcc: the float view of a loaded register stands before the wait.
    early = "mov.b32 %f0, %r3; tcgen05.wait::ld.sync.aligned; mov.b32 %r0, %f0;" + STORE_R0
    found, out = tmem(OWN_LANES, early, checks="strict", schedule=schedule, seed=seed)
    assert (found, out.tolist()) == ([], list(range(128)))
    packed = early.replace("mov.b32 %f0, %r3", "mov.b64 %rd5, {%r3, %tid}; mov.b64 {%f0, _}, %rd5")
    assert tmem(OWN_LANES, packed, checks="strict", schedule=schedule, seed=seed)[0] == []


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("move", ["", "mov.b32 %r3, %r3;"])
def test_what_a_mov_passed_on_is_used_before_the_wait(move: str, schedule: str, seed: int) -> None:
    use = f"mov.b32 %r6, %r3; {move} add.u32 %r0, %r6, 0; tcgen05.wait::ld.sync.aligned;" + STORE_R0
    found, _ = tmem(OWN_LANES, use, checks="strict", schedule=schedule, seed=seed)
    assert "in-flight register" in found
    assert tmem(OWN_LANES, use, checks="hardware", schedule=schedule, seed=seed)[0] == []


def test_a_gap_of_the_emulator_and_a_mistake_are_told_apart() -> None:
    cases = [
        ("tcgen05.shift.cta_group::1.down [%r0];", "the emulator does not know 'tcgen05.shift"),
        ("multimem.red.global.add.f32 [%rd0], %f0;", "the emulator does not know 'multimem.red"),
        ("movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r1;", "the emulator does not know 'movm"),
        ("dp2a.lo.u32.u32 %r0, %r1, %r2, %r3;", "the emulator does not know 'dp2a"),
        ("st.bulk.weak.shared::cta [%r0], 16, 0;", ".bulk, which the emulator does not know"),
        (
            "tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32 {%f0, %f1}, %f2, [%r0];",
            ".red, which the emulator does not know",
        ),
        (
            "tcgen05.mma.ws.cta_group::1.kind::f16 [%r0], %rd0, %rd1, %r1, %p0;",
            "the emulator does not know",
        ),
        ("frobnicate.b32 %r0, %r1;", "PTX has no 'frobnicate.b32'"),
        ("add.frob.u32 %r0, %r1, %r2;", "PTX has no such modifier"),
    ]
    for body, message in cases:
        with pytest.raises(emulator.EmulatorError, match=message):
            run(body, [0])
