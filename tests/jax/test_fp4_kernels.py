"""MXFP4 and NVFP4 operands reach the Blackwell kernels, by lowering and emulated, bit by bit."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxbw
from jaxbw import GemmConfig

from .test_mxfp8_kernels import both_ways

Lower = Callable[..., str]
Calls = Callable[[str], list[str]]
F32 = np.float32
BLOCKS = {"mxfp4": 32, "nvfp4": 16}
GLOBAL_SCALE = 0.25  # of NVFP4: a power of two


def array(name: str, shape: Any, number: int = 0, axis: int = -1) -> Any:
    """What the format holds exactly: integers times powers of two, of which sums are exact.

    A block's largest is 3 times one, so that its scale is one, too.
    """
    rng = np.random.default_rng([*shape, number])
    values = np.moveaxis(rng.integers(-3, 4, shape), axis, -1)
    *rows, k = values.shape
    values[..., :: BLOCKS[name]] = 3
    exponents = rng.integers(-2, 3, (*rows, -(-k // BLOCKS[name]))).repeat(BLOCKS[name], -1)
    return np.moveaxis(values * np.exp2(exponents[..., :k]), -1, axis).astype(F32)


def quantized(name: str, x: Any, axis: int = -1) -> Any:
    scale = GLOBAL_SCALE if name == "nvfp4" else None
    return jaxbw.quantize(x, name, axis=axis, global_scale=scale)


def operands(name: str, m: int, n: int, k: int) -> tuple[Any, Any]:
    x, w = array(name, (m, k)), array(name, (k, n), 1, axis=0)
    return quantized(name, x), quantized(name, w, axis=0)


_extent = st.one_of(st.integers(1, 300), st.sampled_from([1, 31, 33, 127, 129]))


@settings(max_examples=settings().max_examples // 8)  # each is a program
@given(name=st.sampled_from(sorted(BLOCKS)), m=_extent, n=_extent, k=_extent)
def test_shapes(name: str, m: int, n: int, k: int) -> None:
    def product(implementation: str, q: Any, u: Any) -> Any:
        return jaxbw.matmul(q, u, implementation=implementation)

    both_ways(product, *operands(name, m, n, k))


@pytest.mark.parametrize("name", BLOCKS)
def test_exact(name: str) -> None:
    """The very numbers, so that a fault of both ways would be seen."""
    x, w = array(name, (130, 200)), array(name, (200, 70), 1, axis=0)
    q, u = quantized(name, x), quantized(name, w, axis=0)
    np.testing.assert_array_equal(jaxbw.matmul(q, u, implementation="emulator"), x @ w)


CONFIGS = {
    "wide pair": GemmConfig(256, 256, cta_group=2, cluster=(2, 1)),
    "swapped": GemmConfig(128, 64, swap_ab=True),
    "split": GemmConfig(128, 128, split_k=2),
    "deep": GemmConfig(128, 64, block_k=512),
}


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", BLOCKS)
def test_configurations(name: str, config: str) -> None:
    """With all of an epilogue, whose alpha NVFP4's global scales are factors of."""
    q, u = operands(name, 200, 136, 600)
    rng = np.random.default_rng(2)
    c, residual = (rng.integers(-3, 4, (200, 136)).astype(F32) for _ in range(2))
    terms = {"alpha": 0.5, "beta": 2.0, "c": c, "bias": c[0], "residual": residual}

    def product(implementation: str, q: Any, u: Any) -> Any:
        given: Any = {"config": CONFIGS[config]} if implementation == "emulator" else {}
        return jaxbw.matmul(
            q, u, activation="relu", implementation=implementation, **terms, **given
        )

    both_ways(product, q, u)


@pytest.mark.parametrize("axes", [(0, 0), (None, 0)], ids=str)
def test_vmap(axes: Any) -> None:
    x = array("nvfp4", (3, 72, 96)[axes[0] is None :])
    w = array("nvfp4", (3, 96, 40), 1, axis=-2)

    def product(implementation: str, x: Any, w: Any) -> Any:
        def one(x: Any, w: Any) -> Any:
            q, u = quantized("nvfp4", x), quantized("nvfp4", w, axis=0)
            return jaxbw.matmul(q, u, implementation=implementation)

        return jax.vmap(one, axes)(x, w)

    both_ways(product, x, w)


@pytest.mark.parametrize("name", BLOCKS)
def test_scaled_matmul(name: str) -> None:
    """Scales as jax.nn has them, which the call arranges."""
    q, u = operands(name, 40, 24, 128)
    dtype = jnp.float8_e8m0fnu if name == "mxfp4" else jnp.float8_e4m3fn
    scale = np.exp2(np.arange(40 * 128 // BLOCKS[name]) % 3).reshape(1, 40, -1).astype(dtype)

    def product(implementation: str, lhs: Any, rhs: Any, scale: Any) -> Any:
        with jaxbw.implementation(implementation):
            return jaxbw.scaled_matmul(lhs, rhs, scale, scale[:, :24])

    both_ways(product, q.data[None], u.data[None], scale)


def test_one_nan_is_a_row() -> None:
    x = array("mxfp4", (130, 40))
    x[3, 35] = np.nan
    q, (_, u) = quantized("mxfp4", x), operands("mxfp4", 1, 7, 40)
    got = np.isnan(np.asarray(jaxbw.matmul(q, u, implementation="emulator")))
    assert got[3].all()
    assert got.sum() == 7


@pytest.mark.parametrize("name", BLOCKS)
def test_lowering(name: str, cuda_hlo: Lower, custom_calls: Calls) -> None:
    """Data and tiles go into the call as they are; NVFP4's global scales as its alpha."""
    q, u = operands(name, 512, 256, 1024)
    with jaxbw.target("B200"):
        text = cuda_hlo(jaxbw.matmul, q, u)
    (call,) = custom_calls(text)
    assert re.search(r'kernel = "jaxbw_sm100_4bit_mx_[12]cta"', call)
    assert f"mx = {BLOCKS[name]} : i32" in call
    tiles, scale = 1024 // BLOCKS[name] // 4, "f8E8M0FNU" if name == "mxfp4" else "f8E4M3FN"
    alpha = "" if name == "mxfp4" else "tensor<f32>, "
    assert (
        "(tensor<1x512x1024xf4E2M1FN>, tensor<1x256x1024xf4E2M1FN>, "
        f"{alpha}tensor<1x4x{tiles}x512x{scale}>, tensor<1x2x{tiles}x512x{scale}>)"
    ) in call
    assert not re.search(r"stablehlo\.(transpose|convert|pad|dot_general|bitcast)", text)


def test_training_lowers_to_kernels(cuda_hlo: Lower, custom_calls: Calls) -> None:
    """All three matmuls of the recipe."""

    def loss(x: Any, w: Any) -> Any:
        return jaxbw.nvfp4_dot_general(x, w, (((1,), (0,)), ((), ()))).sum()

    x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((512, 256), (256, 1024)))
    with jaxbw.target("B200"):
        calls = custom_calls(cuda_hlo(jax.grad(loss, (0, 1)), x, w))
    assert sum("jaxbw_sm100_4bit_mx_" in call for call in calls) == 2  # forward is not needed
    with jaxbw.target("B200"):
        (call,) = custom_calls(cuda_hlo(loss, x, w))
    assert "jaxbw_sm100_4bit_mx_" in call


def test_price() -> None:
    """Half of the bytes of MXFP8, and of its time where tensor cores bound both."""
    large = np.zeros((8192, 8192), jnp.bfloat16)
    times = {}
    for name in ("mxfp8", "nvfp4", "mxfp4"):
        x = jax.eval_shape(lambda x, name=name: jaxbw.quantize(x, name), large)
        choice = jaxbw.explain(x, x.mT, device="B200")
        assert choice.estimate is not None
        assert jaxbw.explain(x, x.mT, device="B200", config=choice.config).config == choice.config
        times[name] = choice.estimate.us
    assert 0.45 < times["nvfp4"] / times["mxfp8"] < 0.6
    assert times["mxfp4"] <= times["nvfp4"]


def test_what_is_refused() -> None:
    f, g = operands("nvfp4", 64, 64, 64)
    h = quantized("mxfp4", np.ones((64, 64), F32), axis=0)
    e2m1 = np.ones((64, 64), jnp.float4_e2m1fn)
    reasons = {
        "the operands are nvfp4 and mxfp4; kernels take": ((f, h), "B200"),
        "the matmul is gated and in an MX format: take two matmuls": ((f, g, g), "B200"),
        "MX formats are for sm100": ((f, g), "H200"),
        "the operands are float4_e2m1fn; sm100 kernels take": ((e2m1, e2m1), "B200"),
    }
    for reason, (call, device) in reasons.items():
        choice = jaxbw.explain(*call, device=device)
        assert choice.implementation == "xla"
        assert reason in str(choice)
