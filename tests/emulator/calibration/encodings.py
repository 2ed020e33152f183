"""Tensor maps whose 128 bytes are compared, and those that must be refused alike."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from .case import SWIZZLES, TYPES, MapFields, integers

ADDRESS = 0x7F12_3456_7800  # nothing is there: the driver does not look


@dataclass(frozen=True)
class Encoding:
    """A call of cuTensorMapEncodeTiled."""

    name: str
    fields: MapFields
    address: int = ADDRESS

    @property
    def newer(self) -> bool:
        """Whether it takes compute capability 10.0: the driver of a 9.0 refuses it."""
        return "atom" in self.fields.swizzle or TYPES[self.fields.type][1] < 1


BASE = MapFields("bf16", (4096, 512, 6), (8192, 4194304), (64, 32, 1))


def change(
    name: str, base: MapFields = BASE, address: int = ADDRESS, **changes: object
) -> Encoding:
    return Encoding(name, dataclasses.replace(base, **changes), address)  # type: ignore[arg-type]


def one_at_a_time() -> Iterator[Encoding]:
    yield Encoding("base", BASE)
    for address in (0, 16, 32, 8, 1, 0xFFFF_FFFF_FFF0, 0x1_0000_0000, 1 << 47, 0x7FFF_FFFF_FFF0,
                    1 << 56, (1 << 64) - 16):  # fmt: skip
        yield change(f"address {address:#x}", address=address)
    for type_, (_, size) in TYPES.items():
        inner = 128 if size < 1 else int(64 / size)
        fields = MapFields(type_, (4096, 512), (32768,), (inner, 32))
        yield Encoding(f"type {type_}", fields)
        yield change(f"type {type_}, NaN fill", fields, fill=1)
        for swizzle in SWIZZLES:
            width = int(32 / size) if swizzle == "32B" and size >= 1 else inner
            yield change(
                f"type {type_} swizzle {swizzle}", fields, swizzle=swizzle, box=(width, 32)
            )
    for rank in range(1, 6):
        extents, boxes = (64, 40, 30, 20, 10), (32, 8, 4, 2, 1)
        strides = (512, 20480 * 2, 1 << 22, 1 << 30)
        fields = MapFields("u16", extents[:rank], strides[: rank - 1], boxes[:rank])
        yield Encoding(f"rank {rank}", fields)
        for interleave in (1, 2):
            for swizzle in ("none", "32B", "64B", "128B"):
                yield change(
                    f"rank {rank} interleave {interleave} swizzle {swizzle}",
                    fields, interleave=interleave, swizzle=swizzle,
                )  # fmt: skip
        for d in range(rank):
            unit = tuple(int(i == d) for i in range(rank))
            for step in range(10):
                steps = tuple(step if u else 1 for u in unit)
                yield change(f"rank {rank} element strides {steps}", fields, element_strides=steps)
                if rank >= 3 and step in (2, 8):
                    yield change(
                        f"rank {rank} interleaved, element strides {steps}",
                        fields, element_strides=steps, interleave=1,
                    )  # fmt: skip
            for size in (0, 1, 2, 8, 16, 255, 256, 257):
                box = tuple(size if u else b for u, b in zip(unit, fields.box, strict=True))
                yield change(f"rank {rank} box {box}", fields, box=box)
            for extent in (0, 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 1):
                changed = tuple(
                    extent if u else e for u, e in zip(unit, extents[:rank], strict=True)
                )
                yield change(f"rank {rank} extents {changed}", fields, extents=changed)
            if d < rank - 1:
                for stride in (0, 8, 16, 32, 1 << 20, 1 << 36, (1 << 40) - 16, 1 << 40, 3 << 37):
                    changed = tuple(
                        stride if u else s for u, s in zip(unit, fields.strides, strict=False)
                    )
                    yield change(f"rank {rank} strides {changed}", fields, strides=changed)
    for promotion in range(4):
        yield change(f"L2 promotion {promotion}", l2_promotion=promotion)
    for swizzle in SWIZZLES:
        for inner in (8, 16, 24, 32, 48, 64, 72, 128):
            name = f"swizzle {swizzle}, box of {2 * inner} bytes"
            yield change(name, swizzle=swizzle, box=(inner, 32, 1))


def combinations() -> Iterator[Encoding]:
    """Everything at once, mostly legal."""
    for seed in range(150):
        draw = iter(integers(64, 0, 1 << 20, 1000 + seed).tolist())
        names = [name for name, (_, size) in TYPES.items() if size >= 1]
        type_ = names[next(draw) % len(names)]
        size = int(TYPES[type_][1])
        rank = 1 + next(draw) % 5
        swizzle = ("none", "32B", "64B", "128B")[next(draw) % 4]
        span = {"none": 64, "32B": 32, "64B": 64, "128B": 128}[swizzle]
        interleave = (0, 0, 0, 1)[next(draw) % 4] if rank >= 3 else 0
        floating = 6 <= TYPES[type_][0] <= 12
        yield Encoding(
            f"combination {seed}",
            MapFields(
                type_,
                tuple(1 + next(draw) for _ in range(rank)),
                tuple(16 * next(draw) << next(draw) % 16 for _ in range(rank - 1)),
                (span // size, *(1 + next(draw) % 256 for _ in range(rank - 1))),
                tuple(1 + next(draw) % 8 for _ in range(rank)),
                interleave,
                swizzle,
                next(draw) % 4,
                next(draw) % 2 if floating else 0,
            ),
            ADDRESS + 16 * next(draw),
        )


def encodings() -> list[Encoding]:
    return [*one_at_a_time(), *combinations()]
