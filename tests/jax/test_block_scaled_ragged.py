"""Grouped matmuls of block-scaled operands, against float64 of the dequantized ones."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw

from ..quantized import BLOCK_FORMATS
from .ragged_cases import bounds, rows

SIZES = np.array([5, 0, 70, 9], np.int32)  # of 90 rows
M, K, N = 90, 72, 24


def normal(shape: tuple[int, ...], number: int = 0) -> Any:
    return np.random.default_rng(number).standard_normal(shape).astype(np.float32)


def exact(q: Any) -> Any:
    """float64 of a value."""
    return np.asarray(jax.jit(lambda q: q.dequantized())(q)).astype(np.float64)


def assert_near(got: Any, x: Any, w: Any, sizes: Any = SIZES, offset: int = 0) -> None:
    """Within k roundings of the sums; one more of a global scale."""
    wanted, bound = (rows(*each, sizes, offset) for each in ((x, w), (abs(x), abs(w))))
    error = np.abs(np.asarray(got, np.float64) - wanted)
    np.testing.assert_array_less(error, (x.shape[-1] + 6) * 2.0**-23 * bound + 1e-30)


@pytest.mark.parametrize("right", BLOCK_FORMATS)
@pytest.mark.parametrize("left", ["mxfp8", "nvfp4"])
def test_formats(left: str, right: str) -> None:
    """In any mix. Rows of no group are NaN, and so is the matrix of an empty one."""
    x, w = normal((M, K)), normal((4, K, N), 1)
    x[sum(SIZES) :] = w[1] = np.nan
    q, u = jaxbw.quantize(x, left), jaxbw.quantize(w, right, axis=-2)
    for function in (jaxbw.ragged_dot, jax.jit(jaxbw.ragged_dot)):
        assert_near(function(q, u, SIZES), np.nan_to_num(exact(q)), np.nan_to_num(exact(u)))


def test_some_groups() -> None:
    x, w = normal((M, K)), normal((2, K, N), 1)
    x[: SIZES[0]] = x[sum(SIZES[:3]) :] = np.nan
    q, u = jaxbw.quantize(x, "mxfp8"), jaxbw.quantize(w, "mxfp8", axis=-2)
    got = jax.jit(jaxbw.ragged_dot)(q, u, SIZES, group_offset=np.int32(1))
    assert_near(got, np.nan_to_num(exact(q)), exact(u), offset=1)


def test_beside_an_array() -> None:
    """What has no scales is multiplied by what the other one stands for, in its dtype."""
    x, w = normal((M, K)).astype(jnp.bfloat16), normal((4, K, N), 1).astype(jnp.bfloat16)
    u = jaxbw.quantize(w, "mxfp8", axis=-2)
    got = jaxbw.ragged_dot(x, u, SIZES)
    np.testing.assert_array_equal(got, jaxbw.ragged_dot(x, u.dequantized(), SIZES))


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_epilogue_and_gate(name: str) -> None:
    """Of NVFP4 each matrix may have a global scale of its own."""
    x, gate, up = normal((M, K)), normal((4, K, N), 1), 3 * normal((4, K, N), 2)
    bias = normal((4, N), 3)
    gate *= np.exp2(np.arange(4))[:, None, None]
    q = jaxbw.quantize(x, name)
    u, v = (jax.vmap(lambda w: jaxbw.quantize(w, name, axis=-2))(w) for w in (gate, up))
    left, of_gate, of_up = exact(q), *(exact_each(each) for each in (u, v))
    group = np.repeat(np.arange(4), SIZES)
    got = jaxbw.ragged_dot(q, u, SIZES, bias=bias, activation="relu", alpha=2)
    wanted = 2 * rows(left, of_gate, SIZES)
    wanted[: len(group)] += bias[group]
    np.testing.assert_allclose(got, np.maximum(wanted, 0), rtol=2**-17, atol=2**-16)
    got = jaxbw.gated_ragged_dot(q, u, v, SIZES, activation="relu")
    wanted = np.maximum(rows(left, of_gate, SIZES), 0) * rows(left, of_up, SIZES)
    np.testing.assert_allclose(got, wanted, rtol=2**-17, atol=2**-14)


def exact_each(q: Any) -> Any:
    return np.asarray(jax.vmap(lambda q: q.dequantized())(q)).astype(np.float64)


def test_rows_that_indices_choose() -> None:
    """Those beyond lhs are the nearest, as of other operands."""
    x, w = normal((40, K)), normal((4, K, N), 1)
    chosen = np.random.default_rng(2).integers(-3, 44, M).astype(np.int32)
    q, u = jaxbw.quantize(x, "mxfp8"), jaxbw.quantize(w, "mxfp8", axis=-2)
    got = jax.jit(jaxbw.ragged_dot)(q, u, SIZES, lhs_rows=chosen)
    assert_near(got, exact(q)[np.clip(chosen, 0, 39)], exact(u))


def test_vmap_and_the_gradient_of_a_bias() -> None:
    xs, w, bias = normal((3, M, K)), normal((4, K, N), 1), normal((4, N), 3)
    u = jaxbw.quantize(w, "mxfp8", axis=-2)

    def of_bias(bias: Any, x: Any) -> Any:
        out = jaxbw.ragged_dot(jaxbw.quantize(x, "mxfp8"), u, SIZES, bias=bias, activation="relu")
        return out.sum(), out

    gradients, outs = jax.vmap(jax.grad(of_bias, has_aux=True), (None, 0))(bias, xs)
    for x, gradient, out in zip(xs, gradients, outs, strict=True):
        z = rows(exact(jaxbw.quantize(x, "mxfp8")), exact(u), SIZES)
        z[: sum(SIZES)] += bias[np.repeat(np.arange(4), SIZES)]
        np.testing.assert_allclose(out, np.maximum(z, 0), rtol=2**-18, atol=2**-18)
        counted = [(z[first:end] > 0).sum(0) for first, end in bounds(SIZES, M)]
        np.testing.assert_array_equal(gradient, counted)


def test_what_does_not_fit() -> None:
    x, w = jnp.ones((M, K)), jnp.ones((4, K, N))
    q, u = jaxbw.quantize(x, "mxfp8"), jaxbw.quantize(w, "mxfp8", axis=-2)
    with pytest.raises(ValueError, match=r"ragged_dot: rhs: .* with blocks along dimension -1"):
        jaxbw.ragged_dot(q, jaxbw.quantize(w, "mxfp8"), SIZES)
    with pytest.raises(ValueError, match="72 elements are contracted with 40"):
        jaxbw.ragged_dot(q, jaxbw.quantize(w[:, :40], "mxfp8", axis=-2), SIZES)
    with pytest.raises(ValueError, match="they have one format"):
        jaxbw.gated_ragged_dot(q, u, jaxbw.quantize(w, "mxfp4", axis=-2), SIZES)
    with pytest.raises(TypeError, match=r"rhs is f32\[72,24\]; in a block-scaled format it is \[g"):
        jaxbw.ragged_dot(q, jaxbw.quantize(w[0], "mxfp8", axis=-2), SIZES)


# By the kernel, whose tiles of scales follow the groups: several of one, a last one, none.
LARGE = np.array([0, 150, 1, 129, 40], np.int32)  # of 340 rows


@pytest.mark.parametrize(
    ("name", "right"), [*zip(BLOCK_FORMATS, BLOCK_FORMATS, strict=True), ("mxfp8", "mxfp4")]
)
@pytest.mark.parametrize("is_gated", [False, True])
def test_by_the_kernel(name: str, right: str, is_gated: bool) -> None:
    """NaN lies in rows of no group, and in the matrix of an empty one. Rows may be chosen."""
    chosen = np.random.default_rng(5).permutation(340).astype(np.int32)
    x, gate, up = normal((340, K)), normal((5, K, 136), 1), normal((5, K, 136), 2)
    x[chosen[sum(LARGE) :]] = gate[0] = up[0] = np.nan
    q = jaxbw.quantize(x, name)
    rights = [jaxbw.quantize(w, right, axis=-2) for w in ((gate, up) if is_gated else (gate,))]
    call: Any = partial(jaxbw.gated_ragged_dot, activation="relu") if is_gated else jaxbw.ragged_dot
    function = partial(call, group_sizes=LARGE, lhs_rows=chosen)
    with jaxbw.implementation("emulator"):
        got = jax.jit(function)(q, *rights)
    (served,) = jaxbw.explain_function(function, q, *rights, device="B200").matmuls
    bits = 4 if "fp4" in name else 8
    assert served.choice.kernel == f"jaxbw_sm100_grouped_{bits}bit_mx_1cta"
    left = np.nan_to_num(exact(q))[chosen]
    of_gate, *of_up = (np.nan_to_num(exact(each)) for each in rights)
    if is_gated:
        wanted = np.maximum(rows(left, of_gate, LARGE), 0) * rows(left, of_up[0], LARGE)
        np.testing.assert_allclose(got, wanted, rtol=2**-16, atol=2**-14)
    else:
        assert_near(got, left, of_gate, LARGE)


def test_by_pairs() -> None:
    """Whose tiles of 256 rows have two of scales, the last of a group perhaps one in use.

    Groups that have no matrix have tiles, too.
    """
    x, w = normal((1000, K)), normal((3, K, 264), 1)
    sizes = np.array([70, 0, 300, 129, 413], np.int32)
    x[:70] = x[499:] = w[0] = np.nan
    q, u = jaxbw.quantize(x, "mxfp8"), jaxbw.quantize(w, "mxfp8", axis=-2)
    config = jaxbw.GemmConfig(256, 128, cluster=(2, 1), cta_group=2)
    with jaxbw.implementation("emulator"):
        got = jax.jit(partial(jaxbw.ragged_dot, config=config))(q, u, sizes, group_offset=1)
    assert_near(got, np.nan_to_num(exact(q)), np.nan_to_num(exact(u)), sizes, offset=1)


@pytest.mark.parametrize(
    ("left", "right", "device", "kernel"),
    [
        ("mxfp4", "mxfp8", "B200", "jaxbw_sm100_grouped_16bit_1cta"),
        ("nvfp4", "mxfp4", "B200", "jaxbw_sm100_grouped_16bit_1cta"),
        ("mxfp8", "mxfp8", "H100", "jaxbw_sm90_grouped_bf16_nt_64x128"),
    ],
)
def test_what_is_multiplied_in_bfloat16(left: str, right: str, device: str, kernel: str) -> None:
    """Where no kernel multiplies the formats."""
    q = jaxbw.quantize(normal((M, K)), left)
    u = jaxbw.quantize(normal((4, K, N), 1), right, axis=-2)
    report = jaxbw.explain_function(jaxbw.ragged_dot, q, u, SIZES, device=device)
    assert kernel in [each.choice.kernel for each in report.matmuls]


# `mxfp8_ragged_dot`: with a peak in each block quantization is exact.
PEAK = 28.0  # 448 / 16


def with_peaks(shape: tuple[int, ...], number: int) -> Any:
    """Numbers that MXFP8 holds, in blocks along either of the last two dimensions."""
    x = np.random.default_rng(number).integers(-4, 5, shape).astype(np.float32)
    x[..., ::32, :] = x[..., ::32] = PEAK
    return x


X, W, BAR = with_peaks((40, 64), 0), with_peaks((4, 64, 32), 1), with_peaks((40, 32), 2)
OF_40 = np.array([5, 0, 20, 9], np.int32)


def with_gradients(function: Any, x: Any, w: Any, bar: Any) -> Any:
    out, pull = jax.vjp(function, x, w)
    return out, *pull(bar.astype(out.dtype))


def by_numpy(x: Any, w: Any, bar: Any) -> Any:
    of_x = rows(bar, w.swapaxes(1, 2), OF_40)
    of_w = np.stack([x[first:end].T @ bar[first:end] for first, end in bounds(OF_40, len(x))])
    return rows(x, w, OF_40), of_x, of_w


@pytest.mark.parametrize("implementation", ["xla", "emulator"])
@pytest.mark.parametrize("is_once", [False, True])
def test_training(implementation: str, is_once: bool) -> None:
    """The gradient of float32 weights is rounded to bfloat16; they may be quantized before."""
    q = jaxbw.quantize(W, "mxfp8", axis=-2, both=True) if is_once else None
    function = partial(jaxbw.mxfp8_ragged_dot, group_sizes=OF_40, quantized=q)
    with jaxbw.implementation(implementation):
        got = jax.jit(partial(with_gradients, function))(X, W, BAR)
    out, of_x, of_w = by_numpy(X, W, BAR)
    np.testing.assert_array_equal(got[0], out)
    np.testing.assert_array_equal(got[1], of_x)
    np.testing.assert_array_equal(got[2], of_w.astype(jnp.bfloat16).astype(np.float32))


def test_quantized_weights_are_those_of_rhs() -> None:
    of_columns = jaxbw.quantize(W, "mxfp8", axis=-2)
    with pytest.raises(ValueError, match=r"in mxfp8, with blocks along -2, and rhs f32\[4,64,32\]"):
        jaxbw.mxfp8_ragged_dot(X, W, OF_40, quantized=of_columns)
    in_float8 = jaxbw.quantize(W, "e4m3", axis=-2)
    with pytest.raises(TypeError, match="quantized is a Quantized"):
        jaxbw.mxfp8_ragged_dot(X, W, OF_40, quantized=in_float8)
