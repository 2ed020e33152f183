"""Grouped matmuls: values, gradients and errors, beside NumPy and beside `lax.ragged_dot`."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxbw

from ..quantized import FORMATS
from ..quantized import quantized as of_numpy
from .epilogues import in_float64
from .ragged_cases import CONTRACTION, contraction, dense_contraction, integers, normal, rows

SIZES = (3, 1, 5, 2, 4, 1, 6, 2)
M, K, N, G = 27, 4, 3, len(SIZES)


@jax.jit
def program(lhs: Any, rhs: Any, sizes: Any, cotangent: Any) -> Any:
    """A grouped matmul and both gradients: one program for the values below."""
    y, pull_back = jax.vjp(lambda lhs, rhs: jaxbw.ragged_dot(lhs, rhs, sizes), lhs, rhs)
    return y, *pull_back(cotangent)


def reference(lhs: Any, rhs: Any, sizes: Any, cotangent: Any) -> Any:
    return (
        rows(lhs, rhs, sizes),
        rows(cotangent, rhs.swapaxes(1, 2), sizes),
        contraction(lhs, cotangent, sizes, len(rhs)),
    )


def check(m: int, groups: int, sizes: Any) -> None:
    operands = integers((m, K)), integers((groups, K, N)), np.array(sizes, np.int32)
    got = program(*operands, integers((m, N), 1))
    wanted = reference(*operands, integers((m, N), 1))
    for name, x, y in zip(("value", "of lhs", "of rhs"), got, wanted, strict=True):
        np.testing.assert_array_equal(x, y, err_msg=f"{name}, sizes {sizes}")


@pytest.mark.parametrize("groups", [3, 8])
def test_every_pattern_of_empty_groups(groups: int) -> None:
    for pattern in itertools.product((0, 1), repeat=groups):
        check(M, groups, np.array(pattern) * SIZES[:groups])


LARGE = 2**31 - 1


@pytest.mark.parametrize(
    "sizes",
    [
        (M, 0, 0, 0, 0, 0, 0, 0),
        (0, 0, 0, 0, 0, 0, 0, M),
        (3, 3, 3, 3, 3, 3, 3, 6),  # all rows
        (5, 5, 5, 5, 5, 5, 5, 5),  # more
        (3, 2, -1, 4, -9, 1, 0, 5),
        (-1, -1, -1, -1, -1, -1, -1, -1),
        (2, LARGE, LARGE, LARGE, LARGE, LARGE, LARGE, LARGE),  # whose sum overflows
        (-LARGE - 1, 4, LARGE, -LARGE, 1, 1, 1, 1),
    ],
)
def test_sizes_are_clamped(sizes: Any) -> None:
    check(M, G, sizes)


def test_random_sizes() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        check(
            M, G, generator.multinomial(generator.integers(0, M + 1), generator.dirichlet([1] * G))
        )


@pytest.mark.parametrize(("m", "groups"), [(2, 5), (1100, 2)])
def test_shapes(m: int, groups: int) -> None:
    """Less rows than groups; more blocks of rows than one, of several sizes."""
    generator = np.random.default_rng(m)
    for part in (0.3, 1):
        check(m, groups, generator.multinomial(int(part * m), generator.dirichlet([1] * groups)))


def test_nan_of_neighbours_stays_there() -> None:
    """Each group alone is finite; all others, and the rows behind the last one, are NaN."""
    starts = np.cumsum((0, *SIZES))

    def alone(lhs: Any, rhs: Any, cotangent: Any) -> Any:
        return program(lhs, rhs, np.array(SIZES, np.int32), cotangent)

    operands = [integers((M, K)), integers((G, K, N)), integers((M, N), 1)]
    for group in range(G):
        is_own = (starts[group] <= np.arange(M)) & (np.arange(M) < starts[group + 1])
        lhs, cotangent = (np.where(is_own[:, None], x, np.nan) for x in operands[::2])
        rhs = np.where(np.arange(G)[:, None, None] == group, operands[1], np.nan)
        given = (x.astype(np.float32) for x in (lhs, rhs, cotangent))
        y, of_lhs, of_rhs = map(np.asarray, alone(*given))
        wanted = reference(operands[0], operands[1], SIZES, operands[2])
        np.testing.assert_array_equal(y[is_own], wanted[0][is_own])
        np.testing.assert_array_equal(of_lhs[is_own], wanted[1][is_own])
        np.testing.assert_array_equal(of_rhs[group], wanted[2][group])
        np.testing.assert_array_equal(y[starts[-1] :], 0)
        np.testing.assert_array_equal(of_lhs[starts[-1] :], 0)


def test_offset() -> None:
    """Traced, and beyond both ends."""
    lhs, rhs, cotangent = integers((M, K)), integers((3, K, N)), integers((M, N), 1)
    sizes = np.array(SIZES, np.int32)

    @jax.jit
    def part(offset: Any) -> Any:
        def call(lhs: Any, rhs: Any) -> Any:
            return jaxbw.ragged_dot(lhs, rhs, sizes, group_offset=offset)

        y, pull_back = jax.vjp(call, lhs, rhs)
        whole = jaxbw.ragged_dot_general(lhs, cotangent, sizes, CONTRACTION, group_offset=offset)
        return y, *pull_back(cotangent), whole

    for offset in (-LARGE, -4, -1, 0, 1, 5, 7, 8, LARGE):
        wanted = (
            rows(lhs, rhs, SIZES, offset),
            rows(cotangent, rhs.swapaxes(1, 2), SIZES, offset),
            contraction(lhs, cotangent, SIZES, 3, offset),
            contraction(lhs, cotangent, SIZES, G, offset),
        )
        for x, y in zip(part(np.int32(offset)), wanted, strict=True):
            np.testing.assert_array_equal(x, y, err_msg=f"{offset}")
    one = jaxbw.ragged_dot(lhs, rhs, sizes, group_offset=np.array([5], np.uint8))
    np.testing.assert_array_equal(one, rows(lhs, rhs, SIZES, 5))


def test_dtypes_of_sizes() -> None:
    lhs, rhs = integers((M, K)), integers((G, K, N))
    sizes = [
        np.array([*SIZES[:-1], np.iinfo(dtype).max], dtype)
        for dtype in (np.uint8, np.int16, np.uint32)
    ]
    got = jax.jit(lambda: [jaxbw.ragged_dot(lhs, rhs, each) for each in sizes])()
    for x, each in zip(got, sizes, strict=True):
        np.testing.assert_array_equal(x, rows(lhs, rhs, each))


def test_sizes_of_64_bits() -> None:
    lhs, rhs = integers((M, K)), integers((3, K, N))
    with jax.enable_x64(True):
        for sizes in ([2**40, 1, 1], [-(2**40), 3, 2**33]):
            given = np.array(sizes, np.int64)
            np.testing.assert_array_equal(jaxbw.ragged_dot(lhs, rhs, given), rows(lhs, rhs, given))


DTYPES = [
    ("bfloat16", "bfloat16", None),
    ("bfloat16", "float32", None),
    ("float8_e4m3fn", "float8_e4m3fn", "bfloat16"),
    ("bfloat16", "bfloat16", "int32"),
    ("float32", "float32", "bfloat16"),
    ("float16", "float16", None),
    ("bfloat16", "bfloat16", "float32"),
    ("float8_e4m3fn", "float8_e5m2", None),
    ("int8", "int8", None),
    ("int8", "int8", "int32"),
    ("bool", "bool", None),
    ("complex64", "float32", None),
]


@pytest.mark.parametrize("number", range(len(DTYPES)))
def test_dtypes_are_those_of_lax(number: int) -> None:
    """Types of all; values, exact ones, of the first four."""
    lhs, rhs, preferred = DTYPES[number]
    x, w = integers((M, K)).astype(lhs), integers((G, K, N)).astype(rhs)
    dy = integers((M, N), 1).astype(rhs)
    sizes = np.array(SIZES, np.int32)

    pairs: list[Any] = [
        (jaxbw.ragged_dot, jaxbw.ragged_dot_general),
        (lax.ragged_dot, lax.ragged_dot_general),
    ]

    def both(x: Any, w: Any, dy: Any) -> Any:
        return [
            (rows_of(x, w, sizes, None, preferred), of(x, dy, sizes, CONTRACTION, None, preferred))
            for rows_of, of in pairs
        ]

    ours, theirs = jax.eval_shape(both, x, w, dy)
    for a, b in zip(ours, theirs, strict=True):
        assert (a.dtype, a.shape, a.weak_type) == (b.dtype, b.shape, b.weak_type)
    if number < 4:
        ours, theirs = jax.jit(both)(x, w, dy)
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def numbers(contract: Any, batch: Any, ragged: int, groups: Any) -> lax.RaggedDotDimensionNumbers:
    return lax.RaggedDotDimensionNumbers((contract, batch), (ragged,), groups)


# Shapes of lhs, rhs and sizes, and the dimension numbers.
GENERAL: dict[str, Any] = {
    "rhs transposed": ((12, 4), (3, 5, 4), (3,), numbers(((1,), (2,)), ((), ()), 0, (0,))),
    "groups last": ((12, 4), (4, 5, 3), (3,), numbers(((1,), (0,)), ((), ()), 0, (2,))),
    "batch": ((12, 2, 4), (3, 2, 4, 5), (3,), numbers(((2,), (2,)), ((1,), (1,)), 0, (0,))),
        "in front": ((2, 12, 4), (3, 4, 5), (2, 3), numbers(((2,), (1,)), ((), ()), 1, (0,))),
    "in front, one": ((2, 12, 4), (3, 4, 5), (3,), numbers(((2,), (1,)), ((), ()), 1, (0,))),
    "behind": ((12, 2, 4), (3, 4, 5), (3,), numbers(((2,), (1,)), ((), ()), 0, (0,))),
    "all": (
        *((2, 3, 12, 2, 4, 2), (2, 2, 3, 4, 5), (2, 3, 3)),
        numbers(((4, 5), (3, 0)), ((0,), (1,)), 2, (2,)),
    ),
    "contraction": ((12, 4), (12, 5), (3,), numbers(((0,), (0,)), ((), ()), 0, ())),
    "contraction last": ((4, 12), (5, 12), (3,), numbers(((1,), (1,)), ((), ()), 1, ())),
    "contraction, all": (
        *((2, 3, 12, 2, 4), (5, 2, 12, 3, 2), (2, 3, 3)),
        numbers(((1, 2, 3), (3, 2, 4)), ((0,), (1,)), 2, ()),
    ),
    "batch groups": ((12, 2, 4), (12, 4, 5), (3,), numbers(((2,), (1,)), ((0,), (0,)), 0, ())),
}  # fmt: skip


@pytest.mark.parametrize("case", GENERAL)
def test_general(case: str) -> None:
    *shapes, of_sizes, dims = GENERAL[case]
    operands = [integers(shape, i) for i, shape in enumerate(shapes)]
    sizes = np.random.default_rng(0).multinomial(10, [1 / 3] * 3, of_sizes[:-1]).astype(np.int32)

    @jax.jit
    def both(*operands: Any) -> Any:
        functions: list[Any] = [jaxbw.ragged_dot_general, lax.ragged_dot_general]
        return [function(*operands, sizes, dims) for function in functions]

    ours, theirs = both(*operands)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("shape", [(0, K, N, G), (M, 0, N, G), (M, K, 0, G), (M, K, N, 0)])
def test_nothing(shape: tuple[int, int, int, int]) -> None:
    m, k, n, groups = shape
    got = program(
        *(integers((m, k)), integers((groups, k, n)), np.ones(groups, np.int32)), integers((m, n))
    )
    wanted = [(m, n), (m, k), (groups, k, n)]
    assert [x.shape for x in got] == wanted
    assert not any(np.asarray(x).any() for x in got)


def test_epilogue() -> None:
    """With gradients; but for a residual, rows that have no group stay zeros."""
    arrays = normal((M, K)), normal((G, K, N)), normal((G, N)), normal((M, N)), normal((G, K, N), 1)
    sizes = np.array(SIZES, np.int32)
    group, used = np.repeat(np.arange(G), SIZES), np.arange(sum(SIZES))

    def ours(x: Any, w: Any, bias: Any, residual: Any) -> Any:
        terms = {"bias": bias, "residual": residual, "alpha": 0.5}
        return jaxbw.ragged_dot(x, w, sizes, activation="gelu", **terms)

    def product(x: Any, w: Any) -> Any:
        return jnp.einsum("mk,mkn->mn", x[used], w[group])

    def whole(y: Any) -> Any:
        return jnp.pad(y, ((0, M - len(used)), (0, 0)))

    def formula(x: Any, w: Any, bias: Any, residual: Any) -> Any:
        return whole(jax.nn.gelu(0.5 * product(x, w) + bias[group])) + residual

    def derivatives(function: Any, *operands: Any) -> Any:
        y, pull_back = jax.vjp(function, *operands)
        return y, pull_back(jnp.cos(y))

    def gate(x: Any, w: Any, u: Any) -> Any:
        return jaxbw.gated_ragged_dot(x, w, u, sizes)

    def gate_formula(x: Any, w: Any, u: Any) -> Any:
        return whole(jax.nn.silu(product(x, w)) * product(x, u))

    def both(x: Any, w: Any, bias: Any, residual: Any, u: Any) -> Any:
        terms = x, w, bias, residual
        return (
            (derivatives(gate, x, w, u), derivatives(ours, *terms)),
            (derivatives(gate_formula, x, w, u), derivatives(formula, *terms)),
        )

    got, wanted = in_float64(both, *arrays)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), got, wanted)


def test_sums_of_contractions() -> None:
    """Over microbatches, with gradients; linear in c and in either operand; mapped."""
    x, dy, c = normal((2, M, K)), normal((2, M, N)), normal((2, G, K, N))
    sizes = np.array(SIZES, np.int32)

    def plus(x: Any, dy: Any, c: Any) -> Any:
        return jaxbw.ragged_dot_general(x, dy, sizes, CONTRACTION, c=c, alpha=0.5)

    def program(x: Any, dy: Any, c: Any) -> Any:
        value, pull_back = jax.vjp(lambda *terms: jax.vmap(plus)(*terms).sum(0), x, dy, c)
        both = jax.linear_transpose(lambda x, c: plus(x, dy[0], c), x[0], c[0])(c[1])
        return value, pull_back(jnp.cos(value)), both

    def oracle(x: Any, dy: Any, c: Any) -> Any:
        def plus(x: Any, dy: Any, c: Any) -> Any:
            return c + 0.5 * dense_contraction(x, dy, sizes)

        value, pull_back = jax.vjp(lambda *terms: jax.vmap(plus)(*terms).sum(0), x, dy, c)
        of_x = jax.vjp(lambda x: plus(x, dy[0], c[0]), x[0])[1](c[1])
        return value, pull_back(jnp.cos(value)), (*of_x, c[1])

    got, wanted = in_float64(lambda *given: (program(*given), oracle(*given)), x, dy, c)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), got, wanted)


def test_epilogue_is_wide() -> None:
    """Of bfloat16 operands one rounding, behind bias and activation; NaN stays in its group."""
    x, w = integers((M, K)).astype(jnp.bfloat16), integers((G, K, N)).astype(jnp.bfloat16)
    bias = np.full((G, N), 1 / 256, np.float32)
    bias[1] = np.nan
    y = jaxbw.ragged_dot(x, w, np.array(SIZES, np.int32), bias=bias, activation="relu")
    assert y.dtype == jnp.bfloat16
    wanted = rows(x.astype(np.float32), w.astype(np.float32), SIZES)
    wanted = np.maximum(wanted + 1 / 256, 0).astype(jnp.bfloat16)
    wanted[sum(SIZES) :], wanted[SIZES[0] : SIZES[0] + SIZES[1]] = 0, np.nan
    np.testing.assert_array_equal(np.asarray(y, np.float32), wanted.astype(np.float32))


X, W, S = np.ones((6, 4), np.float32), np.ones((3, 4, 5), np.float32), np.array([1, 2, 3], np.int32)
AS_LAX: list[tuple[Any, str]] = [
    (
        (X, W, S[:2]),
        r"lhs f32\[6,4\], rhs f32\[3,4,5\], group_sizes int32\[2\]: expected rhs group",
    ),
    ((X[:, :2], W, S), "the same shape, got"),
    ((X, W[0], S), "expected rhs group dimension size"),
    ((X, W, S.astype(bool)), "subtype of np.integer"),
    ((X, W, S.astype(np.float32)), "subtype of np.integer"),
    ((X, W, S[0]), "rank of group_sizes"),
    ((X, W, S[None]), "expected group_sizes to have shape"),
    ((X[0], W, S), "requires"),
    ((X, W, [1, 2, 3]), "group_sizes is a list"),
]


@pytest.mark.parametrize(("operands", "message"), AS_LAX)
def test_errors_are_those_of_lax(operands: Any, message: str) -> None:
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        lax.ragged_dot(*operands)
    with pytest.raises(theirs.type, match=f"jaxbw.ragged_dot: .*{message}"):
        jaxbw.ragged_dot(*operands)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: jaxbw.ragged_dot(X, W, S, group_offset=S),
            ValueError,
            r"group_offset is int32\[3",
        ),
        (lambda: jaxbw.ragged_dot(X, W, S, group_offset=0.5), TypeError, "it is an integer"),
        (
            lambda: jaxbw.ragged_dot(X, W, S, bias=W[0]),
            ValueError,
            r"bias f32\[4,5\] is not \[3,5\]",
        ),
        (lambda: jaxbw.ragged_dot(X, W, S, bias=W[0].astype(int)), TypeError, "cast it to a real"),
        (lambda: jaxbw.ragged_dot(X, W, S, activation="tanh"), ValueError, "activation is 'tanh'"),
        (
            lambda: jaxbw.ragged_dot(X, W, S, rows_per_group=-1),
            ValueError,
            "rows_per_group is -1",
        ),
        (lambda: jaxbw.ragged_dot(X, W, S, "hi"), ValueError, "precision is 'hi'"),
        (lambda: jaxbw.ragged_dot_general(X, W, S, 3), TypeError, "dimension_numbers is 3"),
        (lambda: jaxbw.gated_ragged_dot(X, W, W[:2], S), ValueError, "one shape and one dtype"),
        (
            lambda: jaxbw.ragged_dot(X, jaxbw.quantize(W, "e4m3", axis=-1), S),
            *(ValueError, r"scales of shape \[3, 4, 1\].*axis=-2\), or axis=None"),
        ),
        (
            lambda: jaxbw.ragged_dot(X.astype(int), W.astype(int), S, activation="relu"),
            *(TypeError, "needs a real floating result"),
        ),
        (
            lambda: jaxbw.ragged_dot_general(
                *(X[:3, None], W, S, GENERAL["batch groups"][-1]), group_offset=0
            ),
            *(ValueError, "whose groups do not matter"),
        ),
    ],
)
def test_errors_of_our_own(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_memory() -> None:
    """Forward and both gradients, in MiB: of lax they are 1160 for the value alone.

    Narrow operands are copied on CPUs, and a result: no temporary is larger than rhs.
    """
    m, groups, k, n = 4096, 64, 1024, 512

    def step(lhs: Any, rhs: Any, sizes: Any, cotangent: Any) -> Any:
        y, pull_back = jax.vjp(lambda lhs, rhs: jaxbw.ragged_dot(lhs, rhs, sizes), lhs, rhs)
        return y, *pull_back(cotangent)

    for dtype, most in (("float32", 8), ("bfloat16", 4 + 64 + 8 + 4 + 4)):
        types = [jax.ShapeDtypeStruct(x, dtype) for x in ((m, k), (groups, k, n), (m, n))]
        sizes = jax.ShapeDtypeStruct((groups,), "int32")
        compiled = jax.jit(step).trace(types[0], types[1], sizes, types[2]).lower().compile()
        assert compiled.memory_analysis().temp_size_in_bytes <= most * 2**20


def quantized(x: Any, name: str, axis: Any, *, both: bool = False) -> tuple[jaxbw.Quantized, Any]:
    """A `Quantized`, and what it means, in float64."""
    bits, scale = of_numpy(x, name, axis)
    data = bits.view(FORMATS[name][0])
    turned = data.swapaxes(-1, -2) if both else None
    q = jaxbw.Quantized(data, scale, turned, np.dtype(np.float32))
    return q, data.astype(np.float64) * scale


# Of which dimensions share the scales of lhs, and of rhs, whose transpose may be there, too.
AXES: list[tuple[Any, Any, bool]] = [
    (-1, -2, False),
    (-1, -2, True),
    (None, None, False),
    ((0, 1), (1, 2), True),
    (-1, 1, True),
]


@pytest.mark.parametrize("number", range(len(AXES)))
def test_scales(number: int) -> None:
    """Of every kind, with an epilogue and a gate; within the roundings of K sums and four terms."""
    of_lhs, of_rhs, both = AXES[number]
    formats = "e4m3", ("e5m2", "e4m3")[number % 2]
    x, wide_x = quantized(normal((M, K)), formats[0], of_lhs)
    w, wide_w = quantized(normal((G, K, N)), formats[1], of_rhs, both=both)
    u, wide_u = quantized(normal((G, K, N), 1), formats[1], of_rhs, both=both)
    bias = normal((G, N)).astype(np.float32)
    sizes, group = np.array(SIZES, np.int32), np.repeat(np.arange(G), SIZES)

    @jax.jit
    def results(x: Any, w: Any, u: Any) -> Any:
        return (
            jaxbw.ragged_dot(x, w, sizes, bias=bias, alpha=0.5, activation="relu"),
            jaxbw.gated_ragged_dot(x, w, u, sizes, activation=None),
        )

    z, magnitude = rows(wide_x, wide_w, SIZES), rows(abs(wide_x), abs(wide_w), SIZES)
    up, of_up = rows(wide_x, wide_u, SIZES), rows(abs(wide_x), abs(wide_u), SIZES)
    wanted = 0.5 * z
    wanted[: len(group)] += bias[group]
    bound = (K + 4) * 2.0**-24 * (magnitude + 4), (2 * K + 5) * 2.0**-24 * magnitude * of_up
    both_wanted = np.maximum(wanted, 0), z * up
    for y, of_float64, most in zip(results(x, w, u), both_wanted, bound, strict=True):
        assert y.dtype == jnp.float32
        assert np.all(np.abs(np.asarray(y, np.float64) - of_float64) <= most)


def test_scales_of_other_rows() -> None:
    """NaN as the scale of a row of no group, or of a group's columns, stays there."""
    of_rows, of_columns = np.ones((M, 1), np.float32), np.ones((G, 1, N), np.float32)
    of_rows[sum(SIZES) :], of_columns[2] = np.nan, np.nan
    operands = (integers((M, K)), of_rows), (integers((G, K, N)), of_columns)
    q, u = (
        jaxbw.Quantized(x.astype("float8_e4m3fn"), scale, None, np.dtype(jnp.bfloat16))
        for x, scale in operands
    )
    y = jaxbw.ragged_dot(q, u, np.array(SIZES, np.int32))
    assert y.dtype == jnp.bfloat16
    is_nan = np.isnan(np.asarray(y, np.float32))
    assert [*np.flatnonzero(is_nan.all(1))] == [*range(4, 9)]
    assert is_nan.sum() == 5 * N
    np.testing.assert_array_equal(np.asarray(y, np.float32)[sum(SIZES) :], 0)
