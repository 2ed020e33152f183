"""tcgen05.mma with scales of blocks: against numpy, what is refused, and races of the scales."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from jaxbw import emulator

from .datapath_reference import GLOBAL_BASE, SHARED_BASE, Memory, datapath, swizzled, write_tile
from .mma_reference import DESCRIPTOR, DTYPES, Format, Swizzle, cells, operand
from .ptx import text

Array = npt.NDArray[Any]
Kind = datapath.UmmaKind
E8M0, E4M3 = ml_dtypes.float8_e8m0fnu, ml_dtypes.float8_e4m3fn
CODES = {Format.E4M3: 0, Format.E5M2: 1, Format.E2M3: 3, Format.E3M2: 4, Format.E2M1: 5}


@dataclass(frozen=True)
class Case:
    kind: Any = Kind.MXF8F6F4
    a: Any = Format.E4M3
    b: Any = Format.E4M3
    n: int = 128
    pair: bool = False
    block: int = 32
    scale: Any = E8M0
    b_major: str = "k"
    id: int = 0

    @property
    def m(self) -> int:
        return 256 if self.pair else 128

    @property
    def fp4(self) -> bool:
        return bool(self.kind != Kind.MXF8F6F4)


def word(case: Case, **changes: int) -> int:
    """The instruction descriptor of PTX tables 43 and 44."""
    a, b = (1, 1) if case.fp4 else (CODES[case.a], CODES[case.b])
    bits = case.id << 4 | a << 7 | b << 10 | int(case.b_major == "m") << 16 | case.n >> 3 << 17
    return bits | int(case.scale == E8M0) << 23 | case.m >> 7 << 27 | case.id << 29


def put_scales(tmem: Any, stored: Array, column: int, first: int) -> None:
    """`[rows, count]`, the bytes `first` on of each cell: PTX 9.7.16.10.7.2.

    Columns are filled as a whole, for cp writes them so.
    """
    for row, scales in enumerate(stored):
        for quarter in range(4):
            cell = tmem.cells[32 * quarter + row % 32, column + row // 32 :][:1].view(np.uint8)
            cell[first : first + len(scales)] = scales


def scales_of(case: Case, rows: int, count: int, seed: int) -> tuple[Array, Array]:
    values = np.exp2(np.random.default_rng(seed).integers(-3, 4, (rows, count)))
    if case.scale == E4M3:
        values *= 1.5
    stored = values.astype(np.float32).astype(case.scale)
    return stored.view(np.uint8), stored.astype(np.float64)


def packed(values: Array) -> Array:
    """E2M1, two a byte, the lower half first."""
    codes = values.astype(np.float32).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return np.asarray(codes[:, ::2] | codes[:, 1::2] << 4, np.uint8)


CASES = [
    *(Case(n=n, id=n // 64 % 4) for n in (8, 64, 192, 256)),
    *(Case(n=n, pair=True, id=3) for n in (16, 128, 224, 256)),
    Case(a=Format.E5M2, n=64, b_major="m"),
    Case(b=Format.E5M2, pair=True, b_major="m", id=1),
    Case(b=Format.E2M1, id=2),
    Case(a=Format.E3M2, b=Format.E2M3, n=40, id=1),
    *(Case(Kind.MXF4, n=n, id=i, pair=pair) for n, i, pair in ((64, 0, False), (256, 2, True))),
    Case(Kind.MXF4NVF4, n=128, id=2),
    Case(Kind.MXF4NVF4, n=64, block=16, scale=E4M3),
    Case(Kind.MXF4NVF4, n=192, block=16, scale=E4M3, pair=True),
    Case(Kind.MXF4NVF4, n=32, block=16),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matmul(case: Case) -> None:
    k, columns = 64 if case.fp4 else 32, case.n // (2 if case.pair else 1)
    count, stored_k = k // case.block, 128  # a span of the swizzle
    a: Array
    b: Array
    if case.fp4:
        a, b = (
            np.random.default_rng(i).integers(-3, 4, (r, 256))
            for i, r in enumerate((case.m, case.n))
        )
        a_bits, b_bits = packed(a), packed(b)
    else:
        a_bits, a = operand(case.a, case.m, stored_k, 1)
        b_bits, b = operand(case.b, case.n, stored_k, 2)
    (sa_bits, sa), (sb_bits, sb) = (
        scales_of(case, case.m, count, 3),
        scales_of(case, case.n, count, 4),
    )
    tmem, shared, tiles = [], [], []
    for cta in range(case.m // 128):
        memory = Memory(np.zeros(1 << 18, np.uint8), np.full(3 << 16, 0xEE, np.uint8))
        a_part, b_part = a_bits[cta * 128 :][:128], b_bits[cta * columns :][:columns]
        b_swizzle = Swizzle.B128 if columns % 128 == 0 or case.b_major == "k" else Swizzle.B64
        tiles = [
            write_tile(memory, a_part, True, Swizzle.B128, 0x800),
            write_tile(memory, b_part, case.b_major == "k", b_swizzle, 0x18000),
        ]
        shared.append(memory.shared)
        tmem.append(datapath.TensorMemory())
        put_scales(tmem[-1], sa_bits[cta * 128 :][:128], 500, case.id)
        put_scales(tmem[-1], sb_bits, 490, case.id)
    initial = np.random.default_rng(5).integers(-50, 50, (case.m, case.n)).astype(np.float32)
    cta_of, lanes, places = cells("A" if case.pair else "D", case.m, case.n, 100, 0)
    for c, memory in enumerate(tmem):
        own = cta_of == c
        memory.cells[lanes[own], places[own]] = initial.view(np.uint32)[own]
    op = datapath.Umma(
        case.kind,
        word(case),
        tiles[0].umma(0),
        tiles[1].umma(0),
        100,
        case.m // 128,
        accumulate=True,
        sfa=500,
        sfb=490,
        block=case.block,
    )
    op.execute(shared, SHARED_BASE, tmem)
    left, right = (
        x[:, :k].astype(np.float64) * s.repeat(case.block, axis=1) for x, s in ((a, sa), (b, sb))
    )
    got = np.stack([t.cells for t in tmem])[cta_of, lanes, places].view(np.float32)
    np.testing.assert_array_equal(got, initial + left @ right.T)
    assert [(r.lanes, r.column, r.columns) for r in op.scale_regions()] == [
        (128, 500, 4),
        (128, 490, -(-case.n // 32)),
    ]


def example(case: Case = Case(), bits: int = 0, **changes: Any) -> Any:
    arguments: dict[str, Any] = dict(a=DESCRIPTOR, b=DESCRIPTOR, d=0, sfa=256, sfb=260)
    arguments |= dict(cta_group=case.m // 128, block=case.block)
    return datapath.Umma(case.kind, word(case) ^ bits, **(arguments | changes))


@pytest.mark.parametrize(
    ("case", "bits", "expected"),
    [
        (Case(id=0), 0, 0x08A00000),
        (Case(id=3), 0, 0x68A00030),
        (Case(b_major="m"), 0, 0x08A10000),
        (Case(b=Format.E2M1), 0, 0x08A01400),
        (Case(n=256, pair=True), 0, 0x10C00000),
        (Case(Kind.MXF4NVF4, n=192), 0, 0x08B00480),
        (Case(Kind.MXF4NVF4, n=64, block=16, scale=E4M3), 0, 0x08100480),
    ],
)
def test_descriptors_of_other_compilers_are_legal(case: Case, bits: int, expected: int) -> None:
    """The words stand in the PTX of Triton and the CuTe DSL."""
    assert word(case) == expected
    example(case).check()


NV = Case(Kind.MXF4NVF4, block=16, scale=E4M3)


@pytest.mark.parametrize(
    ("case", "bits", "changes", "rule"),
    [
        (Case(), 1 << 24, {}, "bits 0-1, 3, 6 and 24-26 are reserved"),
        (Case(), 1 << 2, {}, "sparsity"),
        (Case(), 1 << 31, {}, "K = 96"),
        (Case(), 1 << 23, {}, "scales of this kind are ue8m0"),
        (Case(Kind.MXF4), 1 << 12, {}, "bit 12 is reserved"),
        (Case(Kind.MXF4), 1 << 23, {}, "scales of this kind are ue8m0"),
        (Case(Kind.MXF4NVF4), 1 << 23, {}, "blocks of 32 are ue8m0"),
        (Case(Kind.MXF4), 3 << 7, {}, "operand type 2 does not exist"),
        (Case(Kind.MXF4), 1 << 16, {}, "cannot be transposed"),
        (Case(), 3 << 27, {}, r"M of a block-scaled kind is 128, or 256 of a pair"),
        (Case(), 0, {"cta_group": 2}, r"M of a block-scaled kind is 128, or 256 of a pair"),
        (Case(), 0, {"block": 16}, "no blocks of that size"),
        (Case(Kind.MXF4), 1 << 29, {}, "A: scale factor id 1"),
        (NV, 2 << 4, {}, "B: scale factor id 2"),
        (Case(), 0, {"sfa": 32 << 16 | 256}, "A: scales start in lane 0"),
        (Case(), 0, {"sfb": 509}, "do not lie in tensor memory"),
        (Case(), 0, {"sfa": 127}, "scales and D overlap"),
        (Case(), 0, {"sfb": 125}, "scales and D overlap"),
        (Case(), 0, {"a_in_tmem": True, "a": 300}, "A in tensor memory is not supported"),
        (Case(), 0, {"disable_output_lane": [1] + [0] * 7}, "cannot disable lanes"),
        (Case(), 0, {"scale_input_d": 1}, "scale-input-d is for"),
        (NV, 0, {"fused_sum": True}, "fused sums of 4-bit kinds"),
    ],
)
def test_refuses(case: Case, bits: int, changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(RuntimeError, match=rule):
        example(case, bits, **changes).check()


def test_scales_must_stand_in_all_quarters() -> None:
    shared, tmem = np.zeros(1 << 16, np.uint8), datapath.TensorMemory()
    example().execute([shared], SHARED_BASE, [tmem])
    tmem.cells[64 + 5, 256 + 3] = 0x100  # not the byte that id 0 reads
    example().execute([shared], SHARED_BASE, [tmem])
    tmem.cells[64 + 5, 256 + 3] = 1
    with pytest.raises(RuntimeError, match="column 259 differ between the quarters"):
        example().execute([shared], SHARED_BASE, [tmem])


def test_special_scales() -> None:
    """A NaN times zero is one; scales beyond float32 may cancel."""
    memory = Memory(np.zeros(1 << 16, np.uint8), np.zeros(1 << 16, np.uint8))
    ones = np.ones((128, 128), np.float32).astype(DTYPES[Format.E4M3])
    ones[1] = 0
    tiles = [write_tile(memory, ones, True, Swizzle.B128, at) for at in (0x400, 0x8400)]
    tmem = datapath.TensorMemory()
    scales = np.full((128, 1), 127, np.uint8)
    scales[1], scales[2] = 255, 254
    put_scales(tmem, scales, 256, 0)
    scales[:] = 127
    scales[2] = 0
    put_scales(tmem, scales, 260, 0)
    for fused in (False, True):
        op = example(a=tiles[0].umma(0), b=tiles[1].umma(0), fused_sum=fused)
        op.execute([memory.shared], SHARED_BASE, [tmem])
        got = tmem.cells[:, :128].copy().view(np.float32)
        assert np.isnan(got[1]).all()
        assert got[2, 2] == 32
        assert got[3, 2] == np.float32(32 * 2.0**-127)
        assert (got[3, 3:] == 32).all()


def test_fused_sum_shifts_by_the_scales() -> None:
    """The largest of 2^20 + 31 products of 1: of 25 fraction bits, scaled alike, none is lost."""
    a, b = np.ones((128, 128), np.float32), np.ones((128, 128), np.float32)
    a[:, 0], b[:, 0] = 256, 448
    memory = Memory(np.zeros(1 << 16, np.uint8), np.zeros(1 << 16, np.uint8))
    tiles = [
        write_tile(memory, x.astype(DTYPES[Format.E4M3]), True, Swizzle.B128, at)
        for x, at in ((a, 0x400), (b, 0x8400))
    ]
    tmem = datapath.TensorMemory()
    put_scales(tmem, np.full((128, 1), 127 + 20, np.uint8), 256, 0)
    put_scales(tmem, np.full((128, 1), 127 - 10, np.uint8), 260, 0)
    initial = 2.0**10 * 2.0**-9 * (1 + 2.0**-20)
    tmem.cells[:, :128] = np.float32(initial).view(np.uint32)
    op = example(a=tiles[0].umma(0), b=tiles[1].umma(0), accumulate=True, fused_sum=True)
    op.execute([memory.shared], SHARED_BASE, [tmem])
    got = tmem.cells[0, :1].copy().view(np.float32)[0]
    # The largest product is 1.75 * 2^(8 + 8 + 10): units of 2. The initial 2 and its fraction.
    unit = 2.0 ** (26 - 25)
    total = (256 * 448 + 31) * 2.0**10 + math.trunc(initial / unit) * unit
    assert got == np.float32(math.trunc(total / 8) * 8)  # 24 bits of the result


@pytest.mark.parametrize("fp4", [False, True])
def test_packed_fp4_by_tma(fp4: bool) -> None:
    """A box of 16U4_ALIGN8B moves the bytes that one of UINT8 of half its width moves."""
    memory = Memory(
        np.arange(1 << 13, dtype=np.uint32).astype(np.uint8) * 7, np.zeros(1 << 13, np.uint8)
    )
    per_byte = 2 if fp4 else 1
    fields = datapath.TensorMapFields(
        type=datapath.TensorMapType.U4X16_ALIGN_8B if fp4 else datapath.TensorMapType.UINT8,
        address=GLOBAL_BASE,
        extents=[per_byte * 200, 30],
        strides=[208],
        box=[per_byte * 128, 8],
        swizzle=Swizzle.B128,
    )
    assert datapath.tma_box_bytes(fields) == 1024
    memory.load(fields, [per_byte * 96, 25], 0x400)
    rows = np.zeros((8, 128), np.uint8)
    rows[:5, :104] = memory.global_bytes[: 208 * 30].reshape(30, 208)[25:, 96:200]
    np.testing.assert_array_equal(memory.shared[:1024], swizzled(rows.reshape(-1), Swizzle.B128))


PROGRAM = """
  .shared .align 8 .b64 done;
  .shared .align 4 .b32 address;
  .reg .pred p, q;  .reg .b32 t, d, s, r, lane, word;  .reg .b64 a, c;
  mov.u32 t, %tid.x;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [address], 256;
  mov.u32 r, memory;
  mov.u32 lane, 0;
CLEAR:
  shl.b32 word, t, 2;
  add.u32 word, word, lane;
  add.u32 word, word, r;
  st.shared.b32 [word], 0;
  add.u32 lane, lane, 128;
  setp.lt.u32 p, lane, 49152;
  @p bra CLEAR;
  mov.u32 word, done;
  setp.eq.u32 p, t, 0;
  @p mbarrier.init.shared::cta.b64 [word], 1;
  fence.proxy.async.shared::cta;
  bar.warp.sync -1;
  ld.shared.b32 d, [address];
  shr.u32 r, r, 4;
  cvt.u64.u32 a, r;
  or.b64 c, a, 0x400800000000;
  or.b64 a, a, 0x4000404000000000;
  add.u32 s, d, 128;
  @!p bra AFTER;
  tcgen05.cp.cta_group::1.32x128b.warpx4 [s], c;
  tcgen05.cp.cta_group::1.32x128b.warpx4 [s + 4], c;
  setp.ne.u32 q, 0, 0;
  MMA
  BETWEEN
  tcgen05.cp.cta_group::1.32x128b.warpx4 [s + 4], c;
  MMA
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [word];
AFTER:
  LAST
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 d, 256;
"""
WAIT = """{ .reg .pred w;
L_PARITY: mbarrier.try_wait.parity.shared::cta.b64 w, [word], PARITY;
  @!w bra L_PARITY; }
  tcgen05.fence::after_thread_sync;
"""
MMA = """tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.block32
  [d], a, a, 0x08A00000, [s], [s + 4], q;"""
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [word];"


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("checks", ["hardware", "strict"])
def test_scales_overwritten_under_an_mma(waits: bool, checks: str) -> None:
    """PTX orders a copy before a later mma, not an mma before a later copy (9.7.16.6.2).

    CUTLASS, DeepGEMM and Triton rely on that order, hence the levels differ.
    """
    between = COMMIT + WAIT.replace("PARITY", "0") if waits else ""
    body = PROGRAM.replace("BETWEEN", between).replace("MMA", MMA)
    body = body.replace("LAST", WAIT.replace("PARITY", "1" if waits else "0"))
    program = emulator.Module(text(body, shared=49152))
    out = np.zeros(1, np.uint32)
    for schedule, seed in itertools.product(("eager", "latest", "random"), range(3)):
        report = program.launch(
            program.entries()[0],
            grid=1,
            block=32,
            schedule=schedule,
            seed=seed,
            checks=checks,
            args=[out],
        )
        kinds = [finding.kind for finding in report.findings]
        assert kinds == (["race"] if not waits and checks == "strict" else []), report.findings
        if kinds:
            assert "Tensor Memory from column 132" in report.findings[0].message


def launch(program: str) -> None:
    emulator.Module(program).launch("kernel", grid=1, block=32, args=[np.zeros(1, np.uint32)])


DECODED = "descriptor: "  # the error of its operands, which are zeros


@pytest.mark.parametrize(
    ("modifiers", "target", "rule"),
    [
        ("kind::mxf8f6f4.block_scale.scale_vec::1X", "sm_100f", "does not exist for sm_100f"),
        ("kind::mxf8f6f4.block_scale.scale_vec::1X", "sm_100a", DECODED),
        ("kind::mxf8f6f4.block_scale", "sm_100f", DECODED),
        ("kind::mxf8f6f4.block_scale.block16", "sm_100f", "blocks of 16"),
        ("kind::mxf8f6f4", "sm_100f", "needs .block_scale"),
        ("kind::mxf4nvf4.block_scale", "sm_100f", "size of blocks"),
        ("kind::mxf4nvf4.block_scale.block16", "sm_100f", DECODED),
        ("kind::mxf4.block_scale.scale_vec::1X", "sm_100a", "size of blocks"),
        ("kind::f8f6f4.block_scale", "sm_100f", "needs a block-scaled kind"),
    ],
)
def test_modifiers(modifiers: str, target: str, rule: str) -> None:
    body = f"""
  .reg .b32 d;  .reg .b64 a;  .reg .pred q;
  tcgen05.mma.cta_group::1.{modifiers} [d], a, a, 0x08A00000, [d], [d], q;
"""
    program = text(body).replace(".target sm_100f", f".target {target}")
    with pytest.raises(emulator.EmulatorError, match=rule):
        launch(program)
