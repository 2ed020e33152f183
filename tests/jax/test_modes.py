"""JAX's modes: what a program may switch on changes no matmul of ours, nor breaks one."""

import contextlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxbw
from jaxbw.flax import linen
from jaxbw.flax import nnx as jnnx

BF16 = jnp.bfloat16


def full(shape: tuple[int, ...], value: float, dtype: Any = BF16) -> Any:
    """As jnp.full, which compiles a program for each shape, as this file is imported."""
    return jax.device_put(np.full(shape, value, dtype))


X, W = full((8, 16), 0.5), full((16, 32), 0.25)
B, R = full((32,), 1), full((8, 32), 1)
F8 = jnp.float8_e4m3fn

MESH = jax.make_mesh((2,), ("rows",), (AxisType.Auto,), devices=jax.devices("cpu")[:2])


def within(context: contextlib.AbstractContextManager[Any], x: Any, w: Any) -> Any:
    with context:
        return jaxbw.matmul(x, w, bias=B, activation="relu")


def halves(tree: Any) -> Any:
    """Parameters of which nothing is rounded."""
    return jax.tree.map(lambda p: full(p.shape, 0.5, p.dtype), tree)


def layer(module: Any) -> Callable[..., Any]:
    variables = halves(jax.eval_shape(lambda: module.init(jax.random.key(0), X)))
    return lambda x, w: module.apply(variables, x) + w.sum()


def nnx_layer(make: Callable[[], Any]) -> Callable[..., Any]:
    module = nnx.eval_shape(make)
    nnx.update(module, halves(nnx.state(module, nnx.Param)))
    return lambda x, w: module(x) + w.sum()


# By the public name, and more words where there are several of one.
CALLS: dict[str, Callable[..., Any]] = {
    "matmul": jaxbw.matmul,
    "matmul, every term": lambda x, w: jaxbw.matmul(
        x, w, bias=B, activation="gelu", residual=R, c=R, alpha=0.5, beta=2.0
    ),
    "gated_matmul": lambda x, w: jaxbw.gated_matmul(x, w, w, activation="silu"),
    "gated_matmul, computed again": lambda x, w: jaxbw.gated_matmul(x, w, w, recompute=True),
    "dot_general": lambda x, w: jaxbw.dot_general(
        x, w, (((1,), (0,)), ((), ())), bias=B, activation="relu"
    ),
    **{
        f"collective_matmul, overlap {overlap}": jax.shard_map(
            partial(jaxbw.collective_matmul, axis_name="rows", gather_lhs=0, overlap=overlap),
            mesh=MESH,
            in_specs=(P("rows"), P(None, "rows")),
            out_specs=P(None, "rows"),
        )
        for overlap in (False, True)
    },
    "ragged_dot": lambda x, w: jaxbw.ragged_dot(x, jnp.stack([w, -w]), np.array([3, 4])),
    "ragged_dot_general": lambda x, w: jaxbw.ragged_dot_general(
        *(x, x @ w, np.array([3, 4])),
        jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ()),
    ),
    "gated_ragged_dot": lambda x, w: jaxbw.gated_ragged_dot(x, w[None], w[None], np.array([7])),
    "scaled_matmul": lambda x, w: jaxbw.scaled_matmul(
        *(x, w.T, full((8, 2), 0.5), full((32, 1), 2))
    ),
    "accelerate": jaxbw.accelerate(jnp.matmul),
    "einsum": partial(jaxbw.einsum, "mk,kn->mn"),
    "implementation": lambda x, w: within(jaxbw.implementation("emulator"), x, w),
    "batch_invariant": lambda x, w: within(jaxbw.batch_invariant(), x, w),
    "target": lambda x, w: within(jaxbw.target("H200"), x, w),
    "use_tuned": lambda x, w: within(jaxbw.use_tuned(None), x, w),
    "linen.Dense": layer(linen.Dense(4, dtype=BF16, activation="gelu")),
    "linen.DenseGeneral": layer(linen.DenseGeneral((2, 4), dtype=BF16, activation="relu")),
    "linen.Einsum": layer(linen.Einsum((16, 4), "bd,df->bf", dtype=BF16, activation="silu")),
    "linen.MLP": layer(linen.MLP(8, gated=True, activation="silu", dtype=BF16)),
    "linen.MoE": layer(linen.MoE(4, 8, dtype=BF16)),
    "linen.MultiHeadAttention": layer(linen.MultiHeadAttention(2, dtype=BF16)),
    "nnx.Linear": nnx_layer(
        lambda: jnnx.Linear(16, 4, dtype=BF16, activation="gelu", rngs=nnx.Rngs(0))
    ),
    "nnx.LinearGeneral": nnx_layer(
        lambda: jnnx.LinearGeneral(16, (2, 2), dtype=BF16, rngs=nnx.Rngs(0))
    ),
    "nnx.Einsum": nnx_layer(
        lambda: jnnx.Einsum("bd,df->bf", (16, 4), (4,), dtype=BF16, rngs=nnx.Rngs(0))
    ),
    "nnx.MLP": nnx_layer(lambda: jnnx.MLP(16, 8, dtype=BF16, rngs=nnx.Rngs(0))),
    "nnx.MoE": nnx_layer(lambda: jnnx.MoE(16, 8, num_experts=4, dtype=BF16, rngs=nnx.Rngs(0))),
}
# What computes nothing, or is one of these by another name.
OTHERS = {
    *("GemmConfig", "__version__", "autotune", "checkpoint_policies", "explain"),
    "explain_function",
    *("export_disabled_checks", "profile"),
    *("linen.MultiHeadDotProductAttention", "nnx.swap_layers"),
    # Without a forward mode: test_quantize.py, test_fp8_ragged.py, tests/flax/test_fp8.py.
    *(
        "Quantized",
        "BlockScaled",
        "quantize",
        "fp8_dot_general",
        "fp8_ragged_dot",
        "mxfp8_dot_general",
        "mxfp8_ragged_dot",
        "nvfp4_dot_general",
        "scaled_dot_general",
        "linen.Fp8DirectDotGeneralOp",
        "linen.accumulate",
    ),
    *("nnx.Fp8DotGeneral", "nnx.Nvfp4DotGeneral", "nnx.Optimizer"),
    *("nnx.OverwriteWithGradient", "nnx.TRAINED"),
    "nnx.accumulate",
}


def test_every_public_function_is_called() -> None:
    public = {
        *jaxbw.__all__,
        *(f"linen.{name}" for name in linen.__all__),
        *(f"nnx.{name}" for name in jnnx.__all__),
    }
    assert {name.partition(",")[0] for name in CALLS} == public - OTHERS


@contextlib.contextmanager
def flag(name: str, value: Any) -> Iterator[None]:
    """A flag of JAX that has no context manager of its own."""
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


MODES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "dtype promotion strict": lambda: jax.numpy_dtype_promotion("strict"),
    "rank promotion raise": lambda: jax.numpy_rank_promotion("raise"),
    "enable_checks": lambda: jax.enable_checks(True),
    "tracer leak checks": jax.checking_leaks,
    "debug_nans": lambda: jax.debug_nans(True),
    "debug_infs": lambda: jax.debug_infs(True),
    "errors of nan": lambda: flag("jax_error_checking_behavior_nan", "raise"),
    "x64": lambda: jax.enable_x64(True),
}
if hasattr(jax.config, "jax_remat3"):
    MODES["remat3"] = lambda: flag("jax_remat3", True)


def value_and_derivatives(name: str, x: Any, w: Any) -> Any:
    out, pull = jax.vjp(CALLS[name], x, w)
    _, tangent = jax.jvp(CALLS[name], (x, w), (x, w))
    return out, *pull(jnp.ones_like(out)), tangent


@cache
def without_any_mode(name: str) -> Any:
    return jax.jit(partial(value_and_derivatives, name))(X, W)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CALLS)
def test_modes(name: str, mode: str) -> None:
    """Compiled; and eagerly the value, whose derivatives would bind the same operations."""
    expected = without_any_mode(name)
    with MODES[mode]():
        compiled = jax.jit(partial(value_and_derivatives, name))(X, W)
        for results, all_of_it in ((compiled, expected), ([CALLS[name](X, W)], expected[:1])):
            for found, wanted in zip(results, all_of_it, strict=True):
                assert found.dtype == wanted.dtype
                np.testing.assert_array_equal(
                    np.asarray(found, np.float32), np.asarray(wanted, np.float32)
                )


@pytest.mark.parametrize("dtype", [F8, jnp.float8_e5m2, jnp.float16])
def test_an_epilogue_of_any_float(dtype: Any) -> None:
    """8-bit floats have no implicit promotion: what is before the last cast is float32 by name."""
    x, w = X.astype(dtype), W.astype(dtype)
    found = jaxbw.matmul(x, w, bias=B, activation="relu")
    assert found.dtype == dtype
    wide = jnp.matmul(x, w, preferred_element_type=jnp.float32) + B.astype(jnp.float32)
    np.testing.assert_array_equal(
        np.asarray(found, np.float32), np.asarray(jax.nn.relu(wide).astype(dtype), np.float32)
    )
