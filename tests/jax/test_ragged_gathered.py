"""Grouped matmuls of rows that indices choose: the same as of rows that were gathered before."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxbw

from .ragged_cases import integers, normal

Function = Callable[..., Any]
ROWS, K, N, G = 5, 16, 8, 3
LHS_ROWS = np.array([4, 0, -3, 99, 2, 2, 1, 4], np.int32)
CHOSEN = LHS_ROWS.clip(0, ROWS - 1)
SIZES = np.array([4, 0, 3], np.int32)
X, W = integers((ROWS, K)), integers((G, K, N))
EPILOGUES: dict[str, Any] = {
    "none": {},
    "bias": {"bias": normal((G, N)).astype(np.float32), "activation": "silu"},
    "residual": {"residual": normal((8, N)).astype(np.float32), "alpha": 0.5},
}


def gathered(x: Any, w: Any, rows: Any = LHS_ROWS, **options: Any) -> Any:
    return jaxbw.ragged_dot(x, w, SIZES, lhs_rows=rows, **options)


def before(x: Any, w: Any, rows: Any = LHS_ROWS, **options: Any) -> Any:
    return jaxbw.ragged_dot(jnp.asarray(x)[jnp.clip(rows, 0, ROWS - 1)], w, SIZES, **options)


def derivatives(function: Function, x: Any, w: Any) -> Any:
    """Value, gradients, their own gradient, and a tangent."""

    def loss(x: Any, w: Any) -> Any:
        return (function(x, w) ** 2).sum()

    def of_gradient(x: Any, w: Any) -> Any:
        return sum(jnp.sin(y).sum() for y in jax.grad(loss, (0, 1))(x, w))

    return (
        function(x, w),
        jax.grad(loss, (0, 1))(x, w),
        jax.grad(of_gradient, (0, 1))(x, w),
        jax.jvp(function, (x, w), (x, w)),
    )


@pytest.mark.parametrize("name", EPILOGUES)
def test_derivatives(name: str) -> None:
    """Of whole numbers and in float32; sums are in the same order but for the scatter's."""

    @jax.jit
    def both(x: Any, w: Any) -> Any:
        return [
            derivatives(partial(function, **EPILOGUES[name]), x, w)
            for function in (gathered, before)
        ]

    ours, theirs = both(X, W)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6), ours, theirs)


def test_gated_and_scales() -> None:
    """Scales of rows are of those that lie in lhs."""
    up = integers((G, K, N), 1)

    def gated(x: Any, **options: Any) -> Any:
        return jaxbw.gated_ragged_dot(x, W, up, SIZES, activation="relu", **options)

    np.testing.assert_array_equal(gated(X, lhs_rows=LHS_ROWS), gated(X[CHOSEN]))
    x = X * np.exp2(np.arange(ROWS))[:, None].astype(np.float32)
    q, chosen = (jaxbw.quantize(each, "e4m3", axis=-1) for each in (x, x[CHOSEN]))
    u = jaxbw.quantize(W, "e4m3", axis=-2)
    np.testing.assert_array_equal(gathered(q, u), jaxbw.ragged_dot(chosen, u, SIZES))


@pytest.mark.parametrize("axes", [(None, None, 0), (0, None, None), (0, 0, 0), (None, 0, None)])
def test_vmap(axes: tuple[int | None, ...]) -> None:
    several = [integers((2, *x.shape), 2) for x in (X, W)], np.stack([LHS_ROWS, LHS_ROWS[::-1]])
    operands = [
        each if axis is None else batched
        for each, batched, axis in zip(
            (X, W, LHS_ROWS), (*several[0], several[1]), axes, strict=True
        )
    ]
    np.testing.assert_array_equal(
        jax.vmap(gathered, in_axes=axes)(*operands), jax.vmap(before, in_axes=axes)(*operands)
    )


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64", "uint32"])
def test_dtypes_of_indices(dtype: str) -> None:
    with jax.enable_x64(True):
        limits = np.iinfo(dtype)
        rows = np.array([4, limits.max, limits.min, 2, 0, 1, 3, 3], dtype)
        nearest = np.clip(rows.astype(object), 0, ROWS - 1).astype(np.int32)
        np.testing.assert_array_equal(gathered(X, W, rows), gathered(X, W, nearest))


def test_no_rows() -> None:
    nothing = np.zeros(0, np.int32)
    assert gathered(X, W, nothing).shape == (0, N)
    assert gathered(X[:0], W, nothing).shape == (0, N)


@pytest.mark.parametrize(
    ("x", "rows", "error", "message"),
    [
        (X, LHS_ROWS.astype(np.float32), TypeError, r"lhs_rows is f32\[8\]; it is integers, \[m\]"),
        (X, LHS_ROWS[None], ValueError, r"lhs_rows is int32\[1,8\]; it is \[m\]"),
        (X[:0], LHS_ROWS, ValueError, r"lhs is f32\[0,16\]; there is no row for lhs_rows int32"),
        (X[None], LHS_ROWS, TypeError, r"lhs f32\[1,5,16\]"),
    ],
)
def test_errors(x: Any, rows: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=r"jaxbw\.ragged_dot: " + message):
        gathered(x, W, rows)


def test_several_devices() -> None:
    """Divided by XLA, and by hand; in explicit mode as what is gathered before."""
    devices = jax.devices("cpu")[:2]
    auto, explicit = (
        jax.make_mesh((2,), ("i",), axis_types=(kind,), devices=devices)
        for kind in (AxisType.Auto, AxisType.Explicit)
    )
    expected = before(X, W)
    w = jax.device_put(W, NamedSharding(auto, P(None, None, "i")))
    np.testing.assert_array_equal(jax.jit(gathered)(X, w), expected)

    def body(x: Any, w: Any, rows: Any) -> Any:
        return gathered(x, w, rows)

    of_each = (P(), P(None, None, "i"), P())
    divided = jax.shard_map(body, mesh=auto, in_specs=of_each, out_specs=P(None, "i"))
    np.testing.assert_array_equal(divided(X, W, LHS_ROWS), expected)
    with jax.set_mesh(explicit):
        y = jax.jit(gathered)(jax.device_put(X, P()), jax.device_put(W, P(None, None, "i")))
        assert jax.typeof(y).sharding.spec == P(None, "i")
        np.testing.assert_array_equal(y, expected)


# What serves it


@pytest.mark.parametrize("gated", [False, True])
def test_kernel(gated: bool) -> None:
    """Both families' read rows where they lie."""
    x, w = X.astype(jnp.bfloat16), W.astype(jnp.bfloat16)

    def call(x: Any, rows: Any, implementation: Any = None) -> Any:
        options: dict[str, Any] = {"lhs_rows": rows, "implementation": implementation}
        if gated:
            return jaxbw.gated_ragged_dot(x, w, w, SIZES, activation="relu", **options)
        return jaxbw.ragged_dot(x, w, SIZES, **options)

    expected = np.asarray(call(x, LHS_ROWS), np.float32)
    for implementation in ("emulator-sm90", "emulator"):
        y = call(x, LHS_ROWS, implementation)
        np.testing.assert_array_equal(np.asarray(y, np.float32), expected)


@pytest.mark.parametrize(
    ("target", "dtype", "gathers"),
    [
        ("H200", "bfloat16", False),
        ("B200", "bfloat16", False),
        ("H200", "float8_e4m3fn", True),
        ("B200", "float8_e4m3fn", False),
    ],
)
def test_program(
    target: str,
    dtype: str,
    gathers: bool,
    cuda_hlo: Callable[..., str],
    custom_calls: Callable[..., list[str]],
) -> None:
    """Of float8 Hopper's kernel takes them gathered."""
    x, w = X.astype(dtype), W.astype(dtype).mT.copy()

    def call(x: Any, w: Any) -> Any:
        return gathered(x, w.mT, preferred_element_type=jnp.bfloat16)

    with jaxbw.target(target):
        text = cuda_hlo(call, x, w)
        (call_of_kernel,) = custom_calls(text)
    assert ('"stablehlo.gather"(' in text) == gathers
    assert ("_gathered_" in call_of_kernel) == (not gathers)


def test_gradient_of_the_kernel(cuda_hlo: Callable[..., str]) -> None:
    """The value gathers in its load, and so keeps lhs; drhs has its rows gathered before."""
    x, w = X.astype(jnp.bfloat16), W.astype(jnp.bfloat16)

    def value_and_gradients(x: Any, w: Any) -> Any:
        y, pull_back = jax.vjp(gathered, x, w)
        return y, pull_back(y)

    with jaxbw.target("H200"):
        text = cuda_hlo(value_and_gradients, x, w)
    kernels = [f"jaxbw_sm90_{name}_64x128" for name in ("gathered_bf16_nn", "grouped_bf16_tn")]
    assert all(
        text.count(kernel) == 1 for kernel in (*kernels, "jaxbw_sm90_grouped_bf16_nt_64x128")
    )
    assert [text.count(f'"stablehlo.{name}"(') for name in ("gather", "scatter")] == [1, 1]


def test_explained() -> None:
    x, w = X.astype(jnp.bfloat16), W.astype(jnp.bfloat16)
    (matmul,) = jaxbw.explain_function(gathered, x, w, device="H200").matmuls
    assert matmul.problem == "ragged bf16[1,5,16][lhs_rows] @ bf16[1,3,16,8] -> bf16[1,8,8]"
    assert matmul.choice.kernel == "jaxbw_sm90_gathered_bf16_nn_64x128"
    (matmul,) = jaxbw.explain_function(gathered, x, w).matmuls
    assert matmul.problem == "ragged bf16[1,8,16] @ bf16[1,3,16,8] -> bf16[1,8,8]"
    assert matmul.choice.kernel is None
