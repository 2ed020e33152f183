"""JAX's modes: what a program may switch on changes no matmul of ours, nor breaks one."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw

BF16 = jnp.bfloat16
X, W = jnp.full((8, 16), 0.5, BF16), jnp.full((16, 32), 0.25, BF16)
B, R = jnp.ones(32, BF16), jnp.ones((8, 32), BF16)
F8 = jnp.float8_e4m3fn

CALLS: dict[str, Callable[..., Any]] = {
    "plain": jaxbw.matmul,
    "every term": lambda x, w: jaxbw.matmul(
        x, w, bias=B, activation="gelu", residual=R, c=R, alpha=0.5, beta=2.0
    ),
    "gated": lambda x, w: jaxbw.gated_matmul(x, w, w, activation="silu"),
    "gated, computed again": lambda x, w: jaxbw.gated_matmul(x, w, w, recompute=True),
    "dot_general": lambda x, w: jaxbw.dot_general(
        x, w, (((1,), (0,)), ((), ())), bias=B, activation="relu"
    ),
}


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


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CALLS)
def test_modes(name: str, mode: str) -> None:
    def derivatives(x: Any, w: Any) -> Any:
        out, pull = jax.vjp(CALLS[name], x, w)
        _, tangent = jax.jvp(CALLS[name], (x, w), (x, w))
        return out, *pull(jnp.ones_like(out)), tangent

    expected = derivatives(X, W)
    with MODES[mode]():
        for run in (derivatives, jax.jit(derivatives)):
            for found, wanted in zip(run(X, W), expected, strict=True):
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
