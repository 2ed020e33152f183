"""Matmuls by sizes, layouts and epilogues, and random ones to calibrate and judge selection by."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbw._src.epilogue import IDENTITY, Epilogue
from jaxbw._src.lab.bench.case import CONTRACTING, DTYPES, suite
from jaxbw._src.problem import GemmProblem, reduce_dot_general

MOST_FLOPS = 1.2e12  # of a drawn matmul, some 1.5 ms on an H200
MOST_ELEMENTS = 2.5e8  # of one of its arrays
LAYOUTS = ("nn", "nn", "nt", "nt", "tn", "tn", "tt")  # the last one is rare
MULTIPLES = (256, 128, 64, 64, 64, 8, 8, 1)  # of its sizes: most are round, as in practice
# Those of `python -m jaxbw bench --epilogue` by its names, and more; arrays have the operands'
# dtype.
EPILOGUES: dict[str, Callable[[np.dtype[Any]], Epilogue]] = {
    "none": lambda dtype: IDENTITY,
    "bias": lambda dtype: Epilogue(bias=dtype),
    "gelu": lambda dtype: Epilogue(activation="gelu"),
    "silu": lambda dtype: Epilogue(activation="silu"),
    "residual": lambda dtype: Epilogue(residual=dtype),
    "bias_residual": lambda dtype: Epilogue(bias=dtype, residual=dtype),
    "bias_gelu": lambda dtype: Epilogue(bias=dtype, activation="gelu"),
    "bias_silu": lambda dtype: Epilogue(bias=dtype, activation="silu"),
    "swiglu": lambda dtype: Epilogue(activation="silu", gated=True),
}
# Of our kernels only: an alpha in memory, scales, and those of a forward pass with a gradient.
OF_KERNELS: dict[str, Callable[[np.dtype[Any]], Epilogue]] = {
    "factor": lambda dtype: Epilogue(alpha=None),
    "scales": lambda dtype: Epilogue(lhs_scale=True, rhs_scale=True),
    "bias_gelu_saved": lambda dtype: Epilogue(bias=dtype, activation="gelu", save=True),
    "swiglu_saved": lambda dtype: Epilogue(activation="silu", gated=True, save=True),
}


@dataclass(frozen=True, order=True)
class Matmul:
    """[m, k] @ [k, n]; layout "n" is row-major, "t" its transpose, first lhs, then rhs.

    `precise`: fp8 is summed as accurately as float32.
    """

    m: int
    n: int
    k: int
    layout: str = "nn"
    dtype: str = "bfloat16"
    epilogue: str = "none"
    precise: bool = False

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """The matmul of a row of a results file, where older ones have fewer fields."""
        return cls(**{field.name: row[field.name] for field in fields(cls) if field.name in row})

    def __str__(self) -> str:
        suffix = "" if self.epilogue == "none" else f" {self.epilogue}"
        return f"{self.m}x{self.n}x{self.k} {self.layout}{suffix}"

    @property
    def problem(self) -> GemmProblem:
        """As the selection sees it; the result has the operands' dtype, or is bfloat16 of fp8."""
        dtype = jnp.dtype(self.dtype)
        result = jnp.dtype(jnp.bfloat16) if dtype.itemsize == 1 else dtype
        lhs = (self.m, self.k) if self.layout[0] == "n" else (self.k, self.m)
        rhs = (self.k, self.n) if self.layout[1] == "n" else (self.n, self.k)
        return reduce_dot_general(
            jax.ShapeDtypeStruct(lhs, dtype),
            jax.ShapeDtypeStruct(rhs, dtype),
            (CONTRACTING[self.layout], ((), ())),
            result,
            precision=lax.Precision.HIGHEST if self.precise else None,
            epilogue=(EPILOGUES | OF_KERNELS)[self.epilogue](result),
        ).problem


def parse(text: str) -> Matmul:
    """'m,n,k,layout' or 'm,n,k,layout,epilogue' to a matmul."""
    m, n, k, layout, *rest = text.split(",")
    [epilogue] = rest or ["none"]
    return Matmul(int(m), int(n), int(k), layout, epilogue=epilogue)


def add_types(parser: argparse.ArgumentParser) -> None:
    """The arguments that `of_types` reads."""
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="of the operands")
    parser.add_argument("--precise", action="store_true", help="sums of fp8 as float32's")


def of_types(wanted: Sequence[Matmul], arguments: argparse.Namespace) -> list[Matmul]:
    """The same matmuls of the asked types."""
    dtype = DTYPES[arguments.dtype]
    return [replace(each, dtype=dtype, precise=arguments.precise) for each in wanted]


def draw(
    count: int,
    seed: int,
    epilogue: str = "none",
    least: int = 1,
    multiples: Sequence[int] = MULTIPLES,
) -> list[Matmul]:
    """Random matmuls: log-uniform sizes from decoding to large ones, unaligned ones among them.

    The sizes and layouts of a seed are the same with every epilogue. `least` leaves those out whose
    m, n or k is less; sizes are multiples of one of `multiples`, but for a few rows. What `python
    -m jaxbw bench` measures is not drawn: no choice is made from that.
    """
    source, benchmarked = random.Random(seed), suite()
    drawn: list[Matmul] = []
    while len(drawn) < count:
        multiple = source.choice(multiples)

        def extent(least: int, most: int, step: int = multiple) -> int:
            size: float = least * (most / least) ** source.random()
            return max(step, round(size / step) * step)

        few_rows = source.random() < 0.3
        m = extent(1, 128, 1) if few_rows else extent(128, 16384)
        n, k, layout = extent(128, 32768), extent(128, 32768), source.choice(LAYOUTS)
        matmul = Matmul(m, n, k, layout, epilogue=epilogue)
        small = min(matmul.m, matmul.n, matmul.k) < least
        known = (matmul.m, matmul.n, matmul.k) in benchmarked
        if is_moderate(matmul) and not small and not known:
            drawn.append(matmul)
    return drawn


def is_moderate(matmul: Matmul) -> bool:
    """Whether it is small enough to be measured often."""
    m, n, k = matmul.m, matmul.n, matmul.k
    return 2 * m * n * k <= MOST_FLOPS and max(m * k, k * n, m * n) <= MOST_ELEMENTS
