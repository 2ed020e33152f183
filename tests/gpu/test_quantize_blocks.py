"""jaxbw.quantize to block-scaled formats on the GPU: the kernels' bits are those of XLA's form."""

import functools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw
from jaxbw._src.primitives.quantize_blocks import TARGET

from ..quantized import BLOCK_FORMATS
from .test_quantize import any_numbers

pytestmark = pytest.mark.gpu


def bits(x: Any) -> Any:
    """Of every leaf; e2m1 as bytes."""
    return [np.atleast_1d(np.asarray(leaf)).view(np.uint8) for leaf in jax.tree.leaves(x)]


@functools.cache
def compiled(name: str, implementation: str | None, options: tuple[tuple[str, Any], ...]) -> Any:
    run: Any = partial(jaxbw.quantize, format=name, implementation=implementation, **dict(options))
    return jax.jit(lambda x, whole: run(x, global_scale=whole))


def check(x: Any, name: str, whole: Any = None, **options: Any) -> None:
    """The kernel, XLA on the GPU, and XLA on the CPU."""
    kernel, on_gpu = (compiled(name, i, tuple(options.items())) for i in ("kernel", "xla"))
    wanted = bits(kernel(x, whole))
    jax.tree.map(np.testing.assert_array_equal, bits(on_gpu(x, whole)), wanted)
    with jax.default_device(jax.devices("cpu")[0]):
        on_cpu = compiled(name, None, tuple(options.items()))
        jax.tree.map(np.testing.assert_array_equal, bits(on_cpu(x, whole)), wanted)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", BLOCK_FORMATS)
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((1, 1), {"both": True}),
        ((2048, 4096), {"both": True}),
        ((2048, 4096), {"both": True, "square": True}),
        ((4096, 1024), {"axis": -1}),
        ((1024, 4096), {"axis": -2}),
        ((1000, 1003), {"both": True}),
        ((1003, 1000), {"axis": -2, "both": True, "square": True}),
        ((70000, 16), {"axis": -1}),
        ((5, 70001), {"axis": -2}),
        ((3, 200, 300), {"both": True}),
        ((100_001,), {}),
    ],
)
def test_bits(dtype: str, name: str, shape: tuple[int, ...], options: Any) -> None:
    check(any_numbers(shape, dtype), name, **options)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(2048, 4096), (1000, 1003), (3, 200, 300)])
def test_random_bits(dtype: str, shape: tuple[int, ...]) -> None:
    """Rounded stochastically and rotated, each alone and together; also what XLA finds for all."""
    x = np.random.default_rng(0).standard_normal(shape).astype(jnp.dtype(dtype))
    keys = {"key": jax.random.key(0), "rotation": jax.random.key(1)}
    for names in (["key"], ["rotation"], ["key", "rotation"]):
        options: Any = {"axis": -2, "both": True, **{name: keys[name] for name in names}}
        run = partial(jaxbw.quantize, format="nvfp4", **options)
        kernel, on_gpu = (
            bits(jax.jit(partial(run, implementation=i))(x)) for i in ("kernel", "xla")
        )
        with jax.default_device(jax.devices("cpu")[0]):
            on_cpu = bits(jax.jit(run)(x))
        jax.tree.map(np.testing.assert_array_equal, on_gpu, kernel)
        jax.tree.map(np.testing.assert_array_equal, on_cpu, kernel)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_normal_numbers(name: str) -> None:
    random = np.random.default_rng(1)
    x = random.standard_normal((2048, 4096)) * np.exp(2 * random.standard_normal((2048, 1)))
    for dtype in ("bfloat16", "float32"):
        check(x.astype(jnp.dtype(dtype)), name, both=True)


def test_every_half_and_bfloat16_by_many_global_scales() -> None:
    """Quotients next to ties, and on them."""
    random = np.random.default_rng(2)
    every = np.arange(2**16, dtype=np.uint16).reshape(-1, 16)
    for dtype in (jnp.float16, jnp.bfloat16):
        x = random.permuted(every, axis=0).view(np.dtype(dtype))
        for whole in (1.0, 1 / 3, 0.0123, 3e38, 2.0**-126, *random.uniform(1, 2, 20)):
            check(x, "nvfp4", np.float32(whole))


def test_it_is_chosen_and_repeats_in_a_loop() -> None:
    """In a while loop XLA captures calls into CUDA graphs."""
    x = jnp.asarray(np.random.default_rng(2).standard_normal((256, 4096)), jnp.bfloat16)
    text = jax.jit(lambda x: jaxbw.quantize(x, "mxfp8", both=True)).lower(x).as_text()
    assert text.count(f"@{TARGET}(") == 1

    @partial(jax.jit, static_argnums=1)
    def loop(x: Any, implementation: str) -> Any:
        def step(i: Any, total: Any) -> Any:
            scaled = x * (1 + i).astype(x.dtype)
            q = jaxbw.quantize(scaled, "mxfp8", axis=-2, implementation=implementation)
            return total + jax.lax.bitcast_convert_type(q.data, jnp.uint8).astype(jnp.uint32)

        return jax.lax.fori_loop(0, 20, step, jnp.zeros(x.shape[::-1], jnp.uint32))

    np.testing.assert_array_equal(loop(x, "kernel"), loop(x, "xla"))
