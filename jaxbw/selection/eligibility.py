"""Which problems the kernels take, whatever their configuration. The rest is XLA's."""

import math

import numpy as np
from jax import lax

from jaxbw.problem import GemmProblem, describe

_BF16 = np.dtype("bfloat16")  # registered by ml_dtypes, which jax imports
_F16, _F32 = np.dtype("float16"), np.dtype("float32")

INPUTS = {_BF16: "bf16", _F16: "f16"}
OUTPUTS = (_BF16, _F16, _F32)

_ALIGNMENT = 16  # bytes, of strides and addresses: CUtensorMap
_MAX_EXTENT = 2**31  # TMA coordinates are int32
_MAX_STRIDE = 2**40  # bytes: CUtensorMap

# Algorithms that kernels implement: exact products, float32 sums. The inputs must already be of the
# dtype that the algorithm would convert them to.
_ALGORITHMS = {
    lax.DotAlgorithmPreset.DEFAULT: (_BF16, _F16),
    lax.DotAlgorithmPreset.BF16_BF16_F32: (_BF16,),
    lax.DotAlgorithmPreset.F16_F16_F32: (_F16,),
}


def refusal(problem: GemmProblem) -> str | None:
    """Why no kernel takes a problem, in words, with the way out; None where one may."""
    return _type_refusal(problem) or _extent_refusal(problem)


def _type_refusal(p: GemmProblem) -> str | None:
    if p.lhs_dtype != p.rhs_dtype:
        return (
            f"the operands have different dtypes, {p.lhs_dtype} and {p.rhs_dtype}; "
            "cast them to one of bfloat16, float16"
        )
    if p.lhs_dtype not in INPUTS:
        return f"the operands are {p.lhs_dtype}; kernels take bfloat16 and float16"
    if p.output not in OUTPUTS:
        return f"the result is {p.output}; kernels give bfloat16, float16 and float32"
    if p.bias is not None and p.bias not in OUTPUTS:
        return f"the bias is {p.bias}; kernels take bfloat16, float16 and float32"
    # Products of 16-bit floats are exact in float32, and so are summed: every lax.Precision holds.
    if isinstance(p.precision, lax.DotAlgorithm) or (
        isinstance(p.precision, lax.DotAlgorithmPreset)
        and p.lhs_dtype not in _ALGORITHMS.get(p.precision, ())
    ):
        return (
            f"precision is {p.precision}; kernels multiply {p.lhs_dtype} exactly and sum in "
            "float32, so precision=None asks for no less"
        )
    return None


def _extent_refusal(p: GemmProblem) -> str | None:
    if not all(isinstance(extent, int) for extent in (p.batch, p.m, p.n, p.k)):
        return "a dimension is symbolic; kernels are chosen for known sizes"
    if 0 in (p.batch, p.m, p.n, p.k):
        return "a dimension is 0; there is nothing to launch"
    return (
        _address_refusal("lhs", p.lhs_dtype, p.lhs_shape)
        or _address_refusal("rhs", p.rhs_dtype, p.rhs_shape)
        or _address_refusal("the result", p.output, p.output_shape, written=True)
    )


def _address_refusal(
    name: str, dtype: np.dtype, shape: tuple[int, int, int], *, written: bool = False
) -> str | None:
    """TMA reads and writes rank-3 arrays whose rows start at multiples of 16 bytes.

    A single row may end anywhere where it is read; written, its last 16 bytes are written whole.
    """
    batch, outer, contiguous = shape
    row = contiguous * dtype.itemsize
    what = f"{name} {describe(dtype, shape)}"
    if max(shape) >= _MAX_EXTENT:
        return f"{what} has a dimension of 2^31 or more; TMA coordinates are int32"
    if row % _ALIGNMENT and (written or batch * outer > 1):
        step = _ALIGNMENT // dtype.itemsize
        padded = math.ceil(contiguous / step) * step
        return (
            f"{what} has rows of {row} bytes; TMA needs a multiple of {_ALIGNMENT}: "
            f"pad its last dimension to {padded}"
        )
    if row * outer >= _MAX_STRIDE:
        return f"{what} has matrices of 2^40 bytes or more, the largest stride of TMA"
    return None
