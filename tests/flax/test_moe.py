"""Layers of experts: against all experts of every token, of which the others have the weight 0."""

import re
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxbw
from jaxbw._src.api import exchange
from jaxbw.flax import linen
from jaxbw.flax.nnx import MoE

from .oracle import normal

EXPERTS, WIDTH, HIDDEN, OUT = 5, 4, 6, 3
X = np.asarray(normal((2, 7, WIDTH)))


def dense(params: Any, x: Any, top_k: int, *, normalize: bool) -> Any:
    """The layer with `silu`, by ordinary matmuls."""
    x = x.reshape(-1, WIDTH)
    probabilities = jax.nn.softmax(x @ params["router"]["kernel"])
    least = jnp.sort(probabilities, axis=-1)[:, -top_k, None]
    weights = jnp.where(probabilities >= least, probabilities, 0)
    if normalize:
        weights = weights / weights.sum(-1, keepdims=True)
    up = jnp.einsum("td,edh->teh", x, params["up"])
    if "gate" in params:
        hidden = jax.nn.silu(jnp.einsum("td,edh->teh", x, params["gate"])) * up
    else:
        hidden = jax.nn.silu(up)
    out = jnp.einsum("teh,ehn,te->tn", hidden, params["down"], weights)
    return out.reshape(2, 7, OUT)


@pytest.mark.parametrize(("top_k", "gated", "normalize"), [(2, True, True), (1, False, False)])
def test_equals_the_dense_form(top_k: int, gated: bool, normalize: bool) -> None:
    """Linen's value and gradients, and nnx's value, in float32."""
    options: dict[str, Any] = {"top_k": top_k, "gated": gated, "normalize": normalize}
    layer = linen.MoE(EXPERTS, HIDDEN, out_features=OUT, **options)
    of_nnx = MoE(WIDTH, HIDDEN, OUT, num_experts=EXPERTS, **options, rngs=nnx.Rngs(0))
    params = layer.init(jax.random.key(0), X)["params"]
    graph, state = nnx.split(of_nnx)
    assert jax.tree.map(jnp.shape, nnx.to_pure_dict(state)) == jax.tree.map(jnp.shape, params)

    @jax.jit
    def both(params: Any, x: Any) -> Any:
        def derivatives(function: Any) -> Any:
            y, pull_back = jax.vjp(function, params, x)
            return y, pull_back(jnp.cos(y))

        ours = derivatives(lambda params, x: layer.apply({"params": params}, x))
        theirs = derivatives(lambda params, x: dense(params, x, top_k, normalize=normalize))
        return ours, theirs, nnx.merge(graph, params)(x)

    ours, theirs, by_nnx = both(params, X)
    # Sums of up to 14 tokens, of some 6 terms each, of size 1: 84 roundings or less, twice.
    bound = 200 * 2.0**-24
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=bound, atol=bound), ours, theirs
    )
    np.testing.assert_array_equal(by_nnx, ours[0])


def test_expert_axis() -> None:
    """Linen's value and gradients of experts, and tokens, of two devices: those of one."""
    alone = linen.MoE(4, HIDDEN, out_features=OUT)
    divided = alone.clone(expert_axis="expert")
    params = divided.init(jax.random.key(0), X)["params"]
    mesh = jax.make_mesh((2,), ("expert",), (AxisType.Auto,), devices=jax.devices()[:2])
    specs = {name: P() if name == "router" else P("expert") for name in params}
    tokens = P("expert")

    @jax.shard_map(mesh=mesh, in_specs=(specs, tokens), out_specs=tokens)
    def on_two(params: Any, x: Any) -> Any:
        return divided.apply({"params": params}, x)

    @jax.jit
    def both(params: Any, x: Any) -> Any:
        def derivatives(function: Any) -> Any:
            y, pull_back = jax.vjp(function, params, x)
            return y, pull_back(jnp.cos(y))

        return (
            derivatives(on_two),
            derivatives(lambda params, x: alone.apply({"params": params}, x)),
        )

    bound = 200 * 2.0**-24  # as above
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=bound, atol=bound), *both(params, X)
    )


def spelled_out(
    operand: Any, output: Any, starts: Any, sizes: Any, there: Any, received: Any, *, axis_name: str
) -> Any:
    """`lax.ragged_all_to_all` as its documentation has it, for CPUs; NaN where sizes disagree."""
    me = jax.lax.axis_index(axis_name)
    operands, starts, sizes, there = (
        jax.lax.all_gather(x, axis_name) for x in (operand, starts, sizes, there)
    )
    # Of each device: the updates for this one.
    starts, sizes, there = (
        x.reshape(*[len(operands)] * 2, -1)[:, me] for x in (starts, sizes, there)
    )
    row = jnp.arange(len(output))[:, None]
    for source, rows in enumerate(operands):
        nth = row - there[source]
        is_sent = (nth >= 0) & (nth < sizes[source])
        place = jnp.where(is_sent, nth + starts[source], 0).sum(1)  # no row is of two updates
        sent = rows.at[place].get(mode="fill", fill_value=jnp.nan)
        output = jnp.where(is_sent.any(1)[:, None], sent, output)
    return jnp.where((received == sizes.reshape(-1)).all(), output, jnp.nan)


def eight_devices(**options: Any) -> tuple[Any, Any, Any, Any]:
    """A layer on one device, the same on eight, parameters, and two microbatches of 48 tokens."""
    alone = linen.MoE(16, HIDDEN, **options)
    divided = alone.clone(expert_axis="expert", dispatch="all_to_all")
    x = jnp.asarray(normal((2, 16, 3, WIDTH)))
    params = divided.init(jax.random.key(0), x[0])["params"]
    mesh = jax.make_mesh((8,), ("expert",), (AxisType.Auto,), devices=jax.devices()[:8])
    specs = {name: P() if name == "router" else P("expert") for name in params}

    @jax.shard_map(mesh=mesh, in_specs=(specs, P("expert")), out_specs=P("expert"))
    def on_eight(params: Any, x: Any) -> Any:
        return divided.apply({"params": params}, x)

    return lambda params, x: alone.apply({"params": params}, x), on_eight, params, x


@pytest.mark.parametrize("top_k", [1, 3])  # 3: of more experts than a device has
@pytest.mark.parametrize("to_the_same", [False, True])
@pytest.mark.parametrize("is_ragged", [False, True])
def test_all_to_all(
    monkeypatch: pytest.MonkeyPatch, top_k: int, to_the_same: bool, is_ragged: bool
) -> None:
    """Rows sent among eight devices, in a scan that recomputes: value and gradients of one.

    Of random tokens some experts have none; of those alike the same `top_k` have all.
    """
    if is_ragged:
        monkeypatch.setattr(jax.lax, "ragged_all_to_all", spelled_out)
        monkeypatch.setattr(exchange, "_where_there_is", lambda ragged, _, rows: ragged(rows))
    alone, on_eight, params, x = eight_devices(top_k=top_k)
    if to_the_same:
        x = jnp.abs(x)
        params["router"]["kernel"] = jnp.tile(normal((1, 16)), (WIDTH, 1))

    @jax.jit
    def derivatives(params: Any, x: Any) -> Any:
        def of(layer: Any) -> Any:
            def microbatches(params: Any, x: Any) -> Any:
                return jax.lax.scan(lambda _, x: (None, jax.checkpoint(layer)(params, x)), None, x)

            (_, y), pull_back = jax.vjp(microbatches, params, x)
            return y, pull_back((None, jnp.cos(y)))

        return of(on_eight), of(alone)

    # Sums of up to 96 tokens, of some 6 terms each, of size 1: 576 roundings or less, twice.
    bound = 1200 * 2.0**-24
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=bound, atol=bound),
        *derivatives(params, x),
    )


def test_all_to_all_is_its_own_transpose() -> None:
    """A step sends rows, brings results, and cotangents the same ways; the sizes travel once."""
    _, on_eight, params, x = eight_devices()

    @jax.jit
    def step(params: Any, x: Any) -> Any:
        return jax.grad(lambda params, x: jnp.sum(on_eight(params, x) ** 2), (0, 1))(params, x)

    text = str(step.lower(params, x[0]).compile().as_text())
    kinds = Counter(re.findall(r" (all-\w+(?:-\w+)?|reduce-scatter|ragged\S*)\(", text))
    assert kinds == {"all-to-all": 4, "all-gather": 1, "all-reduce": 1}  # the router's gradient
    with jaxbw.target("H200"):
        text = step.trace(params, x[0]).lower(lowering_platforms=("cuda",)).as_text()
    kinds = Counter(re.findall(r"@(ragged_all_to_all)\(|stablehlo\.(all_to_all)", text))
    assert kinds == {("ragged_all_to_all", ""): 4}


def test_no_tokens() -> None:
    layer = linen.MoE(EXPERTS, HIDDEN, out_features=OUT)
    y, _ = layer.init_with_output(jax.random.key(0), X[:0])
    assert y.shape == (0, 7, OUT)
    assert MoE(WIDTH, HIDDEN, num_experts=EXPERTS, rngs=nnx.Rngs(0))(jnp.asarray(X[:0])).shape == (
        0,
        7,
        WIDTH,
    )


def test_dispatch_is_one_of_two() -> None:
    with pytest.raises(ValueError, match="dispatch is 'ring'"):
        linen.MoE(EXPERTS, HIDDEN, dispatch="ring").init(jax.random.key(0), X)


@pytest.mark.parametrize("gated", [True, False])
def test_no_token_is_copied(gated: bool) -> None:
    """Experts' first matmul finds tokens where they lie; what comes out is gathered by token."""
    options: dict[str, Any] = {"gated": gated, "dtype": jnp.bfloat16}
    x = jnp.zeros((64, 128), jnp.bfloat16)
    layer = linen.MoE(EXPERTS, 256, **options)
    params = jax.eval_shape(layer.init, jax.random.key(0), x)
    of_nnx = MoE(128, 256, num_experts=EXPERTS, **options, rngs=nnx.Rngs(0))

    def programs() -> tuple[str, ...]:
        both = jax.jit(layer.apply).trace(params, x), jax.jit(of_nnx).trace(x)
        return tuple(str(each.lower(lowering_platforms=("cuda",)).as_text()) for each in both)

    def gathers(text: str) -> list[str]:
        of_tokens = [line for line in text.splitlines() if "stablehlo.gather" in line]
        return [line for line in of_tokens if "128xbf16>" in line]

    for target, kernel in (("H200", "jaxbw_sm90_gathered"), ("B200", "jaxbw_sm100_gathered")):
        with jaxbw.target(target):
            for text in programs():
                assert text.count(kernel) == 1
                assert len(gathers(text)) == 1


def test_dtypes() -> None:
    """The router is float32, the experts are what they are told; its logits are sown."""
    layer = linen.MoE(EXPERTS, HIDDEN, dtype=jnp.bfloat16)
    x = jnp.asarray(X, jnp.bfloat16)
    variables = layer.init(jax.random.key(0), x)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables["params"])} == {np.dtype("float32")}
    y, sown = layer.apply(variables, x, mutable=["intermediates"])
    (logits,) = sown["intermediates"]["router_logits"]
    assert (y.dtype, y.shape, logits.dtype) == (jnp.bfloat16, X.shape, jnp.float32)
    assert logits.shape == (14, EXPERTS)
    of_nnx = MoE(WIDTH, HIDDEN, num_experts=EXPERTS, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert of_nnx(x).dtype == jnp.bfloat16
