"""A table of dot_generals: what the tests of JAX cover (lax_test.py and lax_autodiff_test.py).

Shapes, dimension numbers, dtypes, pairs of dtypes, preferred_element_type, precision, algorithms.
Operands are small integers: every sum is exact in every dtype, on any device and in any order, so
what is compared is equal. tests/gpu runs the same table.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import DotAlgorithmPreset, Precision

import jaxbw

DotGeneral = Callable[..., Any]
DimensionNumbers = tuple[
    tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]
]

FLOATS = ("bfloat16", "float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
INTEGERS = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
NUMBERS = (*INTEGERS, *FLOATS, *COMPLEX, *UNSIGNED)
DTYPES = (*NUMBERS, "bool")

PRECISIONS = (
    None,
    Precision.DEFAULT,
    Precision.HIGH,
    Precision.HIGHEST,
    (Precision.DEFAULT, Precision.HIGHEST),
)

# Which dtypes an algorithm is tried with. A platform that does not know one refuses it.
ALGORITHMS = {
    DotAlgorithmPreset.DEFAULT: FLOATS,
    DotAlgorithmPreset.ANY_F8_ANY_F8_F32: ("float8_e4m3fn", "float8_e5m2"),
    DotAlgorithmPreset.ANY_F8_ANY_F8_F32_FAST_ACCUM: ("float8_e4m3fn", "float8_e5m2"),
    DotAlgorithmPreset.F16_F16_F16: ("float16",),
    DotAlgorithmPreset.F16_F16_F32: ("float16",),
    DotAlgorithmPreset.BF16_BF16_BF16: ("bfloat16",),
    DotAlgorithmPreset.BF16_BF16_F32: ("bfloat16",),
    DotAlgorithmPreset.BF16_BF16_F32_X3: ("float32",),
    DotAlgorithmPreset.BF16_BF16_F32_X6: ("float32",),
    DotAlgorithmPreset.BF16_BF16_F32_X9: ("float32",),
    DotAlgorithmPreset.TF32_TF32_F32: ("float32",),
    DotAlgorithmPreset.TF32_TF32_F32_X3: ("float32",),
    DotAlgorithmPreset.F32_F32_F32: ("float16", "float32"),  # the former is converted
    DotAlgorithmPreset.F64_F64_F64: ("float64",),
}

# A dtype and what is preferred of its matmul.
PREFERRED = (
    *(("float16", p) for p in ("float16", "float32", "float64")),
    *(("bfloat16", p) for p in ("bfloat16", "float32", "float64")),
    *(("float32", p) for p in ("float32", "float64")),
    ("float64", "float64"),
    *(("int8", p) for p in (*INTEGERS, *FLOATS)),
    *(("int16", p) for p in (*INTEGERS[1:], *FLOATS)),
    *(("int32", p) for p in (*INTEGERS[2:], "float32", "float64")),
    *(("int64", p) for p in ("int64", "float64")),
    *(("complex64", p) for p in COMPLEX),
    ("complex128", "complex128"),
)

F8 = (("float8_e4m3fn", "float8_e5m2"), ("float8_e5m2", "float8_e4m3fn"))


@dataclass(frozen=True)
class Shapes:
    """Operands' shapes, and which of their dimensions are contracted and batched."""

    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    dims: DimensionNumbers


def dot(lhs: tuple[int, ...], rhs: tuple[int, ...]) -> Shapes:
    """As lax.dot: the last dimension of lhs by the first of rhs."""
    return Shapes(lhs, rhs, (((len(lhs) - 1,), (0,)), ((), ())))


DOTS = tuple(dot(lhs, rhs) for lhs in ((3,), (4, 3)) for rhs in ((3,), (3, 6)))

CONTRACTIONS = (
    Shapes((5,), (5,), (((0,), (0,)), ((), ()))),
    Shapes((5, 7), (5,), (((0,), (0,)), ((), ()))),
    Shapes((7, 5), (5,), (((1,), (0,)), ((), ()))),
    Shapes((3, 5), (2, 5), (((1,), (1,)), ((), ()))),
    Shapes((5, 3), (5, 2), (((0,), (0,)), ((), ()))),
    Shapes((5, 3, 2), (5, 2, 4), (((0,), (0,)), ((), ()))),
    Shapes((5, 3, 2), (5, 2, 4), (((0, 2), (0, 1)), ((), ()))),
    Shapes((5, 3, 2), (3, 5, 2, 4), (((0, 2), (1, 2)), ((), ()))),
    Shapes((1, 2, 2, 3), (1, 2, 3, 1), (((1,), (1,)), ((), ()))),
    Shapes((3, 2), (2, 4), (((1,), (0,)), ((), ()))),
    Shapes((), (), (((), ()), ((), ()))),
    Shapes((3,), (2, 4), (((), ()), ((), ()))),
    Shapes((0, 3), (3, 2), (((1,), (0,)), ((), ()))),
    Shapes((2, 0), (0, 3), (((1,), (0,)), ((), ()))),
)

BATCHED = (
    Shapes((3, 3, 2), (3, 2, 4), (((2,), (1,)), ((0,), (0,)))),
    Shapes((3, 3, 2), (2, 3, 4), (((2,), (0,)), ((0,), (1,)))),
    Shapes((3, 4, 2, 4), (3, 4, 3, 2), (((2,), (3,)), ((0, 1), (0, 1)))),
)

DIFFERENTIATED = (
    *(dot(lhs, rhs) for lhs in ((2,), (3, 2)) for rhs in ((2,), (2, 4))),
    Shapes((3, 5), (2, 5), (((1,), (1,)), ((), ()))),
    Shapes((5, 3), (5, 2), (((0,), (0,)), ((), ()))),
    Shapes((3, 3, 2), (3, 2, 4), (((2,), (1,)), ((0,), (0,)))),
    Shapes((3, 5, 2), (2, 4, 5), (((2,), (0,)), ((1,), (2,)))),
    Shapes((7, 3, 5, 2), (2, 2, 4, 5), (((3,), (0,)), ((2,), (3,)))),
)


@dataclass(frozen=True)
class Case:
    """One matmul."""

    shapes: Shapes
    lhs_dtype: str
    rhs_dtype: str
    preferred: str | None = None
    precision: Any = None

    def operands(self) -> tuple[Any, Any]:
        """Small integers: -3 to 3, 0 to 3 where they are unsigned, and 0 and 1 of bool."""
        return (
            integers(self.shapes.lhs, self.lhs_dtype, 0),
            integers(self.shapes.rhs, self.rhs_dtype, 1),
        )

    def __call__(self, dot_general: DotGeneral, lhs: Any, rhs: Any, **keywords: Any) -> Any:
        """The matmul, by lax.dot_general or what stands for it."""
        return dot_general(
            lhs,
            rhs,
            self.shapes.dims,
            precision=self.precision,
            preferred_element_type=self.preferred,
            **keywords,
        )

    def reference(self, lhs: Any, rhs: Any) -> Any:
        """The matmul in NumPy, in float64 or complex128."""
        wide = np.complex128 if "complex" in self.lhs_dtype + self.rhs_dtype else np.float64
        return in_numpy(np.asarray(lhs, wide), np.asarray(rhs, wide), self.shapes.dims)


def in_numpy(lhs: Any, rhs: Any, dims: DimensionNumbers) -> Any:
    """`lax.dot_general` of NumPy arrays, which compiles nothing."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dims
    left, right = list(range(lhs.ndim)), list(range(lhs.ndim, lhs.ndim + rhs.ndim))
    for i, j in zip((*lhs_contract, *lhs_batch), (*rhs_contract, *rhs_batch), strict=True):
        right[j] = left[i]
    out = [left[i] for i in lhs_batch]
    out += [x for i, x in enumerate(left) if i not in (*lhs_contract, *lhs_batch)]
    out += [x for j, x in enumerate(right) if j not in (*rhs_contract, *rhs_batch)]
    return np.einsum(lhs, left, rhs, right, out)


def rounded(reference: Any, dtype: Any) -> Any:
    """What a matmul of small integers is in a dtype: unsigned ones wrap, bool is "or"."""
    if np.dtype(dtype).kind in "iub":
        reference = reference.astype(np.int64)
    return reference.astype(dtype)


def integers(shape: tuple[int, ...], dtype: str, number: int) -> Any:
    """Deterministic by shape and number."""
    generator = np.random.default_rng([*shape, number])
    low, high = {"b": (0, 1), "u": (0, 3)}.get(np.dtype(dtype).kind, (-3, 3))
    values: Any = np.asarray(generator.integers(low, high, shape, endpoint=True))
    if np.dtype(dtype).kind == "c":
        values = values + 1j * generator.integers(low, high, shape, endpoint=True)
    return values.astype(jnp.dtype(dtype))


def _cases() -> Iterator[Case]:
    pairs = [(a, b) for a in NUMBERS for b in NUMBERS] + [("bool", "bool")]
    for i, pair in enumerate(pairs):
        yield Case(DOTS[i % len(DOTS)], *pair, precision=PRECISIONS[i % len(PRECISIONS)])
    for dtype in ("bfloat16", "float32"):
        yield from (Case(s, dtype, dtype, precision=p) for s in DOTS for p in PRECISIONS)
    for algorithm, dtypes in ALGORITHMS.items():
        yield from (Case(dot((3, 4), (4, 3)), x, x, precision=algorithm) for x in dtypes)
    for dtype, preferred in PREFERRED:
        yield from (Case(shapes, dtype, dtype, preferred) for shapes in DOTS)
    for pair in F8:
        yield from (Case(shapes, *pair, preferred="float32") for shapes in DOTS)
    for shapes in (*CONTRACTIONS, *BATCHED):
        yield from (Case(shapes, dtype, dtype) for dtype in DTYPES)


CASES = tuple(_cases())


def breaks_xla_on_a_gpu(case: Case) -> bool:
    """A matmul of integer matrices that is to be of a floating type of up to 32 bits.

    XLA compiles it for a GPU to LLVM code that is not valid. That is an error if one is lucky, else
    the process ends with a segmentation fault, whoever asks: lax.dot_general does with jaxlib
    0.11.2 on an H200, and with 0.11.2 and 0.12.0 where they compile for an H200 that is not there.
    JAX's own test of such matmuls is skipped on GPUs (lax_test.py, testDotPreferredElement; see
    https://github.com/jax-ml/jax/issues/11678). float64 is refused, by an error.
    """
    matrices = len(case.shapes.lhs) == len(case.shapes.rhs) == 2
    return matrices and case.lhs_dtype in INTEGERS and case.preferred in FLOATS[:3]


def is_doubled_by_xla_on_a_gpu(case: Case) -> bool:
    """A matmul of int8 matrices that is to be int32, over a k that is no multiple of 4.

    It is twice the right one where XLA takes a Triton kernel, whoever asks: lax.dot_general gave so
    4x6x3 and 5x9x7 (m, n, k), with jaxlib 0.11.2 on an H200, and not 4x8x4, 16x16x16 and 64x64x64,
    nor 4x6x3 without Triton (`xla_gpu_enable_triton_gemm=False`). The kernel's tile had 16 along K;
    the instruction for int8 has 32.
    """
    matrices = len(case.shapes.lhs) == len(case.shapes.rhs) == 2
    dtypes = case.lhs_dtype, case.rhs_dtype, case.preferred
    return matrices and dtypes == ("int8", "int8", "int32") and case.shapes.lhs[1] % 4 != 0


def matmuls(
    cases: Sequence[Case], functions: Sequence[DotGeneral], **keywords: Any
) -> list[list[Any]]:
    """The matmuls of cases by each function, in one compiled program."""

    def program(operands: Any) -> Any:
        each = list(zip(cases, operands, strict=True))
        return [[case(f, *given, **keywords) for case, given in each] for f in functions]

    results: list[list[Any]] = jax.jit(program)([case.operands() for case in cases])
    return results


def compare(cases: Sequence[Case]) -> None:
    """Runs cases by jaxbw and by lax: of one type, equal, and right.

    Raises:
      AssertionError: they are not.
    """
    given = matmuls(cases, (jaxbw.dot_general, jax.lax.dot_general))
    for case, ours, theirs in zip(cases, *given, strict=True):
        assert jax.typeof(ours) == jax.typeof(theirs), case
        wanted = rounded(case.reference(*case.operands()), ours.dtype)
        for name, result in (("jaxbw", ours), ("lax", theirs)):
            np.testing.assert_array_equal(result, wanted, f"{name}: {case}")


def refusal(dot_general: DotGeneral, case: Case) -> str | None:
    """What the platform says to a case that it does not take; None where it does."""
    try:
        matmuls([case], [dot_general])
    except (ValueError, NotImplementedError, jax.errors.JaxRuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return None
