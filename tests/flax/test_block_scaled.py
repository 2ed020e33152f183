"""The recipes "mxfp8" and "nvfp4" in Flax's layers."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import jaxbw
from jaxbw.flax import linen
from jaxbw.flax import nnx as ours

DIMS: Any = (((2,), (0,)), ((), ()))
X = np.random.default_rng(0).standard_normal((2, 20, 48)).astype(np.float32)


def test_layers_of_both_libraries() -> None:
    """Linen's and nnx's Dense, Flax's and ours: value and gradients are the plain function's."""
    dot_general = jaxbw.mxfp8_dot_general
    kernel = np.random.default_rng(1).standard_normal((48, 8)).astype(np.float32)
    bias = np.arange(8, dtype=np.float32)

    def evaluated(function: Any) -> Any:
        return jax.jit(jax.value_and_grad(lambda *p: (function(*p) ** 2).sum(), (0, 1, 2)))(
            X, kernel, bias
        )

    def in_linen(layer: Any) -> Any:
        return lambda x, kernel, bias: layer.apply({"params": {"kernel": kernel, "bias": bias}}, x)

    swapped: Any = nnx.Linear(48, 8, rngs=nnx.Rngs(0))
    assert ours.swap_layers(swapped, "mxfp8") == ("",)
    assert type(swapped) is ours.Linear
    definition, _ = nnx.split(swapped)

    def in_nnx(x: Any, kernel: Any, bias: Any) -> Any:
        state = nnx.state(swapped)
        nnx.replace_by_pure_dict(state, {"kernel": kernel, "bias": bias})
        return nnx.merge(definition, state)(x)

    value, gradients = evaluated(lambda x, w, b: dot_general(x, w, DIMS) + b)
    for function in (
        in_linen(nn.Dense(8, dot_general=dot_general)),
        in_linen(linen.Dense(8, dot_general_cls=lambda: dot_general)),
        in_nnx,
    ):
        got = evaluated(function)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2**-12, atol=2**-8),
            got,
            (value, gradients),
        )


def test_nvfp4() -> None:
    layer: Any = nnx.LinearGeneral((20, 48), (2, 3), axis=(1, 2), rngs=nnx.Rngs(0))
    assert ours.swap_layers(layer, "nvfp4") == ("",)
    dims: Any = (((1, 2), (0, 1)), ((), ()))
    wanted = jax.jit(lambda x, w: jaxbw.nvfp4_dot_general(x, w, dims))(X, layer.kernel[...])
    got = nnx.jit(lambda layer, x: layer(x))(layer, X)
    np.testing.assert_allclose(got, wanted, rtol=2**-12, atol=2**-12)


def test_nvfp4_with_keys() -> None:
    """Each call has another, so that gradients differ; what is computed forward does not."""
    layer: Any = nnx.Linear(48, 8, rngs=nnx.Rngs(0))
    plain = nnx.clone(layer)
    assert ours.swap_layers(layer, "nvfp4", rngs=nnx.Rngs(1)) == ("",)
    ours.swap_layers(plain, "nvfp4")

    @nnx.jit
    def evaluated(layer: Any, x: Any) -> Any:
        return nnx.value_and_grad(lambda layer, x: (layer(x) ** 2).sum())(layer, x)

    (y, first), (_, second), (wanted, _) = (evaluated(each, X) for each in (layer, layer, plain))
    assert y == wanted
    assert (first["kernel"][...] != second["kernel"][...]).any()
    assert layer.dot_general.rngs.count[...] == 2
    with pytest.raises(ValueError, match="recipe is 'mxfp8', which takes no rngs"):
        ours.swap_layers(plain, "mxfp8", rngs=nnx.Rngs(1))


def test_feed_forward_blocks() -> None:
    """Each matmul of a gated block is in MXFP8, in the library of whichever."""
    block = linen.MLP(
        64, activation="silu", gated=True, dot_general_cls=lambda: jaxbw.mxfp8_dot_general
    )
    variables = block.init(jax.random.key(0), X)
    model = ours.MLP(48, 64, activation="silu", gated=True, rngs=nnx.Rngs(0))
    assert ours.swap_layers(model, "mxfp8") == ("down", "gate", "up")
    state = nnx.state(model, nnx.Param)
    nnx.replace_by_pure_dict(state, jax.tree.map(np.asarray, variables["params"]))
    nnx.update(model, state)

    def apart(p: Any, x: Any) -> Any:
        def dense(name: str, x: Any) -> Any:
            return jaxbw.mxfp8_dot_general(x, p[name]["kernel"], DIMS) + p[name]["bias"]

        return dense("down", jax.nn.silu(dense("gate", x)) * dense("up", x))

    wanted = jax.jit(apart)(variables["params"], X)
    for got in (jax.jit(block.apply)(variables, X), nnx.jit(lambda m, x: m(x))(model, X)):
        np.testing.assert_allclose(got, wanted, rtol=2**-5, atol=2**-5)
    program = str(jax.make_jaxpr(block.apply)(variables, jnp.asarray(X)))
    assert program.count("jaxbw_fused_dot_general") == 3


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("library", ["linen", "nnx"])
def test_a_hidden_layer_in_mxfp8_and_nothing_else(library: str, gated: bool) -> None:
    """An `MLP`, its program for a B200, and value and gradients beside those of its layers."""
    options: Any = {"activation": "silu", "gated": gated, "use_bias": not gated}
    block: Any
    if library == "linen":
        module = linen.MLP(96, dot_general=jaxbw.mxfp8_dot_general, **options)
        variables = linen.MLP(96, **options).init(jax.random.key(0), X)
        of_its_own = module.init(jax.random.key(0), X)
        jax.tree.map(np.testing.assert_array_equal, of_its_own, variables)
        parameters = variables["params"]

        def block(p: Any, x: Any) -> Any:
            return module.apply({"params": p}, x)
    else:
        model = ours.MLP(48, 96, rngs=nnx.Rngs(0), **options)
        ours.swap_layers(model, "mxfp8")
        definition, state = nnx.split(model)
        parameters = nnx.to_pure_dict(state)

        def block(p: Any, x: Any) -> Any:
            nnx.replace_by_pure_dict(state, p)
            return nnx.merge(definition, state)(x)

    def apart(p: Any, x: Any) -> Any:
        def dense(name: str, x: Any) -> Any:
            y = jaxbw.mxfp8_dot_general(x, p[name]["kernel"], DIMS)
            return y if gated else y + p[name]["bias"]

        up = dense("up", x)
        return dense("down", jax.nn.silu(dense("gate", x)) * up if gated else jax.nn.silu(up))

    with jaxbw.target("B200"), jaxbw.implementation("sm100"):
        lowered = jax.jit(block).trace(parameters, X).lower(lowering_platforms=("cuda",))
    hidden = re.findall(r"tensor<(?:1x)?(?:40|2x20)x96x(\w+)>", lowered.as_text())
    assert set(hidden) == {"f8E4M3FN"}

    def step(function: Any) -> Any:
        def loss(p: Any, x: Any) -> Any:
            y = function(p, x)
            return (y**2).sum(), y

        return jax.jit(jax.grad(loss, has_aux=True))(parameters, X)

    for found, wanted in zip(*(jax.tree.leaves(step(f)) for f in (block, apart)), strict=True):
        assert np.linalg.norm(found - wanted) <= 2.0**-7 * np.linalg.norm(wanted)
