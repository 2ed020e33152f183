"""Results of 8 bits, of every implementation alike: lax's values, also where they overflow."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jaxbw
from jaxbw._src.epilogue import PREACTIVATION

IMPLEMENTATIONS = ("xla", "emulator", "emulator-sm90")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


def integers(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    drawn = np.random.default_rng(seed).integers(-6, 7, shape)
    return jax.device_put(drawn.astype(dtype))


def wide(x: Any) -> Any:
    return np.asarray(x).astype(np.float32)


@pytest.mark.parametrize("result", FLOAT8)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_values_are_those_of_lax(implementation: Any, dtype: str, result: str) -> None:
    # Many sums are beyond e4m3's largest number, and those of the last row beyond e5m2's.
    x, w = integers((40, 96), dtype, 0), integers((96, 50), dtype, 1)
    x = x.at[-1].multiply(jnp.asarray(64, dtype)).at[0, 0].set(jnp.nan)
    found = jaxbw.matmul(x, w, preferred_element_type=result, implementation=implementation)
    assert found.dtype == result
    exact = wide(x) @ wide(w)
    rounded = wide(exact.astype(result))
    lax = jax.lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=result)
    for values in (lax, found) if implementation == "xla" else (lax,):  # XLA may round twice
        twice = [wide(exact.astype(first).astype(result)) for first in (ml_dtypes.bfloat16, "f2")]
        assert np.any([_same(wide(values), each) for each in (rounded, *twice)], 0).all()
    if implementation != "xla":
        np.testing.assert_array_equal(wide(found), rounded)


def _same(x: Any, y: Any) -> Any:
    return (x == y) | (np.isnan(x) & np.isnan(y))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_an_epilogue_of_a_batch(implementation: Any) -> None:
    x, w = integers((3, 20, 64), jnp.bfloat16, 0), integers((64, 33), jnp.bfloat16, 1)
    bias, scale = integers((33,), jnp.float32, 2), jnp.asarray([[1.0], [0.5], [2.0]])
    found = jaxbw.matmul(
        *(x, w),
        bias=bias,
        activation="relu",
        lhs_scale=scale,
        preferred_element_type="float8_e5m2",
        implementation=implementation,
    )
    exact = np.maximum(wide(scale)[..., None] * (wide(x) @ wide(w)) + wide(bias), 0)
    np.testing.assert_array_equal(wide(found), wide(exact.astype(ml_dtypes.float8_e5m2)))


@pytest.mark.parametrize("implementation", [None, "emulator", "emulator-sm90"])
def test_the_default_result_of_float8_operands(implementation: Any) -> None:
    x, w = integers((16, 32), FLOAT8[0], 0), integers((32, 48), FLOAT8[0], 1)
    found = jaxbw.matmul(x, w, implementation=implementation)
    expected = jnp.matmul(x, w)
    assert found.dtype == expected.dtype == FLOAT8[0]
    np.testing.assert_array_equal(wide(found), wide(expected))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_what_is_saved_has_more_bits(implementation: Any) -> None:
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in ((16, 32), (32, 48)))

    def layer(x: Any, w: Any) -> Any:
        return jaxbw.matmul(
            *(x, w),
            activation="silu",
            preferred_element_type="float8_e4m3fn",
            implementation=implementation,
        )

    def reference(x: Any, w: Any) -> Any:
        return jax.nn.silu(x.astype(jnp.float32) @ w.astype(jnp.float32))

    assert f"name={PREACTIVATION}" in str(jax.make_jaxpr(lambda *xs: jax.vjp(layer, *xs)[1])(x, w))
    y, pull_back = jax.vjp(layer, x, w)
    exact, expected = jax.vjp(reference, x, w)
    # The gradient is of bfloat16's accuracy, not of e4m3's.
    bars = pull_back(jnp.ones_like(y)), expected(jnp.ones_like(exact))
    for bar, wanted in zip(*bars, strict=True):
        assert bar.dtype == jnp.bfloat16
        np.testing.assert_allclose(wide(bar), wide(wanted), rtol=0.05, atol=0.15)
    again = jax.grad(lambda x: jax.checkpoint(layer)(x, w).astype(jnp.float32).sum())(x)
    np.testing.assert_array_equal(wide(again), wide(bars[0][0]))


@pytest.mark.parametrize("implementation", ["sm100", "sm90"])
def test_other_arrays_of_8_bits_are_refused(implementation: Any) -> None:
    x = jnp.ones((64, 64), jnp.bfloat16)
    narrow = x.astype(FLOAT8[0])
    for name in ("c", "residual"):
        arrays: dict[str, Any] = {name: narrow}
        with pytest.raises(NotImplementedError, match=f"the {name} is float8_e4m3fn; kernels have"):
            jaxbw.matmul(
                x,
                x,
                **arrays,
                preferred_element_type=FLOAT8[0],
                implementation=implementation,
            )
    with pytest.raises(NotImplementedError, match="the result is float8_e4m3; kernels have"):
        jaxbw.matmul(x, x, preferred_element_type="float8_e4m3", implementation=implementation)


def test_tiles_that_cannot_be_staged_are_refused() -> None:
    x = jnp.ones((64, 64), jnp.bfloat16)
    config = jaxbw.GemmConfig(64, 24)
    with pytest.raises(NotImplementedError, match="block_n is 24; a result of 8 bits takes"):
        jaxbw.matmul(
            x, x.T, preferred_element_type=FLOAT8[0], implementation="sm100", config=config
        )


@pytest.mark.parametrize("device", ["H200", "B200"])
def test_explain_chooses_a_kernel(device: str) -> None:
    x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    found = jaxbw.explain(
        x, x, preferred_element_type=FLOAT8[0], device=device, implementation="kernel"
    )
    assert found.implementation == {"H200": "sm90", "B200": "sm100"}[device]
