"""Matmuls over two GPUs: kernels on shards, results of one GPU, collectives of lax.dot_general.

tests/jax/test_partitioning.py has more of this, on emulated devices. Integers of few values make
all sums exact, so that results are compared bit by bit.
"""

import collections
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sharded_training
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxbw
from jaxbw._src.primitives.gemm import TARGET
from jaxbw._src.selection import devices

pytestmark = pytest.mark.gpus

MATMUL = (((1,), (0,)), ((), ()))
M, K, N = 256, 128, 256
COLLECTIVE = re.compile(
    r" (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


@pytest.fixture(scope="module")
def family() -> str:
    """The kernels that this machine's GPUs run."""
    device = devices.running_device()
    assert device is not None
    if device.family is None:
        pytest.fail(f"jaxbw has no kernels for {device.name}")
    return device.family


@pytest.fixture(scope="module", params=[AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def mesh(request: pytest.FixtureRequest) -> jax.sharding.Mesh:
    return jax.make_mesh((2,), ("x",), axis_types=(request.param,), devices=jax.devices()[:2])


def integers(shape: tuple[int, ...], number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(-1, 2, shape).astype(jnp.bfloat16)


def exact(x: Any) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


def counted(program: Any) -> tuple[int, dict[str, int]]:
    """Our custom calls, and the collectives by kind."""
    text = program.as_text() or ""
    found = collections.Counter(COLLECTIVE.findall(text))
    return text.count(f'custom_call_target="{TARGET}"'), dict(found)


@pytest.mark.parametrize(
    ("lhs", "rhs", "out"),
    [
        (P(), P(), P()),
        (P("x"), P(), P("x")),
        (P(), P(None, "x"), P(None, "x")),
        (P(None, "x"), P("x"), P()),
        (P(None, "x"), P("x"), P("x")),
    ],
    ids=["replicated", "m", "n", "k", "k, scattered"],
)
def test_forward_and_backward(lhs: P, rhs: P, out: P, family: str, mesh: jax.sharding.Mesh) -> None:
    arrays = [integers(s, i) for i, s in enumerate([(M, K), (K, N), (M, N)])]
    given = [
        jax.device_put(array, NamedSharding(mesh, spec))
        for array, spec in zip(arrays, (lhs, rhs, out), strict=True)
    ]

    def step(matmul: Any, lhs: Any, rhs: Any, cotangent: Any) -> Any:
        result, pull_back = jax.vjp(
            functools.partial(matmul, dimension_numbers=MATMUL, out_sharding=out), lhs, rhs
        )
        return result, *pull_back(cotangent)

    def program(matmul: Any) -> Any:
        if mesh.axis_types[0] == AxisType.Auto:
            matmul = functools.partial(constrained, matmul)
        return jax.jit(functools.partial(step, matmul)).lower(*given).compile()

    def constrained(matmul: Any, *operands: Any, out_sharding: P, **keywords: Any) -> Any:
        result = matmul(*operands, **keywords)
        return lax.with_sharding_constraint(result, NamedSharding(mesh, out_sharding))

    with jax.set_mesh(mesh):
        ours = program(functools.partial(jaxbw.dot_general, implementation=family))
        theirs = program(lax.dot_general)
    kernels, found = counted(ours)
    assert kernels == 3
    assert found == counted(theirs)[1]
    x, y, g = map(exact, arrays)
    for got, wanted in zip(ours(*given), (x @ y, g @ y.T, x.T @ g), strict=True):
        np.testing.assert_array_equal(exact(got), wanted)


def test_an_epilogue_behind_a_sum(family: str) -> None:
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    arrays = [integers(s, i) for i, s in enumerate([(M, K), (K, N), (N,), (M, N)])]
    a, b, c, d = map(exact, arrays)
    for specs, sums in (
        ((P(None, "x"), P("x"), P(), P()), 1),
        ((P(), P(None, "x"), P("x"), P(None, "x")), 0),
    ):
        given = [
            jax.device_put(array, NamedSharding(mesh, spec))
            for array, spec in zip(arrays, specs, strict=True)
        ]

        def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
            return jaxbw.matmul(x, w, bias=b, activation="relu", residual=r, implementation=family)

        program = jax.jit(layer).lower(*given).compile()
        kernels, found = counted(program)
        assert kernels == 1
        assert sum(found.values()) == sums
        np.testing.assert_array_equal(exact(program(*given)), np.maximum(a @ b + c, 0) + d)


def test_a_step_of_training(family: str) -> None:
    """benchmarks/sharded_training.py at length."""
    with jaxbw.implementation(family):
        wanted = sharded_training.exact_gradient("data", 1)
        for layout in sharded_training.LAYOUTS:
            sharded_training.check(layout, 2, wanted)
