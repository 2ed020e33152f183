"""Every transformation of JAX over every form of a matmul: values, and how many kernels run.

References are the formula in float64, transformed the same way, so that nothing but the formula can
differ. test_matmul.py has derivatives and vmap of the plain matmul beside jnp's, test_fused.py and
test_gated.py second derivatives of each epilogue, test_forward_mode.py those that mix the modes,
test_checkpoint.py what jax.checkpoint keeps.
"""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

import jaxbw
from jaxbw._src.primitives.gemm import TARGET

from .epilogues import assert_same, formula

Operand = Callable[..., Any]
Lower = Callable[..., str]
Calls = Callable[[str], list[str]]

M, K = 6, 8  # every weight is [K, K], so that matmuls can follow each other


def gated_formula(x: Any, w: Any) -> Any:
    return jax.nn.silu(x @ w) * (x @ jnp.cos(w))


# A matmul of x [M, K] and w [K, K], and its formula.
FORMS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "plain": (jaxbw.matmul, jnp.matmul),
    "dot_general": (
        lambda x, w: jaxbw.dot_general(x, w, (((1,), (1,)), ((), ()))),
        lambda x, w: x @ w.T,
    ),
    "fused": (
        lambda x, w: jaxbw.matmul(x, w, bias=w[0], activation="gelu", residual=x),
        lambda x, w: formula(x, w, bias=w[0], activation="gelu", residual=x),
    ),
    "linear": (
        lambda x, w: jaxbw.matmul(x, w, c=x, alpha=0.5, beta=-2),
        lambda x, w: x @ w / 2 - 2 * x,
    ),
    "scaled": (
        lambda x, w: jaxbw.matmul(x, w, c=x, alpha=w[0, 0], beta=x[0].sum(), activation="silu"),
        lambda x, w: formula(x, w, c=x, alpha=w[0, 0], beta=x[0].sum(), activation="silu"),
    ),
    "gated": (lambda x, w: jaxbw.gated_matmul(x, w, jnp.cos(w)), gated_formula),
}
BILINEAR = ["plain", "dot_general"]


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Any:
    return FORMS[request.param]


def operands(operand: Operand, layers: tuple[int, ...] = ()) -> tuple[Any, Any]:
    return operand((M, K), "float32"), operand((*layers, K, K), "float32", 1) / 4


# Derivatives


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x, w: jax.jvp(f, (x, w), (w[:M], x[0] * w)),
        lambda f, x, w: jax.linearize(f, x, w)[1](w[:M], x[0] * w),
        lambda f, x, w: jax.jacfwd(f, (0, 1))(x, w),
        lambda f, x, w: jax.hessian(lambda x, w: jnp.sin(f(x, w)).sum(), (0, 1))(x, w),
        lambda f, x, w: jax.jvp(jax.vmap(f, (None, 0)), (x, w[None]), (2 * x, w[None])),
    ],
    ids=["jvp", "linearize", "jacfwd", "hessian", "jvp of vmap"],
)
def test_forward_mode(transform: Any, form: Any, operand: Operand) -> None:
    assert_same(transform, form, *operands(operand))


@pytest.mark.parametrize("name", [*BILINEAR, "linear"])
@pytest.mark.parametrize("of", [0, 1])
def test_transposition(name: str, of: int, operand: Operand) -> None:
    def transposed(f: Any, *given: Any) -> Any:
        def of_one(x: Any) -> Any:
            return f(*(x if i == of else each for i, each in enumerate(given)))

        return jax.linear_transpose(of_one, given[of])(given[0])

    assert_same(transposed, FORMS[name], *operands(operand))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x, w: jax.jacrev(f, (0, 1))(x, w),
        lambda f, x, w: jax.jacrev(jax.jacrev(lambda x: f(x, w).sum()))(x),
        lambda f, x, w: jax.vmap(jax.grad(lambda x, w: f(x[None], w).sum(), (0, 1)), (0, None))(
            x, w
        ),
        lambda f, x, w: jax.grad(lambda x, w: jax.vmap(f, (None, 0))(x, w).sum(), (0, 1))(
            x, jnp.stack([w, 2 * w])
        ),
        lambda f, x, w: jax.vjp(jax.jit(f), x, w)[1](x),
    ],
    ids=["jacrev", "jacrev of jacrev", "vmap of grad", "grad of vmap", "vjp of jit"],
)
def test_reverse_mode(transform: Any, form: Any, operand: Operand) -> None:
    assert_same(transform, form, *operands(operand))


def test_what_is_not_linear_has_no_transposition(operand: Operand) -> None:
    x, w = operands(operand)
    for name in ("fused", "gated"):
        with pytest.raises(NotImplementedError, match=r"not linear in .*; use jax\.vjp"):
            jax.linear_transpose(lambda x, f=FORMS[name][0]: f(x, w), x)(x)
    with pytest.raises(NotImplementedError, match="not linear"):
        jax.linear_transpose(FORMS["linear"][0], x, w)(x)


@pytest.mark.parametrize(
    ("name", "arguments", "matmuls"),
    [
        ("plain", (0, 1), 3),
        ("plain", (1,), 2),
        ("fused", (0, 1), 3),
        ("fused", (0,), 2),
        ("gated", (0, 1), 5),
        ("gated", (0,), 3),
        ("scaled", (0, 1), 3),  # also of its factors, one of each operand
        ("scaled", (1,), 3),  # alpha's
        ("scaled", (0,), 2),
    ],
)
def test_a_gradient_that_nothing_asks_for_is_no_matmul(
    name: str,
    arguments: Any,
    matmuls: int,
    family: str,
    operand: Operand,
    cuda_hlo: Lower,
    custom_calls: Calls,
) -> None:
    x, w = operand((64, 128)), operand((128, 128), number=1)
    matmul, _ = FORMS[name]

    def loss(x: Any, w: Any) -> Any:
        return jnp.sin(matmul(x, w).astype(jnp.float32)).sum()

    step = jax.value_and_grad(loss, arguments)
    assert len(custom_calls(cuda_hlo(step, x, w))) == matmuls


def test_the_gradient_of_a_bias_alone_is_a_sum(
    family: str, operand: Operand, cuda_hlo: Lower, custom_calls: Calls
) -> None:
    x, w, bias = operand((64, 128)), operand((128, 64), number=1), operand((64,), number=2)

    def loss(bias: Any) -> Any:
        return jaxbw.matmul(x, w, bias=bias, activation="silu").astype(jnp.float32).sum()

    assert len(custom_calls(cuda_hlo(jax.value_and_grad(loss), bias))) == 1


# Control flow


def scanned(matmul: Any) -> Any:
    def network(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda x, w: (jnp.tanh(matmul(x, w)), x.sum()), x, w)

    return network


def mapped(matmul: Any) -> Any:
    return lambda x, w: jax.lax.map(lambda w: matmul(x, w), w)


def conditional(matmul: Any) -> Any:
    def choose(x: Any, w: Any) -> Any:
        return jax.lax.cond(w[0, 0, 0] > 0, matmul, lambda x, w: 2 * matmul(x, w.T), x, w[1])

    return lambda x, w: (choose(x, w), choose(x, -w))


def switched(matmul: Any) -> Any:
    branches = [matmul, lambda x, w: x, lambda x, w: jnp.sin(matmul(x, w))]
    return lambda x, w: [jax.lax.switch(i, branches, x, w[0]) for i in jnp.arange(3)]


def counted(matmul: Any) -> Any:
    """A loop whose length is known, which has a gradient; it is a scan."""
    return lambda x, w: jax.lax.fori_loop(0, 3, lambda i, x: jnp.tanh(matmul(x, w[i])), x)


def checkpointed_scan(matmul: Any) -> Any:
    layer = jax.checkpoint(lambda x, w: (jnp.tanh(matmul(x, w)), None))
    return lambda x, w: jax.lax.scan(layer, x, w)[0]


def with_a_rule_of_its_own(matmul: Any) -> Any:
    """A function with a custom derivative, around a matmul, in which matmuls are."""

    @jax.custom_vjp
    def function(x: Any, w: Any) -> Any:
        return matmul(x, w)

    def backward(kept: Any, bar: Any) -> Any:
        _, pull_back = jax.vjp(matmul, *kept)
        return tuple(3 * each for each in pull_back(bar))

    function.defvjp(lambda x, w: (matmul(x, w), (x, w)), backward)
    return lambda x, w: jnp.sin(function(x, w[0]))


FLOWS = [scanned, mapped, conditional, switched, counted, checkpointed_scan, with_a_rule_of_its_own]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("flow", FLOWS, ids=lambda x: x.__name__)
def test_control_flow(flow: Any, form: Any, operand: Operand) -> None:
    """Value and gradient, for each of several x."""

    def gradient(matmul: Any, x: Any, w: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            out = flow(matmul)(x, w)
            return sum((leaf**2).sum() for leaf in jax.tree.leaves(out)), out

        step = jax.value_and_grad(loss, (0, 1), has_aux=True)
        return jax.vmap(step, (0, None))(jnp.stack([x, -x]), w)

    assert_same(gradient, form, *operands(operand, (3,)))


def test_a_loop_of_unknown_length(form: Any, operand: Operand) -> None:
    """JAX has no gradient of it; under vmap it runs until the last is done."""

    def looped(matmul: Any, x: Any, w: Any) -> Any:
        def function(x: Any, w: Any) -> Any:
            def body(state: Any) -> Any:
                count, x = state
                return count + 1, jnp.tanh(matmul(x, w))

            return jax.lax.while_loop(
                lambda state: (state[0] < 5) & (jnp.abs(state[1]).max() > 0.5), body, (0, x)
            )

        return function(x, w), jax.vmap(function, (0, None))(jnp.stack([x, x / 9]), w)

    assert_same(looped, form, *operands(operand))


@pytest.mark.parametrize("name", BILINEAR)
def test_forward_mode_through_control_flow(name: str, operand: Operand) -> None:
    """A custom_jvp around a matmul, and the loops, whose tangents JAX takes forward."""

    def tangents(matmul: Any, x: Any, w: Any) -> Any:
        @jax.custom_jvp
        def function(x: Any, w: Any) -> Any:
            return matmul(x, w)

        @function.defjvp
        def rule(primals: Any, tangents: Any) -> Any:
            (x, w), (dx, dw) = primals, tangents
            return matmul(x, w), matmul(dx, w) + 5 * matmul(x, dw)

        def loop(x: Any, w: Any) -> Any:
            def body(state: Any) -> Any:
                return state[0] + 1, jnp.sin(function(state[1], w))

            return jax.lax.while_loop(lambda state: state[0] < 3, body, (0, x))[1]

        gradient = jax.grad(lambda x, w: function(x, w).sum(), (0, 1))(x, w)
        return jax.jvp(loop, (x, w), (w[:M], w)), gradient

    assert_same(tangents, FORMS[name], *operands(operand))


@pytest.mark.parametrize(
    ("flow", "calls"),
    # The kernels of a loop's body are there once, however often it runs; backward is another loop.
    [(scanned, 3), (checkpointed_scan, 4), (mapped, 3), (conditional, 12)],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_kernels_serve_in_control_flow(
    flow: Any, calls: int, family: str, operand: Operand, cuda_hlo: Lower, custom_calls: Calls
) -> None:
    x, w = operand((64, 64)), operand((3, 64, 64), number=1)

    def loss(x: Any, w: Any) -> Any:
        out = jax.tree.leaves(flow(FORMS["fused"][0])(x, w))
        return sum(jnp.sin(leaf.astype(jnp.float32)).sum() for leaf in out)

    text = cuda_hlo(jax.value_and_grad(loss, (0, 1)), x, w)
    assert len(custom_calls(text)) == calls
    assert "stablehlo.dot_general" not in text


def test_checks_of_values(form: Any, operand: Operand) -> None:
    """checkify passes these matmuls by, its float checks know JAX's own; debug_nans sees them."""
    matmul, _ = form
    x, w = operands(operand)

    def checked(x: Any, w: Any) -> Any:
        checkify.check(x[0, 0] != 0, "zero")
        return matmul(x, w)

    error, out = checkify.checkify(jax.jit(checked), errors=checkify.all_checks)(x, w)
    error.throw()
    np.testing.assert_allclose(out, matmul(x, w), rtol=1e-6, atol=1e-6)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jax.block_until_ready(matmul(x.at[0, 0].set(jnp.nan), w))


# vmap: never a loop. Where one operand alone is batched it has more rows or columns; two batched
# ones are one launch over batches.

X, W = (64, 128), (128, 32)
SHAPES = re.compile(r"tensor<([\dx]+)x(?:bf16|f32)>")


@pytest.mark.parametrize("kind", ["plain", "fused", "gated"])
@pytest.mark.parametrize(
    ("axes", "problem"),
    [
        ([(0, None)], "1x256x128 1x128x32"),
        ([(1, None)], "1x256x128 1x128x32"),
        ([(2, None)], "1x256x128 1x128x32"),
        ([(None, 0)], "1x64x128 1x128x128"),
        ([(None, 1)], "1x64x128 1x128x128"),
        ([(None, 2)], "1x64x128 1x128x128"),
        ([(0, 0)], "4x64x128 4x128x32"),
        ([(0, None), (0, None)], "1x1024x128 1x128x32"),
        ([(0, 0), (0, 0)], "16x64x128 16x128x32"),
        ([(0, None), (0, 0)], "4x256x128 4x128x32"),
        ([(0, 0), (0, None)], "4x256x128 4x128x32"),
        ([(0, None), (None, 0)], "1x256x128 1x128x128"),
        ([(0, None), (0, None), (0, 0)], "4x1024x128 4x128x32"),
    ],
    ids=str,
)
def test_vmap_is_one_launch(
    kind: str,
    axes: list[Any],
    problem: str,
    family: str,
    cuda_hlo: Lower,
    custom_calls: Calls,
) -> None:
    def matmul(x: Any, w: Any) -> Any:
        if kind == "plain":
            return jaxbw.matmul(x, w, implementation=family)
        if kind == "gated":
            return jaxbw.gated_matmul(x, w, w, implementation=family)
        return jaxbw.matmul(x, w, activation="silu", implementation=family)

    shapes: list[tuple[int, ...]] = [X, W]
    function: Callable[..., Any] = matmul
    for pair in axes:
        function = jax.vmap(function, pair)
        shapes = [stacked(shape, axis) for shape, axis in zip(shapes, pair, strict=True)]
    text = cuda_hlo(function, *(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes))
    (call,) = custom_calls(text)
    lhs, rhs = problem.split()
    found = SHAPES.findall(call.rsplit(" : ", 1)[1])[:2]
    for shape, wanted in zip(found, (lhs, rhs), strict=True):
        assert shape in (wanted, transposed(wanted))  # either major, as it lies or is copied
    assert "stablehlo.while" not in text


@pytest.mark.parametrize("kind", ["plain", "bias", "bias along m", "gated", "gradient"])
def test_a_stack_of_weights_is_read_in_place(kind: str, operand: Operand) -> None:
    """The kernel's batch has the weights, each of which reads the one input: XLA moves nothing."""
    x, w = (jnp.round(operand(shape)) for shape in ((16, 128), (3, 128, 64)))
    columns, rows = (jnp.round(operand((size,), number=1)) for size in (64, 16))

    def matmul(x: Any, w: Any) -> Any:
        if kind == "gated":
            return jaxbw.gated_matmul(x, w, 2 * w, activation=None)
        if kind == "bias":
            return jaxbw.matmul(x, w, bias=columns, activation="relu")
        if kind == "bias along m":
            return jaxbw.matmul(x, w, bias=rows, bias_axis=-2, activation="relu")
        return jaxbw.matmul(x, w)

    def function(x: Any, w: Any) -> Any:
        stacked = jax.vmap(matmul, (None, 0))
        if kind != "gradient":
            return stacked(x, w)
        return jax.grad(lambda w: (stacked(x, w).astype(jnp.float32) * columns).sum())(w)

    with jaxbw.implementation(("emulator", "xla")):
        compiled = jax.jit(function).lower(x, w).compile()
    text = compiled.as_text() or ""
    assert text.count(f'custom_call_target="{TARGET}"') == 1
    if kind != "gradient":
        assert "bf16[3,128,64]" in text
        assert not re.search(r" (transpose|copy)\(", text)
    with jaxbw.implementation("xla"):  # the sums are of integers, hence the same
        np.testing.assert_array_equal(compiled(x, w), jax.jit(function)(x, w))


@pytest.mark.parametrize("batched", ["bias", "bias and x", "alpha", "alpha and x"])
def test_a_batched_bias_or_factor_is_xlas_and_the_matmul_one_launch(
    batched: str, family: str, cuda_hlo: Lower, custom_calls: Calls
) -> None:
    name = batched.split(" ")[0]

    def fused(x: Any, w: Any, term: Any) -> Any:
        return jaxbw.matmul(x, w, **{name: term}, activation="gelu")

    x_axis = 0 if "x" in batched else None
    shapes = stacked(X, x_axis), W, (4, *W[1:]) if name == "bias" else (4,)
    text = cuda_hlo(
        jax.vmap(fused, (x_axis, None, 0)),
        *(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes),
    )
    (call,) = custom_calls(text)
    assert "has_bias = 0" in call
    assert "tensor<f32>" not in call
    assert "stablehlo.while" not in text


def stacked(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    """The shape of four arrays of a shape along a new dimension."""
    return shape if axis is None else (*shape[:axis], 4, *shape[axis:])


def transposed(shape: str) -> str:
    batch, rows, columns = shape.split("x")
    return f"{batch}x{columns}x{rows}"


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("kind", ["plain", "fused"])
def test_vmap_of_a_gradient_is_three_launches(
    kind: str,
    axes: Any,
    family: str,
    cuda_hlo: Lower,
    custom_calls: Calls,
) -> None:
    activation = "silu" if kind == "fused" else None

    def loss(x: Any, w: Any) -> Any:
        return jnp.sin(jaxbw.matmul(x, w, activation=activation).astype(jnp.float32)).sum()

    given = [
        jax.ShapeDtypeStruct(stacked(shape, axis), jnp.bfloat16)
        for shape, axis in zip((X, W), axes, strict=True)
    ]
    for step in (
        jax.vmap(jax.value_and_grad(loss, (0, 1)), axes),
        jax.value_and_grad(lambda *given: jax.vmap(loss, axes)(*given).sum(), (0, 1)),
    ):
        text = cuda_hlo(step, *given)
        assert len(custom_calls(text)) == 3
        assert "stablehlo.while" not in text


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "axes", [[(0, None), (0, 0)], [(1, 0), (0, None)], [(0, None), (None, 1)], [(2, 2), (0, 0)]]
)
def test_nested_vmap(axes: Any, form: Any, operand: Operand) -> None:
    x, w = map(np.asarray, operands(operand))
    for i, (lhs_axis, rhs_axis) in enumerate(axes):
        factors = [1.0, -0.5, 2.0][: i + 2]
        x = x if lhs_axis is None else np.stack([x * f for f in factors], lhs_axis)
        w = w if rhs_axis is None else np.stack([w + f for f in factors], rhs_axis)

    def nested(function: Any, x: Any, w: Any) -> Any:
        for lhs_axis, rhs_axis in axes:
            function = jax.vmap(function, (lhs_axis, rhs_axis))
        return function(x, w)

    assert_same(nested, form, x, w)
