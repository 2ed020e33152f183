"""A matmul as the commands are told it: M, N, K, a layout and a configuration; its operands."""

import argparse
import ast
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from jaxbw._src.lab import group_sizes
from jaxbw._src.lab.bench.case import CONTRACTING
from jaxbw._src.problem import DimensionNumbers
from jaxbw._src.selection.config import GemmConfig

LAYOUTS = tuple(CONTRACTING)


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """The arguments M, N and K."""
    for name, what in (
        ("M", "rows of the result"),
        ("N", "columns of the result"),
        ("K", "extent of the contraction"),
    ):
        parser.add_argument(name, type=extent, help=what)


def add_groups(parser: Any) -> None:
    """The arguments --groups and --group-sizes."""
    parser.add_argument(
        "--groups",
        type=extent,
        metavar="GROUPS",
        help="a grouped matmul, as of jaxbw.ragged_dot: the rows of lhs fall into so many groups, "
        "each of which has a matrix of rhs; in layout tn the contraction does, and each has a "
        "matrix of the result",
    )
    parser.add_argument(
        "--group-sizes",
        choices=group_sizes.KINDS,
        default=group_sizes.DEFAULT,
        help=f"how rows fall into groups; default {group_sizes.DEFAULT}",
    )


def add_config(parser: argparse.ArgumentParser, what: str) -> None:
    """The argument --config, whose value is a list of fields and values."""
    parser.add_argument("--config", nargs="+", type=_field, metavar="FIELD=VALUE", help=what)


def _field(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    known = [field.name for field in dataclasses.fields(GemmConfig)]
    if name not in known:
        raise argparse.ArgumentTypeError(f"{name!r} is no field; type one of {', '.join(known)}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value  # a word


def extent(text: str) -> int:
    """An argument that is a size.

    Raises:
      argparse.ArgumentTypeError: it is none.
    """
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; type a whole number from 1 on")
    return value


def operands(
    shape: tuple[int, int, int], layout: str, dtype: Any, batch: Sequence[int] = ()
) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct, DimensionNumbers]:
    """lhs, rhs and the dimension numbers of a matmul of m x n x k."""
    m, n, k = shape
    lhs = (m, k) if layout[0] == "n" else (k, m)
    rhs = (k, n) if layout[1] == "n" else (n, k)
    (lhs_k,), (rhs_k,) = CONTRACTING[layout]
    batched = tuple(range(len(batch)))
    dims = (((lhs_k + len(batch),), (rhs_k + len(batch),)), (batched, batched))
    return (
        jax.ShapeDtypeStruct((*batch, *lhs), dtype),
        jax.ShapeDtypeStruct((*batch, *rhs), dtype),
        dims,
    )


def grouped(
    shape: tuple[int, int, int], layout: str, dtype: Any, groups: int
) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct, lax.RaggedDotDimensionNumbers]:
    """lhs, rhs and the dimension numbers of a grouped matmul of m x n x k.

    Raises:
      ValueError: there is none in this layout.
    """
    m, n, k = shape
    if layout == "tt":
        raise ValueError("--groups: layouts of grouped matmuls are nn, nt, and tn")
    dense = ((CONTRACTING[layout][0], CONTRACTING[layout][1]), ((), ()))
    if layout == "tn":
        dims = lax.RaggedDotDimensionNumbers(dense, (0,), ())
        shapes: tuple[tuple[int, ...], ...] = ((k, m), (k, n))
    else:
        (rhs_k,) = CONTRACTING[layout][1]
        dims = lax.RaggedDotDimensionNumbers((((1,), (1 + rhs_k,)), ((), ())), (0,), (0,))
        shapes = ((m, k), (groups, n, k) if layout == "nt" else (groups, k, n))
    lhs, rhs = (jax.ShapeDtypeStruct(each, dtype) for each in shapes)
    return lhs, rhs, dims
