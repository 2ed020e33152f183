"""Case: one matmul to be measured, and the matmuls of the suite, which are data (shapes.json)."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import NamedTuple

import jax.numpy as jnp

# Which dimensions contract; "n" is an operand as written, [m, k] or [k, n], "t" its transpose.
CONTRACTING = {"nn": ((1,), (0,)), "nt": ((1,), (1,)), "tn": ((0,), (0,)), "tt": ((0,), (1,))}
# The gradients of an "nn" matmul, as JAX computes them: [m, n] by [k, n], and [m, k] by [m, n].
GRADIENTS = ("dlhs", "drhs")
LAYOUTS = (*CONTRACTING, *GRADIENTS)
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "e4m3": "float8_e4m3fn"}
EPILOGUES = ("none", "bias_gelu", "bias_silu", "swiglu")

Shape = tuple[int, ...]


class Plain(NamedTuple):
    """A matmul without names: m x n x k of operands in a layout of CONTRACTING."""

    m: int
    n: int
    k: int
    layout: str


@dataclass(frozen=True, order=True)
class Case:
    """One matmul: what is computed, whoever computes it.

    Args:
      group: of the suite; "other" where the suite does not have the shape.
      m, n, k: of the "nn" matmul, also where a gradient of it is computed.
      layout: one of LAYOUTS.
      dtype: of operands and result, one of DTYPES; of fp8 operands the result is bfloat16.
      epilogue: one of EPILOGUES; other than "none" only in layout "nn".
      precise: fp8 is summed as accurately as float32, not as fast as the hardware likes.

    Raises:
      ValueError: an epilogue in another layout.

    >>> print(Case("cube", 4096, 4096, 4096))
    4096x4096x4096 nn bfloat16
    """

    group: str
    m: int
    n: int
    k: int
    layout: str = "nn"
    dtype: str = "bfloat16"
    epilogue: str = "none"
    precise: bool = False

    def __post_init__(self) -> None:
        if self.epilogue != "none" and self.layout != "nn":
            raise ValueError(
                f"--epilogue {self.epilogue} is measured in layout nn only, not in {self.layout}; "
                "leave --layouts out"
            )

    def __str__(self) -> str:
        suffix = "" if self.epilogue == "none" else f" {self.epilogue}"
        suffix += " precise" if self.precise else ""
        return f"{self.m}x{self.n}x{self.k} {self.layout} {self.dtype}{suffix}"

    @property
    def plain(self) -> Plain:
        """The matmul that is computed: a gradient is one of other dimensions.

        >>> Case("other", 2, 3, 4, "drhs").plain
        Plain(m=4, n=3, k=2, layout='tn')
        """
        if self.layout == "dlhs":
            return Plain(self.m, self.k, self.n, "nt")
        if self.layout == "drhs":
            return Plain(self.k, self.n, self.m, "tn")
        return Plain(self.m, self.n, self.k, self.layout)

    @property
    def operands(self) -> tuple[Shape, ...]:
        """The shapes of the operands: lhs, rhs, then the bias or the second right operand."""
        m, n, k, layout = self.plain
        lhs = (m, k) if layout[0] == "n" else (k, m)
        rhs = (k, n) if layout[1] == "n" else (n, k)
        extra: dict[str, tuple[Shape, ...]] = {"none": (), "swiglu": (rhs,)}
        return (lhs, rhs, *extra.get(self.epilogue, ((n,),)))

    @property
    def is_fp8(self) -> bool:
        """Whether the operands are."""
        return self.dtype == DTYPES["e4m3"]

    @property
    def result_dtype(self) -> str:
        """Of the result."""
        return "bfloat16" if self.is_fp8 else self.dtype

    @property
    def flops(self) -> int:
        """Floating-point operations of the matmuls."""
        return 2 * self.m * self.n * self.k * (2 if self.epilogue == "swiglu" else 1)

    @property
    def bytes(self) -> int:
        """Bytes of operands and result, each counted once."""
        read = sum(_size(shape) for shape in self.operands) * jnp.dtype(self.dtype).itemsize
        return read + self.plain.m * self.plain.n * jnp.dtype(self.result_dtype).itemsize


def parse_shape(text: str) -> tuple[int, int, int]:
    """'4096x4096x4096' or '4096,4096,4096' as (m, n, k).

    >>> parse_shape("16x4096x7168")
    (16, 4096, 7168)
    """
    parts = re.split("[x,]", text)
    if len(parts) != 3 or not all(part.isdecimal() and int(part) for part in parts):
        raise ValueError(f"{text!r} is no shape; type three sizes, as in 4096x4096x4096")
    m, n, k = map(int, parts)
    return m, n, k


def suite() -> dict[tuple[int, int, int], str]:
    """The group of each (m, n, k) of the suite, in its order."""
    table = json.loads((resources.files("jaxbw._src.lab.bench") / "shapes.json").read_text())
    return {(row["m"], row["n"], row["k"]): row["group"] for row in table["shapes"]}


def groups() -> list[str]:
    """The groups of the suite."""
    return list(dict.fromkeys(suite().values()))


def select(
    *,
    groups: Sequence[str] = (),
    shapes: Sequence[tuple[int, int, int]] = (),
    layouts: Sequence[str] = ("nn",),
    dtypes: Sequence[str] = ("bf16",),
    epilogues: Sequence[str] = ("none",),
    precise: bool = False,
) -> list[Case]:
    """The cases asked for: of the given groups, or shapes; else of the whole suite."""
    known = suite()
    chosen = [
        *(shape for shape, group in known.items() if group in groups),
        *(shape for shape in shapes if known.get(shape) not in groups),
    ]
    return [
        Case(known.get(shape, "other"), *shape, layout, DTYPES[dtype], epilogue, precise)
        for dtype in dtypes
        for epilogue in epilogues
        for layout in layouts
        for shape in (chosen if groups or shapes else known)
    ]


def _size(shape: Shape) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size
