"""TMA and bulk copies: every rank, swizzle and element type, inside and outside the tensor."""

import math
import struct
from collections.abc import Iterator

import numpy as np

from .case import TYPES, Buffer, Bytes, Case, Map, MapFields, as_bytes, blank, integers, noise

GUARD = 256  # bytes of shared memory behind a box
# Of these only loads are recorded.
CONVERTING_TYPES = ("f32.ftz", "tf32", "tf32.ftz")


def dense(type_: str, extents: tuple[int, ...], box: tuple[int, ...], **more: object) -> MapFields:
    """A tensor whose rows follow each other at multiples of 16 bytes."""
    pitch = math.ceil(extents[0] * TYPES[type_][1] / 16) * 16
    strides = []
    for extent in extents[1:]:
        strides.append(pitch)
        pitch *= extent
    return MapFields(type_, extents, tuple(strides), box, **more)  # type: ignore[arg-type]


def tensor(fields: MapFields, seed: int) -> Bytes:
    size = fields.extents[0] * TYPES[fields.type][1]
    if fields.strides:
        size = fields.strides[-1] * fields.extents[-1]
    return as_bytes(noise(math.ceil(size / 4), seed))


def coordinates(at: tuple[int, ...]) -> bytes:
    return struct.pack("<5i", *at, *(0,) * (5 - len(at)))


def load(
    name: str,
    fields: MapFields,
    at: tuple[int, ...],
    *,
    data: Bytes | None = None,
    offset: int = 0,
    region: int | None = None,
    refused: str | None = None,
) -> Case:
    region = fields.box_bytes + offset + GUARD if region is None else region
    source = Buffer(tensor(fields, sum(fields.box) + len(name)) if data is None else data)
    return Case(
        f"load {name}",
        "tma",
        f"tma_load_{len(at)}d",
        (Map(fields, source), coordinates(at), offset, fields.box_bytes, region, blank(region + 4)),
        smem=region + 16,
        refused=refused,
    )


def write(
    name: str,
    entry: str,
    fields: MapFields,
    at: tuple[int, ...],
    *,
    source: Bytes | None = None,
    target: Bytes | None = None,
    refused: str | None = None,
) -> Case:
    region = math.ceil(fields.box_bytes / 128) * 128
    if source is None:
        source = as_bytes(noise(region // 4, 77))
    if target is None:
        target = tensor(fields, 78)
    result = Buffer(target, result=True)
    arguments = (Map(fields, result), coordinates(at), 0, region, Buffer(source))
    return Case(
        f"{entry} {name}", "tma", f"{entry}_{len(at)}d", arguments, smem=region, refused=refused
    )


# Coordinates inside the tensor, across each of its ends, and wholly outside.
SHAPES: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {
    1: ((75,), (32,)),
    2: ((75, 21), (32, 8)),
    3: ((75, 9, 5), (32, 4, 3)),
    4: ((75, 5, 4, 5), (32, 4, 3, 2)),
    5: ((75, 4, 4, 3, 3), (32, 3, 2, 2, 2)),
}
SPANS = {"32B": 32, "64B": 64, "128B": 128}


# A box starts at a multiple of this many bytes of its row. The H200 answers another start, and a
# store that starts before the row, with an illegal instruction (cases "unaligned" and "before").
STEP = 16
UNALIGNED = "multiple of 16 bytes"
BEFORE = "starts before"


def places(
    extents: tuple[int, ...], box: tuple[int, ...], step: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """`step`: STEP, in elements."""
    ones = (step, *(1,) * (len(box) - 1))
    ends = tuple(e - b // 2 for e, b in zip(extents, box, strict=True))
    yield "inside", ones
    yield "before", tuple(-(b // 2) for b in box)
    yield "beyond", (ends[0] // step * step, *ends[1:])
    yield "outside", (math.ceil((extents[0] + 5) / step) * step, *(e + 5 for e in extents[1:]))
    for d in range(len(box)):
        before, last = (-step, (extents[0] - 1) // step * step) if d == 0 else (-1, extents[d] - 1)
        yield f"before {d}", tuple(before if i == d else one for i, one in enumerate(ones))
        yield f"beyond {d}", tuple(last if i == d else one for i, one in enumerate(ones))


def tiled() -> Iterator[Case]:
    """Ranks x swizzles x places, of 16-bit elements; then the other element types."""
    for rank, (extents, box) in SHAPES.items():
        for swizzle in ("none", *SPANS):
            inner = SPANS.get(swizzle, 2 * box[0]) // 2
            fields = dense("u16", extents, (inner, *box[1:]), swizzle=swizzle)
            for place, at in places(extents, fields.box, STEP // 2):
                name = f"{rank}d {swizzle} {place}"
                yield load(name, fields, at)
                if not place.startswith("before ") or rank < 4:
                    refused = BEFORE if min(at) < 0 else None
                    yield write(name, "tma_store", fields, at, refused=refused)
    fields = dense("u16", *SHAPES[2])
    yield load("unaligned", fields, (1, 1), refused=UNALIGNED)
    yield write("unaligned", "tma_store", fields, (1, 1), refused=UNALIGNED)
    for type_, (_, size) in TYPES.items():
        if size < 1:
            continue
        for swizzle, span in SPANS.items():
            fields = dense(type_, (100, 12), (int(span / size), 9), swizzle=swizzle)
            step = int(STEP / size)
            for at in ((step, 2), (-step, -1), (99 // step * step, 8)):
                name = f"{type_} {swizzle} at {at}"
                yield load(name, fields, at, data=float_data(type_))
                if type_ not in CONVERTING_TYPES and min(at) >= 0:
                    yield write(name, "tma_store", fields, at)
    # Swizzles of 32- and 64-byte atoms are sm_100's: the driver or the GPU may refuse them here.
    for swizzle in ("32B", "64B", "128B"):
        for offset in (128, 256, 384, 512, 1024 + 128):
            fields = dense("u32", (64, 24), (SPANS[swizzle] // 4, 16), swizzle=swizzle)
            yield load(f"{swizzle} at offset {offset}", fields, (4, 3), offset=offset)
    for narrow, swizzle in ((16, "32B"), (16, "64B"), (32, "64B"), (16, "128B"), (48, "128B"),
                            (64, "128B"), (96, "128B")):  # fmt: skip
        fields = dense("u16", (128, 20), (narrow // 2, 10), swizzle=swizzle)
        name = f"box of {narrow} bytes, swizzle {swizzle}"
        yield load(name, fields, (8, 2), region=16 * SPANS[swizzle])
    for steps in ((1, 2), (1, 3), (2, 1), (3, 2), (1, 8)):
        fields = dense("u32", (64, 40), (16, 16), element_strides=steps)
        for at in ((4, 1), (-4, -5), (60, 37)):
            yield load(f"element strides {steps} at {at}", fields, at)
    for type_ in ("f16", "bf16", "f32", "f64", "tf32"):
        fields = dense(type_, (20, 6), (16, 4), fill=1)
        yield load(f"NaN fill {type_}", fields, (12, 4), refused="OOB_FILL_NAN")
    for interleave, unit in ((1, 16), (2, 32)):
        swizzle = "32B" if interleave == 2 else "none"
        fields = MapFields(
            "u16", (16 * 4, 6, 5), (6 * unit * 4, 6 * 5 * unit * 4), (16, 3, 2),
            interleave=interleave, swizzle=swizzle,
        )  # fmt: skip
        yield load(f"interleave {unit}B", fields, (1, 1, 1), region=4096, refused="interleaved")
    # Extents and strides of their own: rows that overlap, padding, one row for all, many rows.
    for name, fields, at in (
        ("overlapping rows", MapFields("u32", (32, 10), (16,), (16, 8)), (4, 1)),
        ("padded rows", MapFields("u8", (40, 10, 3), (96, 1120), (48, 6, 2)), (16, 6, 1)),
        ("one row for all", MapFields("u32", (32, 10), (0,), (16, 8)), (4, 2)),
        ("large box", MapFields("u8", (256, 90), (256,), (256, 64)), (0, 30)),
        ("tall box", MapFields("u8", (16, 300), (16,), (16, 256)), (0, 60)),
    ):
        size = fields.strides[-1] * fields.extents[-1] + fields.extents[0] * 4
        yield load(name, fields, at, data=as_bytes(noise(size // 4, 5)))


def float_data(type_: str) -> Bytes | None:
    """For the types that convert: subnormals, infinities, NaNs and every low bit."""
    if type_ not in CONVERTING_TYPES:
        return None
    special = np.array([0, 1, 0x80000001, 0x7FFFFF, 0x800000, 0x7F800000, 0xFF800000, 0x7FC00001,
                        0x7F800001, 0xFFFFFFFF, 0x3F800FFF, 0x3F801000, 0x3F801001, 0x3F803000,
                        0x3F801FFF, 0x7F7FFFFF], np.uint32)  # fmt: skip
    return as_bytes(np.resize(np.concatenate([special, noise(64, 4)]), 1200))


def float_values(type_: str, count: int, seed: int) -> Bytes:
    """Finite numbers of ordinary size; float32 ones also subnormal."""
    bits = noise(count, seed)
    if type_ == "f16":
        return as_bytes((bits & 0x83FF | 0x3000 + (bits >> 16) % 12 << 10).astype(np.uint16))
    if type_ == "bf16":
        return as_bytes((bits & 0x807F | 0x3E00 + (bits >> 16) % 12 << 7).astype(np.uint16))
    if type_ == "f32":
        values = bits & 0x807FFFFF | (120 + (bits >> 12) % 12 << 23)
        values[::5] &= 0x807FFFFF
        return as_bytes(values.astype(np.uint32))
    if type_ == "f64":
        return as_bytes(integers(count, -1000, 1000, seed) / 3.0)
    width = TYPES[type_][1]
    return as_bytes(noise(int(count * width / 4), seed))


TMA_REDUCTIONS = {
    "add": ("u32", "s32", "u64", "f16", "bf16", "f32", "f64"),
    "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("u32", "s32", "u64"),  # s64: an illegal instruction on the H200
    "or": ("u32", "s32", "u64"),
    "xor": ("u32", "s32", "u64"),
}


def reductions() -> Iterator[Case]:
    for operation, types in TMA_REDUCTIONS.items():
        for type_ in types:
            width = int(64 / TYPES[type_][1])
            fields = dense(type_, (width + 4, 10), (width, 8), swizzle="64B")
            # A padded row has no bits of an odd NaN: only whole elements are reduced.
            count = fields.strides[0] * 10 // int(TYPES[type_][1])
            yield write(
                type_,
                f"tma_reduce_{operation}",
                fields,
                (int(STEP / TYPES[type_][1]), 4),
                source=float_values(type_, width * 8, 21),
                target=float_values(type_, count, 22),
            )
    for rank, (extents, box) in SHAPES.items():
        fields = dense("u32", extents, box)
        at = ((extents[0] - 1) // 4 * 4, *(e - 1 for e in extents[1:]))
        yield write(f"{rank}d beyond", "tma_reduce_add", fields, at)


def multicast() -> Iterator[Case]:
    for size, masks in (
        (2, (3, 3)),
        (2, (2, 1)),
        (2, (0, 3)),
        (4, (15, 15, 15, 15)),
        (4, (1, 2, 4, 8)),
        (4, (6, 9, 0, 5)),
        (4, (8, 0, 0, 7)),
    ):
        for swizzle in ("none", "128B"):
            fields = dense("u16", (64, 40, 2), (64, 8, 1), swizzle=swizzle)
            region = fields.box_bytes * size
            yield Case(
                f"multicast {swizzle} {masks}",
                "tma",
                "tma_multicast",
                (
                    Map(fields, Buffer(tensor(fields, 9))),
                    struct.pack("<4I", *masks, *(0,) * (4 - size)),
                    11,
                    fields.box_bytes,
                    region,
                    blank(size * (region + 4)),
                ),
                grid=(size,),
                cluster=(size,),
                smem=region + 16,
            )


BULK_REDUCTIONS = {
    "add_u32": "u32", "add_s32": "s32", "add_u64": "u64", "add_f16": "f16", "add_bf16": "bf16",
    "add_f32": "f32", "add_f64": "f64", "min_f16": "f16", "max_f16": "f16", "min_bf16": "bf16",
    "max_bf16": "bf16", "min_s32": "s32", "max_u64": "u64", "min_s64": "s64", "inc_u32": "u32",
    "dec_u32": "u32", "and_b32": "u32", "or_b64": "u64", "xor_b32": "u32",
}  # fmt: skip


def linear() -> Iterator[Case]:
    for bytes_, offset in ((16, 0), (16, 48), (272, 16), (4096, 0), (1040, 80)):
        region = 4352
        yield Case(
            f"bulk round trip of {bytes_} bytes at {offset}",
            "bulk",
            "bulk_round_trip",
            (
                Buffer(as_bytes(noise(bytes_ // 4, 3))),
                offset,
                bytes_,
                region,
                blank(bytes_ + 64),
                blank(region + 4),
            ),
            smem=region + 16,
        )
    yield Case("bulk groups", "bulk", "bulk_groups", (blank(1024),), smem=512)
    for name, type_ in BULK_REDUCTIONS.items():
        bytes_ = 512
        count = int(bytes_ / TYPES[type_][1])
        yield Case(
            f"bulk reduce {name}",
            "bulk",
            f"bulk_reduce_{name}",
            (
                Buffer(float_values(type_, count, 31)),
                bytes_,
                Buffer(float_values(type_, count, 32), result=True),
            ),
            smem=bytes_,
        )


def cases() -> Iterator[Case]:
    yield from tiled()
    yield from reductions()
    yield from multicast()
    yield from linear()
