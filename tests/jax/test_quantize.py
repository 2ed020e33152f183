"""jaxbw.quantize: its bits against NumPy and ml_dtypes, and matmuls of what it returns."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from jax.sharding import NamedSharding, PartitionSpec

import jaxbw
from jaxbw._src import fp8

from ..quantized import FORMATS, quantized


def assert_as_documented(q: Any, x: Any, name: str, axis: Any = None) -> None:
    bits, scale = quantized(x, name, axis)
    np.testing.assert_array_equal(np.asarray(q.data).view(np.uint8), bits)
    np.testing.assert_array_equal(np.asarray(q.scale), scale)
    assert np.asarray(q.data).dtype == FORMATS[name][0]


@pytest.mark.parametrize("name", FORMATS)
def test_rounding_is_that_of_ml_dtypes(name: str) -> None:
    """Every float8 number, what is half-way between two, and the neighbours of both; then any."""
    dtype, largest = FORMATS[name]
    numbers = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    ties = (numbers[1:] + numbers[:-1]) / 2
    exact = np.concatenate([numbers, ties, [-0.0, np.inf, -np.inf, np.nan, 1e38]])
    exact = exact.astype(np.float32)
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    x = np.concatenate(
        [*(np.nextafter(exact, np.float32(to)) for to in (-448, 448)), exact, bits.view(np.float32)]
    )
    got = np.asarray(jax.jit(lambda x: fp8.rounded(x, fp8.FORMATS[name]))(x)).view(np.uint8)
    clipped = np.clip(x, -largest, largest)
    with np.errstate(invalid="ignore"):
        wanted = clipped.astype(dtype).view(np.uint8)
    np.testing.assert_array_equal(got, np.where(np.isnan(x), 0x7F, wanted))


@pytest.mark.parametrize("by", [None, 6.0, 448.0, 57344.0, 6.0 * 448.0])
def test_division_is_correctly_rounded(by: float | None) -> None:
    """By arrays, and by the largest numbers of formats."""
    bits = np.random.default_rng(0).integers(1 << 23, 255 << 23, (2, 100_000), dtype=np.uint32)
    x, y = bits.view(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        wanted = x / (y if by is None else np.float32(by))
    is_normal = np.isfinite(wanted) & (wanted >= np.finfo(np.float32).tiny)
    got = np.asarray(jax.jit(lambda x, y: fp8.divide(x, y if by is None else by))(x, y))
    assert is_normal.sum() > 50_000
    np.testing.assert_array_equal(got[is_normal], wanted[is_normal])
    below = x < np.float64(np.finfo(np.float32).tiny) * (y if by is None else by)
    np.testing.assert_array_equal(got[below], np.finfo(np.float32).tiny)


_quantize = jax.jit(jaxbw.quantize, static_argnums=1, static_argnames="axis")
_values = st.one_of(
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 2.0**-126, 3e38]),
)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("axis", [None, -1, 0, (0, 1)])
@given(x=arrays.arrays(np.float32, (4, 6), elements=_values, fill=st.nothing()))
def test_any_values(name: str, axis: Any, x: Any) -> None:
    assert_as_documented(_quantize(x, name, axis=axis), x, name, axis)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtypes_jit_and_eager(dtype: str) -> None:
    x = np.random.default_rng(1).standard_normal((3, 5)).astype(jnp.dtype(dtype))
    for function in (jaxbw.quantize, _quantize):
        q = function(x, "e4m3", axis=-1)
        assert_as_documented(q, x, "e4m3", -1)
        assert q.dtype == x.dtype
        assert q.dequantized().dtype == x.dtype


def test_nothing_and_infinities() -> None:
    """No array is without a scale; NaN and infinity spoil no other element."""
    for x in (np.zeros((2, 3)), np.zeros((0, 3)), np.full((2, 3), np.nan), np.full(3, np.inf)):
        assert jaxbw.quantize(x.astype(np.float32), "e4m3").scale == 1
    x = np.array([1.0, np.inf, -np.inf, np.nan, 7.0], np.float32)
    q = jaxbw.quantize(x, "e5m2")
    wanted = np.array([8192.0, 57344.0, -57344.0, np.nan, 57344.0])
    np.testing.assert_array_equal(np.asarray(q.data).astype(np.float64), wanted)


def test_both_directions() -> None:
    x = np.random.default_rng(2).standard_normal((2, 4, 6)).astype(np.float32)
    q = jaxbw.quantize(x, "e4m3", axis=-1, both=True)
    np.testing.assert_array_equal(
        np.asarray(q.transposed).view(np.uint8), np.asarray(q.data).view(np.uint8).swapaxes(1, 2)
    )
    back = q.mT.mT
    assert (back.data is q.data, back.transposed is q.transposed) == (True, True)
    np.testing.assert_array_equal(np.asarray(q.mT.dequantized()), np.asarray(q.dequantized().mT))


def test_vmap_is_a_scale_for_each() -> None:
    x = np.random.default_rng(3).standard_normal((3, 4, 5)).astype(np.float32)
    q = jax.vmap(lambda x: jaxbw.quantize(x, "e4m3"))(x)
    for i in range(3):
        assert_as_documented(jax.tree.map(lambda a, i=i: a[i], q), x[i], "e4m3")


def test_sharded_amax_is_that_of_all_shards() -> None:
    mesh = jax.make_mesh((2, 2), ("a", "b"), (jax.sharding.AxisType.Auto,) * 2)
    x = np.random.default_rng(4).standard_normal((8, 12)).astype(np.float32)
    x[7, 11] = 100
    sharded = jax.device_put(x, NamedSharding(mesh, PartitionSpec("a", "b")))
    for axis in (None, -1):
        assert_as_documented(_quantize(sharded, "e4m3", axis=axis), x, "e4m3", axis)


# Matmuls. The operands are such that scales are powers of two and the data integers: amax is 7.


def _operand(shape: tuple[int, ...], number: int, dtype: Any = np.float32) -> Any:
    x = np.random.default_rng(number).integers(-7, 8, shape).astype(np.float32)
    x[..., 0, :] = 7
    x[..., :, 0] = 7
    return x.astype(dtype)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("axes", [(None, None), (-1, None), (None, -2), (-1, -2)])
@pytest.mark.parametrize("shapes", [((4, 8), (8, 6)), ((2, 4, 8), (8, 6)), ((2, 4, 8), (2, 8, 6))])
def test_matmul(axes: Any, shapes: Any) -> None:
    """With scales that differ by row and column, which the integers make exact."""
    x, w = (_operand(shape, i, jnp.bfloat16) for i, shape in enumerate(shapes))
    if axes[0] is not None:
        x = x * np.exp2(np.arange(4))[:, None].astype(x.dtype)
    if axes[1] is not None:
        w = w * np.exp2(-np.arange(6)).astype(w.dtype)

    @jax.jit
    def product(x: Any, w: Any) -> Any:
        pair = [jaxbw.quantize(a, "e4m3", axis=axis) for a, axis in zip((x, w), axes, strict=True)]
        return jaxbw.matmul(*pair), jaxbw.matmul(*pair, preferred_element_type=np.float32)

    narrow, wide = product(x, w)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    assert narrow.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(wide), exact)
    np.testing.assert_array_equal(np.asarray(narrow), exact.astype(jnp.bfloat16))


def test_epilogue_and_one_quantized_operand() -> None:
    x, w = _operand((4, 8), 0), _operand((8, 6), 1)
    bias = np.arange(6, dtype=np.float32)
    qx, qw = (jaxbw.quantize(a, "e4m3") for a in (x, w))
    wanted = np.maximum(2 * (x @ w) + bias, 0)
    for left, right in ((qx, qw), (x, qw), (qx, w)):
        got = jaxbw.matmul(left, right, bias=bias, activation="relu", alpha=2)
        np.testing.assert_array_equal(np.asarray(got), wanted)


def test_vmapped_matmul() -> None:
    x, w = _operand((3, 4, 8), 0), _operand((3, 8, 6), 1)
    x = x * np.array([1, 2, 4], np.float32)[:, None, None]

    def product(x: Any, w: Any) -> Any:
        return jaxbw.matmul(jaxbw.quantize(x, "e4m3"), jaxbw.quantize(w, "e5m2"))

    # e5m2 has two bits of fraction: 5 and 7 are not all kept, 7/8 is 1.75/2.
    w = np.where(np.abs(w) == 5, 4, w)
    np.testing.assert_array_equal(np.asarray(jax.vmap(product)(x, w)), x @ w)


def test_what_is_refused() -> None:
    x, w = jnp.ones((4, 8)), jnp.ones((8, 6))
    with pytest.raises(ValueError, match="format is 'e3m4'; it is one of 'e4m3', 'e5m2'"):
        jaxbw.quantize(x, "e3m4")
    with pytest.raises(TypeError, match="x is int32"):
        jaxbw.quantize(x.astype(int), "e4m3")
    with pytest.raises(ValueError, match=r"axis is 2 and x f32\[4,8\]"):
        jaxbw.quantize(x, "e4m3", axis=2)
    with pytest.raises(ValueError, match="both=True; only matrices"):
        jaxbw.quantize(x[0], "e4m3", both=True)
    rows = jaxbw.quantize(x * jnp.arange(8), "e4m3", axis=0)
    with pytest.raises(ValueError, match=r"along the contraction.*axis=-1\), or axis=None"):
        jaxbw.matmul(rows, w)
    rows = jaxbw.quantize(x * jnp.arange(4)[:, None], "e4m3", axis=-1)
    with pytest.raises(TypeError, match=r"lhs is a Quantized, .* lhs_scale is given; .* lhs\.data"):
        jaxbw.matmul(rows, w, lhs_scale=jnp.ones(4))


def test_a_derivative_is_refused() -> None:
    """Rather than to vanish: but what is quantized as a constant hinders nothing."""
    x, w = jnp.ones((4, 8)), jnp.ones((8, 6))

    def loss(x: Any, w: Any) -> Any:
        return jaxbw.matmul(x, jaxbw.quantize(w, "e4m3")).sum()

    np.testing.assert_allclose(jax.jit(jax.grad(loss))(x, w), np.full((4, 8), 6.0), rtol=2**-20)
    with pytest.raises(TypeError, match=r"x is differentiated.*jaxbw\.fp8_dot_general"):
        jax.grad(loss, 1)(x, w)


def test_explain() -> None:
    """The scales are the kernel's alpha; where none fits, it says so."""
    x = jaxbw.quantize(jnp.ones((256, 256), jnp.bfloat16), "e4m3")
    (only,) = jaxbw.explain_function(jaxbw.matmul, x, x, device="B200").matmuls
    assert only.problem.startswith("alpha * f8_e4m3fn[1,256,256] @ f8_e4m3fn[1,256,256] -> bf16")
    assert only.choice.kernel == "jaxbw_sm100_8bit_1cta"
    assert jaxbw.explain(x, x, device="B200").problem == only.problem
    rows = jaxbw.quantize(jnp.eye(256, dtype=jnp.bfloat16), "e4m3", axis=-1)
    scaled = jaxbw.explain(rows, x, bias=x.data[0].astype(jnp.bfloat16), device="B200")
    assert scaled.problem.startswith("alpha * lhs_scale * f8_e4m3fn[1,256,256] @ ")
    assert scaled.kernel == only.choice.kernel
    mixed = jaxbw.explain(jnp.ones((256, 256), jnp.bfloat16), x, device="B200")
    assert mixed.kernel is None
    assert "bfloat16 and float8_e4m3fn" in str(mixed)


@pytest.mark.parametrize("implementation", ["emulator", "emulator-sm90"])
def test_on_emulated_kernels(implementation: Any) -> None:
    """Integers, so that every order of the sums has one result."""
    x, w = _operand((24, 64), 0, jnp.bfloat16), _operand((64, 16), 1, jnp.bfloat16)
    q, u = jaxbw.quantize(4 * x, "e4m3"), jaxbw.quantize(w, "e4m3", both=True)
    wanted = 4 * x.astype(np.float64) @ w.astype(np.float64)
    options: Any = {"implementation": implementation, "preferred_element_type": np.float32}
    np.testing.assert_array_equal(np.asarray(jaxbw.matmul(q, u, **options)), wanted)


@pytest.mark.parametrize("jit", [False, True])
def test_the_copy_with_k_contiguous_is_read(jit: bool) -> None:
    """Hopper's kernels take no other: NaN in the data that was not to be read is in no result."""
    x, w = _operand((24, 64), 0, jnp.bfloat16), _operand((64, 16), 1, jnp.bfloat16)
    wanted = x.astype(np.float64) @ w.astype(np.float64)
    q, u = jaxbw.quantize(x.T, "e4m3", both=True), jaxbw.quantize(w, "e4m3", both=True)
    q, u = (replace(a, data=jnp.full_like(a.data, jnp.nan)) for a in (q, u))
    kernel: Any = {"implementation": "emulator-sm90", "preferred_element_type": np.float32}
    contract_first = partial(
        jaxbw.dot_general, dimension_numbers=(((0,), (0,)), ((), ())), **kernel
    )
    lhs = jaxbw.quantize(x, "e4m3")
    for call, args, expected in (
        (partial(jaxbw.matmul, **kernel), (lhs, u), wanted),
        (contract_first, (q, u), wanted),
        (partial(jaxbw.gated_matmul, activation=None, **kernel), (lhs, u, u), wanted**2),
    ):
        got = (jax.jit(call) if jit else call)(*args)
        np.testing.assert_array_equal(np.asarray(got), expected)


def test_rows_scales_before_a_bias() -> None:
    x = _operand((4, 8), 0) * np.exp2(np.arange(4, dtype=np.float32))[:, None]
    w, bias = _operand((8, 6), 1), np.arange(6, dtype=np.float32)
    q = jaxbw.quantize(x, "e4m3", axis=-1)
    got = jaxbw.matmul(q, jaxbw.quantize(w, "e4m3"), bias=bias, activation="relu")
    np.testing.assert_array_equal(np.asarray(got), np.maximum(x @ w + bias, 0))
