"""jaxbw.flax.linen against Flax's own layers: parameters, values, gradients, what runs."""

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import serialization

import jaxbw
from jaxbw.flax import linen

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
    """A layer's name and arguments, the shape of its inputs, and what is to run."""

    layer: str
    arguments: dict[str, Any]
    inputs: tuple[int, ...]
    k: int
    runs: str = FUSED


def dense(**arguments: Any) -> Case:
    return Case("Dense", {"features": 6, **arguments}, (2, 3, 8), 8)


def general(features: Any, k: int, runs: str = FUSED, **arguments: Any) -> Case:
    return Case("DenseGeneral", {"features": features, **arguments}, (2, 3, 4, 8), k, runs)


def einsum(equation: str, shape: tuple[int, ...], k: int, runs: str = FUSED, **more: Any) -> Case:
    arguments = {"shape": shape, "einsum_str": equation, **more}
    return Case("Einsum", arguments, (2, 3, 4, 8), k, runs)


CASES = {
    "bias": dense(),
    "no bias": dense(use_bias=False)._replace(runs=PLAIN),
    "relu": dense(activation="relu"),
    "silu": dense(activation="silu"),
    "gelu": dense(activation="gelu"),
    "gelu_exact, no bias": dense(activation="gelu_exact", use_bias=False),
    "one vector": dense()._replace(inputs=(8,)),
    "dot_general None": dense(dot_general=None, activation="relu"),
    "two features": general((3, 2), 8, activation="gelu"),
    "two axes": general(6, 32, axis=(-2, -1)),
    "axes apart": general((5, 2), 24, axis=(1, -1), activation="silu"),
    "batch": general((3, 2), 8, PLAIN, batch_dims=(0, 1), activation="gelu"),
    "heads": einsum("btnd,dhk->btnhk", (8, 2, 3), 8, activation="relu"),
    "einsum, permuted": einsum("btnd,hdk->hbtnk", (2, 8, 3), 8, activation="gelu"),
    "einsum, two contracted": einsum("...nd,ndf->...f", (4, 8, 6), 32),
    "einsum, nt": einsum("...d,fd->...f", (6, 8), 8, use_bias=False, activation="silu"),
    "einsum, batch": einsum("btnd,ndf->btnf", (4, 8, 6), 8, PLAIN, activation="gelu"),
    "einsum, summed": einsum("btnd,df->bf", (8, 6), 8 * 12, "dot_general", activation="gelu"),
}


def init(layer: nn.Module, *inputs: Any) -> Any:
    """A layer's variables, by a key that is the same for all."""
    return jax.jit(layer.init)(jax.random.key(1), *inputs)


def layers(name: str, **more: Any) -> tuple[nn.Module, nn.Module, Any]:
    """Flax's layer, ours, and the activation that follows Flax's."""
    case = CASES[name]
    arguments = {
        # The default initializer of a bias is zero, which would show nothing.
        **(
            {"bias_init": nn.initializers.normal(1.0)}
            if case.arguments.get("use_bias", True)
            else {}
        ),
        **case.arguments,
        **more,
    }
    activation = arguments.pop("activation", None)
    theirs = getattr(nn, case.layer)(**arguments)
    ours = getattr(linen, case.layer)(**arguments, activation=activation)
    return theirs, ours, ACTIVATIONS[activation]


@cache
def variables_of(name: str) -> Any:
    """Those of Flax's layer, and of ours."""
    *both, _ = layers(name)
    x = normal(CASES[name].inputs)
    return jax.jit(lambda key, x: [layer.init(key, x) for layer in both])(jax.random.key(1), x)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_parameters_are_flaxs(name: str) -> None:
    """Names, shapes and values for equal keys; hence a checkpoint of either is one of both."""
    wanted, got = variables_of(name)
    assert_one_tree(got, wanted)
    saved = serialization.to_bytes(wanted)
    loaded = serialization.from_bytes(jax.tree.map(np.zeros_like, got), saved)
    assert_one_tree(loaded, wanted)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    theirs, ours, activation = layers(name)
    variables, _ = variables_of(name)

    def both(*given: Any) -> Any:
        reference = slopes(lambda v, x: activation(theirs.apply(v, x)))
        return slopes(ours.apply)(*given), reference(*given)

    assert_same(*in_float64(both, variables, normal(CASES[name].inputs)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["bias", "gelu", "two features", "axes apart", "heads"])
def test_rounded_once(name: str, dtype: str) -> None:
    """Within one rounding of the exact result of the rounded operands, and the float32 sums."""
    theirs, ours, activation = layers(name, dtype=dtype)
    exact, _, _ = layers(name)
    x = normal(CASES[name].inputs)
    variables = init(theirs, x)
    got = jax.jit(ours.apply)(variables, x)
    assert got.dtype == dtype
    rounded, y = jax.tree.map(lambda x: x.astype(dtype), (variables, x))
    reference = in_float64(lambda v, x: activation(exact.apply(v, x)), rounded, y)
    sizes = jax.tree.map(abs, (rounded, y))
    magnitude = in_float64(exact.apply, *sizes)
    # An activation has a slope of at most 1.13.
    bound = UNIT_ROUNDOFF[dtype] * np.abs(reference)
    bound += 1.13 * 2 * (CASES[name].k + 4) * UNIT_ROUNDOFF["float32"] * magnitude
    assert (np.abs(np.asarray(got).astype(np.float64) - reference) <= bound).all()


@pytest.mark.parametrize("name", CASES)
def test_one_operation_runs(name: str) -> None:
    """Bias and activation are in it where they can be; else they follow a matmul of ours."""
    _, ours, _ = layers(name)
    x = normal(CASES[name].inputs)
    variables = jax.eval_shape(lambda: ours.init(jax.random.key(1), x))
    found = primitives(ours.apply, variables, x)
    matmuls = {FUSED: 0, PLAIN: 0, "dot_general": 0} | {CASES[name].runs: 1}
    assert {matmul: found[matmul] for matmul in matmuls} == matmuls
    if CASES[name].runs == FUSED:
        assert not found.keys() & {"add", "max", "logistic", "tanh", "erf", "erfc"}


def test_a_dot_general_of_ones_own_is_used() -> None:
    calls = []

    def counted(*arguments: Any, **keywords: Any) -> jax.Array:
        calls.append(keywords)
        return jax.lax.dot_general(*arguments, **keywords)

    x = normal((3, 8))
    for given in ({"dot_general": counted}, {"dot_general_cls": lambda: counted}):
        layer = linen.Dense(6, activation="relu", **given)
        variables = layer.init(jax.random.key(0), x)
        theirs: Any = nn.Dense(6).apply(variables, x)
        np.testing.assert_array_equal(layer.apply(variables, x), nn.relu(theirs))
    assert len(calls) == 4


@pytest.mark.parametrize("how", ["dot_general", "dot_general_cls"])
def test_injection_into_flaxs_own_layers(how: str) -> None:
    """`jaxbw.dot_general` where Flax takes one: no matmul is left to lax."""
    given: Any = jaxbw.dot_general if how == "dot_general" else (lambda: jaxbw.dot_general)
    x = normal((2, 3, 8))
    attention = {f"{which}_{how}": given for which in ("qkv", "out")}
    for plain, injected, matmuls in (
        (nn.Dense(6), nn.Dense(6, **{how: given}), 1),
        (nn.DenseGeneral((2, 3)), nn.DenseGeneral((2, 3), **{how: given}), 1),
        (nn.MultiHeadAttention(2), nn.MultiHeadAttention(2, **attention), 4),
    ):
        variables = init(plain, x)
        wanted, got = (in_float64(slopes(layer.apply), variables, x) for layer in (plain, injected))
        assert_same(got, wanted)
        assert primitives(injected.apply, variables, x)[PLAIN] == matmuls


# Attention


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("MultiHeadAttention", {}),
        ("MultiHeadDotProductAttention", {"use_bias": False}),
        ("MultiHeadDotProductAttention", {"normalize_qk": True, "qkv_dot_general": None}),
    ],
)
def test_attention(name: str, arguments: Any) -> None:
    arguments = {"num_heads": 2, "bias_init": nn.initializers.normal(1.0)} | arguments
    theirs, ours = (getattr(library, name)(**arguments) for library in (nn, linen))
    x, y = normal((2, 5, 8)), normal((2, 4, 8), 1)
    mask = nn.make_attention_mask(jnp.ones((2, 5)), jnp.array([[1, 1, 1, 0], [1, 0, 0, 0]]))
    variables = init(theirs, x, y)
    assert_one_tree(init(ours, x, y), variables)
    wanted, got = (
        in_float64(slopes(lambda v, x, y, f=layer: f.apply(v, x, y, mask=mask)), variables, x, y)
        for layer in (theirs, ours)
    )
    assert_same(got, wanted)
    found = primitives(ours.apply, variables, x, y)
    assert found[PLAIN if arguments.get("use_bias") is False else FUSED] == 4


def test_attention_decodes_from_its_cache() -> None:
    x = normal((2, 3, 8))
    caches, steps = [], []
    for library in (nn, linen):
        layer = library.MultiHeadAttention(2, decode=True)
        variables = init(layer, x)
        for i in range(3):
            step, changed = layer.apply(variables, x[:, i : i + 1], mutable=["cache"])
            variables |= changed
        caches.append(variables["cache"])
        steps.append(step)
    np.testing.assert_allclose(steps[0], steps[1], rtol=1e-5, atol=1e-6)
    assert_one_structure(*caches)


# The feed-forward block


class FlaxMLP(nn.Module):
    """The block as one writes it with Flax's own layers."""

    activation: str
    gated: bool
    use_bias: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        layer = partial(nn.Dense, use_bias=self.use_bias)
        if self.use_bias:
            layer = partial(layer, bias_init=nn.initializers.normal(1.0))
        up, act = layer(16, name="up")(x), ACTIVATIONS[self.activation]
        hidden = act(layer(16, name="gate")(x)) * up if self.gated else act(up)
        result: jax.Array = layer(x.shape[-1], name="down")(hidden)
        return result


@pytest.mark.sampled(2)
@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize(("gated", "activation"), [(False, "gelu"), (True, "silu")])
def test_mlp(gated: bool, activation: str, use_bias: bool) -> None:
    keywords: Any = {"activation": activation, "gated": gated, "use_bias": use_bias}
    theirs = FlaxMLP(**keywords)
    ours = linen.MLP(16, bias_init=nn.initializers.normal(1.0), **keywords)
    x = normal((2, 3, 8))
    variables = init(theirs, x)
    assert_one_tree(init(ours, x), variables)
    wanted, got = (in_float64(slopes(layer.apply), variables, x) for layer in (theirs, ours))
    assert_same(got, wanted)
    found = primitives(ours.apply, variables, x)
    fused = {(False, True): 2, (False, False): 1, (True, True): 3, (True, False): 1}
    assert found[FUSED] == fused[gated, use_bias]
    assert found[FUSED] + found[PLAIN] == (3 if gated and use_bias else 2)
    assert not found["dot_general"]


# Transformations and metadata; scan and remat are in test_gpt.py


@pytest.mark.parametrize("lifted", [True, False])
def test_vmap(lifted: bool) -> None:
    """Over the inputs, and with lifted `nn.vmap` over the parameters, too."""
    x = normal((3, 2, 8))
    outs = []
    for library in (nn, linen):
        if lifted:
            mapped = nn.vmap(
                library.Dense, variable_axes={"params": 0}, split_rngs={"params": True}
            )
            layer = mapped(6, bias_init=nn.initializers.normal(1.0))
            variables, apply = init(layer, x), layer.apply
        else:
            layer = library.Dense(6, bias_init=nn.initializers.normal(1.0))
            variables = init(layer, x[0])
            apply = jax.vmap(layer.apply, in_axes=(None, 0))
        outs.append(in_float64(slopes(apply), variables, x))
    assert_same(outs[1], outs[0])


@pytest.mark.parametrize("name", ["Dense", "DenseGeneral", "Einsum"])
def test_partitioning_metadata_is_kept(name: str) -> None:
    arguments: Any = {"Einsum": {"shape": (8, 6), "einsum_str": "bd,df->bf"}}
    keywords = arguments.get(name, {"features": 6}) | {
        "kernel_init": nn.with_partitioning(nn.initializers.lecun_normal(), ("embed", "mlp")),
        "bias_init": nn.with_logical_partitioning(nn.initializers.zeros_init(), ("mlp",)),
    }
    x = normal((3, 8))
    boxed = [getattr(f, name)(**keywords).init(jax.random.key(1), x) for f in (nn, linen)]
    assert nn.get_partition_spec(boxed[0]) == nn.get_partition_spec(boxed[1])
    assert boxed[1]["params"]["kernel"].names == ("embed", "mlp")
    plain = nn.meta.unbox(boxed[1])
    for layer in (getattr(linen, name)(**keywords), getattr(nn, name)(**keywords)):
        np.testing.assert_array_equal(layer.apply(boxed[1], x), layer.apply(plain, x))


def test_what_flax_shows_of_a_layer() -> None:
    """One call of each layer, and nothing of how it is done."""
    x = normal((3, 8))
    for layer in (linen.Dense(6, activation="gelu"), linen.MLP(16), linen.MultiHeadAttention(2)):
        layer.tabulate(jax.random.key(0), x)
        assert "Pending" not in f"{layer}"
        assert "deferred" not in f"{layer}"


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("use_bias", [False, True])
def test_who_looks_at_results_sees_those_of_flaxs_layers(gated: bool, use_bias: bool) -> None:
    keywords: Any = {"activation": "silu", "gated": gated, "use_bias": use_bias}
    theirs: Any = FlaxMLP(**keywords)
    ours: Any = linen.MLP(16, **keywords)
    x = normal((3, 8))
    variables = init(theirs, x)
    unwatched = ours.apply(variables, x)
    wanted, got = (
        layer.apply(variables, x, capture_intermediates=True)[1] for layer in (theirs, ours)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), got, wanted)

    seen: list[Any] = []

    def watch(method: Any, args: Any, keywords: Any, context: Any) -> Any:
        seen.append(method(*args, **keywords))
        return seen[-1]

    def zero(method: Any, args: Any, keywords: Any, context: Any) -> Any:
        return method(*args, **keywords) * (context.module.name != "up")

    with nn.intercept_methods(watch):
        np.testing.assert_array_equal(ours.apply(variables, x), unwatched)
    assert all(isinstance(result, jax.Array) for result in seen)
    assert len(seen) == 3 + gated
    with nn.intercept_methods(zero):
        np.testing.assert_array_equal(ours.apply(variables, x), theirs.apply(variables, x))
        assert not np.array_equal(ours.apply(variables, x), unwatched)


@pytest.mark.parametrize(
    ("equation", "shape"),
    [
        ("btnd,dhk->btnhk", (32, 2, 3)),
        ("...d,fd->...f", (6, 32)),
        ("...nd,ndf->...f", (4, 32, 6)),
        ("btnd,nhd->bth", (4, 6, 32)),
        ("btnd,bnde->bnte", (2, 4, 32, 6)),
    ],
)
def test_einsum_in_float32_has_flaxs_bits(equation: str, shape: tuple[int, ...]) -> None:
    """Where the result has the inputs' dimensions first: jnp.einsum's order of sums."""
    layers: list[Any] = [f.Einsum(shape, equation, use_bias=False) for f in (nn, linen)]
    x = normal((2, 3, 4, 32))
    variables = init(layers[0], x)
    np.testing.assert_array_equal(*(layer.apply(variables, x) for layer in layers))


# Kernels


def test_the_layer_on_the_kernel() -> None:
    """In the emulator, forward and backward: small integers, so that all sums are exact."""
    generator = np.random.default_rng(0)
    x = jnp.asarray(generator.integers(-2, 3, (4, 16, 64)), jnp.bfloat16)
    parameters = {
        "kernel": jnp.asarray(generator.integers(-2, 3, (64, 3, 16)), jnp.float32),
        "bias": jnp.asarray(generator.integers(-8, 9, (3, 16)), jnp.float32),
    }
    ours = linen.DenseGeneral((3, 16), activation="relu", dtype=jnp.bfloat16)
    theirs: Any = nn.DenseGeneral((3, 16))

    def loss(apply: Any, parameters: Any, x: Any) -> Any:
        out = apply({"params": parameters}, x)
        return (
            out.astype(jnp.float32) * jnp.sign(x.astype(jnp.float32)).sum(-1)[..., None, None]
        ).sum(), out

    gradient = jax.jit(jax.grad(loss, (1, 2), has_aux=True), static_argnums=0)
    with jaxbw.implementation("emulator"):
        got = gradient(ours.apply, parameters, x)
    wanted = gradient(lambda v, x: nn.relu(theirs.apply(v, x.astype(jnp.float32))), parameters, x)
    assert len(np.unique(got[1])) > 50
    for ours_x, exact in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(ours_x, exact.astype(jnp.bfloat16).astype(ours_x.dtype))


def test_a_gpu_gets_one_kernel_for_each_layer() -> None:
    """A gated block is three matmuls, in two kernels."""
    x = jax.ShapeDtypeStruct((512, 256), jnp.bfloat16)
    for layer, kernels in (
        (linen.Dense(256, activation="gelu", dtype=jnp.bfloat16), 1),
        (linen.DenseGeneral((4, 64), dtype=jnp.bfloat16), 1),
        (linen.Einsum((4, 64, 256), "bd,hkd->bhk", dtype=jnp.bfloat16), 1),
        (linen.MLP(512, gated=True, use_bias=False, dtype=jnp.bfloat16), 2),
    ):
        variables = jax.eval_shape(layer.init, jax.random.key(0), x)
        with jaxbw.target("H200"), jaxbw.implementation("kernel"):
            lowered = jax.jit(layer.apply).trace(variables, x).lower(lowering_platforms=("cuda",))
        assert lowered.as_text().count("@jaxbw_gemm_v10(") == kernels, layer
        assert "stablehlo.dot_general" not in lowered.as_text()


# Errors


@pytest.mark.parametrize("layer", ["Dense", "DenseGeneral"])
def test_an_unknown_activation(layer: str) -> None:
    """Also behind a dot_general of one's own."""
    for more in ({}, {"dot_general": jax.lax.dot_general}):
        module = getattr(linen, layer)(4, activation="tanh", **more)
        with pytest.raises(
            ValueError, match=rf"jaxbw.flax.linen.{layer}: activation is 'tanh'; it"
        ):
            module.init(jax.random.key(0), normal((2, 3)))
    with pytest.raises(ValueError, match="MLP: activation is 'tanh'; it is one of None, 'relu'"):
        linen.MLP(4, gated=True, activation="tanh").init(jax.random.key(0), normal((2, 3)))


@pytest.mark.parametrize("equation", ["bd,df", "bd->b"])
def test_an_equation_that_flax_refuses(equation: str) -> None:
    for library in (nn, linen):
        with pytest.raises(ValueError, match="einsum_str"):
            library.Einsum((3, 4), equation).init(jax.random.key(0), normal((2, 3)))


def test_complex_numbers_are_flaxs_matter() -> None:
    """No kernel takes them: the bias is added behind the matmul."""
    x = normal((2, 8)) * (1 + 2j)
    layer: Any = nn.Dense(6, param_dtype=jnp.complex64)
    variables = init(layer, x)
    ours: Any = linen.Dense(6, param_dtype=jnp.complex64)
    np.testing.assert_allclose(ours.apply(variables, x), layer.apply(variables, x), rtol=1e-5)
