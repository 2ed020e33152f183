"""`fp8_ragged_dot`: exact where its casts are, and what serves its three matmuls."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

import jaxbw
from jaxbw._src.primitives.quantize import quantize_p

from .ragged_cases import bounds

SIZES = np.array([5, 0, 20, 9], np.int32)  # of 40 rows
PEAK = 28.0  # 448 / 16, and 57344 / 2048: with it in a row the scale is a power of two


def exact(shape: tuple[int, ...], number: int) -> Any:
    """Numbers that float8 holds once they are scaled: the last one of each row is the peak."""
    x = np.random.default_rng(number).integers(-4, 5, shape).astype(np.float32)
    x[..., -1] = PEAK
    return x


X, W, BAR = exact((40, 16), 0), exact((4, 16, 32), 1), exact((40, 32), 2)


def with_gradients(function: Any, x: Any, w: Any, bar: Any) -> Any:
    out, pull = jax.vjp(function, x, w)
    return out, *pull(bar.astype(out.dtype))


def by_numpy(x: Any, w: Any, bar: Any, offset: int = 0) -> Any:
    out, of_x, of_w = np.zeros_like(bar), np.zeros_like(x), np.zeros_like(w)
    for group, (first, end) in enumerate(bounds(SIZES, len(x))):
        if 0 <= (i := group - offset) < len(w):
            out[first:end] = x[first:end] @ w[i]
            of_x[first:end] = bar[first:end] @ w[i].T
            of_w[i] = x[first:end].T @ bar[first:end]
    return out, of_x, of_w


@pytest.mark.parametrize("precision", [None, "highest"])
@pytest.mark.parametrize("implementation", ["xla", "emulator-sm90", "emulator"])
def test_gradients(implementation: Any, precision: Any) -> None:
    """Of float32 operands, whose weights' gradient is rounded to bfloat16."""
    function = partial(jaxbw.fp8_ragged_dot, group_sizes=SIZES, precision=precision)
    with jaxbw.implementation(implementation):
        got = jax.jit(partial(with_gradients, function))(X, W, BAR)
    out, of_x, of_w = by_numpy(X, W, BAR)
    np.testing.assert_array_equal(got[0], out)
    np.testing.assert_array_equal(got[1], of_x)
    np.testing.assert_array_equal(got[2], of_w.astype(jnp.bfloat16).astype(np.float32))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_some_groups(dtype: Any) -> None:
    """In the operands' dtypes; rows of other groups are zeros, and have zero gradients."""
    function = partial(jaxbw.fp8_ragged_dot, group_sizes=SIZES, group_offset=np.int32(2))
    got = with_gradients(function, X.astype(dtype), W[:2].astype(dtype), jnp.asarray(BAR))
    for result, expected in zip(got, by_numpy(X, W[:2], BAR, offset=2), strict=True):
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, expected.astype(dtype))


def test_vmap() -> None:
    xs = np.stack([X, X[::-1]])
    one = partial(jaxbw.fp8_ragged_dot, group_sizes=SIZES)
    got = jax.vmap(partial(with_gradients, one), in_axes=(0, None, None))(xs, W, BAR)
    for i, x in enumerate(xs):
        for result, expected in zip(got[:2], by_numpy(x, W, BAR)[:2], strict=True):
            np.testing.assert_array_equal(result[i], expected)


@pytest.mark.parametrize(
    ("device", "kernel", "of_16_bits"),
    [
        ("H100", "jaxbw_sm90_grouped_8bit_nt_64x128", "jaxbw_sm90_grouped_bf16_tn_64x128"),
        ("B200", "jaxbw_sm100_grouped_8bit_1cta", "jaxbw_sm100_grouped_16bit_1cta"),
    ],
)
def test_what_serves_it(device: str, kernel: str, of_16_bits: str) -> None:
    """Two kernels of float8, and one of bfloat16 for the gradient of the weights."""
    types = [jax.ShapeDtypeStruct(x.shape, jnp.bfloat16) for x in (X, W, BAR)]
    function = partial(with_gradients, partial(jaxbw.fp8_ragged_dot, group_sizes=SIZES))
    report = jaxbw.explain_function(function, *types, device=device)
    served = Counter(str(each.choice.kernel) for each in report.matmuls)
    assert served == {kernel: 2, of_16_bits: 1}


def test_a_contraction_of_float8_says_why_hopper_has_no_kernel() -> None:
    contraction = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
    types = [jax.ShapeDtypeStruct(x.shape, jnp.float8_e4m3fn) for x in (X, BAR)]
    function = partial(
        jaxbw.ragged_dot_general,
        group_sizes=SIZES,
        ragged_dot_dimension_numbers=contraction,
        preferred_element_type=jnp.bfloat16,
    )
    report = jaxbw.explain_function(function, *types, device="H100")
    assert "tensor cores take 8 bits along the contraction" in str(report)
    (on_b200,) = jaxbw.explain_function(function, *types, device="B200").matmuls
    assert on_b200.choice.kernel == "jaxbw_sm100_grouped_8bit_1cta"


def quantizations(jaxpr: Any, times: int = 1) -> Iterator[tuple[int, int]]:
    """Of each quantization of a program, the rank of its operand and how often it runs."""
    for equation in jaxpr.eqns:
        if equation.primitive is quantize_p:
            yield equation.invars[0].aval.ndim, times
        inner = times * equation.params.get("length", 1)
        for each in jaxprs_in_params(equation.params):
            yield from quantizations(each, inner)


def test_weights_are_quantized_once_a_step() -> None:
    """Of four microbatches, recomputed: the same values and gradients, of one quantization.

    Without, JAX takes the forward one out of the scan, but not those that are computed again.
    """
    xs = np.stack([X, X[::-1], 2 * X, -X])

    def step(is_once: bool, w: Any, xs: Any) -> Any:
        frozen = jax.lax.stop_gradient(w)
        q = jaxbw.quantize(frozen, "e4m3", axis=(-2, -1), both=True) if is_once else None

        @jax.checkpoint
        def loss(total: Any, x: Any) -> Any:
            out = jaxbw.fp8_ragged_dot(x, w, SIZES, quantized=q)
            return total + (out * BAR).sum(), out

        return jax.lax.scan(loss, 0.0, xs)

    found = []
    for is_once, expected in ((True, 1), (False, 1 + len(xs))):
        function = jax.value_and_grad(partial(step, is_once), (0, 1), has_aux=True)
        program = jax.make_jaxpr(function)(W, xs)
        of_weights = [times for rank, times in quantizations(program.jaxpr) if rank == W.ndim]
        assert sum(of_weights) == expected
        found.append(jax.jit(function)(W, xs))
    jax.tree.map(np.testing.assert_array_equal, *found)


@pytest.mark.parametrize(
    ("options", "of"),
    [
        ({"axis": (-2, -1)}, W),
        ({"axis": -2, "both": True}, W),
        ({"axis": (-2, -1), "both": True}, W[:2]),
    ],
)
def test_quantized_weights_are_those_of_rhs(options: Any, of: Any) -> None:
    with pytest.raises(ValueError, match=r"and rhs f32\[4,16,32\]; it is quantize\(rhs"):
        jaxbw.fp8_ragged_dot(X, W, SIZES, quantized=jaxbw.quantize(of, "e4m3", **options))
    with pytest.raises(TypeError, match="quantized is a ndarray"):
        jaxbw.fp8_ragged_dot(X, W, SIZES, quantized=W)


def test_operands_that_are_not_real_floating() -> None:
    with pytest.raises(TypeError, match=r"fp8_ragged_dot: rhs is int32; cast it"):
        jaxbw.fp8_ragged_dot(X, W.astype(np.int32), SIZES)
