"""jaxbw.accelerate, einsum and explain_function: every lax.dot_general of code that knows no jaxbw.

What is lowered for a GPU is counted: a custom call for each matmul, and none of XLA's beside them.
"""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxbw
from jaxbw._src.lab.tuning.find import matmuls
from jaxbw._src.primitives.gemm import TARGET
from jaxbw._src.primitives.partitioning import TARGET as PARTITIONED

HALF = 2.0**-8  # bfloat16's unit roundoff
WIDTH, HEADS, LAYERS = 32, 2, 2
X, W = jnp.ones((64, 32), jnp.bfloat16), jnp.ones((32, 32), jnp.bfloat16)

Function = Callable[..., Any]


def attention_layer(x: jax.Array, p: dict[str, jax.Array]) -> tuple[jax.Array, None]:
    def heads(y: jax.Array) -> jax.Array:
        return y.reshape(*y.shape[:-1], HEADS, -1)

    q, k, v = (heads(x @ p[name]) for name in "qkv")
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
    weights = jax.nn.softmax(scores / math.sqrt(WIDTH / HEADS)).astype(x.dtype)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ p["o"]
    return x + jax.nn.gelu(jnp.tensordot(x, p["u"], 1)) @ p["d"], None


def loss(p: dict[str, jax.Array], x: jax.Array, policy: Any = None) -> jax.Array:
    """A scan over layers that are computed again in the backward pass."""
    layer = jax.checkpoint(attention_layer, policy=policy)
    return lax.scan(layer, x, p)[0].astype(jnp.float32).var()


def parameters() -> tuple[dict[str, jax.Array], jax.Array]:
    generator = np.random.default_rng(0)
    weights = {
        name: generator.normal(size=(LAYERS, WIDTH, WIDTH)) / WIDTH**0.5 for name in "qkvoud"
    }
    x = generator.normal(size=(2, 16, WIDTH))
    return {name: jnp.asarray(w, jnp.bfloat16) for name, w in weights.items()}, jnp.asarray(
        x, jnp.bfloat16
    )


def in_a_block(function: Function) -> Function:
    def call(*args: Any) -> Any:
        with jaxbw.accelerate():
            return function(*args)

    return call


# Where the block is, and where the transformations: all the same program.
WAYS: dict[str, Function] = {
    "around the gradient": lambda f: in_a_block(jax.value_and_grad(f)),
    "around a compiled gradient": lambda f: jaxbw.accelerate(jax.jit(jax.value_and_grad(f))),
    "within it": lambda f: jax.value_and_grad(jaxbw.accelerate(f)),
    "a compiled function within it": lambda f: jax.value_and_grad(jaxbw.accelerate(jax.jit(f))),
    "within a compiled function": lambda f: jax.value_and_grad(jax.jit(in_a_block(f))),
    "as a decorator with parentheses": lambda f: jax.value_and_grad(jaxbw.accelerate()(f)),
}


def lowered(function: Function, *args: Any) -> str:
    """For CUDA, kernels whatever XLA would do."""
    with jaxbw.implementation("kernel"):
        program = jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",))
    return str(program.as_text())


def counts(text: str) -> tuple[int, int]:
    """Custom calls, and dot_generals."""
    return text.count(f"@{TARGET}("), text.count("stablehlo.dot_general")


@pytest.mark.parametrize("way", WAYS)
def test_a_model_of_plain_jax(way: str, family: str) -> None:
    args = parameters()
    plain = lowered(jax.value_and_grad(loss), *args)
    assert counts(plain) == (0, 31)  # 8 in a layer, again in the backward pass but the last, 2 each
    assert counts(lowered(WAYS[way](loss), *args)) == (31, 0)
    assert lowered(jax.value_and_grad(loss), *args) == plain  # outside nothing has changed


def test_a_step_of_it() -> None:
    """By XLA's matmuls and by kernels: the loss before, and plainly computed behind it."""
    weights, x = parameters()

    def losses(function: Function) -> list[float]:
        def step(p: Any, x: Any) -> Any:
            value, gradient = jax.value_and_grad(function)(p, x)
            p = jax.tree.map(lambda w, g: w - (0.1 * g).astype(w.dtype), p, gradient)
            return value, loss(p, x)

        return [float(value) for value in jax.jit(step)(weights, x)]

    wanted = losses(loss)
    assert wanted[1] != wanted[0]
    for implementation in ("xla", "emulator"):
        with jaxbw.implementation(implementation):
            got = losses(jaxbw.accelerate(loss))
        # Each layer rounds its residual stream twice, to within half a unit in the last place.
        np.testing.assert_allclose(got, wanted, rtol=2 * LAYERS * HALF)


@pytest.mark.parametrize("way", ["around the gradient", "within it"])
def test_in_float64_nothing_differs(way: str) -> None:
    with jax.enable_x64(True):
        args = jax.tree.map(lambda x: jnp.asarray(np.asarray(x).astype(np.float64)), parameters())
        wanted, got = (
            jax.jit(gradient)(*args) for gradient in (jax.value_and_grad(loss), WAYS[way](loss))
        )
    # Beside the matmuls: scores are float32, by the model.
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-9), got, wanted)


@pytest.mark.parametrize(
    "policy", ["dots_saveable", "dots_with_no_batch_dims_saveable", "everything_saveable"]
)
def test_jaxs_checkpoint_policies_know_the_matmuls(policy: str) -> None:
    gradient = jax.grad(partial(loss, policy=getattr(jax.checkpoint_policies, policy)))
    _, wanted = counts(lowered(gradient, *parameters()))
    assert wanted < 31
    with jaxbw.target("H200"):
        assert counts(lowered(jaxbw.accelerate(gradient), *parameters())) == (wanted, 0)


@jax.custom_vjp
def with_own_rule(x: jax.Array) -> jax.Array:
    return x @ x


with_own_rule.defvjp(
    lambda x: (x @ x, x), lambda x, d: (jnp.matmul(d, x.T) + jnp.einsum("ji,jk->ik", x, d),)
)


def looped(x: jax.Array) -> jax.Array:
    def body(carry: Any) -> Any:
        return carry[0] + 1, carry[1] @ x

    result: jax.Array = lax.while_loop(lambda carry: carry[0] < 3, body, (0, x))[1]
    return result


def sharded(x: jax.Array) -> jax.Array:
    mesh = jax.make_mesh((2,), ("x",), (AxisType.Auto,), devices=jax.devices("cpu")[:2])
    multiply: Any = jax.shard_map(
        lambda x, w: lax.psum(x @ w, "x"),
        mesh=mesh,
        in_specs=(P(None, "x"), P("x", None)),
        out_specs=P(),
    )
    result: jax.Array = multiply(x, x)
    return result


FORMS: dict[str, Function] = {
    "custom_vjp": jax.grad(lambda x: with_own_rule(x).sum()),
    "cond": jax.grad(lambda x: lax.cond(x[0, 0] > 0, jnp.matmul, jnp.add, x, x).sum()),
    "while_loop": looped,
    "vmap": jax.vmap(jax.grad(lambda w, x: (x @ w).sum() ** 2), (None, 0)),
    "jvp": lambda x: jax.jvp(lambda x: x @ x, (x,), (x,)),
    "hessian": lambda x: jax.hessian(lambda a: (x @ (a * x)).sum() ** 2)(x[0, 0]),
    "linear_transpose": lambda x: jax.linear_transpose(lambda y: y @ x, x)(x),
    "shard_map": jax.grad(lambda x: sharded(x).sum()),
    "associative_scan": lambda x: lax.associative_scan(jnp.matmul, jnp.stack([x] * 6)),
    "map": jax.grad(lambda x: lax.map(lambda y: y @ x, jnp.stack([x] * 2)).sum()),
    "matmul": lambda x: jnp.matmul(x, x, preferred_element_type=jnp.float32),
    "vdot": jnp.vdot,
}


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_every_transformation(form: str, *, outside: bool) -> None:
    """`outside` the block is around the transformation; else each matmul is bound within it."""
    x = jnp.asarray(np.random.default_rng(0).integers(-1, 2, (32, 32)), jnp.bfloat16)
    args = (x,) if form not in ("vmap", "vdot") else (x, jnp.stack([x] * 2))
    args = (x, x) if form == "vdot" else args
    function = FORMS[form]
    _, wanted = counts(lowered(function, *args))
    fast = jaxbw.accelerate(function) if outside else in_a_block(function)
    with jaxbw.target("H200"):
        assert counts(lowered(fast, *args)) == (wanted, 0)

    def both(*args: Any) -> Any:
        with jaxbw.implementation("emulator"):
            ours = fast(*args)
        return ours, function(*args)

    got, plain = jax.jit(both)(*args)
    jax.tree.map(np.testing.assert_array_equal, got, plain)


def test_a_rule_that_is_traced_behind_the_block() -> None:
    """The backward pass of a custom_vjp is JAX's to call, long after the function is."""
    gradient = jax.grad(jaxbw.accelerate(lambda x: with_own_rule(x).sum()))
    with jaxbw.target("H200"):
        assert counts(lowered(gradient, W)) == (2, 0)


def test_nothing_is_transposed_in_memory(family: str) -> None:
    """Neither operands nor gradients: lax would transpose a weight's gradient behind the matmul."""
    del family

    def network(w: list[jax.Array], x: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(x @ w[0].T)
        return jnp.einsum("bk,kn->nb", hidden, w[1]).sum()

    gradient = jax.grad(network, (0, 1))
    weights = [jnp.ones((64, 32), jnp.bfloat16), jnp.ones((64, 16), jnp.bfloat16)]
    assert "stablehlo.transpose" in lowered(gradient, weights, X)
    text = lowered(jaxbw.accelerate(gradient), weights, X)
    assert counts(text) == (5, 0)
    assert "stablehlo.transpose" not in text


NOT_TAKEN: dict[str, tuple[Function, Any]] = {
    "integers": (jnp.matmul, jnp.ones((32, 32), int)),
    "complex": (jnp.matmul, jnp.ones((32, 32), jnp.complex64)),
    "an algorithm": (partial(jnp.matmul, precision="F32_F32_F32"), jnp.ones((32, 32))),
}


@pytest.mark.parametrize("case", NOT_TAKEN)
def test_what_no_kernel_takes_is_lowered_by_jaxs_rule(case: str) -> None:
    function, x = NOT_TAKEN[case]
    plain = lowered(function, x, x)
    with jaxbw.target("H200"):
        text = lowered(jaxbw.accelerate(function), x, x)
        report = jaxbw.explain_function(jaxbw.accelerate(function), x, x)
    unmarked = re.sub(r" \{mhlo.frontend_attributes = \{jaxbw = .*?\}\}", "", text)
    assert unmarked.splitlines()[1:] == plain.splitlines()[1:]  # all but the module's name
    (matmul,) = report.matmuls
    assert matmul.choice.implementation == "xla"
    assert matmul.choice.refused


def test_arguments_of_lax_are_kept(family: str) -> None:
    del family
    dims = (((1,), (0,)), ((), ()))
    wide = partial(lax.dot_general, dimension_numbers=dims, preferred_element_type=jnp.float32)
    out = jax.eval_shape(jaxbw.accelerate(wide), X, W)
    assert out.dtype == jnp.float32
    highest = partial(lax.dot_general, dimension_numbers=dims, precision=lax.Precision.HIGHEST)
    for function, wanted in ((wide, (1, 0)), (highest, (1, 0))):
        assert counts(lowered(jaxbw.accelerate(function), X, W)) == wanted


# Other settings


def test_what_is_said_inside_counts() -> None:
    def function(x: jax.Array) -> jax.Array:
        with jaxbw.implementation("xla"):
            x = x @ W
        x = jaxbw.matmul(x, W, implementation="xla")
        return x @ W

    with jaxbw.target("H200"):
        for fast in (jaxbw.accelerate(function), in_a_block(jax.jit(function))):
            assert counts(lowered(fast, X)) == (1, 2)
            gradient = jax.grad(lambda x, fast=fast: fast(x).sum())
            assert counts(lowered(gradient, X)) == (1, 2)


def test_strictness_ends_at_what_no_kernel_takes() -> None:
    with jaxbw.target("H200"), jaxbw.implementation("sm90"), jaxbw.accelerate():
        text = str(
            jax.jit(lambda x, y: (x @ x, y @ y))
            .trace(W, W.astype(int))
            .lower(lowering_platforms=("cuda",))
            .as_text()
        )
    assert counts(text) == (1, 1)


def test_batch_invariance_and_tuned_tables_are_kept() -> None:
    rows = (jax.ShapeDtypeStruct((m, 4096), jnp.bfloat16) for m in (8, 4096))
    w = jax.ShapeDtypeStruct((4096, 512), jnp.bfloat16)
    with jaxbw.target("H200"), jaxbw.batch_invariant():
        first, second = (
            jaxbw.explain_function(jaxbw.accelerate(jnp.matmul), x, w).matmuls for x in rows
        )
    assert first[0].choice.config == second[0].choice.config


def test_compiled_functions_are_traced_again() -> None:
    traces = []

    @jax.jit
    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        traces.append(1)
        return x @ w

    for expected in (1, 2, 2):
        function(X, W)
        with jaxbw.accelerate():
            function(X, W)
        assert len(traces) == max(expected, 2)


def test_outside_of_jit() -> None:
    x = jnp.asarray(np.random.default_rng(0).integers(-2, 3, (16, 32)), jnp.bfloat16)
    with jaxbw.implementation("emulator"), jaxbw.accelerate():
        got, gradient = x @ W, jax.grad(lambda w: (x @ w).sum())(W)
    np.testing.assert_array_equal(got, x @ W)
    np.testing.assert_array_equal(gradient, jax.grad(lambda w: (x @ w).sum())(W))


# Several devices


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_programs_that_xla_divides(kind: AxisType) -> None:
    mesh = jax.make_mesh((2, 2), ("x", "y"), (kind, kind), devices=jax.devices("cpu")[:4])
    generator = np.random.default_rng(0)
    x, w = (jnp.asarray(generator.integers(-1, 2, (32, 32)), jnp.bfloat16) for _ in range(2))
    with jax.set_mesh(mesh):
        placed = [
            jax.device_put(each, NamedSharding(mesh, spec))
            for each, spec in ((x, P("x", None)), (w, P(None, "y")))
        ]
        gradient = jax.grad(lambda x, w: (x @ w).astype(jnp.float32).sum(), (0, 1))
        with jaxbw.implementation("emulator"):
            program = jax.jit(jaxbw.accelerate(gradient)).lower(*placed)
            assert program.as_text().count(f"@{PARTITIONED}(") == 2
            got = program.compile()(*placed)
        wanted = jax.jit(gradient)(*placed)
    assert [each.sharding for each in got] == [each.sharding for each in wanted]
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(got), jax.device_get(wanted))


# einsum


@pytest.mark.parametrize(
    "subscripts",
    ["ij,jk->ik", "bij,bjk->bki", "ij,jk,kl->il", "bqhd,bkhd->bhqk", "...i,ij->...j", "ii,ij->j"],
)
def test_einsum(subscripts: str) -> None:
    generator = np.random.default_rng(0)
    terms = subscripts.split("->")[0].split(",")
    operands = [
        jnp.asarray(generator.integers(-1, 2, [8] * len(term.replace("...", "xy"))), jnp.bfloat16)
        for term in terms
    ]
    wanted = jnp.einsum(subscripts, *operands)
    np.testing.assert_array_equal(jaxbw.einsum(subscripts, *operands), wanted)
    strict = partial(jaxbw.einsum, subscripts, implementation="sm90")
    text = lowered(strict, *operands)
    assert counts(text) == (len(terms) - 1, 0)
    operands_first = jaxbw.einsum(operands[0], [0, ..., 1], [..., 1])  # the other notation
    np.testing.assert_array_equal(operands_first, jnp.einsum(operands[0], [0, ..., 1], [..., 1]))


# explain_function


def test_explain_function_counts_what_is_launched(family: str) -> None:
    args = parameters()
    gradient = jax.value_and_grad(jaxbw.accelerate(loss))
    report = jaxbw.explain_function(gradient, *args)
    assert report.on_xla == 0
    assert report.on_kernels == 31 * LAYERS
    assert {each.choice.implementation for each in report.matmuls} == {family}
    assert all(each.us and each.total_us == each.count * each.us for each in report.matmuls)
    text = str(report)
    assert text.splitlines()[0].split() == ["count", "us", "each", "matmul", "served", "by"]
    assert f"{31 * LAYERS} on kernels, 0 on XLA; modelled" in text
    first = report.matmuls[0]
    assert f"{first.problem}  " in text
    assert str(first.choice.kernel) in text


def test_tuning_finds_what_is_accelerated() -> None:
    assert not matmuls(loss, *parameters())
    found = matmuls(jaxbw.accelerate(loss), *parameters())
    assert sum(each.count for each in found) == 8 * LAYERS


def test_explain_function_outside_says_so() -> None:
    report = jaxbw.explain_function(loss, *parameters(), device="B200")
    assert report.on_kernels == 0
    assert report.on_xla == 8 * LAYERS
    assert all("jaxbw.accelerate" in each.choice.reason for each in report.matmuls)
    assert "XLA: it is jax.lax.dot_general's; jaxbw.accelerate" in str(report)
    with pytest.raises(ValueError, match=r"jaxbw.explain_function\(device='A100'"):
        jaxbw.explain_function(loss, *parameters(), device="A100")


def test_explain_function_shows_what_is_fused_and_no_dead_matmul() -> None:
    def function(x: jax.Array, w: jax.Array) -> Any:
        _ = x @ w  # nobody's
        hidden = jaxbw.matmul(x, w, bias=w[0], activation="gelu", residual=x)
        return jaxbw.gated_matmul(hidden, w, w) + jaxbw.matmul(x, w, implementation="xla")

    with jaxbw.target("H200"):
        found = {each.fused: each for each in jaxbw.explain_function(function, X, W).matmuls}
    assert found.keys() == {("bias", "gelu", "residual"), ("silu", "gate"), ()}
    assert found[()].choice.reason == "asked for"
