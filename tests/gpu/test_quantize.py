"""jaxbw.quantize on the GPU: the kernels' bits, and XLA's, are the documented ones."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw
from jaxbw._src.primitives.quantize import TARGET

from ..quantized import FORMATS, quantized

pytestmark = pytest.mark.gpu


def any_numbers(shape: tuple[int, ...], dtype: str) -> Any:
    """Every kind of number, and in the first of dimension 0 normal ones alone."""
    random, of_jax = np.random.default_rng(0), jnp.dtype(dtype)
    bits = np.dtype(f"u{of_jax.itemsize}")
    x = random.integers(0, 2 ** (8 * bits.itemsize), shape, bits).view(of_jax)
    x[0] = random.standard_normal(x[0].shape).astype(of_jax)
    return x


def check(x: Any, name: str, axis: Any, both: bool) -> None:
    bits, scale = quantized(x, name, axis)
    for implementation in ("kernel", "xla"):
        run = partial(jaxbw.quantize, format=name, axis=axis, both=both)
        q = jax.jit(partial(run, implementation=implementation))(x)
        np.testing.assert_array_equal(np.asarray(q.data).view(np.uint8), bits)
        np.testing.assert_array_equal(np.asarray(q.scale), scale)
        if both:
            turned = np.asarray(q.transposed).view(np.uint8)
            np.testing.assert_array_equal(turned, bits.swapaxes(-1, -2))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("shape", "axis", "both"),
    [
        ((1, 1), None, True),
        ((1024, 4096), None, True),
        ((4096, 1024), -1, True),
        ((1000, 1003), None, True),
        ((1003, 1000), None, False),
        ((999, 1001), -1, False),
        ((70000, 16), -1, False),
        ((5, 70001), -1, False),
        ((3, 200, 300), (1, 2), True),
        ((3_000_001,), None, False),
    ],
)
def test_bits(dtype: str, name: str, shape: tuple[int, ...], axis: Any, both: bool) -> None:
    check(any_numbers(shape, dtype), name, axis, both)


def test_normal_numbers_use_the_range() -> None:
    x = np.random.default_rng(1).standard_normal((2048, 4096)).astype(jnp.bfloat16)
    for axis in (None, -1):
        check(x, "e4m3", axis, True)


def test_it_is_chosen_and_repeats_in_a_loop() -> None:
    """In a while loop XLA captures calls into CUDA graphs; the workspace is that of each call."""
    x = jnp.asarray(np.random.default_rng(2).standard_normal((256, 4096)), jnp.bfloat16)
    text = jax.jit(lambda x: jaxbw.quantize(x, "e4m3")).lower(x).as_text()
    assert text.count(f"@{TARGET}(") == 1

    @jax.jit
    def loop(x: Any) -> Any:
        def step(i: Any, total: Any) -> Any:
            q = jaxbw.quantize(x * (1 + i).astype(x.dtype), "e4m3")
            return total + jax.lax.bitcast_convert_type(q.data, jnp.uint8).astype(jnp.uint32)

        return jax.lax.fori_loop(0, 20, step, jnp.zeros(x.shape, jnp.uint32))

    wanted = np.zeros(x.shape, np.uint32)
    for i in range(20):
        wanted += quantized(np.asarray(x * (1 + jnp.asarray(i)).astype(x.dtype)), "e4m3")[0]
    np.testing.assert_array_equal(np.asarray(loop(x)), wanted)
