"""The float8 recipes of jaxbw.flax: Flax's own op is the oracle."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx, serialization
from flax.linen import fp8_ops
from flax.training.train_state import TrainState
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import jaxbw
from jaxbw.flax import linen
from jaxbw.flax import nnx as ours

from .fp8_gpt import RECIPES, losses
from .oracle import assert_one_tree

STATE = "_overwrite_with_gradient"
X = np.random.default_rng(0).standard_normal((6, 5, 16)).astype(np.float32)


def flax_layer(library: Any, op: Any, dtype: Any = jnp.float32) -> Any:
    return library.DenseGeneral((2, 4), dtype=dtype, dot_general_cls=op)


def trained(layer: Any, variables: Any, steps: range, dtype: Any = jnp.float32) -> Any:
    """The variables after steps on inputs that grow, and the losses."""

    @jax.jit
    def step(state: Any, x: Any) -> Any:
        def loss(variables: Any) -> Any:
            return (layer.apply(variables, x).astype(jnp.float32) ** 2).mean()

        value, gradients = jax.value_and_grad(loss)(state.params)
        return value, state.apply_gradients(grads=gradients)

    state: Any = TrainState.create(  # type: ignore[no-untyped-call]
        apply_fn=layer.apply, params=variables, tx=optax.adam(1e-2)
    )
    values = []
    for i in steps:
        value, state = step(state, (X * (1 + i)).astype(dtype))
        values.append(value)
    return jax.tree.map(np.asarray, state.params), np.array(values)


@pytest.fixture(scope="module")
def variables() -> Any:
    layer = flax_layer(nn, fp8_ops.Fp8DirectDotGeneralOp)
    return jax.jit(layer.init)(jax.random.key(0), X)


def test_the_bits_of_flax(variables: Any) -> None:
    """In float32, where a rounding behind the scales is none. Checkpoints move both ways."""
    flax = flax_layer(nn, fp8_ops.Fp8DirectDotGeneralOp)
    layer = flax_layer(linen, linen.Fp8DirectDotGeneralOp)
    assert_one_tree(jax.jit(layer.init)(jax.random.key(0), X), variables)

    wanted, wanted_losses = trained(flax, variables, range(6))
    got, got_losses = trained(layer, variables, range(6))
    assert_one_tree(got, wanted)
    np.testing.assert_array_equal(got_losses, wanted_losses)
    history = got[STATE]["Fp8DirectDotGeneralOp_0"]["input_amax_history"]
    assert history.shape == (1024,)
    assert history[0] == np.float32(6) * np.abs(X).max()

    half = trained(flax, variables, range(3))[0]
    moved = serialization.from_bytes(variables, serialization.to_bytes(half))
    assert_one_tree(trained(layer, moved, range(3, 6)), trained(flax, moved, range(3, 6)))


def test_one_step_in_bfloat16(variables: Any) -> None:
    """At first the scales are 1, and even there the bits agree."""
    flax = flax_layer(nn, fp8_ops.Fp8DirectDotGeneralOp, jnp.bfloat16)
    layer = flax_layer(linen, linen.Fp8DirectDotGeneralOp, jnp.bfloat16)
    steps = range(1)
    assert_one_tree(
        trained(layer, variables, steps, jnp.bfloat16),
        trained(flax, variables, steps, jnp.bfloat16),
    )


def test_a_state_that_is_used_twice_becomes_the_larger(variables: Any) -> None:
    """In fm32, whose sum is the maximum: Flax's dtype for pipelines."""
    layer = flax_layer(linen, linen.Fp8DirectDotGeneralOp)

    def gradient(batches: Any) -> Any:
        def loss(variables: Any) -> Any:
            state = variables[STATE]
            state = jax.tree.map(lambda x: lax.convert_element_type(x, fp8_ops.fm32), state)
            variables = {**variables, STATE: state}
            return sum((layer.apply(variables, x) ** 2).sum() for x in batches)

        return jax.grad(loss)(variables)

    both, small, large = (jax.jit(gradient)(x) for x in ([X, 3 * X], [X], [3 * X]))
    assert_one_tree(both[STATE], jax.tree.map(np.maximum, small[STATE], large[STATE]))


def test_accumulate(variables: Any) -> None:
    """Over batches: the mean of the parameters' gradients, and the largest amax."""
    layer = flax_layer(linen, linen.Fp8DirectDotGeneralOp)

    @jax.jit
    def gradient(variables: Any, x: Any) -> Any:
        return jax.grad(lambda v: (layer.apply(v, x) ** 2).sum())(variables)

    each = [gradient(variables, x) for x in (3 * X, X)]
    total = jax.tree.map(jnp.zeros_like, variables)
    for one in each:
        total = ours.accumulate(total, one, 0.5)
    assert_one_tree(total[STATE], jax.tree.map(np.maximum, each[0][STATE], each[1][STATE]))
    mean = jax.tree.map(lambda a, b: 0.5 * a + 0.5 * b, *(x["params"] for x in each))
    assert_one_tree(total["params"], mean)


def test_data_parallel_amax_is_that_of_all_devices(variables: Any) -> None:
    layer = flax_layer(linen, linen.Fp8DirectDotGeneralOp)
    mesh = jax.make_mesh((2,), ("data",), (AxisType.Auto,))
    everywhere, parts = PartitionSpec(), PartitionSpec("data")

    def gradient(variables: Any, x: Any) -> Any:
        return jax.grad(lambda v: (layer.apply(v, x) ** 2).sum())(variables)

    def parallel(variables: Any, x: Any) -> Any:
        def loss(variables: Any) -> Any:
            return lax.psum((layer.apply(variables, x) ** 2).sum(), "data")

        return jax.grad(loss)(variables)

    sharded = jax.shard_map(parallel, mesh=mesh, in_specs=(everywhere, parts), out_specs=everywhere)
    x = X * np.array([1, 1, 1, 4, 4, 4], np.float32)[:, None, None]
    got, wanted = (jax.jit(f)(variables, x) for f in (sharded, gradient))
    assert_one_tree(got[STATE], wanted[STATE])


def test_precisions_and_dtypes() -> None:
    """Forward e4m3 by e4m3 and fast; backward e5m2 by e4m3 and precise; the scales are alpha."""
    for dot_general in (ours.Fp8DotGeneral(8), jaxbw.fp8_dot_general):

        def loss(x: Any, w: Any, dot_general: Any = dot_general) -> Any:
            return dot_general(x, w, (((1,), (0,)), ((), ()))).sum()

        x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((32, 64), (64, 16)))
        report = jaxbw.explain_function(jax.grad(loss, (0, 1)), x, w, device="H200")
        operands = sorted(each.problem.split(" -> ")[0] for each in report.matmuls)
        assert len(operands) == 3 - 1  # the forward one is not used
        for each in report.matmuls:
            assert each.fused == ("alpha",)
            assert "promoted" in str(each.choice.kernel)
        assert all("f8_e5m2" in x and "f8_e4m3fn" in x for x in operands)
        forward = jaxbw.explain_function(loss, x, w, device="H200").matmuls[0]
        assert forward.problem.startswith("alpha * f8_e4m3fn[1,32,64] @ f8_e4m3fn[1,64,16]")
        assert forward.choice.kernel is not None
        assert "promoted" not in forward.choice.kernel


@pytest.mark.parametrize("implementation", ["xla", "emulator", "emulator-sm90"])
def test_current_scaling_is_exact_for_integers(implementation: Any) -> None:
    """Amax 7 gives scales that are powers of two, and integers up to 7 are e4m3 numbers."""
    generator = np.random.default_rng(1)
    x, w, g = (
        generator.integers(-7, 8, shape).astype(np.float32)
        for shape in ((3, 4, 8), (8, 6), (3, 4, 6))
    )
    g = np.where(np.abs(g) == 5, 4, g)  # e5m2 has no 5
    for a in (x, w, g):
        a.flat[0] = 7
    dims = (((2,), (0,)), ((), ()))

    @jax.jit
    def both(x: Any, w: Any, g: Any) -> Any:
        out, pull = jax.vjp(lambda x, w: jaxbw.fp8_dot_general(x, w, dims), x, w)
        return out, *pull(g)

    wanted = x @ w, g @ w.T, np.einsum("abk,abn->kn", x, g)
    with jaxbw.implementation(implementation):
        results = both(x, w, g)
    for got, expected in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(got), expected)
    with pytest.raises(NotImplementedError, match="out_sharding"):
        jaxbw.fp8_dot_general(x, w, dims, out_sharding=PartitionSpec())
    with pytest.raises(TypeError, match="rhs is int32"):
        jaxbw.fp8_dot_general(x, w.astype(int), dims)


# nnx


def nnx_model() -> Any:
    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first = nnx.Linear(16, 8, rngs=rngs)
            self.second = ours.Linear(8, 4, activation="relu", rngs=rngs)
            self.own = nnx.Linear(4, 4, rngs=rngs, dot_general=lambda *a, **k: lax.dot_general(*a))

        def __call__(self, x: Any) -> Any:
            return self.own(self.second(self.first(x)))

    return Model(nnx.Rngs(0))


def test_swap_layers() -> None:
    model = nnx_model()
    assert ours.swap_layers(model, "fp8_delayed") == ("first", "second")
    assert ours.swap_layers(model, "fp8_delayed") == ()
    assert ours.swap_layers(model) == ()
    assert model.second.activation == "relu"
    assert len(jax.tree.leaves(nnx.state(model, ours.OverwriteWithGradient))) == 2 * 6
    model = nnx_model()
    assert ours.swap_layers(model, "fp8_current") == ("first", "second")
    assert not nnx.state(model, ours.OverwriteWithGradient)
    with pytest.raises(ValueError, match="recipe is 'fp8'; it is one of None, 'fp8_delayed'"):
        ours.swap_layers(model, "fp8")


def test_nnx_has_the_bits_of_flax(variables: Any) -> None:
    """Three steps of one layer, by `Optimizer`; the state has linen's names."""
    flax = flax_layer(nn, fp8_ops.Fp8DirectDotGeneralOp)
    wanted, _ = trained(flax, variables, range(3))
    layer = nnx.LinearGeneral(16, (2, 4), rngs=nnx.Rngs(0))
    ours.swap_layers(layer, "fp8_delayed")
    layer.kernel[...] = variables["params"]["kernel"]
    optimizer = ours.Optimizer(layer, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(layer: Any, optimizer: Any, x: Any) -> None:
        arguments = nnx.DiffState(0, ours.TRAINED)
        gradients = nnx.grad(lambda layer: (layer(x) ** 2).mean(), argnums=arguments)(layer)
        optimizer.update(layer, gradients)

    for i in range(3):
        step(layer, optimizer, X * (1 + i))
    np.testing.assert_array_equal(layer.kernel[...], wanted["params"]["kernel"])
    state = wanted[STATE]["Fp8DirectDotGeneralOp_0"]
    for name, x in state.items():
        np.testing.assert_array_equal(getattr(layer.dot_general, name)[...], x)
    assert state["output_grad_amax_history"][0] > 0

    with pytest.raises(ValueError, match="gradients lack the state of the float8 layers"):
        optimizer.update(layer, nnx.grad(lambda layer: layer(X).sum())(layer))


def test_accumulate_of_nnx() -> None:
    layer = ours.Linear(16, 4, dot_general=ours.Fp8DotGeneral(8), rngs=nnx.Rngs(0))

    def gradient(x: Any) -> Any:
        arguments = nnx.DiffState(0, ours.TRAINED)
        return nnx.grad(lambda layer: (layer(x) ** 2).sum(), argnums=arguments)(layer)

    each = [gradient(x) for x in (3 * X, X)]
    total = ours.accumulate(*each)
    history = total["dot_general"]["input_amax_history"][...]
    assert history[0] == np.float32(3) * np.abs(X).max()
    np.testing.assert_array_equal(
        total["kernel"][...], each[0]["kernel"][...] + each[1]["kernel"][...]
    )


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["fp8_delayed", "fp8_current"])
@pytest.mark.parametrize("implementation", ["emulator", "emulator-sm90"])
def test_two_steps_of_a_gpt_on_emulated_kernels(recipe: str, implementation: Any) -> None:
    """XLA rounds a matmul to bf16 before its scales, kernels once: half of bf16's 2^-8."""
    sizes = {"width": 32, "heads": 2, "layers": 1, "length": 16, "batch": 2}
    expected = losses(recipe, 2, **sizes)
    with jaxbw.implementation(implementation):
        emulated = losses(recipe, 2, **sizes)
    np.testing.assert_allclose(emulated, expected, rtol=2**-9)
    assert expected[0] - expected[1] > 0.1


SIZES = {"width": 32, "heads": 2, "layers": 1, "length": 16, "batch": 16}


@pytest.fixture(scope="module")
def in_bf16() -> list[float]:
    return losses(None, 12, **SIZES)


@pytest.mark.parametrize(
    "recipe", [*RECIPES[1:4], pytest.param(RECIPES[4], marks=pytest.mark.long)]
)
def test_a_gpt_learns_as_in_bf16(recipe: str, in_bf16: list[float]) -> None:
    """12 steps: what low precision does to the loss is little of what training does."""
    learned = in_bf16[0] - in_bf16[-1]
    assert learned > 0.5
    found = losses(recipe, 12, **SIZES)
    assert found != in_bf16
    assert abs(found[-1] - in_bf16[-1]) < learned / 10
