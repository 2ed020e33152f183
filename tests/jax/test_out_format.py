"""`out_format`: results in MXFP8, of every implementation the bits of `quantize`."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw
from jaxbw._src.api.block_scaled import BlockScaled
from jaxbw._src.api.block_scaled_training import mxfp8_dot_general
from jaxbw._src.api.mxfp8_mlp import mxfp8_mlp

Lower = Callable[..., str]
IMPLEMENTATIONS = ("xla", "emulator")
M, K, N, OUT = 200, 96, 150, 40
F32: Any = np.float32


def normal(shape: tuple[int, ...], seed: int = 0, dtype: Any = jnp.bfloat16) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def same(found: BlockScaled, wanted: BlockScaled, dtype: Any) -> None:
    assert (found.format, found.axis, found.size) == ("mxfp8", -1, wanted.size)
    assert (found.dtype, found.global_scale, found.transposed_scale) == (dtype, None, None)
    for name in ("data", "scale"):
        a, b = (np.asarray(getattr(x, name)) for x in (found, wanted))
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))


def left(x: Any) -> Any:
    return jaxbw.quantize(x, "mxfp8")


def right(w: Any) -> Any:
    return jaxbw.quantize(w, "mxfp8", axis=-2)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("shape", [(M, K), (3, 128, K), (2, 20, K), (K,)], ids=str)
def test_bits_of_quantize(shape: tuple[int, ...], implementation: str) -> None:
    """With a c, so that both take the same way through the epilogue. As the operands have tiles."""
    x, w, bias = normal(shape), normal((K, N), 1), normal((N,), 2, F32)
    c = normal((*shape[:-1], N), 3, F32)

    @jax.jit
    def both(x: Any, w: Any) -> Any:
        options: Any = dict(c=c, bias=bias, activation="gelu", implementation=implementation)
        found = jaxbw.matmul(left(x), right(w), out_format="mxfp8", **options)
        exact = jaxbw.matmul(left(x), right(w), preferred_element_type=F32, **options)
        return found, left(exact)

    found, wanted = both(x, w)
    same(found, wanted, jnp.bfloat16)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gated(implementation: str) -> None:
    x, gate, up = normal((M, K)), normal((K, N), 1), normal((K, N), 2)

    @jax.jit
    def both(*operands: Any) -> Any:
        given = [f(a) for f, a in zip((left, right, right), operands, strict=True)]
        call: Any = partial(jaxbw.gated_matmul, *given, implementation=implementation)
        wide = call(preferred_element_type=F32)
        return call(out_format="mxfp8", preferred_element_type=np.float16), left(wide)

    found, wanted = both(x, gate, up)
    same(found, wanted, np.float16)


def test_other_operands_are_xlas() -> None:
    """bfloat16 ones, a batch of weights by `vmap`, several devices."""
    x, w = normal((M, K)), normal((K, N), 1)
    wanted = left(jax.jit(partial(jaxbw.matmul, preferred_element_type=F32))(x, w))
    same(jax.jit(partial(jaxbw.matmul, out_format="mxfp8"))(x, w), wanted, jnp.bfloat16)
    stack = jax.vmap(partial(jaxbw.matmul, x, out_format="mxfp8"))(np.stack([w, w]))
    same(jax.tree.map(lambda a: a[1], stack), wanted, jnp.bfloat16)
    mesh = jax.make_mesh((2,), ("a",), (jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a"))
    options: Any = {"out_format": "mxfp8", "implementation": ("emulator", "xla")}
    found = jax.jit(partial(jaxbw.matmul, **options))(jax.device_put(x, rows), w)
    same(found, wanted, jnp.bfloat16)


def test_vmap_of_mxfp8_operands() -> None:
    q, u = left(normal((2, 20, K))), right(normal((K, N), 1))
    call: Any = partial(jaxbw.matmul, out_format="mxfp8", implementation=("emulator", "xla"))
    found = jax.vmap(call, in_axes=(0, None))(q, u)
    same(found, call(q, u), jnp.bfloat16)


def test_what_is_refused() -> None:
    x, w = normal((M, K)), normal((K, N))
    call: Any = partial(jaxbw.matmul, out_format="mxfp8")
    with pytest.raises(ValueError, match="out_format is 'nvfp4'; it is 'mxfp8', or None"):
        jaxbw.matmul(x, w, out_format="nvfp4")
    with pytest.raises(TypeError, match="out_format and out_scale are given"):
        call(x, w, out_scale=1.0)
    with pytest.raises(ValueError, match="the right operand has 3 dimensions"):
        call(x, w[None])
    with pytest.raises(TypeError, match="an out_format is differentiated, and quantized numbers"):
        jax.grad(lambda x: call(x, w).dequantized().sum())(x.astype(F32))
    with pytest.raises(NotImplementedError, match="mxfp8 is for sm100, for operands of which both"):
        call(x, w, implementation="emulator")
    with pytest.raises(NotImplementedError, match="mxfp8"):
        call(left(x), right(w), implementation="sm90")


def test_explain_knows_it() -> None:
    shape = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    q = jax.eval_shape(left, shape)
    u = jax.eval_shape(right, shape)
    found = jaxbw.explain(q, u, u, activation="silu", out_format="mxfp8", device="B200")
    assert "in mxfp8 -> f8_e4m3fn[1,4096,4096]" in str(found.problem)
    strict = jaxbw.explain(q, u, u, out_format="mxfp8", implementation="sm100", device="B200")
    assert str(strict.kernel).startswith("jaxbw_sm100_8bit_mx")


# --- the block


def parameters(gated: bool, dtype: Any = jnp.bfloat16) -> tuple[Any, list[Any]]:
    x, gate, up, down = (
        normal(shape, i, dtype) for i, shape in enumerate([(M, K), *[(K, N)] * 2, (N, OUT)])
    )
    biases = normal((N,), 5, dtype), normal((OUT,), 6, dtype)
    if gated:
        return x, [gate, None, up, None, down, None]
    return x, [up, biases[0], down, biases[1]]


@pytest.mark.parametrize("gated", [False, True])
def test_nothing_else_of_the_hidden_layer_is_written(gated: bool, cuda_hlo: Lower) -> None:
    x, arrays = parameters(gated)

    def block(x: Any, arrays: Any) -> Any:
        with jaxbw.target("B200"), jaxbw.implementation("sm100"):
            return mxfp8_mlp(x, arrays, "silu")

    text = cuda_hlo(block, x, arrays)
    hidden = re.findall(rf"tensor<(?:1x)?{M}x(?:{N}|160)x(\w+)>", text)
    assert set(hidden) == {"f8E4M3FN"}
    # Of its scales nothing but tiles, as those that come out of the first kernel.
    assert "tensor<1x2x2x512xf8E8M0FNU>" in text
    assert not re.findall(rf"tensor<(?:1x)?{M}x5x\w+>", text)
    assert text.count("@jaxbw_gemm_v10(") == 2


@pytest.mark.parametrize("gated", [False, True])
def test_value_and_gradients_are_those_of_layers(gated: bool) -> None:
    """The layers of the recipe, in float32: with a coarser dtype they round the hidden layer."""
    x, arrays = parameters(gated, F32)
    weight = normal((M, OUT), 9, F32)

    def apart(x: Any, arrays: Any) -> Any:
        def dense(x: Any, kernel: Any, bias: Any) -> Any:
            y = mxfp8_dot_general(x, kernel, (((1,), (0,)), ((), ())))
            return y if bias is None else y + bias

        *ups, down = zip(arrays[::2], arrays[1::2], strict=True)
        seen = [dense(x, *up) for up in ups]
        hidden = jax.nn.silu(seen[0]) * seen[1] if gated else jax.nn.silu(seen[0])
        return dense(hidden, *down)

    @jax.jit
    def both(x: Any, arrays: Any) -> Any:
        def loss(function: Any) -> Any:
            return jax.value_and_grad(lambda *a: (function(*a) * weight).sum(), (0, 1))(x, arrays)

        return loss(lambda x, arrays: mxfp8_mlp(x, arrays, "silu")), loss(apart)

    found, wanted = both(x, arrays)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert np.linalg.norm(a - b) <= 2.0**-7 * np.linalg.norm(b)


def test_what_is_kept_is_quantized() -> None:
    x, arrays = parameters(gated=True)
    _, pull_back = jax.vjp(lambda x, arrays: mxfp8_mlp(x, arrays, "silu"), x, arrays)
    wide = [a for a in jax.tree.leaves(pull_back) if np.dtype(a.dtype).itemsize > 1 and a.size > 1]
    assert wide == []


def test_the_emulated_kernels_compute_the_block() -> None:
    x, arrays = parameters(gated=True)

    @jax.jit
    def block(x: Any, arrays: Any) -> Any:
        return mxfp8_mlp(x, arrays, "silu")

    wanted = block(x, arrays)
    with jaxbw.implementation("emulator"):
        found = block(x, arrays)
    error = np.linalg.norm(np.asarray(found, F32) - np.asarray(wanted, F32))
    assert error <= 2.0**-7 * np.linalg.norm(np.asarray(wanted, F32))
