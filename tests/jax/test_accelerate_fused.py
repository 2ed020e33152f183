"""jaxbw.accelerate(fuse=True): what follows a matmul is in its kernel, where nothing else reads it.

Counted in what is lowered for a GPU, and in what `explain_function` lists as fused.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxbw
from jaxbw._src.primitives.gemm import TARGET

Function = Callable[..., Any]

WIDTH = 32
HALF = 2.0**-8  # bfloat16's unit roundoff


def normal(*shape: int, number: int = 0) -> Any:
    generator = np.random.default_rng([*shape, number])
    return jax.device_put((generator.standard_normal(shape) / WIDTH**0.5).astype(jnp.bfloat16))


X, W, V, B = normal(2, 16, WIDTH), normal(WIDTH, WIDTH), normal(WIDTH, WIDTH, number=1), normal(32)
LAYERS = normal(3, WIDTH, WIDTH)


def custom_calls(function: Function, *args: Any) -> int:
    with jaxbw.target("H200"), jaxbw.implementation("kernel"):
        text = jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.dot_general" not in text
    return str(text).count(f"@{TARGET}(")


def fused(function: Function, *args: Any) -> list[tuple[str, ...]]:
    """What each matmul of the function is fused with."""
    report = jaxbw.explain_function(function, *args, device="H200")
    return sorted(each.fused for each in report.matmuls for _ in range(each.count))


def linen_mlp() -> tuple[Function, tuple[Any, ...]]:
    class MLP(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            hidden = flax.linen.Dense(64, dtype=jnp.bfloat16)(x)
            return x + flax.linen.Dense(WIDTH, dtype=jnp.bfloat16)(flax.linen.gelu(hidden))

    model = MLP()
    return model.apply, (model.init(jax.random.key(0), X), X)


def nnx_mlp() -> tuple[Function, tuple[Any, ...]]:
    make = partial(nnx.Linear, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    graph, state = nnx.split((make(WIDTH, 64), make(64, WIDTH)))

    def apply(state: Any, x: jax.Array) -> Any:
        up, down = nnx.merge(graph, state)
        return down(nnx.gelu(up(x)))

    return apply, (state, X)


def equinox_mlp(*, batched: bool = True) -> tuple[Function, tuple[Any, ...]]:
    mlp = equinox.nn.MLP(32, 32, 64, 1, key=jax.random.key(0), dtype=jnp.bfloat16)
    arrays, static = equinox.partition(mlp, equinox.is_array)

    def apply(arrays: Any, x: jax.Array) -> Any:
        model = equinox.combine(arrays, static)
        return (jax.vmap(model) if batched else model)(x)

    return apply, (arrays, X[0] if batched else X[0, 0])


def gated(x: jax.Array, w: jax.Array, v: jax.Array) -> Any:
    return jax.nn.silu(x @ w) * (x @ v)


def wide(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
    z = jnp.matmul(x, w, preferred_element_type=jnp.float32) + b.astype(jnp.float32)
    return jax.nn.silu(z.astype(x.dtype))


def before_activation(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
    return jax.nn.gelu(x + (x @ w + b), approximate=False)


def scanned(x: jax.Array, layers: jax.Array) -> Any:
    return lax.scan(lambda x, w: (x + jax.nn.relu(x @ w), None), x, layers)[0]


def checkpointed(x: jax.Array, w: jax.Array, policy: Any = None) -> Any:
    return jax.checkpoint(lambda x, w: jax.nn.relu(x @ w) + x, policy=policy)(x, w)


def branched(x: jax.Array, w: jax.Array) -> Any:
    def layer(x: jax.Array) -> Any:
        return jax.nn.relu(x @ w)

    def loop(x: jax.Array) -> Any:
        return lax.while_loop(lambda x: x[0, 0, 0] > 1, layer, x)

    return lax.cond(x[0, 0, 0] > 0, loop, layer, x)


def jitted(x: jax.Array, w: jax.Array) -> Any:
    return jax.jit(lambda x: jax.nn.relu(x @ w))(x)


@jax.custom_vjp
def with_own_rule(x: jax.Array) -> jax.Array:
    return x * x


with_own_rule.defvjp(lambda x: (x * x, x), lambda x, d: (3 * x * d,))  # no true derivative


def sharded(x: jax.Array, layers: jax.Array) -> Any:
    mesh = jax.make_mesh((2,), ("x",), (AxisType.Auto,), devices=jax.devices("cpu")[:2])

    def shard(x: jax.Array, layers: jax.Array) -> Any:
        return lax.psum(jaxbw.accelerate(scanned, fuse=True)(x, layers), "x")

    multiply: Any = jax.shard_map(shard, mesh=mesh, in_specs=(P("x"), P()), out_specs=P())
    return multiply(x, layers)


Fused = list[tuple[str, ...]]
CASES: dict[str, tuple[Function, tuple[Any, ...], Fused]] = {
    "linen": (*linen_mlp(), [("bias", "gelu"), ("bias", "residual")]),
    "nnx": (*nnx_mlp(), [("bias",), ("bias", "gelu")]),
    "equinox": (*equinox_mlp(), [("bias",), ("bias", "relu")]),
    "a vector": (*equinox_mlp(batched=False), [("bias",), ("bias", "relu")]),
    "gate": (gated, (X, W, V), [("silu", "gate")]),
    "narrowed": (wide, (X, W, B), [("bias", "silu")]),
    "sum before": (before_activation, (X, W, B), [("c", "bias", "gelu_exact")]),
    "residual": (lambda x, w: x + x @ w, (X, W), [("residual",)]),
    "scan": (scanned, (X, LAYERS), [("relu", "residual")] * 3),
    "remat": (checkpointed, (X, W), [("relu", "residual")]),
    "cond, while": (branched, (X, W), [("relu",)] * 2),
    "jit": (jitted, (X, W), [("relu",)]),
    "custom_vjp": (lambda x, w: with_own_rule(jax.nn.relu(x @ w)), (X, W), [("relu",)]),
    "shard_map": (sharded, (X, LAYERS), [("relu", "residual")] * 3),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_one_kernel_does_all(case: str) -> None:
    """What it does; and values and gradients: in float64, too, where nothing may differ."""
    function, args, expected = CASES[case]
    fast = jaxbw.accelerate(function, fuse=True)
    assert fused(fast, *args) == sorted(expected)
    if case != "a vector":  # which a kernel takes or leaves to XLA
        in_text = {"scan": 1, "shard_map": 1}.get(case, len(expected))  # the body once
        assert custom_calls(fast, *args) == in_text

    if case == "cond, while":  # has no reverse mode
        np.testing.assert_allclose(
            np.float32(fast(*args)), np.float32(function(*args)), atol=4 * HALF
        )
        return

    def both(f: Function, *args: Any) -> Any:
        return jax.value_and_grad(lambda *args: jnp.sum(f(*args) ** 2), tuple(range(len(args))))(
            *args
        )

    with jax.enable_x64(True):
        exact = jax.tree.map(lambda x: jnp.asarray(np.asarray(x, np.float64)), args)
        if case not in ("linen", "nnx", "equinox", "a vector", "narrowed"):  # who say their dtype
            wanted, got = (jax.jit(partial(both, f))(*exact) for f in (function, fast))
            jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14), got, wanted)
    # Up to eight roundings in a row, of values and again of gradients.
    wanted, got = (jax.jit(partial(both, f))(*args) for f in (function, fast))
    for x, y in zip(*map(jax.tree.leaves, (got, wanted)), strict=True):
        x, y = np.float32(x), np.float32(y)
        np.testing.assert_allclose(x, y, rtol=0, atol=16 * HALF * np.abs(y).max())


def straight_through(x: jax.Array) -> jax.Array:
    """Relu's values, another derivative."""

    @jax.custom_jvp
    def relu(x: jax.Array) -> jax.Array:
        return jax.nn.relu(x)

    relu.defjvp(lambda x, t: (relu(*x), t[0]))
    return relu(x)


def read_twice(x: jax.Array, w: jax.Array) -> Any:
    z = x @ w
    return jax.nn.relu(z), z.sum()


def a_result_too(x: jax.Array, w: jax.Array) -> Any:
    z = x @ w
    return z, jax.nn.silu(z)


ALONE: dict[str, Function] = {
    "read twice": read_twice,
    "a result too": a_result_too,
    "policy": partial(checkpointed, policy=jax.checkpoint_policies.dots_saveable),
    "another derivative": lambda x, w: straight_through(x @ w),
    "maximum, whose derivative at 0 is 0.5": lambda x, w: jnp.maximum(x @ w, 0),
    "another activation": lambda x, w: jnp.tanh(x @ w),
    "a name": lambda x, w: jax.nn.relu(jax.ad_checkpoint.checkpoint_name(x @ w, "z")),
    "squared": lambda x, w: (y := x @ w) + y,
    "along rows": lambda x, w: x @ w + x[0, :, :1],
    "itself differentiated": jax.grad(lambda x, w: jax.nn.silu(x @ w).sum()),
    "jaxbw's own choice": lambda x, w: jax.nn.relu(jaxbw.matmul(x, w)),
}


@pytest.mark.parametrize("case", ALONE)
def test_what_is_left(case: str) -> None:
    fast = jaxbw.accelerate(ALONE[case], fuse=True)
    assert not any(fused(fast, X, W))
    assert custom_calls(fast, X, W) >= 1


def test_the_emulator_computes_it() -> None:
    """Through vmap and grad, on a kernel: integers, so that every bit is as XLA has it."""
    generator = np.random.default_rng(0)
    x, w, b = (
        jax.device_put(generator.integers(-1, 2, shape).astype(jnp.bfloat16))
        for shape in ((2, 32, 32), (32, 32), (32,))
    )

    def loss(x: jax.Array, w: jax.Array, b: jax.Array) -> Any:
        return (jax.nn.relu(x @ w + b) + x).astype(jnp.float32).sum()

    gradient = jax.grad(jaxbw.accelerate(loss, fuse=True), (0, 1))
    with jaxbw.implementation("emulator"):
        got = jax.jit(jax.vmap(gradient, (0, None, None)))(x, w, b)
    wanted = jax.vmap(jax.grad(loss, (0, 1)), (0, None, None))(x, w, b)
    jax.tree.map(np.testing.assert_array_equal, got, wanted)


def test_arguments_that_are_no_arrays_and_settings_inside() -> None:
    @jaxbw.accelerate(fuse=True)
    def layer(x: jax.Array, w: jax.Array, *, name: str, activate: bool) -> dict[str, Any]:
        with jaxbw.implementation("xla"):
            x = jax.nn.relu(x @ w)
        return {name: jax.nn.silu(x @ w) if activate else x @ w}

    def call(x: jax.Array, w: jax.Array, activate: bool = True) -> Any:
        return layer(x, w, name="y", activate=activate)["y"]

    assert call(X, W).shape == X.shape
    assert fused(call, X, W) == [("relu",), ("silu",)]
    assert fused(partial(call, activate=False), X, W) == [(), ("relu",)]
    with jaxbw.target("H200"):
        text = jax.jit(call).trace(X, W).lower(lowering_platforms=("cuda",)).as_text()
    assert (text.count(f"@{TARGET}("), text.count("stablehlo.dot_general")) == (1, 1)


def test_a_block_cannot() -> None:
    with pytest.raises(TypeError, match=r"jaxbw.accelerate\(function, fuse=True\)"):
        with jaxbw.accelerate(fuse=True):
            pass
