"""Forward mode of matmuls with an epilogue, and all that mixes it with reverse mode.

References are the formula in float64, transformed the same way.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw

from .epilogues import (
    CASES,
    UNIT_ROUNDOFF,
    K,
    M,
    N,
    Operand,
    activate,
    arrays,
    assert_same,
    formula,
    in_float64,
    numbers,
)

GATED = ["relu", "silu", "gelu", "gelu_exact", None]
Lower = Callable[..., str]
Calls = Callable[[str], list[str]]


def gated_formula(activation: str | None, lhs: Any, gate: Any, up: Any) -> Any:
    return activate(activation, lhs @ gate) * (lhs @ up)


def form(name: str, operand: Operand) -> tuple[Any, Any, Any]:
    """A matmul of a tree of arrays, its formula, and the arrays."""
    if name in CASES:
        words = numbers(CASES[name])
        return (
            lambda given: jaxbw.matmul(**given, **words),
            lambda given: formula(**given, **words),
            arrays(CASES[name], operand),
        )
    activation = None if name == "gated None" else name.removeprefix("gated ")
    if activation == "scales":
        operands = form("gated silu", operand)[-1]
        scales = {
            "lhs_scale": operand((M,), "float32", 3),
            "rhs_gate_scale": operand((N,), "float32", 4),
            "rhs_up_scale": operand((N,), "float32", 5),
        }

        def scaled(given: Any) -> Any:
            gate, up = (given[f"rhs_{x}"] * given[f"rhs_{x}_scale"] for x in ("gate", "up"))
            return gated_formula("silu", given["lhs"] * given["lhs_scale"][:, None], gate, up)

        return lambda given: jaxbw.gated_matmul(**given), scaled, operands | scales
    return (
        lambda given: jaxbw.gated_matmul(**given, activation=activation),
        lambda given: gated_formula(activation, *given.values()),
        {
            "lhs": operand((M, K), "float32"),
            "rhs_gate": operand((K, N), "float32", 1),
            "rhs_up": operand((K, N), "float32", 2),
        },
    )


FORMS = [*CASES, *(f"gated {name}" for name in GATED), "gated scales"]


def derivatives(matmul: Any, given: Any, v: Any, w: Any) -> dict[str, Any]:
    """What there is to know of a matmul in the directions v and w, to third order."""

    def loss(given: Any) -> Any:
        return jnp.sin(matmul(given)).sum()

    def along(function: Any, v: Any) -> Any:
        return lambda given: jax.jvp(function, (given,), (v,))[1]

    def squares(tree: Any) -> Any:
        return sum((x**2).sum() for x in jax.tree.leaves(tree))

    both = jax.tree.map(lambda *x: jnp.stack(x), v, w)
    out, push = jax.linearize(matmul, given)
    _, pull = jax.vjp(matmul, given)
    hessian_v = along(jax.grad(loss), v)
    return {
        "jvp": jax.jvp(matmul, (given,), (v,)),
        "linearized": push(v),
        "second, forward": along(along(matmul, v), w)(given),
        "forward over reverse": hessian_v(given),
        "reverse over forward": jax.grad(along(loss, v))(given),
        "of the direction, too": jax.grad(lambda x, v: squares(along(matmul, v)(x)), (0, 1))(
            given, v
        ),
        "third": jax.grad(lambda given: squares(hessian_v(given)))(given),
        "Gauss-Newton": pull(jnp.cos(out) * push(v)),
        "vmap": jax.vmap(push)(both),
        "grad of vmap": jax.grad(
            lambda given: squares(jax.vmap(lambda v: along(matmul, v)(given))(both))
        )(given),
        "transposed": jax.linear_transpose(jax.vmap(push), both)(jnp.stack([out, 2 * out])),
        "pull, transposed": jax.linear_transpose(pull, out)((v,)),
        "checkpoint": jax.jvp(jax.grad(jax.checkpoint(loss)), (given,), (v,))[1],
    }


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FORMS)
def test_derivatives_are_exact(name: str, operand: Operand) -> None:
    ours, reference, given = form(name, operand)
    v, w = (
        {key: operand(x.shape, "float32", i + j) for j, (key, x) in enumerate(given.items())}
        for i in (10, 20)
    )

    assert_same(derivatives, (ours, reference), given, v, w)


@pytest.mark.parametrize("name", ["silu, bias", "alpha and beta", "gated silu", "gated scales"])
@pytest.mark.parametrize("moving", range(3))
def test_operands_that_do_not_move(name: str, moving: int, operand: Operand) -> None:
    """One operand's tangent alone: forward, and of its gradient."""
    ours, reference, given = form(name, operand)
    key = list(given)[-1 - moving]
    v = operand(given[key].shape, "float32", 10)

    def one(matmul: Any, given: Any, v: Any) -> Any:
        def of_one(x: Any) -> Any:
            return jnp.sin(matmul({**given, key: x}))

        tangent = jax.jvp(of_one, (given[key],), (v,))
        return tangent, jax.jvp(jax.grad(lambda x: of_one(x).sum()), (given[key],), (v,))

    assert_same(one, (ours, reference), given, v)


@pytest.mark.parametrize("name", ["all, relu", "gated silu"])
def test_through_loops(name: str, operand: Operand) -> None:
    """Forward through a loop of unknown length; Hessian-vector products of a scan over layers."""
    ours, reference, given = form(name, operand)
    back = operand((N, K), "float32", 9) / 8  # from a result to the next lhs

    def loops(matmul: Any, given: Any, back: Any) -> Any:
        def layer(x: Any, scale: Any) -> Any:
            return jnp.sin(matmul({**given, "lhs": x}) @ back * scale), None

        def counted(x: Any) -> Any:
            def body(state: Any) -> Any:
                return state[0] + 1, layer(state[1], 1)[0]

            return jax.lax.while_loop(lambda state: state[0] < 3, body, (0, x))[1]

        def scanned(layer: Any) -> Any:
            scales = jnp.arange(1.0, 4.0, dtype=back.dtype)
            return lambda x: (jax.lax.scan(layer, x, scales)[0] ** 2).sum()

        x, v = given["lhs"], jnp.cos(given["lhs"])
        return (
            jax.jvp(counted, (x,), (v,)),
            jax.jvp(jax.grad(scanned(layer)), (x,), (v,)),
            jax.jvp(jax.grad(scanned(jax.checkpoint(layer))), (x,), (v,)),
            jax.grad(lambda x: jax.jvp(scanned(layer), (x,), (v,))[1])(x),
        )

    assert_same(loops, (ours, reference), given, back, tolerance=1e-8)


@pytest.mark.parametrize("name", ["all, relu", "gelu, bias", "gated silu"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_tangents_of_16_bits(name: str, dtype: str, operand: Operand) -> None:
    """float32 up to the cast, but for z and u, which are rounded where they are saved."""
    ours, reference, given = form(name, operand)
    given = {key: x if key == "bias" else x.astype(dtype) for key, x in given.items()}
    v = {key: operand(x.shape, x.dtype, 10 + i) for i, (key, x) in enumerate(given.items())}
    out, tangent = jax.jvp(ours, (given,), (v,))
    _, wanted = in_float64(lambda given, v: jax.jvp(reference, (given,), (v,)), given, v)
    assert tangent.dtype == out.dtype == dtype
    np.testing.assert_array_equal(out, ours(given))
    error = np.abs(np.asarray(tangent).astype(np.float64) - wanted).max()
    assert error <= 4 * UNIT_ROUNDOFF[dtype] * np.abs(wanted).max()


def test_launches(family: str, operand: Operand, cuda_hlo: Lower, custom_calls: Calls) -> None:
    """Of a tangent one for each operand that moves; forward over reverse, twice the gradient's."""
    x, w = operand((64, 128)), operand((128, 64), number=1)
    bias = operand((64,), number=2)

    def matmul(x: Any, w: Any) -> Any:
        return jaxbw.matmul(x, w, bias=bias, activation="gelu")

    def gated(x: Any, w: Any) -> Any:
        return jaxbw.gated_matmul(x, w, 2 * w)

    def tangent(f: Any) -> Any:
        return lambda x, w: jax.jvp(f, (x, w), (2 * x, 3 * w))

    def hessian(f: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            return jnp.sin(f(x, w).astype(jnp.float32)).sum()

        return tangent(jax.grad(loss, (0, 1)))

    def launches(function: Any) -> int:
        text = cuda_hlo(function, x, w)
        assert "stablehlo.dot_general" not in text
        return len(custom_calls(text))

    assert launches(tangent(matmul)) == 3
    assert launches(lambda x, w: jax.jvp(lambda x: matmul(x, w), (x,), (x,))) == 2
    assert launches(tangent(gated)) == 5
    assert launches(hessian(matmul)) == 9
    assert launches(hessian(gated)) == 17
    # Reverse over forward: the tangent's three; for each operand one by way of z, one by way of the
    # tangent, and one of its direction.
    assert launches(jax.grad(lambda x, w: tangent(matmul)(x, w)[1].sum(), (0, 1))) == 9
