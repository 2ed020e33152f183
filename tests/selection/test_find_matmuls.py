"""The matmuls of a function, found in its jaxpr: within whatever JAX nests."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import jaxbw
from jaxbw._src.lab.tuning.find import matmuls

X, W = jnp.ones((16, 64), jnp.bfloat16), jnp.ones((64, 64), jnp.bfloat16)
PLAIN = "bf16[1,16,64] @ bf16[1,64,64] -> bf16[1,16,64]"


def found(function: Any, *args: Any, lax: bool = False) -> dict[str, int]:
    return {str(each.problem): each.count for each in matmuls(function, *args, lax=lax)}


def scanned(x: Any, w: Any) -> Any:
    def body(x: Any, _: Any) -> tuple[Any, None]:
        return jaxbw.matmul(x, w), None

    return jax.lax.scan(body, x, None, length=7)[0]


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (jaxbw.matmul, 1),
        (jax.jit(jax.jit(jaxbw.matmul)), 1),
        (jax.checkpoint(jaxbw.matmul), 1),
        (scanned, 7),
        (lambda x, w: scanned(scanned(x, w), w) + jaxbw.matmul(x, w), 15),
        (lambda x, w: jax.lax.fori_loop(0, 3, lambda _, x: jaxbw.matmul(x, w), x), 3),
        (lambda x, w: jax.lax.while_loop(jnp.any, lambda x: jaxbw.matmul(x, w), x), 1),
        (lambda x, w: jax.lax.cond(x.any(), jaxbw.matmul, jaxbw.matmul, x, w), 2),
        (lambda x, w: jax.lax.map(lambda x: jaxbw.matmul(x, w), x[None]), 1),
    ],
)
def test_nested_ones_are_found_and_counted(function: Any, count: int) -> None:
    assert found(function, X, W) == {PLAIN: count}


def test_a_training_step_has_the_matmuls_of_its_gradient() -> None:
    def loss(w: Any, x: Any) -> Any:
        y = jaxbw.matmul(x, w, bias=jnp.ones(64), activation="gelu")
        return jaxbw.matmul(y, w).astype(jnp.float32).sum()

    fused = "gelu(bf16[1,16,64] @ bf16[1,64,64] + bias float32) -> bf16[1,16,64]"
    assert found(loss, W, X) == {fused: 1, PLAIN: 1}
    assert found(jax.value_and_grad(loss), W, X) == {
        fused: 1,
        PLAIN: 1,
        "bf16[1,16,64] @ bf16[1,64,64]^T -> bf16[1,16,64]": 1,  # of x nothing is asked
        "bf16[1,16,64]^T @ bf16[1,16,64] -> bf16[1,64,64]": 2,
    }
    saving = [each.problem.epilogue.save for each in matmuls(jax.value_and_grad(loss), W, X)]
    assert sorted(saving) == [False, False, False, True]


def test_a_tangent_is_looked_into() -> None:
    def tangent(x: Any, w: Any) -> Any:
        return jax.jvp(lambda x, w: jaxbw.matmul(x, w, activation="gelu"), (x, w), (x, w))

    assert found(tangent, X, W) == {
        "gelu(bf16[1,16,64] @ bf16[1,64,64]) -> bf16[1,16,64]": 1,
        "bf16[1,16,64] @ bf16[1,64,64] -> f32[1,16,64]": 2,
    }


def test_custom_derivatives_are_looked_into() -> None:
    @jax.custom_vjp
    def twice(x: Any, w: Any) -> Any:
        return jaxbw.matmul(x, w)

    def forward(x: Any, w: Any) -> Any:
        return twice(x, w), (x, w)

    def backward(kept: Any, bar: Any) -> Any:
        x, w = kept
        return jaxbw.matmul(bar, w.T), jaxbw.matmul(x.T, bar)

    twice.defvjp(forward, backward)
    assert found(twice, X, W) == {PLAIN: 1}
    gradient = jax.grad(lambda x, w: twice(x, w).sum(), (0, 1))
    assert sum(found(gradient, X, W).values()) == 3


def test_in_a_shard_map_it_is_one_devices_part() -> None:
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("i",), axis_types=auto, devices=jax.devices("cpu")[:2])
    rows, whole = PartitionSpec("i", None), PartitionSpec(None, None)
    mapped = jax.shard_map(jaxbw.matmul, mesh=mesh, in_specs=(rows, whole), out_specs=rows)
    assert found(mapped, X, W) == {"bf16[1,8,64] @ bf16[1,64,64] -> bf16[1,8,64]": 1}


def test_types_are_enough_and_lax_is_found_when_asked() -> None:
    x, w = (jax.ShapeDtypeStruct(each.shape, each.dtype) for each in (X, W))

    def both(x: Any, w: Any) -> Any:
        return jaxbw.matmul(x, w) + jnp.dot(x[:8], w).sum()

    assert found(both, x, w) == {PLAIN: 1}
    assert found(both, x, w, lax=True) == {
        PLAIN: 1,
        "bf16[1,8,64] @ bf16[1,64,64] -> bf16[1,8,64]": 1,
    }


def test_the_most_expensive_comes_first() -> None:
    def function(x: Any, w: Any) -> Any:
        return jaxbw.matmul(x[:2], w), jaxbw.gated_matmul(x, w, w), scanned(x[:8], w)

    flops = [each.flops for each in matmuls(function, X, W)]
    one = 2 * 64 * 64
    assert flops == [8 * 7 * one, 2 * 16 * one, 2 * one]
    assert np.all(np.diff(flops) < 0)
