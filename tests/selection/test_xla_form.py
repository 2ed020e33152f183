"""XLA's form of a problem, which tuning measures: what it computes, and how its times are taken."""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw
from jaxbw._src.lab import cupti
from jaxbw._src.lab.tuning import find, xla_form
from jaxbw._src.lab.tuning.arrays import operands
from jaxbw._src.lab.tuning.xla_form import cut_out, function, microseconds
from jaxbw._src.problem import GemmProblem

X, W = jnp.ones((40, 72), jnp.bfloat16), jnp.ones((72, 56), jnp.bfloat16)
R = jnp.ones((40, 56), jnp.float32)
MATMULS: dict[str, Any] = {
    "plain": lambda: jaxbw.matmul(X, W),
    "transposed": lambda: jaxbw.dot_general(X.T, W.T, (((0,), (1,)), ((), ()))),
    "f16 to f32": lambda: jaxbw.matmul(
        X.astype("float16"), W.astype("float16"), preferred_element_type=jnp.float32
    ),
    "bias along m": lambda: jaxbw.matmul(X, W, bias=R[:, 0], bias_axis=-2, activation="relu"),
    "everything": lambda: jaxbw.matmul(
        X, W, bias=R[0], c=R, alpha=0.5, beta=2, activation="gelu", residual=R
    ),
    "factors": lambda: jaxbw.matmul(X, W, c=R, beta=R[0, 0], activation="gelu"),
    "gated": lambda: jaxbw.gated_matmul(X, W, W),
    "scales": lambda: jaxbw.matmul(X, W, c=R, beta=R[0, 0], lhs_scale=R[:, 0], rhs_scale=R[0]),
    "scales, gated": lambda: jaxbw.gated_matmul(X, W, W, lhs_scale=R[:, 0], rhs_up_scale=R[0]),
    "scales, batched": lambda: jaxbw.matmul(
        jnp.stack([X, X]), jnp.stack([W, W]), lhs_scale=R[:2, :40], rhs_scale=R[:2]
    ),
    "saving z": lambda: jax.grad(
        lambda x: jaxbw.matmul(x, W, activation="silu").astype(jnp.float32).sum()
    )(X),
    "batched": lambda: jaxbw.dot_general(
        jnp.stack([X, X]), jnp.stack([W, W]), (((2,), (1,)), ((0,), (0,)))
    ),
    "batched with a bias": lambda: jax.vmap(lambda x, w, c: jaxbw.matmul(x, w, bias=R[0], c=c))(
        jnp.stack([X, X]), jnp.stack([W, W]), jnp.stack([R, R])
    ),
    "stacked weights": lambda: jax.vmap(lambda w: jaxbw.matmul(X, w))(
        jnp.ones((3, 72, 64), jnp.bfloat16)
    ),
    "heads' bias": lambda: jaxbw.dot_general(
        X, W.reshape(72, 7, 8), (((1,), (0,)), ((), ())), bias=R[0].reshape(7, 8)
    ),
}


def in_float64(problem: GemmProblem, arrays: list[Any]) -> list[Any]:
    """The formula of Epilogue, of a problem's arrays."""
    p, e = problem, problem.epilogue
    rest = [np.asarray(x, np.float64) for x in arrays]
    columns = [rest.pop() for _ in range(e.rhs_scale * (1 + e.gated))]
    rows = rest.pop() if e.lhs_scale else np.ones((1, p.m))
    numbers: tuple[Any, Any] = e.alpha, e.beta
    alpha, beta = (rest.pop(-2), rest.pop()) if e.factors_in_memory else numbers
    lhs = rest.pop(0)
    lhs = lhs if p.lhs_shape[2] == p.k and p.lhs_shape[1] == p.m else lhs.swapaxes(1, 2)

    def matmul() -> Any:
        rhs = rest.pop(0)
        scales = rows[:, :, None] * (columns.pop()[:, None, :] if columns else 1.0)
        return scales * (lhs @ (rhs if p.rhs_shape[1:] == (p.k, p.n) else rhs.swapaxes(1, 2)))

    z = alpha * matmul()
    up = alpha * matmul() if e.gated else 1.0
    if e.c is not None:
        z = z + beta * rest.pop(0)
    if e.bias is not None:
        bias = rest.pop(0)
        z = z + (bias[:, None] if e.bias_axis == "m" else bias)
    activated = {None: lambda z: z, "relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu}
    d = activated[e.activation](z) * up
    if e.residual is not None:
        d = d + rest.pop(0)
    return [d, z] if e.save else [d]


@pytest.mark.parametrize("name", MATMULS)
def test_it_computes_the_problem(name: str) -> None:
    for found in find.dense_matmuls(MATMULS[name]):
        source = np.random.default_rng(0)
        arrays = [
            jax.device_put(source.normal(size=shape).astype(dtype))
            for shape, dtype in operands(found.problem)
        ]
        run = jax.jit(function(found.problem))
        for result, expected in zip(
            jax.tree.leaves(run(*arrays)), in_float64(found.problem, arrays), strict=True
        ):
            assert result.dtype == found.problem.output
            difference = np.asarray(result, np.float64).reshape(expected.shape) - expected
            assert np.linalg.norm(difference) < 4e-3 * np.linalg.norm(expected)


def test_operands_are_cut_out_of_what_was_drawn() -> None:
    specs = [jax.ShapeDtypeStruct((3, 4), jnp.bfloat16), jax.ShapeDtypeStruct((5,), jnp.float32)]
    found = cut_out(jnp.arange(100, dtype=jnp.bfloat16), np.array([20, 99]), specs)
    assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in specs]
    assert found[0][0].tolist() == [20, 21, 22, 23]
    assert found[1].tolist() == [95, 96, 97, 98, 99]


def test_kernels_of_a_call_are_added_up() -> None:
    kernels = [("gemm", 1.0), ("reduce", 0.5), ("gemm", 2.0), ("reduce", 0.25)]
    assert [*map(cupti.microseconds, cupti.by_call(kernels, 2))] == [1500.0, 2250.0]
    for wrong in ([], kernels[:3]):
        with pytest.raises(RuntimeError, match=f"CUPTI saw {len(wrong)} kernels in 2 calls"):
            cupti.by_call(wrong, 2)


def test_the_median_call_counts_and_not_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    bursts = [
        [("gemm", 99.0), *[("gemm", 0.002 + 0.001 * (i == 2))] * xla_form.REPEATS]
        for i in range(xla_form.ROUNDS)
    ]
    monkeypatch.setattr(cupti, "recorded", lambda: contextlib.nullcontext(bursts.pop()))
    (found,) = find.dense_matmuls(MATMULS["plain"])
    drawn = jnp.ones(2**14, jnp.bfloat16)
    us = microseconds(found.problem, operands(found.problem), drawn, rotated=1e5, pause_s=0)
    assert us == pytest.approx(2.0)
    assert bursts == []
