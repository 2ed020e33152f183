"""Which problems the kernels take, whatever their configuration. The rest is XLA's."""

from typing import Any

import numpy as np
from jax import lax
from jax.errors import InconclusiveDimensionOperation

from jaxbw._native import Major
from jaxbw._src.families import FAMILIES
from jaxbw._src.families.family import BF16, E2M1, E4M3, E5M2, F16, F32
from jaxbw._src.problem import GemmProblem, itemsize, precisions
from jaxbw._src.selection import planner
from jaxbw._src.selection.config import CANONICAL_M

OUTPUTS = (BF16, F16, F32)  # and of 8 bits, the result alone

ALIGNMENT = 16  # bytes, of strides and addresses: CUtensorMap
_BOX = 64  # bytes, of which rows of 4 bits consist beside 8: kPaddedRow of cuda/host/operand.h

# Algorithms that kernels implement: exact matmuls of the inputs (or of their TF32 roundings),
# float32 sums. The inputs must already be of the dtype that the algorithm would convert them to;
# float32 ones in pieces (pieces.py) are.
_ALGORITHMS = {
    lax.DotAlgorithmPreset.DEFAULT: (BF16, F16, F32, E4M3, E5M2, E2M1),
    lax.DotAlgorithmPreset.BF16_BF16_F32: (BF16,),
    lax.DotAlgorithmPreset.F16_F16_F32: (F16,),
    lax.DotAlgorithmPreset.TF32_TF32_F32: (F32,),
    lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32: (E4M3, E5M2),
    lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32_FAST_ACCUM: (E4M3, E5M2),
}


def refusal(problem: GemmProblem, family: str, *, for_every_m: bool = False) -> str | None:
    """Why no kernel of a family takes a problem, with the way out; None where one may.

    Args:
      for_every_m: the launch does not depend on m and the batch, so that these may be symbolic.
    """
    reason = _type_refusal(problem, family)
    if reason is None and not problem.is_sized:
        reason = _symbolic_refusal(problem, family, for_every_m)
    return reason or planner.problem_refusal(problem.sized(CANONICAL_M), family)


def repacked(problem: GemmProblem, family: str) -> tuple[str, ...]:
    """Which of "lhs" and "rhs" are copied before the matmul, in the same call, for TMA to load.

    Those are operands whose rows do not start at multiples of 16 bytes (a single row does, so far
    as is known here), and those that are MN-major where the instruction takes K-major only, TF32
    and, of wgmma, 8 bits: these are transposed. Rows of 4 bits beside 8 have a multiple of 64.
    """
    p = problem
    lhs = _needs_repack(p.lhs_dtype, p.lhs_shape, p.lhs_major, family, mixed=p.is_mixed)
    rhs = _needs_repack(p.rhs_dtype, p.rhs_shape, p.rhs_major, family, mixed=p.is_mixed)
    return ("lhs",) * lhs + ("rhs",) * rhs


def effective_major(dtype: np.dtype[Any], major: Major, family: str) -> Major:
    """The layout of an operand when the matmul's kernel sees it."""
    return Major.K if dtype in FAMILIES[family].k_major_only else major


def _needs_repack(
    dtype: np.dtype[Any], shape: tuple[int, int, int], major: Major, family: str, *, mixed: bool
) -> bool:
    batch, outer, contiguous = shape
    if mixed and dtype == E2M1:
        return bool(contiguous * itemsize(dtype) % _BOX != 0)
    aligned = contiguous * itemsize(dtype) % ALIGNMENT == 0 or batch * outer == 1
    return not aligned or effective_major(dtype, major, family) != major


def _type_refusal(p: GemmProblem, family: str) -> str | None:
    inputs = FAMILIES[family].inputs
    if p.epilogue.formats:
        formats = " and ".join(dict.fromkeys(p.epilogue.formats))
        if not p.mx:
            return (
                f"the operands are {formats}; kernels take mxfp8, mxfp8_e5m2 and mxfp4 in any "
                "mix, or nvfp4 of both: take mxfp4 in place of nvfp4, or nvfp4 of both"
            )
        if not p.has_tiles:
            return (
                f"the operands are {formats}, and several dimensions make up m, n or the batch so "
                "that tiles of scales are not those of the matrices; quantize them as matrices, "
                "or rows that are multiples of 128"
            )
    if not p.mx and p.lhs_dtype != p.rhs_dtype and not {p.lhs_dtype, p.rhs_dtype} <= {E4M3, E5M2}:
        return (
            f"the operands have different dtypes, {p.lhs_dtype} and {p.rhs_dtype}; "
            "cast them to one of bfloat16, float16"
        )
    for operand in (p.lhs_dtype, p.rhs_dtype):
        if operand not in inputs and not p.mx:
            *some, last = (each.name for each in inputs)
            return f"the operands are {operand}; {family} kernels take {', '.join(some)} and {last}"
    if p.output not in (*OUTPUTS, E4M3, E5M2):
        return (
            f"the result is {p.output}; kernels have bfloat16, float16, float32, float8_e4m3fn and "
            "float8_e5m2"
        )
    arrays = {
        "c": p.epilogue.c,
        "bias": p.epilogue.bias,
        "residual": p.epilogue.residual,
    }
    for name, dtype in arrays.items():
        if dtype is not None and dtype not in OUTPUTS:
            return f"the {name} is {dtype}; kernels have bfloat16, float16 and float32"
    return _precision_refusal(p)


def _precision_refusal(p: GemmProblem) -> str | None:
    if p.pieces is not None:
        return None
    if isinstance(p.precision, lax.DotAlgorithm) or (
        isinstance(p.precision, lax.DotAlgorithmPreset)
        and not {p.lhs_dtype, p.rhs_dtype} <= {*_ALGORITHMS.get(p.precision, ())}
    ):
        return (
            f"precision is {p.precision}; kernels multiply {p.lhs_dtype} "
            f"{'as TF32' if p.lhs_dtype == F32 else 'exactly'} and sum in float32: "
            "precision=None asks for that"
        )
    # Matmuls of 16-bit floats are exact in float32, and so are summed: every lax.Precision holds.
    if p.lhs_dtype == F32 and not asks_for_default(p.precision):
        return (
            f"precision is {p.precision} and the operands are float32; kernels multiply them as "
            "TF32, which is precision=None or DEFAULT, or as pieces, which is BF16_BF16_F32_X3, "
            "BF16_BF16_F32_X6 or BF16_BF16_F32_X9"
        )
    return None


def asks_for_default(precision: Any) -> bool:
    """Whether a precision leaves XLA as free as None does."""
    if isinstance(precision, lax.DotAlgorithmPreset):
        return True
    return all(each in (None, lax.Precision.DEFAULT) for each in precisions(precision))


def _symbolic_refusal(p: GemmProblem, family: str, for_every_m: bool) -> str | None:
    if not (isinstance(p.n, int) and isinstance(p.k, int)):
        return "n or k is symbolic; kernels are chosen for known sizes, or for every m and batch"
    if not for_every_m:
        return (
            "a dimension is symbolic; a kernel is chosen for every m and batch under "
            "jaxbw.batch_invariant()"
        )
    shapes = {"lhs": p.lhs_shape, "rhs": p.rhs_shape}
    for name in repacked(p, family):
        if not all(isinstance(extent, int) for extent in shapes[name]):
            return (
                f"a dimension of {name} is symbolic, and a copy of it would be needed, of unknown "
                "size; its contiguous dimension is to be a multiple of 16 bytes"
            )
    if not (_is_positive(p.m) and _is_positive(p.batch)):
        return "a symbolic dimension may be 0; constrain it to be 1 or more"
    return None


def _is_positive(extent: Any) -> bool:
    try:
        return bool(extent >= 1)
    except InconclusiveDimensionOperation:
        return False
