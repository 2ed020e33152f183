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

# Per architecture: the family of its kernels, and the threads of a CTA.
# sm90: a producer warpgroup and two consumers. sm100: four role warps and four epilogue warps.
_FAMILIES = {"sm_90a": ("sm90", 384), "sm_100f": ("sm100", 256)}
_ROW_KEYS = {"arch", "input", "layout", "tile", "cta_group", "why"}
_BLOCK_K = 64  # one 128-byte swizzle span of 16-bit elements


@dataclass(frozen=True)
class Kernel:
    """One kernel instance: what is fixed when it is compiled.

    `block_n` is None, `input` is "16bit" and `layout` is "any" where that is chosen at launch.
    """

    arch: str
    input: str
    layout: str
    block_m: int
    block_n: int | None
    block_k: int
    cta_group: int
    why: str

    def __post_init__(self) -> None:
        for fault in _faults(self):
            raise ValueError(f"kernel instance {self}: {fault}")

    @property
    def family(self) -> str:
        """The kernel source that the instance is made of: "sm90" or "sm100"."""
        return _FAMILIES[self.arch][0]

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return _FAMILIES[self.arch][1]

    @property
    def name(self) -> str:
        """The name of the kernel function, of its files, and in a profile."""
        if self.family == "sm100":
            return f"jaxbw_sm100_{self.input}_{self.cta_group}cta"
        tile = f"{self.block_m}x{self.block_n}x{self.block_k}"
        return f"jaxbw_sm90_{self.input}_{self.layout}_{tile}"

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
    """The product of a row's alternatives."""
    if row.keys() != _ROW_KEYS:
        unknown, missing = sorted(row.keys() - _ROW_KEYS), sorted(_ROW_KEYS - row.keys())
        raise ValueError(f"kernel row {dict(row)}: unknown keys {unknown}, missing keys {missing}")
    tiles = row["tile"] if isinstance(row["tile"][0], list) else [row["tile"]]
    for dtype, layout, tile in itertools.product(
        _alternatives(row["input"]), _alternatives(row["layout"]), tiles
    ):
        block_m, block_n, block_k = tile
        yield Kernel(
            arch=row["arch"],
            input=dtype,
            layout=layout,
            block_m=block_m,
            block_n=None if block_n == "any" else block_n,
            block_k=block_k,
            cta_group=row["cta_group"],
            why=row["why"],
        )


def _alternatives(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _faults(kernel: Kernel) -> Iterator[str]:
    """Why an instance cannot be built, in words; nothing where it can."""
    if kernel.arch not in _FAMILIES:
        yield f"arch is not one of {', '.join(_FAMILIES)}"
        return
    if kernel.block_k != _BLOCK_K:
        yield f"block_k is not {_BLOCK_K}"
    if kernel.family == "sm90":
        if kernel.input not in ("bf16", "f16"):
            yield 'input is not "bf16" or "f16": wgmma has it in the instruction'
        if kernel.layout not in ("nn", "nt", "tn", "tt"):
            yield 'layout is not "nn", "nt", "tn" or "tt": wgmma has it in the instruction'
        if kernel.cta_group != 1:
            yield "cta_group is not 1: wgmma has no pairs"
        if kernel.block_m != 128:
            yield "block_m is not 128, two consumer warpgroups of m64"
        if kernel.block_n is None or kernel.block_n % 64 or not 64 <= kernel.block_n <= 256:
            yield "block_n is not a multiple of 64 in 64..256"
    else:
        if (kernel.input, kernel.layout, kernel.block_n) != ("16bit", "any", None):
            yield 'input "16bit", layout "any" and block_n "any" are chosen at launch for tcgen05'
        if kernel.cta_group not in (1, 2):
            yield "cta_group is not 1 or 2"
        if kernel.block_m != 128 * kernel.cta_group:
            yield "block_m is not 128 for each CTA of the group"
