"""Scales of blocks of 128: quantizing, XLA's form, the kernel in the emulator, and derivatives."""

from functools import partial
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax import lax

import jaxbw

from .. import quantized as oracle

EMULATED = "emulator-sm90"
Array = Any


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def quantized(m: int, k: int, n: int, batch: tuple[int, ...] = ()) -> tuple[Any, Any]:
    """DeepSeek's: 1x128 of lhs, 128x128 of rhs."""
    return (
        jaxbw.quantize(random(*batch, m, k), "e4m3", axis=-1, block=128),
        jaxbw.quantize(random(*batch, k, n, seed=1), "e4m3", axis=(-2, -1), block=128),
    )


def exact(x: Any) -> Array:
    """What a `Quantized` stands for, in float64, by its own definition."""
    scale = np.asarray(x.scale, np.float64)
    for axis, (given, size) in enumerate(zip(scale.shape, x.shape, strict=True)):
        index = np.arange(size) // (1 if given == size else 128 if given > 1 else size)
        scale = np.take(scale, index, axis)
    return np.asarray(x.data).astype(np.float64) * scale


def check(result: Any, lhs: Any, rhs: Any) -> None:
    """Float32 sums of operands whose products with scales are rounded: k + 4 roundings."""
    left, right = exact(lhs), exact(rhs)
    bound = (lhs.shape[-1] + 4) * 2.0**-23 * (np.abs(left) @ np.abs(right))
    assert (np.abs(np.asarray(result, np.float64) - left @ right) <= bound).all()


@hypothesis.settings(max_examples=4)
@hypothesis.given(
    st.lists(st.integers(1, 300), min_size=1, max_size=3), st.sampled_from([-1, -2]), st.data()
)
def test_each_block_has_its_own_scale(shape: list[int], last: int, data: Any) -> None:
    axes = tuple({-1, max(last, -len(shape))})
    x = random(*shape) * 10.0 ** random(*shape, seed=1)
    q = jaxbw.quantize(x, "e4m3", axis=axes, block=128)
    sizes = [-(-n // 128) if i - len(shape) in axes else n for i, n in enumerate(shape)]
    assert q.scale.shape == tuple(sizes)
    at = tuple(data.draw(st.integers(0, n - 1)) for n in sizes)
    block = tuple(
        slice(128 * j, 128 * j + 128) if i - len(shape) in axes else slice(j, j + 1)
        for i, j in enumerate(at)
    )
    bits, scale = oracle.quantized(x[block], "e4m3")
    assert (np.asarray(q.data)[block].view(np.uint8) == bits).all()
    assert np.asarray(q.scale)[at] == scale
    assert (np.asarray(q.dequantized()) == exact(q).astype(np.float32)).all()


def test_both_directions() -> None:
    q = jaxbw.quantize(random(200, 300), "e5m2", axis=(-2, -1), block=128, both=True)
    assert (np.asarray(q.mT.data) == np.asarray(q.data).T).all()
    assert (exact(q.mT) == exact(q).T).all()


@pytest.mark.parametrize(
    ("m", "k", "n", "batch"), [(70, 300, 200, ()), (33, 640, 130, (2,)), (200, 100, 300, ())]
)
@pytest.mark.parametrize("implementation", [EMULATED, "xla"])
def test_matmul(m: int, k: int, n: int, batch: tuple[int, ...], implementation: str) -> None:
    lhs, rhs = quantized(m, k, n, batch)
    check(jaxbw.matmul(lhs, rhs, implementation=implementation), lhs, rhs)


def test_powers_of_two_are_exact() -> None:
    """Integers, and scales that no product rounds: every implementation gives the same bits."""
    rng = np.random.default_rng(3)
    x, w = (rng.integers(-3, 4, s).astype(jnp.float8_e4m3fn) for s in ((130, 400), (400, 260)))
    sx, sw = (2.0 ** rng.integers(-2, 3, s).astype(np.float32) for s in ((130, 4), (4, 3)))
    terms: dict[str, Any] = {
        "lhs_scale": sx,
        "rhs_scale": sw,
        "preferred_element_type": jnp.float32,
    }
    left, right = sx.repeat(128, 1)[:, :400], sw.repeat(128, 0)[:400].repeat(128, 1)[:, :260]
    wanted = (x.astype(np.float64) * left) @ (w.astype(np.float64) * right)
    for implementation in (EMULATED, "xla"):
        y = jaxbw.matmul(x, w, implementation=implementation, **terms)
        assert (np.asarray(y) == wanted).all()
        turned = jaxbw.dot_general(
            x.T, w.T, (((0,), (1,)), ((), ())), implementation=implementation,
            **terms | {"lhs_scale": sx.T, "rhs_scale": sw.T},
        )  # fmt: skip
        assert (np.asarray(turned) == wanted).all()


@pytest.mark.parametrize("m", [1, 8])
def test_few_rows_are_not_swapped(m: int) -> None:
    lhs, rhs = quantized(m, 400, 257)
    config = jaxbw.explain(lhs, rhs, device="H100", implementation="sm90").config
    assert config is not None
    assert not config.swap_ab
    check(jaxbw.matmul(lhs, rhs, implementation=EMULATED), lhs, rhs)


def test_epilogue_and_a_scale_of_columns() -> None:
    """The scales of one operand are of blocks, of the other one of the epilogue."""
    lhs, _ = quantized(70, 300, 200)
    rhs = jaxbw.quantize(random(300, 200, seed=1), "e5m2", axis=-2)
    y = jax.jit(lambda *args: jaxbw.matmul(*args, bias=jnp.ones(200), implementation=EMULATED))(
        lhs, rhs
    )
    check(np.asarray(y, np.float64) - 1, lhs, rhs)


def test_weight_gradients_have_two_of_1x128_which_is_xlas() -> None:
    lhs = jaxbw.quantize(random(70, 300), "e4m3", axis=-1, block=128)
    rhs = jaxbw.quantize(random(300, 60, seed=1), "e4m3", axis=-2, block=128)
    assert rhs.scale.shape == (3, 60)
    check(jaxbw.matmul(lhs, rhs), lhs, rhs)
    with pytest.raises(NotImplementedError, match="each column of rhs has scales of its own"):
        jaxbw.matmul(lhs, rhs, implementation=EMULATED)


def test_vmap_is_one_kernel() -> None:
    lhs, rhs = quantized(40, 200, 136, (3,))
    shared = jax.tree.map(lambda x: x[0], rhs)
    mapped: Any = jax.vmap(partial(jaxbw.matmul, implementation=EMULATED), (0, None))
    check(mapped(lhs, shared), lhs, shared)
    assert str(jax.make_jaxpr(mapped)(lhs, shared)).count("jaxbw_fused_dot_general[") == 1
    check(jax.vmap(jaxbw.matmul)(lhs, rhs), lhs, rhs)


def test_gated() -> None:
    lhs, rhs = quantized(40, 300, 200)
    up = jaxbw.quantize(random(300, 200, seed=2), "e4m3", axis=-2)
    y = jaxbw.gated_matmul(lhs, rhs, up, activation=None)
    left = exact(lhs)
    assert np.allclose(np.asarray(y), (left @ exact(rhs)) * (left @ exact(up)), rtol=1e-3, atol=0.1)
    with pytest.raises(NotImplementedError, match="gated and has scales of blocks"):
        jaxbw.gated_matmul(lhs, rhs, up, implementation=EMULATED)


@pytest.mark.parametrize("activation", [None, "silu"])
def test_derivatives_are_those_of_the_dequantized(activation: str | None) -> None:
    lhs, rhs = quantized(40, 300, 200)
    x = random(40, 300)

    def loss(x: Array, sx: Array, sw: Array, implementation: str | None) -> Array:
        y = jaxbw.matmul(
            x, rhs.data, lhs_scale=sx, rhs_scale=sw, activation=activation,
            preferred_element_type=jnp.float32, implementation=implementation, precision="highest",
        )  # fmt: skip
        return (y * jnp.cos(jnp.arange(y.size).reshape(y.shape))).sum()

    def reference(x: Array, sx: Array, sw: Array) -> Array:
        left = x * jnp.repeat(sx, 128, 1)[:, :300]
        right = jnp.repeat(jnp.repeat(sw, 128, 0)[:300], 128, 1)[:, :200]
        z = jnp.matmul(left, rhs.data.astype(jnp.float32) * right, precision="highest")
        y = z if activation is None else jax.nn.silu(z)
        return (y * jnp.cos(jnp.arange(y.size).reshape(y.shape))).sum()

    found = jax.grad(loss, (0, 1, 2))(x, lhs.scale, rhs.scale, None)
    for bar, wanted in zip(
        found, jax.grad(reference, (0, 1, 2))(x, lhs.scale, rhs.scale), strict=True
    ):
        assert np.allclose(bar, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())

    def of_scale(scale: Array) -> Array:  # float8 data, whose primal is the kernel's
        return loss(lhs.data, scale, rhs.scale, EMULATED)

    wide = jax.grad(lambda s: reference(lhs.data.astype(np.float32), s, rhs.scale))(lhs.scale)
    assert np.allclose(
        jax.grad(of_scale)(lhs.scale), wide, rtol=1e-4, atol=1e-4 * np.abs(wide).max()
    )


def test_what_is_refused() -> None:
    lhs, rhs = quantized(40, 300, 200)
    with pytest.raises(ValueError, match="block is 64; of e4m3 it is 128 or None"):
        jaxbw.quantize(random(4, 4), "e4m3", axis=-1, block=64)
    with pytest.raises(ValueError, match=r"block=128"):
        jaxbw.matmul(jaxbw.quantize(random(40, 300), "e4m3", axis=0), rhs)
    with pytest.raises(ValueError, match="does not fit lhs"):
        jaxbw.matmul(lhs.data, rhs.data, lhs_scale=np.ones((40, 2), np.float32))
    text = str(jaxbw.explain(lhs, rhs, device="B200"))
    assert "scales of blocks of 128 are for sm90" in text
    chosen = jaxbw.explain(lhs, rhs, device="H100", implementation="sm90")
    assert "promoted" in str(chosen)


def test_a_precision_of_float8_is_one_of_wide_operands_to_xla() -> None:
    lhs, rhs = quantized(40, 300, 200)
    for precision in (
        lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32,
        lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32_FAST_ACCUM,
    ):
        check(jaxbw.matmul(lhs, rhs, precision=precision), lhs, rhs)
