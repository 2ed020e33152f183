"""wgmma: every operand layout that a descriptor can name (PTX 9.7.15).

Shared memory is filled with small integers everywhere, so that the matmul, which is exact, depends
on every address that an operand is read from; there is no need to lay a tile out. The kernels are
PTX text made here, since each has its own list of registers.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .case import Buffer, Bytes, Case, as_bytes, integers, noise

IMAGE = 64 * 1024  # bytes of shared memory
THREADS = 128
MODULE = "wgmma"
SWIZZLE_CODES = {"none": 0, "128B": 1, "64B": 2, "32B": 3}
SPANS = {"none": 16, "32B": 32, "64B": 64, "128B": 128}


@dataclass(frozen=True)
class Kernel:
    """One form of the instruction.

    Attributes:
      a, b, d: element types.
      majors: imm-trans of A and B; for A in registers, of B; none for tf32 and fp8.
      scales: imm-scale of A and B.
    """

    n: int
    a: str = "bf16"
    b: str = "bf16"
    d: str = "f32"
    a_in_registers: bool = False
    majors: tuple[int, int] = (0, 0)
    scales: tuple[int, int] = (1, 1)
    accumulate: bool = True

    @property
    def name(self) -> str:
        signs = "".join("n" if scale < 0 else "p" for scale in self.scales)
        source = "registers" if self.a_in_registers else "shared"
        majors = "".join("kn"[major] for major in self.majors)
        old = "add" if self.accumulate else "set"
        return f"wgmma_n{self.n}_{self.d}_{self.a}_{self.b}_{source}_{majors}_{signs}_{old}"

    @property
    def k(self) -> int:
        return 32 // SIZES[self.a]

    @property
    def registers(self) -> int:
        """Accumulator registers of a thread."""
        return self.n // 2 if self.d == "f32" else self.n // 4

    def ptx(self) -> str:
        """The entry: copies image and accumulators in, multiplies, copies the latter out."""
        numbers = range(self.registers)
        kind = "f32" if self.d == "f32" else "b32"
        accumulators = "{" + ", ".join(f"d{i}" for i in numbers) + "}"
        a = "{a0, a1, a2, a3}" if self.a_in_registers else "a"
        trans = ""
        if SIZES[self.a] == 2:
            trans = ", " + ", ".join(map(str, self.majors[int(self.a_in_registers) :]))
        pitch = 4 * THREADS
        lines = [
            f".visible .entry {self.name}(.param .u64 p_image, .param .u64 p_a, .param .u64 p_b,",
            "    .param .u64 p_registers, .param .u64 p_d) {",
            "  .reg .b64 a, b, image, from, d, base64;",
            "  .reg .b32 thread, offset, to, base, a0, a1, a2, a3, v0, v1, v2, v3;",
            f"  .reg .{kind} " + ", ".join(f"d{i}" for i in numbers) + ";",
            "  .reg .pred more, accumulate;",
            "  ld.param.u64 image, [p_image];",
            "  ld.param.u64 a, [p_a];",
            "  ld.param.u64 b, [p_b];",
            "  mov.u32 thread, %tid.x;",
            "  mov.u32 base, memory;",
            "  shl.b32 offset, thread, 4;",
            "  cvt.u64.u32 from, offset;",
            "  add.u64 from, from, image;",
            "  add.u32 to, base, offset;",
            "copy:",
            "  ld.global.v4.b32 {v0, v1, v2, v3}, [from];",
            "  st.shared.v4.b32 [to], {v0, v1, v2, v3};",
            f"  add.u64 from, from, {16 * THREADS};",
            f"  add.u32 to, to, {16 * THREADS};",
            f"  add.u32 offset, offset, {16 * THREADS};",
            f"  setp.lt.u32 more, offset, {IMAGE};",
            "  @more bra copy;",
            "  fence.proxy.async.shared::cta;",
            "  bar.sync 0;",
            # The descriptors come with start addresses relative to the image.
            "  shr.u32 base, base, 4;",
            "  cvt.u64.u32 base64, base;",
            "  add.u64 a, a, base64;",
            "  add.u64 b, b, base64;",
            "  shl.b32 offset, thread, 2;",
            "  cvt.u64.u32 from, offset;",
            "  ld.param.u64 d, [p_registers];",
            "  add.u64 d, d, from;",
            *(f"  ld.global.b32 a{i}, [d + {pitch * i}];" for i in range(4)),
            "  ld.param.u64 d, [p_d];",
            "  add.u64 d, d, from;",
            *(f"  ld.global.{kind} d{i}, [d + {pitch * i}];" for i in numbers),
            f"  setp.eq.u32 accumulate, {int(self.accumulate)}, 1;",
            "  wgmma.fence.sync.aligned;",
            f"  wgmma.mma_async.sync.aligned.m64n{self.n}k{self.k}.{self.d}.{self.a}.{self.b}",
            f"    {accumulators}, {a}, b, accumulate, {self.scales[0]}, {self.scales[1]}{trans};",
            "  wgmma.commit_group.sync.aligned;",
            "  wgmma.wait_group.sync.aligned 0;",
            *(f"  st.global.{kind} [d + {pitch * i}], d{i};" for i in numbers),
            "  ret;",
            "}",
        ]
        return "\n".join(lines) + "\n"


SIZES = {"bf16": 2, "f16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1}


@dataclass(frozen=True)
class Operand:
    """The fields of a descriptor, in bytes; `start` is relative to the image."""

    start: int
    leading: int
    stride: int
    swizzle: str
    base_offset: int = 0

    @property
    def descriptor(self) -> bytes:
        """PTX 9.7.15.5.1.2.2."""
        word = self.start >> 4 | self.leading >> 4 << 16 | self.stride >> 4 << 32
        word |= self.base_offset << 49 | SWIZZLE_CODES[self.swizzle] << 62
        return word.to_bytes(8, "little")


def encode(values: npt.NDArray[np.int64], type_: str) -> Bytes:
    """Integers of at most 4 in magnitude, in an operand's format (f16 and f32: any small ones)."""
    if type_ in ("tf32", "f32"):
        return as_bytes(values.astype(np.float32))
    if type_ == "bf16":
        return as_bytes((values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16))
    if type_ == "f16":
        return as_bytes(values.astype(np.float16))
    # fp8: sign, exponent, mantissa of 0, 1, 2, 3, 4. e5m2 is the upper half of f16.
    if type_ == "e5m2":
        return as_bytes((values.astype(np.float16).view(np.uint16) >> 8).astype(np.uint8))
    table = np.array([0, 0x38, 0x40, 0x44, 0x48], np.uint8)
    return as_bytes(table[np.abs(values)] | np.where(values < 0, 0x80, 0).astype(np.uint8))


def image(kernel: Kernel, seed: int) -> Bytes:
    """A first half for A and a second one for B, which may have different types."""
    half = IMAGE // 2
    a = integers(half // SIZES[kernel.a], -4, 5, seed)
    b = integers(half // SIZES[kernel.b], -4, 5, seed + 1)
    return np.concatenate([encode(a, kernel.a), encode(b, kernel.b)])


@dataclass(frozen=True)
class Launch:
    """One matmul."""

    name: str
    kernel: Kernel
    a: Operand
    b: Operand
    seed: int = 1

    def case(self) -> Case:
        kernel, seed = self.kernel, self.seed
        d = encode(integers(64 * kernel.n, -50, 50, seed + 2), kernel.d)
        fragments = integers(THREADS * 16 // SIZES[kernel.a], -4, 5, seed + 3)
        return Case(
            f"{kernel.name} {self.name}",
            MODULE,
            kernel.name,
            (
                Buffer(image(kernel, seed)),
                self.a.descriptor,
                self.b.descriptor,
                Buffer(encode(fragments, kernel.a)),
                Buffer(d, result=True),
            ),
            block=THREADS,
            smem=IMAGE,
        )


B_START = IMAGE // 2


def canonical(swizzle: str, major: int, rows: int, start: int, step: int, element: int) -> Operand:
    """A tile as TMA leaves it: boxes of one swizzle span, one after another; step `step` of K."""
    span = SPANS[swizzle]
    if major == 0:  # boxes of `rows` lines; a step is 32 bytes along the line
        if swizzle == "none":
            return Operand(start + 2 * step * rows * 16, rows * 16, 128, swizzle)
        box, inside = divmod(32 * step, span)
        return Operand(start + box * rows * span + inside, 0, 8 * span, swizzle)
    lines = 64  # of K in a box
    advance = start + step * 32 // element * span
    if swizzle == "none":
        return Operand(advance, 128, lines * 16, swizzle)
    return Operand(advance, lines * span, 8 * span, swizzle)


def tiles() -> Iterator[Launch]:
    """Canonical tiles: both majors and every swizzle, each k-step; every N; every type."""
    for type_ in ("bf16", "f16"):
        for majors in ((0, 0), (0, 1), (1, 0), (1, 1)):
            kernel = Kernel(64, type_, type_, majors=majors)
            for index, swizzle in enumerate(SWIZZLE_CODES):
                for step in (0, 1, 3) if type_ == "bf16" else (2,):
                    # The two operands need not have one swizzle.
                    other = list(SWIZZLE_CODES)[(index + step) % 4]
                    a = canonical(swizzle, majors[0], 64, 0, step, 2)
                    b = canonical(other, majors[1], 64, B_START, step, 2)
                    yield Launch(f"{swizzle} {other} step {step}", kernel, a, b, seed=10 + step)
    for n in (8, 16, 24, 40, 48, 72, 80, 96, 104, 120, 128, 136, 152, 176, 192, 200, 224, 248, 256):
        for majors in ((0, 0), (0, 1)):
            if majors[1] and n > 128:
                continue
            # MN-major B of 128 columns takes two boxes; K-major, any number of rows.
            kernel = Kernel(n, majors=majors)
            b = canonical("128B", majors[1], n, B_START, 1, 2)
            yield Launch("tile", kernel, canonical("128B", 0, 64, 0, 1, 2), b, seed=n)
    for a_type, b_type, d_type in (
        ("f16", "f16", "f16"),
        ("tf32", "tf32", "f32"),
        ("e4m3", "e4m3", "f32"),
        ("e4m3", "e5m2", "f32"),
        ("e5m2", "e4m3", "f32"),
        ("e5m2", "e5m2", "f32"),
        ("e4m3", "e4m3", "f16"),
        ("e5m2", "e4m3", "f16"),
    ):
        for n in (8, 32, 56, 256):
            kernel = Kernel(n, a_type, b_type, d_type)
            for swizzle in SWIZZLE_CODES if n == 32 else ("128B",):
                a = canonical(swizzle, 0, 64, 0, 1, SIZES[a_type])
                b = canonical(swizzle, 0, n, B_START, 1, SIZES[b_type])
                yield Launch(swizzle, kernel, a, b, seed=n)
    for type_ in SIZES:
        for n in (8, 64, 192):
            kernel = Kernel(n, type_, type_, a_in_registers=True)
            a = Operand(0, 0, 0, "none")  # not used
            b = canonical("128B", 0, n, B_START, 0, SIZES[type_])
            yield Launch("A in registers", kernel, a, b, seed=n)
    kernel = Kernel(32, a_in_registers=True, majors=(0, 1))
    a, b = Operand(0, 0, 0, "none"), canonical("64B", 1, 32, B_START, 1, 2)
    yield Launch("A in registers, B MN-major", kernel, a, b)
    for scales in ((-1, 1), (1, -1), (-1, -1)):
        for type_, accumulate in (("bf16", True), ("f16", False)):
            kernel = Kernel(16, type_, type_, scales=scales, accumulate=accumulate)
            a, b = canonical("64B", 0, 64, 0, 1, 2), canonical("32B", 0, 16, B_START, 0, 2)
            yield Launch("scales", kernel, a, b)
    kernel = Kernel(16, "f16", "f16", "f16", accumulate=False)
    yield Launch("f16, no accumulate", kernel, a, b)


def loose() -> Iterator[Launch]:
    """Strides, starts and base offsets that no tile has."""
    for majors in ((0, 0), (1, 1)):
        kernel = Kernel(32, majors=majors)
        for swizzle in SWIZZLE_CODES:
            draw = noise(64, 50 + SWIZZLE_CODES[swizzle] + 10 * majors[0]).astype(np.int64)
            for i in range(6):
                start, leading, stride = (
                    int(draw[8 * i + j]) % limit * 16 for j, limit in enumerate((64, 90, 130))
                )
                if i < 3 and swizzle != "none":  # aligned as the pattern, with any strides
                    start, stride = start // 1024 * 1024, stride // 1024 * 1024
                    leading = leading // 1024 * 1024
                other = int(draw[8 * i + 4]) % 64 * 16
                a = Operand(start, leading, stride, swizzle)
                b = Operand(B_START + other, leading, stride, swizzle)
                yield Launch(f"{swizzle} loose {i}: {start} {leading} {stride}", kernel, a, b, i)
    for majors in ((0, 0), (1, 1)):
        kernel = Kernel(32, majors=majors)
        for swizzle, span in SPANS.items():
            for offset in (1, 2, 3, 4, 7):
                for moved in (0, 128 * offset):
                    a = Operand(1024 + moved, 4096, 8 * span, swizzle, offset)
                    b = Operand(B_START + 1024 + moved, 4096, 8 * span, swizzle, offset)
                    yield Launch(f"{swizzle} base offset {offset}, moved {moved}", kernel, a, b, 3)


def launches() -> Iterator[Launch]:
    yield from tiles()
    yield from loose()


def cases() -> Iterator[Case]:
    return (launch.case() for launch in launches())


def ptx() -> str:
    """The module of all kernels that are launched."""
    entries = {launch.kernel.name: launch.kernel.ptx() for launch in launches()}
    return (
        ".version 8.0\n.target sm_90a\n.address_size 64\n"
        ".extern .shared .align 1024 .b8 memory[];\n" + "".join(entries.values())
    )
