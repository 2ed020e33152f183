"""jaxbw.flax.nnx against Flax's own layers: parameters, values, gradients, what runs."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxbw
from jaxbw.flax import linen
from jaxbw.flax import nnx as ours

from .oracle import (
    ACTIVATIONS,
    FUSED,
    PLAIN,
    UNIT_ROUNDOFF,
    assert_one_structure,
    assert_one_tree,
    assert_same,
    in_float64,
    normal,
    primitives,
    slopes,
)


class Case(NamedTuple):
    """A layer's name and arguments, the shape of its inputs, the activation, and what is to run."""

    layer: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    inputs: tuple[int, ...]
    activation: str | None = None
    runs: str = FUSED


def linear(activation: str | None = None, runs: str = FUSED, **keywords: Any) -> Case:
    return Case("Linear", (8, 6), keywords, (2, 3, 8), activation, runs)


HEADS = Case("LinearGeneral", (8, (3, 2)), {}, (2, 3, 8), "gelu")
AXES = Case("LinearGeneral", ((3, 8), 6), {"axis": (1, -1)}, (2, 3, 4, 8), "silu")
EINSUM = Case("Einsum", ("btd,dhk->bhtk", (8, 2, 3), (2, 3)), {}, (2, 3, 8), "gelu")
CASES = {
    "bias": linear(),
    "no bias": linear(runs=PLAIN, use_bias=False),
    "relu": linear("relu"),
    "float32 result": linear("gelu", dtype=jnp.bfloat16, preferred_element_type=jnp.float32),
    "heads": HEADS,
    "axes apart": AXES,
    "batch": HEADS._replace(keywords={"batch_axis": {0: 2}}, runs=PLAIN),
    "einsum": EINSUM,
    "einsum, no bias": EINSUM._replace(arguments=("...d,fd->...f", (6, 8), None)),
    "einsum, batch": EINSUM._replace(
        arguments=("btd,bdf->btf", (2, 8, 6), (2, 6)), activation="relu", runs=PLAIN
    ),
}


def layers(name: str, **more: Any) -> tuple[Any, Any, Any]:
    """Flax's layer, ours, and the activation that follows Flax's."""
    case = CASES[name]
    keywords = {"bias_init": nnx.initializers.normal(1.0), **case.keywords, **more}
    theirs = getattr(nnx, case.layer)(*case.arguments, **keywords, rngs=nnx.Rngs(1))
    layer = getattr(ours, case.layer)(
        *case.arguments, **keywords, activation=case.activation, rngs=nnx.Rngs(1)
    )
    return theirs, layer, ACTIVATIONS[case.activation]


def pure(module: nnx.Module) -> tuple[Any, Any]:
    """A module as a function of its parameters and inputs, and the parameters."""
    definition, state = nnx.split(module)
    return lambda state, *inputs: nnx.merge(definition, state)(*inputs), state


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_flaxs(name: str) -> None:
    """Names, shapes and values for equal keys; the state of either updates the other."""
    theirs, layer, _ = layers(name)
    wanted, got = nnx.state(theirs), nnx.state(layer)
    assert_one_tree(got, wanted)
    nnx.update(layer, jax.tree.map(lambda x: x + 1, wanted))
    np.testing.assert_array_equal(layer.kernel[...], theirs.kernel[...] + 1)


@pytest.mark.parametrize("name", [name for name in CASES if name != "float32 result"])
def test_values_and_gradients(name: str) -> None:
    theirs, layer, activation = layers(name)
    x = normal(CASES[name].inputs)
    (reference, state), (function, _) = pure(theirs), pure(layer)
    wanted = in_float64(slopes(lambda state, x: activation(reference(state, x))), state, x)
    assert_same(in_float64(slopes(function), state, x), wanted)


@pytest.mark.parametrize("name", CASES)
def test_one_operation_runs(name: str) -> None:
    _, layer, _ = layers(name)
    function, state = pure(layer)
    found = primitives(function, state, normal(CASES[name].inputs))
    matmuls = {FUSED: 0, PLAIN: 0, "dot_general": 0} | {CASES[name].runs: 1}
    assert {matmul: found[matmul] for matmul in matmuls} == matmuls
    if CASES[name].runs == FUSED:
        assert not found.keys() & {"add", "max", "logistic", "tanh"}


def test_rounded_as_asked_for() -> None:
    """bfloat16 operands, float32 bias and result: only the sums are rounded."""
    _, layer, _ = layers("float32 result")
    x = normal((2, 3, 8))
    got = layer(x)
    assert got.dtype == jnp.float32
    operands = (x.astype(jnp.bfloat16), *(layer.kernel[...], layer.bias[...]))
    exact_x, w, b = (np.asarray(y.astype(jnp.bfloat16)).astype(np.float64) for y in operands)
    reference = in_float64(jax.nn.gelu, exact_x @ w + b)
    bound = 1.13 * 2 * (8 + 4) * UNIT_ROUNDOFF["float32"] * (abs(exact_x) @ abs(w) + abs(b) + 1)
    assert (np.abs(got - reference) <= bound).all()


class FlaxMLP(nnx.Module):
    """The block as one writes it with Flax's own layers."""

    def __init__(self, activation: str, gated: bool, rngs: nnx.Rngs, **keywords: Any) -> None:
        self.up = nnx.Linear(8, 16, rngs=rngs, **keywords)
        self.gate = nnx.Linear(8, 16, rngs=rngs, **keywords) if gated else None
        self.down = nnx.Linear(16, 8, rngs=rngs, **keywords)
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        act = ACTIVATIONS[self.activation]
        up = self.up(x)
        return self.down(act(up) if self.gate is None else act(self.gate(x)) * up)


@pytest.mark.parametrize(
    ("gated", "activation", "use_bias", "fused"),
    [(False, "gelu", True, 2), (True, "silu", True, 3), (True, "silu", False, 1)],
)
def test_mlp(gated: bool, activation: str, use_bias: bool, fused: int) -> None:
    keywords: Any = {"use_bias": use_bias, "bias_init": nnx.initializers.normal(1.0)}
    keywords |= {"activation": activation, "gated": gated}
    x = normal((2, 3, 8))
    reference, state = pure(FlaxMLP(rngs=nnx.Rngs(1), **keywords))
    function, got = pure(ours.MLP(8, 16, rngs=nnx.Rngs(1), **keywords))
    assert_one_tree(got, state)
    wanted = in_float64(slopes(reference), state, x)
    assert_same(in_float64(slopes(function), state, x), wanted)
    found = primitives(function, state, x)
    assert found[FUSED] == fused
    assert not found["dot_general"]


def test_a_dot_general_of_ones_own_is_used() -> None:
    x = normal((3, 8))
    for layer in (
        ours.Linear(8, 6, activation="relu", dot_general=jax.lax.dot_general, rngs=nnx.Rngs(0)),
        ours.MLP(8, 6, gated=True, dot_general=jax.lax.dot_general, rngs=nnx.Rngs(0)),
        ours.Einsum("bd,df->bf", (8, 6), einsum_op=jnp.einsum, rngs=nnx.Rngs(0)),
    ):
        found = primitives(*pure(layer), x)
        assert found["dot_general"]
        assert not found[FUSED] + found[PLAIN]


def test_vmap_and_scan_over_layers() -> None:
    """A stack made by `nnx.vmap`, run by `nnx.scan` with `nnx.remat`."""
    x = normal((2, 8))

    def stack(library: Any) -> tuple[Any, Any]:
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=0, out_axes=0)
        def make(rngs: nnx.Rngs) -> Any:
            return library.Linear(8, 8, rngs=rngs)

        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        @nnx.remat
        def body(layer: Any, x: Any) -> Any:
            return layer(x)

        definition, state = nnx.split(make(nnx.Rngs(1)))
        return lambda state, x: body(nnx.merge(definition, state), x), state

    results = [in_float64(slopes(run), state, x) for run, state in map(stack, (nnx, ours))]
    assert_same(results[1], results[0])


def test_jit_and_an_optimizers_step() -> None:
    import optax

    x = normal((4, 8))
    steps = []
    for library in (nnx, ours):
        model = library.Linear(8, 8, rngs=nnx.Rngs(1))
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

        @nnx.jit
        def step(model: Any, optimizer: Any, x: jax.Array) -> jax.Array:
            def loss(model: Any) -> Any:
                return (model(x) ** 2).mean()

            value, gradient = nnx.value_and_grad(loss)(model)
            optimizer.update(model, gradient)
            result: jax.Array = value
            return result

        steps.append([float(step(model, optimizer, x)) for _ in range(3)])
    np.testing.assert_allclose(steps[0], steps[1], rtol=1e-5)
    assert steps[1][2] < steps[1][0]


def test_partitioning_metadata_is_kept() -> None:
    init = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("embed", "mlp"))
    auto = jax.sharding.AxisType.Auto
    with jax.set_mesh(jax.make_mesh((1, 1), ("embed", "mlp"), (auto, auto))):
        theirs, got = (
            library.Linear(8, 6, kernel_init=init, rngs=nnx.Rngs(0)) for library in (nnx, ours)
        )
        np.testing.assert_allclose(got(normal((2, 8))), theirs(normal((2, 8))), rtol=1e-5)
    assert got.kernel.get_metadata() == theirs.kernel.get_metadata()
    assert ("embed", "mlp") in got.kernel.get_metadata().values()


def test_the_layer_on_the_kernel() -> None:
    """In the emulator: small integers, so that all sums are exact."""
    generator = np.random.default_rng(0)
    x = jnp.asarray(generator.integers(-2, 3, (64, 64)), jnp.bfloat16)
    layer: Any = ours.Linear(64, 48, activation="relu", dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    layer.kernel[...] = jnp.asarray(generator.integers(-2, 3, (64, 48)), jnp.float32)
    layer.bias[...] = jnp.asarray(generator.integers(-8, 9, (48,)), jnp.float32)
    with jaxbw.implementation("emulator"):
        got = nnx.jit(lambda layer, x: layer(x))(layer, x)
    exact = np.asarray(x).astype(np.float64) @ layer.kernel[...] + layer.bias[...]
    np.testing.assert_array_equal(got, jnp.asarray(np.maximum(exact, 0), jnp.bfloat16))


@pytest.mark.parametrize("layer", [ours.Linear, ours.LinearGeneral, ours.MLP])
def test_an_unknown_activation(layer: Any) -> None:
    with pytest.raises(ValueError, match=r"jaxbw.flax.nnx.\w+: activation is 'tanh'; it is one of"):
        layer(3, 4, activation="tanh", rngs=nnx.Rngs(0))(normal((2, 3)))


# The swap


class Model(nnx.Module):
    """Every kind of layer; one layer in two places; what is not to be swapped."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.blocks = nnx.List(
            [nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs) for _ in range(2)]
        )
        self.head = nnx.Linear(8, 8, bias_init=nnx.initializers.normal(1.0), rngs=rngs)
        self.again = self.head
        self.mix = nnx.Einsum("btd,dhk->bthk", (8, 2, 4), (2, 4), rngs=rngs)
        self.lora = nnx.LoRALinear(8, 8, lora_rank=2, rngs=rngs)
        self.own = nnx.Linear(8, 8, dot_general=own_dot_general, rngs=rngs)
        self.injected = nnx.Linear(8, 8, dot_general=jaxbw.dot_general, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for block in self.blocks:
            x = x + block(self.norm(x), is_causal=True)
        x = self.injected(self.own(self.lora(self.again(nnx.gelu(self.head(x))))))
        result: jax.Array = self.mix(x)
        return result


def own_dot_general(*arguments: Any, **keywords: Any) -> jax.Array:
    return jax.lax.dot_general(*arguments, **keywords)


PROJECTIONS = (".key", ".out", ".query", ".value")


def test_swap_layers() -> None:
    model = Model(nnx.Rngs(1))
    x = normal((2, 5, 8))
    before, outs = nnx.state(model), nnx.jit(lambda model, x: model(x))(model, x)
    variables = [id(leaf) for _, leaf in nnx.iter_graph(model) if isinstance(leaf, nnx.Variable)]
    swapped = ours.swap_layers(model)
    assert swapped == (
        "again",
        *(f"blocks.{i}{name}" for i in range(2) for name in (*PROJECTIONS, "")),
        "injected",
        "mix",
    )
    assert type(model.head) is ours.Linear
    assert model.head is model.again
    assert type(model.blocks[0].query) is ours.LinearGeneral
    assert type(model.mix) is ours.Einsum
    assert type(model.lora) is nnx.LoRALinear
    assert model.own.dot_general is own_dot_general
    after = [id(leaf) for _, leaf in nnx.iter_graph(model) if isinstance(leaf, nnx.Variable)]
    assert after == variables
    assert_one_structure(nnx.state(model), before)
    assert ours.swap_layers(model) == ()
    got = nnx.jit(lambda model, x: model(x))(model, x)
    np.testing.assert_allclose(got, outs, rtol=1e-4, atol=1e-5)
    found = primitives(*pure(model), x)
    assert found[FUSED] == len(swapped) - 2 + 1  # no attention itself; the head is called twice


def test_the_matmuls_of_attention_are_served() -> None:
    """Scores and values; an attention function of the model's own is left alone."""
    own: Any = {"attention_fn": lambda *args, **keywords: nnx.dot_product_attention(*args)}
    for given, served in (({}, 6), (own, 4)):
        keywords: Any = {"decode": False, "dtype": jnp.bfloat16, "rngs": nnx.Rngs(0), **given}
        model = nnx.MultiHeadAttention(2, 64, **keywords)
        ours.swap_layers(model)
        with jaxbw.target("H200"), jaxbw.implementation("kernel"):
            program = jax.jit(pure(model)[0]).trace(nnx.state(model), normal((2, 16, 64)))
            text = program.lower(lowering_platforms=("cuda",)).as_text()
        assert text.count("@jaxbw_gemm_v10(") == served
        assert text.count("stablehlo.dot_general") == 6 - served


def test_a_single_layer_and_an_abstract_model_are_swapped_too() -> None:
    layer = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    assert ours.swap_layers(layer) == ("",)
    assert type(layer) is ours.Linear
    abstract = nnx.eval_shape(lambda: Model(nnx.Rngs(0)))
    assert len(ours.swap_layers(abstract)) == 13


def test_only_nnx_models_are_swapped() -> None:
    with pytest.raises(TypeError, match=r"Dense is no nnx\.Module; the layers of linen"):
        ours.swap_layers(linen.Dense(3))  # type: ignore[arg-type]


@pytest.mark.parametrize("layer", ["Linear", "LinearGeneral"])
def test_injection_into_flaxs_own_layers(layer: str) -> None:
    x = normal((2, 8))
    plain, injected = (
        getattr(nnx, layer)(8, 6, rngs=nnx.Rngs(0), **given)
        for given in ({}, {"dot_general": jaxbw.dot_general})
    )
    np.testing.assert_allclose(injected(x), plain(x), rtol=1e-5, atol=1e-6)
    assert primitives(*pure(injected), x)[PLAIN] == 1
