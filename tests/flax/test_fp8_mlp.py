"""`MLP` in float8 with delayed scaling: its hidden layer is float8 and nothing else."""

import re
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxbw
from jaxbw.flax import linen as jl
from jaxbw.flax import nnx as jn

OWG = "_overwrite_with_gradient"
M, K, HIDDEN = 32, 64, 96
BLOCKS: dict[str, dict[str, Any]] = {
    "plain": {"activation": "gelu"},
    "gated": {"activation": "silu", "gated": True, "use_bias": False},
}


def block(name: str, **options: Any) -> Any:
    return jl.MLP(
        HIDDEN,
        dtype=jnp.bfloat16,
        dot_general_cls=jl.Fp8DirectDotGeneralOp,
        **BLOCKS[name],
        **options,
    )


def inputs(seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((M, K)).astype(jnp.bfloat16)


def apart(name: str, variables: Any, x: Any) -> Any:
    """The same by Flax's layers, a matmul each: the hidden layer is bfloat16 between them."""
    options = BLOCKS[name]

    class Apart(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, x: Any) -> Any:
            def dense(features: int, name: str) -> Any:
                return flax.linen.Dense(
                    features, dtype=jnp.bfloat16, name=name, use_bias=options.get("use_bias", True),
                    dot_general_cls=jl.Fp8DirectDotGeneralOp,
                )  # fmt: skip

            up = dense(HIDDEN, "up")(x)
            activation = getattr(flax.linen, str(options["activation"]))
            gated = bool(options.get("gated"))
            hidden = activation(dense(HIDDEN, "gate")(x)) * up if gated else activation(up)
            return dense(K, "down")(hidden)

    return Apart().apply(variables, x)


@pytest.mark.parametrize("name", BLOCKS)
def test_state_and_gradients_are_those_of_its_layers(name: str) -> None:
    """Names and collections; and values, but for one rounding to bfloat16 less."""
    model, x = block(name), inputs()
    variables = model.init(jax.random.key(0), x)
    paths = {
        jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(variables)
    }
    assert f"['{OWG}']['down']['Fp8DirectDotGeneralOp_0']['input_amax_history']" in paths

    @jax.jit
    def step(variables: Any, x: Any) -> Any:
        def loss(apply: Any) -> Any:
            return lambda v: (apply(v, x).astype(jnp.float32) ** 2).mean()

        ours = jax.value_and_grad(loss(model.apply))(variables)
        return ours, jax.value_and_grad(loss(lambda v, x: apart(name, v, x)))(variables)

    for seed in range(2):  # the second has scales by the first one's amax
        (ours, grads), (theirs, wanted) = step(variables, inputs(seed))
        assert str(jax.tree.structure(grads)) == str(jax.tree.structure(wanted))
        assert np.isclose(ours, theirs, rtol=0.03)
        for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(wanted), strict=True):
            a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
            assert np.linalg.norm(a - b) <= 0.1 * np.linalg.norm(b)
        history = grads[OWG]["down"]["Fp8DirectDotGeneralOp_0"]["input_amax_history"]
        assert history[0] > 0
        variables = {**variables, OWG: grads[OWG]}


@pytest.mark.parametrize("name", BLOCKS)
def test_no_wide_hidden_layer_is_written(name: str) -> None:
    """The program for an H200: what has the hidden layer's shape is float8, and a kernel's."""
    model, x = block(name), inputs()
    variables = model.init(jax.random.key(0), x)
    with jaxbw.target("H200"), jaxbw.implementation("sm90"):
        lowered = jax.jit(model.apply).trace(variables, x).lower(lowering_platforms=("cuda",))
    text = lowered.as_text()
    assert set(re.findall(rf"tensor<(?:1x)?{M}x{HIDDEN}x(\w+)>", text)) == {"f8E4M3FN"}
    assert text.count("@jaxbw_gemm_v10(") == 2


def test_the_kernels_in_the_emulator() -> None:
    model, x = block("plain"), inputs()
    variables = model.init(jax.random.key(0), x)
    with jaxbw.implementation("emulator-sm90"):
        found = model.apply(variables, x)
    wanted = model.apply(variables, x)
    error = np.linalg.norm(np.asarray(found - wanted, np.float32))
    assert error <= 2.0**-7 * np.linalg.norm(np.asarray(wanted, np.float32))


def test_other_dot_generals_compute_its_layers() -> None:
    class Op(jl.Fp8DirectDotGeneralOp):
        pass

    x = inputs()
    model = jl.MLP(HIDDEN, dtype=jnp.bfloat16, dot_general_cls=Op)
    variables = model.init(jax.random.key(0), x)
    assert "Op_0" in variables[OWG]["up"]
    assert jax.eval_shape(model.apply, variables, x).shape == (M, K)


@pytest.mark.parametrize("name", BLOCKS)
def test_nnx_is_linen(name: str) -> None:
    """A swapped block with linen's parameters: the same bits, and gradients of the state."""
    given = block(name)
    model = jn.MLP(K, HIDDEN, dtype=jnp.bfloat16, rngs=nnx.Rngs(0), **BLOCKS[name])
    jn.swap_layers(model, "fp8_delayed")
    x = inputs()
    variables = given.init(jax.random.key(0), x)
    for layer, parameters in variables["params"].items():
        for parameter, value in parameters.items():
            getattr(getattr(model, layer), parameter)[...] = value
    assert (model(x) == given.apply(variables, x)).all()
    wrt = nnx.DiffState(0, nnx.Any(nnx.Param, jn.OverwriteWithGradient))
    grads = nnx.grad(lambda model: model(x).astype(jnp.float32).sum(), argnums=wrt)(model)
    history = grads["down"]["dot_general"]["input_amax_history"][...]
    assert history[0] > 0
