"""The table of kernel instances, cuda/kernels.toml: what a row means, and which rows are valid.

Standard library only, and nothing of jaxbw: the build loads this file by its path, before there
is a package. What is said here serves the build, the selection and the tests.
"""

import itertools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Self

_FAMILIES = {"sm_90a": "sm90", "sm_100f": "sm100"}
# Threads of a CTA. sm90: a producer warpgroup and two consumers. sm100: four role warps and four
# epilogue warps.
_GEMM_THREADS = {"sm90": 384, "sm100": 256}
_SKINNY_THREADS = {32: 256, 64: 256, 128: 128}  # by a tile's columns
_OTHER_THREADS = {
    **{"repack": 256, "reduce": 512, "quantize": 256, "quantize_blocks": 512},
    "group_table": 512,
}
# Roles of kernels that serve some of a gemm kernel's launches faster; and of all that multiply.
_GEMM_FOR_SOME = ("plain", "elementwise", "fused", "cast")
MATMULS = ("gemm", *_GEMM_FOR_SOME, "skinny", "grouped", "gathered")
# Elements in one 128-byte swizzle span.
_SPANS = {"bf16": 64, "f16": 64, "8bit": 128, "8bit_promoted": 128, "tf32": 32}
# Instances that differ only in their operands share a source, and its PTX, where this stands for a
# number (cuda/gemm/operand_bits.h). On sm90 they are those of a tile, and its bits say: lhs
# MN-major, rhs MN-major, any layout; then which operands. Row-major, "n", is K-major for lhs [m, k]
# and MN-major for rhs [k, n]. On sm100 they are gemm kernels without scales of blocks, and it is
# log2 of the bytes of an element.
_PLACEHOLDER = "0x4a584257"
_LAYOUTS = {"nn": 2, "nt": 0, "tn": 3, "tt": 1, "any": 4}
_OPERANDS = {"bf16": 0, "f16": 1, "8bit": 2, "tf32": 3}
_ELEMENT_LOG2 = {"8bit": 0, "16bit": 1, "tf32": 2}
_CHUNK = 32  # columns that the epilogue of sm_90 finishes at a time (kSm90Chunk)

# Keys of a row, by its role.
_KEYS = {"arch", "role", "input", "why"}
_ROW_KEYS = {
    **dict.fromkeys(MATMULS, _KEYS | {"layout", "tile", "cta_group"}),
    "repack": _KEYS,
    "reduce": _KEYS,
    "quantize": _KEYS,
    "quantize_blocks": _KEYS,
    "group_table": _KEYS,
}


@dataclass(frozen=True)
class Kernel:
    """One kernel instance: what is fixed when it is compiled.

    `layout` is "any" and a tile's dimension None where that is chosen at launch, or has no meaning.

    Args:
      arch: compile target, "sm_90a" or "sm_100f".
      role: "gemm"; "plain", "elementwise", "fused" and "cast", which serve some of its launches;
        "skinny", a matmul of few rows, which come without TMA; "grouped", a matmul of rows or a
        contraction that fall into groups; "gathered", one of rows that it chooses itself;
        "group_table", which says what the tiles of both are; "repack", which copies operands that
        TMA cannot address; "reduce", which adds up the parts of a matmul that is split along K;
        "quantize", of arrays to 8-bit floats, and "quantize_blocks", to block-scaled formats.
      input: dtype of the operands, or a class of them.
      layout: which of m, k and k, n are contiguous.
      block_m, block_n, block_k: the tile of a multiplying warpgroup; of a skinny one that of a CTA.
      cta_group: CTAs that share one MMA.
      why: what the instance is for.
    """

    arch: str
    role: str
    input: str
    layout: str
    block_m: int | None
    block_n: int | None
    block_k: int | None
    cta_group: int
    why: str

    def __post_init__(self) -> None:
        for fault in _faults(self):
            raise ValueError(f"kernel instance {self}: {fault}")

    @property
    def family(self) -> str:
        """The GPUs that the instance is for: "sm90" or "sm100"."""
        return _FAMILIES[self.arch]

    @property
    def is_gemm(self) -> bool:
        """Whether it is a gemm kernel: for all launches of its tile, or some."""
        return self.role == "gemm" or self.serves_some

    @property
    def is_dense(self) -> bool:
        """Whether it serves matmuls without groups."""
        return self.is_gemm or self.role == "skinny"

    @property
    def serves_some(self) -> bool:
        """Whether it serves some of the launches of a gemm kernel, in its place."""
        return self.role in _GEMM_FOR_SOME

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        if self.role == "skinny":
            return _SKINNY_THREADS[self.block_n or 0]
        return _GEMM_THREADS[self.family] if self.role in MATMULS else _OTHER_THREADS[self.role]

    @property
    def name(self) -> str:
        """The name of the kernel function, of its files, and in a profile."""
        if self.role not in MATMULS:
            return f"jaxbw_{self.family}_{self.role}_{self.input}"
        if self.family == "sm100":
            return f"{self._prefix}_{self.input}_{self.cta_group}cta"
        return f"{self._prefix}_{self.input}_{self.layout}_{self.block_m}x{self.block_n}"

    @property
    def _prefix(self) -> str:
        role = "" if self.role == "gemm" else f"_{self.role}"
        return f"jaxbw_{self.family}{role}"

    @property
    def source_name(self) -> str:
        """The name of its CUDA C++, and of that one's PTX and the kernel in it."""
        if self.family == "sm100" and self.is_gemm and self.input in _ELEMENT_LOG2:
            return f"{self._prefix}_{self.cta_group}cta"
        if self.family == "sm90" and self.role in MATMULS and self.input in _OPERANDS:
            return f"{self._prefix}_{self.block_m}x{self.block_n}"
        return self.name

    @property
    def placeholder(self) -> tuple[str, str]:
        """What its source's PTX has for all instances, and what this one has there."""
        if self.source_name == self.name:
            return "", ""
        if self.family == "sm100":
            return _PLACEHOLDER, str(_ELEMENT_LOG2[self.input])
        return _PLACEHOLDER, str(_LAYOUTS[self.layout] + 8 * _OPERANDS[self.input])

    def ptx(self, of_source: str) -> str:
        """Its PTX, from that of its source."""
        word, number = self.placeholder
        if not word:
            return of_source
        for old, new in ((self.source_name, self.name), (word, number)):
            assert old in of_source
            of_source = of_source.replace(old, new)
        return of_source

    def to_json(self) -> dict[str, Any]:
        """The fields and the name, as the manifest holds them."""
        return {"name": self.name, **asdict(self)}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """The instance of a manifest entry; what the build added to it is left out."""
        return cls(**{field: entry[field] for field in cls.__dataclass_fields__})


def load(path: str | PathLike[str]) -> tuple[Kernel, ...]:
    """Every instance of a table, in its order.

    Raises:
      ValueError: an unknown key, a bad value, or two instances of one name.
    """
    table = tomllib.loads(Path(path).read_text())
    if unknown := table.keys() - {"kernel"}:
        raise ValueError(f"{path}: unknown key {', '.join(sorted(unknown))}")
    kernels: dict[str, Kernel] = {}
    for row in table.get("kernel", []):
        for kernel in _expand(row):
            if kernel.name in kernels:
                raise ValueError(f"{path}: {kernel.name} stands in it twice")
            kernels[kernel.name] = kernel
    return tuple(kernels.values())


def _expand(row: Mapping[str, Any]) -> Iterator[Kernel]:
    """The matmul of a row's alternatives."""
    roles = _alternatives(row.get("role", ""))
    expected = _ROW_KEYS.get(roles[0], _ROW_KEYS["gemm"])
    if row.keys() != expected:
        unknown, missing = sorted(row.keys() - expected), sorted(expected - row.keys())
        raise ValueError(f"kernel row {dict(row)}: unknown keys {unknown}, missing keys {missing}")
    tiles = row.get("tile", "any")
    alternatives = itertools.product(
        _alternatives(row["arch"]),
        roles,
        _alternatives(row["input"]),
        _alternatives(row.get("layout", "any")),
        [(None, None, None)] if tiles == "any" else tiles,
    )
    for arch, role, dtype, layout, (block_m, block_n, block_k) in alternatives:
        yield Kernel(
            arch=arch,
            role=role,
            input=dtype,
            layout=layout,
            block_m=block_m,
            block_n=block_n,
            block_k=block_k,
            cta_group=row.get("cta_group", 1),
            why=row["why"],
        )


def _alternatives(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _faults(kernel: Kernel) -> Iterator[str]:
    """Why an instance cannot be built, in words; nothing where it can."""
    if kernel.arch not in _FAMILIES:
        yield f"arch is not one of {', '.join(_FAMILIES)}"
    elif kernel.role not in _ROW_KEYS:
        yield f"role is not one of {', '.join(_ROW_KEYS)}"
    elif kernel.role == "repack":
        if kernel.input not in ("8bit", "16bit", "32bit"):
            yield 'input is not "8bit", "16bit" or "32bit", the size of what is copied'
    elif kernel.role == "reduce":
        if (kernel.family, kernel.input) != ("sm90", "f32"):
            yield 'there is one, for arch "sm_90a" and input "f32"'
    elif kernel.role in ("quantize", "quantize_blocks"):
        if kernel.input not in ("f32", "bf16", "f16"):
            yield 'input is not "f32", "bf16" or "f16", what is quantized'
    elif kernel.role == "group_table":
        if kernel.input != "s32":
            yield 'input is not "s32", the sizes'
    elif kernel.role == "skinny":
        yield from _skinny_faults(kernel)
    elif kernel.family == "sm90":
        yield from _sm90_faults(kernel)
    else:
        yield from _sm100_faults(kernel)


def _skinny_faults(kernel: Kernel) -> Iterator[str]:
    if (kernel.family, kernel.cta_group) != ("sm90", 1):
        yield 'it is for arch "sm_90a" and cta_group 1'
    if kernel.input not in ("bf16", "f16") or kernel.layout not in ("nn", "nt"):
        yield 'input is not "bf16" or "f16", or layout not "nn" or "nt"'
    if kernel.block_m not in (8, 16, 32):
        yield "block_m is not 8, 16 or 32"
    if kernel.block_n not in _SKINNY_THREADS:
        yield f"block_n is not one of {', '.join(map(str, _SKINNY_THREADS))}"


def _sm90_faults(kernel: Kernel) -> Iterator[str]:
    if kernel.serves_some and kernel.input == "8bit_promoted":
        yield f'role is "{kernel.role}", which promoted sums do not have'
    if not kernel.is_gemm and kernel.input == "tf32":
        yield 'input is "tf32", which grouped matmuls do not take'
    if kernel.role == "gathered" and kernel.layout not in ("nn", "nt"):
        yield 'layout is not "nn" or "nt", of gathered rows'
    if kernel.role == "grouped" and kernel.layout not in ("nn", "nt", "tn"):
        yield 'layout is not "nn" or "nt", of grouped rows, or "tn", of a grouped contraction'
    if kernel.input not in _SPANS:
        yield f"input is not one of {', '.join(_SPANS)}"
    elif kernel.block_k != (span := _SPANS[kernel.input]):
        yield f"block_k is not {span}"
    if kernel.input not in ("bf16", "f16") and kernel.layout != "nt":
        yield 'layout is not "nt": wgmma takes what is not of 16 bits K-major only'
    if kernel.layout not in _LAYOUTS or (kernel.layout == "any" and not kernel.is_gemm):
        yield 'layout is not "nn", "nt", "tn" or "tt", nor "any" of a gemm kernel'
    if kernel.cta_group != 1:
        yield "cta_group is not 1: wgmma has no pairs"
    if kernel.block_m not in (64, 128, 192):
        yield "block_m is not 64, 128 or 192, one to three m64 of a warpgroup"
    if kernel.block_n is None or kernel.block_n % _CHUNK or not _CHUNK <= kernel.block_n <= 256:
        yield f"block_n is not a multiple of {_CHUNK} up to 256"


def _sm100_faults(kernel: Kernel) -> Iterator[str]:
    if kernel.serves_some:
        yield f'role is "{kernel.role}", of arch "sm_90a"'
    if kernel.role == "gathered" and kernel.input not in ("16bit", "8bit"):
        yield 'input is not "16bit" or "8bit", of gathered rows'
    if kernel.role == "grouped" and kernel.input == "tf32":
        yield 'input is "tf32", which grouped matmuls do not take'
    if kernel.role == "gathered" and kernel.cta_group != 1:
        yield "cta_group is not 1, of gathered rows"
    if kernel.input not in ("16bit", "8bit", "tf32", "8bit_mx", "4bit_mx"):
        yield 'input is not "16bit", "8bit", "tf32", "8bit_mx" or "4bit_mx", kinds of tcgen05.mma'
    if kernel.layout != "any" or any((kernel.block_m, kernel.block_n, kernel.block_k)):
        yield 'layout "any" and tile "any" are chosen at launch for tcgen05'
    if kernel.cta_group not in (1, 2):
        yield "cta_group is not 1 or 2"
