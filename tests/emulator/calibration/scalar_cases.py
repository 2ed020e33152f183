"""Arithmetic, logic, conversions: one instruction a kernel, over operands that meet its corners.

The kernels are PTX text made here from a table of opcodes and signatures. A signature names the
widths of the destination and the sources: h 16 bits, r 32, l 64, p a predicate. An opcode may
bring an immediate operand, the last one, behind a bar.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .case import Buffer, Case, as_bytes, blank, noise

MODULE = "scalar"
COUNT = 1024  # elements
WIDTHS = {"h": 2, "r": 4, "l": 8}

# What meets corners of integers, of floats, and of both.
SPECIAL_32 = [
    0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFE, 0x80000001, 0x007FFFFF,
    0x00800000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00001, 0x7F800001, 0x7F7FFFFF,
    0x4B000000, 0x3F000000, 0x4F000000, 0x33800000,
]  # fmt: skip
# Ties and limits of the conversions to 16 bits, f16 and bf16.
TIES_32 = [
    0x3F801000, 0x3F803000, 0x3F801001, 0x3F800FFF, 0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF,
    0x477FE000, 0x477FEFFF, 0x477FF000, 0x477FFFFF, 0x47800000, 0x7F7F7FFF, 0x7F7F8000, 0x33000000,
    0x33000001, 0x387FC000, 0x387FE000, 0x387FDFFF, 0x38800000, 0x33C00000, 0x34000001, 0x3EFFFFFF,
    0x3FC00000, 0x40200000, 0xC0200000, 0xBFC00000, 0xBF000000, 0x4EFFFFFF, 0x4F7FFFFF, 0x437F8000,
]  # fmt: skip
SPECIAL_16 = [
    0, 1, 15, 16, 17, 0x7FFF, 0x8000, 0xFFFF, 0x3C00, 0x7C00, 0xFC00, 0x7C01, 0x7E00, 0x03FF,
    0x0400, 0x3F80, 0x7F80, 0xFF80, 0x7F81, 0x0080, 0x007F, 0x7BFF, 0x7F7F, 0xBC00,
]  # fmt: skip


def operands(width: str, index: int) -> npt.NDArray[np.unsignedinteger]:
    """Every pair of special values among the first elements; then random ones of ordinary size."""
    if width == "l":
        low, high = operands("r", index), operands("r", (index + 1) % 3)
        return low.astype(np.uint64) | np.roll(high, index).astype(np.uint64) << np.uint64(32)
    special = np.array(SPECIAL_16 if width == "h" else SPECIAL_32, np.uint32)
    pairs = np.arange(len(special) ** 2)
    chosen = [pairs % len(special), pairs // len(special), pairs * 7 // 5 % len(special)][index]
    bits = noise(COUNT, 100 + index)
    if width == "r":
        ordinary = bits & 0x807FFFFF | 118 + (bits >> 8) % 20 << 23
        bits = np.where(np.arange(COUNT) % 2, bits, ordinary).astype(np.uint32)
        bits[-len(TIES_32) :] = np.roll(TIES_32, 3 * index)
    bits[: len(pairs)] = special[chosen]
    return bits.astype(np.uint16) if width == "h" else bits


def _forms(opcodes: str, signature: str) -> list[tuple[str, str]]:
    return [(opcode, signature) for opcode in opcodes.split()]


INTEGER = [
    *_forms(
        "add.u32 add.s32 add.sat.s32 sub.s32 sub.sat.s32 mul.lo.u32 mul.lo.s32 mul.hi.u32", "rrr"
    ),
    *_forms("mul.hi.s32 min.u32 max.u32 min.s32 max.s32 and.b32 or.b32 xor.b32 shl.b32", "rrr"),
    *_forms("shr.u32 shr.s32 mul24.lo.u32 mul24.lo.s32 add.u16x2 min.s16x2 max.u16x2", "rrr"),
    *_forms("bmsk.clamp.b32 szext.clamp.u32 szext.clamp.s32", "rrr"),
    *_forms("mad.lo.s32 mad.hi.u32 mad.hi.s32 sad.u32 sad.s32 bfe.u32 bfe.s32", "rrrr"),
    *_forms("prmt.b32 shf.l.wrap.b32 shf.l.clamp.b32 shf.r.wrap.b32 shf.r.clamp.b32", "rrrr"),
    *_forms("dp4a.u32.u32 dp4a.s32.s32", "rrrr"),
    *_forms("mul.wide.u32 mul.wide.s32", "lrr"),
    *_forms("mad.wide.u32 mad.wide.s32", "lrrl"),
    *_forms(
        "add.s64 sub.s64 mul.lo.s64 mul.hi.u64 mul.hi.s64 min.s64 max.u64 and.b64 xor.b64", "lll"
    ),
    *_forms("shl.b64 shr.u64 shr.s64", "llr"),
    *_forms("bfe.u64 bfe.s64", "llrr"),
    *_forms("add.u16 sub.s16 mul.lo.u16 mul.hi.s16 min.s16 max.u16", "hhh"),
    *_forms("shl.b16 shr.u16 shr.s16", "hhr"),
    *_forms("mul.wide.u16 mul.wide.s16", "rhh"),
    *_forms("abs.s32 neg.s32 not.b32 cnot.b32 popc.b32 clz.b32 brev.b32", "rr"),
    *_forms("bfind.u32 bfind.s32 bfind.shiftamt.u32", "rr"),
    *_forms("popc.b64 clz.b64 bfind.u64 bfind.s64", "rl"),
    *_forms("brev.b64 abs.s64 neg.s64 not.b64", "ll"),
    *_forms("abs.s16 neg.s16", "hh"),
]
FLOAT = [
    *_forms(
        "add.f32 add.ftz.f32 sub.f32 mul.f32 mul.ftz.f32 add.rz.f32 add.rm.f32 add.rp.f32", "rrr"
    ),
    *_forms("mul.rz.f32 mul.rm.f32 add.sat.f32 mul.sat.f32 div.rn.f32 min.f32 max.f32", "rrr"),
    *_forms("min.NaN.f32 max.NaN.f32 min.ftz.f32 max.ftz.NaN.f32 copysign.f32", "rrr"),
    *_forms("fma.rn.f32 fma.rn.ftz.f32 fma.rz.f32 fma.rm.f32 fma.rp.f32 fma.rn.sat.f32", "rrrr"),
    *_forms("abs.f32 abs.ftz.f32 neg.f32 rcp.rn.f32 sqrt.rn.f32 sqrt.rz.f32 rcp.rn.ftz.f32", "rr"),
    *_forms("add.f64 sub.f64 mul.f64 div.rn.f64 min.f64 max.f64 add.rz.f64", "lll"),
    *_forms("fma.rn.f64", "llll"),
    *_forms("abs.f64 neg.f64 rcp.rn.f64 sqrt.rn.f64", "ll"),
    *_forms("add.f16 sub.f16 mul.f16 min.f16 max.f16 min.NaN.f16 max.NaN.f16", "hhh"),
    *_forms("add.bf16 sub.bf16 mul.bf16 min.bf16 max.bf16 max.NaN.bf16", "hhh"),
    *_forms("add.f16x2 mul.f16x2 max.f16x2 add.bf16x2 mul.bf16x2 min.bf16x2 add.sat.f16x2", "rrr"),
    *_forms("fma.rn.f16 fma.rn.bf16 fma.rn.relu.f16", "hhhh"),
    *_forms("fma.rn.f16x2 fma.rn.bf16x2 fma.rn.relu.bf16x2 fma.rn.sat.f16x2", "rrrr"),
    *_forms("neg.f16 abs.f16 neg.bf16 abs.bf16", "hh"),
    *_forms("neg.f16x2 abs.bf16x2", "rr"),
]
PREDICATES = [
    *_forms("setp.eq.f32 setp.ne.f32 setp.lt.f32 setp.ge.ftz.f32 setp.equ.f32 setp.neu.f32", "prr"),
    *_forms("setp.ltu.f32 setp.geu.f32 setp.num.f32 setp.nan.f32 setp.gt.s32 setp.le.u32", "prr"),
    *_forms("setp.lo.u32 setp.hs.u32 setp.lt.s32", "prr"),
    *_forms("setp.lt.s64 setp.hi.u64 setp.le.f64 setp.nan.f64", "pll"),
    *_forms("setp.lt.f16 setp.geu.bf16 setp.gt.s16 setp.eq.b16", "phh"),
    *_forms("testp.finite.f32 testp.infinite.f32 testp.number.f32 testp.notanumber.f32", "pr"),
    *_forms("testp.normal.f32 testp.subnormal.f32", "pr"),
    *_forms("set.lt.u32.f32 set.ge.s32.s32 set.eq.f32.u32", "rrr"),
    *_forms("slct.s32.s32 slct.f32.f32", "rrrr"),
]
CONVERSIONS = [
    *_forms(
        "cvt.rn.bf16x2.f32 cvt.rn.f16x2.f32 cvt.rn.relu.bf16x2.f32 cvt.rn.relu.f16x2.f32", "rrr"
    ),
    *_forms(
        "cvt.rn.f16.f32 cvt.rz.f16.f32 cvt.rn.bf16.f32 cvt.rz.bf16.f32 cvt.rn.relu.bf16.f32", "hr"
    ),
    *_forms("cvt.rn.satfinite.f16x2.f32 cvt.rn.satfinite.bf16x2.f32", "rrr"),
    *_forms("cvt.f32.f16 cvt.f32.bf16 cvt.rn.f32.s16 cvt.rn.f32.u16", "rh"),
    *_forms(
        "cvt.rna.tf32.f32 cvt.rni.f32.f32 cvt.rzi.f32.f32 cvt.rmi.f32.f32 cvt.rpi.f32.f32", "rr"
    ),
    *_forms("cvt.sat.f32.f32 cvt.ftz.f32.f32 cvt.rn.f32.s32 cvt.rn.f32.u32 cvt.rz.f32.u32", "rr"),
    *_forms(
        "cvt.rni.s32.f32 cvt.rzi.s32.f32 cvt.rmi.s32.f32 cvt.rpi.s32.f32 cvt.rni.u32.f32", "rr"
    ),
    *_forms("cvt.rzi.u32.f32 cvt.rzi.ftz.u32.f32", "rr"),
    *_forms(
        "cvt.rzi.s64.f32 cvt.rni.u64.f32 cvt.f64.f32 cvt.s64.s32 cvt.u64.u32 cvt.rn.f64.s32", "lr"
    ),
    *_forms("cvt.rn.f32.f64 cvt.rz.f32.f64 cvt.rm.f32.f64 cvt.rzi.s32.f64 cvt.rni.u32.f64", "rl"),
    *_forms("cvt.u32.u64 cvt.rn.f32.s64 cvt.rn.f32.u64", "rl"),
    *_forms("cvt.rn.f64.s64 cvt.rn.f64.u64 cvt.rzi.s64.f64 cvt.rni.f64.f64", "ll"),
    *_forms("cvt.s32.s16 cvt.u32.u16 cvt.rzi.s32.f16 cvt.rni.u32.f16", "rh"),
    *_forms(
        "cvt.u16.u32 cvt.s16.s32 cvt.sat.s16.s32 cvt.sat.u16.s32 cvt.rn.f16.s32 cvt.rni.s16.f32",
        "hr",
    ),
    *_forms("cvt.rni.f16.f16 cvt.rn.f16.s16", "hh"),
    *_forms(
        "cvt.sat.u8.s32 cvt.sat.s8.s32 cvt.s8.s32 cvt.u8.u32 cvt.rzi.u8.f32 cvt.rni.sat.s8.f32",
        "rr",
    ),
]
# lop3 and prmt modes are part of the instruction.
IMMEDIATES = [
    *((f"lop3.b32|{table:#x}", "rrrr") for table in (0x96, 0xE8, 0xCA, 0x01, 0x5D, 0xF0)),
    *((f"prmt.b32|{selector:#x}", "rrr") for selector in (0x5410, 0x7632, 0x0123, 0x9BDF, 0x8888)),
    *((f"{op}|{n}", "rr") for op in ("shl.b32", "shr.s32") for n in (0, 31, 32, 40)),
]
# Bounds as PTX 9.7.3 gives them, on results in units in the last place and, for lg2, absolute (its
# result is small where its argument is near 1). sin and cos are bound in an interval, and left out.
APPROXIMATE = {
    "ex2.approx.f32": (2, 0.0),
    "ex2.approx.ftz.f32": (2, 0.0),
    "rcp.approx.f32": (1, 0.0),
    "rcp.approx.ftz.f32": (1, 0.0),
    "rsqrt.approx.f32": (3, 0.0),  # a relative 2^-22.9
    "rsqrt.approx.ftz.f32": (3, 0.0),
    "sqrt.approx.f32": (3, 0.0),  # a relative 2^-23
    "sqrt.approx.ftz.f32": (3, 0.0),
    "lg2.approx.f32": (4, 2.0**-22),  # 2^-22, relative or between 0.5 and 2 absolute
    "tanh.approx.f32": (1 << 13, 0.0),  # a relative 2^-11
}


def exact_forms() -> list[tuple[str, str]]:
    return [*INTEGER, *FLOAT, *PREDICATES, *CONVERSIONS, *IMMEDIATES]


def entry(opcode: str) -> str:
    return "op_" + opcode.replace(".", "_").replace("|", "_")


def kernel(opcode: str, signature: str) -> str:
    """The entry: one element for each thread."""
    opcode, _, immediate = opcode.partition("|")
    registers = {"h": "b16", "r": "b32", "l": "b64", "p": "pred"}
    sources = ["a", "b", "c"][: len(signature) - 1]
    names = ["d", *sources, *([immediate] if immediate else [])]
    stored = "r" if signature[0] == "p" else signature[0]
    lines = [
        f".visible .entry {entry(opcode + ('|' + immediate if immediate else ''))}(",
        "    .param .u64 p_a, .param .u64 p_b, .param .u64 p_c, .param .u64 p_out) {",
        "  .reg .b32 i, block, count;",
        "  .reg .b64 at;",
        *(f"  .reg .{registers[w]} {n};" for n, w in zip(["d", *sources], signature, strict=True)),
        f"  .reg .{registers[stored]} stored;",
        "  mov.u32 i, %tid.x;",
        "  mov.u32 block, %ctaid.x;",
        "  mov.u32 count, %ntid.x;",
        "  mad.lo.u32 i, block, count, i;",
    ]
    for name, width in [*zip(sources, signature[1:], strict=True), ("out", stored)]:
        lines += [
            f"  ld.param.u64 at, [p_{name}];",
            f"  mad.wide.u32 at, i, {WIDTHS[width]}, at;",
        ]
        if name != "out":
            lines.append(f"  ld.global.{registers[width]} {name}, [at];")
    lines.append(f"  {opcode} {', '.join(names)};")
    if signature[0] == "p":
        lines.append("  selp.b32 stored, 1, 0, d;")
    else:
        lines.append(f"  mov.{registers[stored]} stored, d;")
    lines += [f"  st.global.{registers[stored]} [at], stored;", "  ret;", "}"]
    return "\n".join(lines) + "\n"


def ptx() -> str:
    """The module of all forms."""
    forms = [*exact_forms(), *((opcode, "rr") for opcode in APPROXIMATE)]
    return ".version 8.6\n.target sm_90a\n.address_size 64\n" + "".join(
        kernel(*form) for form in forms
    )


def case(opcode: str, signature: str, ulp: int | None = None, absolute: float = 0.0) -> Case:
    sources = [Buffer(as_bytes(operands(w, i))) for i, w in enumerate(signature[1:])]
    sources += [Buffer(np.zeros(16, np.uint8)) for _ in range(3 - len(sources))]
    out = blank(COUNT * WIDTHS["r" if signature[0] == "p" else signature[0]])
    return Case(
        f"{opcode} {signature}",
        MODULE,
        entry(opcode),
        (*sources, out),
        grid=(COUNT // 256,),
        block=256,
        ulp=ulp,
        absolute=absolute,
    )


def cases() -> Iterator[Case]:
    for opcode, signature in exact_forms():
        yield case(opcode, signature)
    for opcode, (ulp, absolute) in APPROXIMATE.items():
        yield case(opcode, "rr", ulp, absolute)
