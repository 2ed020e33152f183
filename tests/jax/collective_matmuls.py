"""Matmuls of the tests of jaxbw.collective_matmul, over the CPU's devices."""

import functools
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxbw

AXIS = "model"
ON_RING = functools.partial(jaxbw.collective_matmul, overlap=True)
PLAIN = functools.partial(jaxbw.collective_matmul, overlap=False)
FORMS = [
    *({"gather_lhs": dimension} for dimension in (0, 1, -1)),
    *({"gather_rhs": dimension} for dimension in (0, 1)),
    *({"scatter": dimension} for dimension in (0, 1, -1)),
]


def mesh_of(size: int) -> Mesh:
    return Mesh(np.array(jax.devices("cpu")[:size]), (AXIS,))


def integers(shape: tuple[int, ...], number: int = 0, dtype: Any = jnp.float32) -> Any:
    """Small ones: all sums are exact."""
    generator = np.random.default_rng([*shape, number])
    return jax.device_put(generator.integers(-3, 4, shape).astype(dtype))


def communication(function: Callable[..., Any], *operands: Any) -> Counter[str]:
    """How many collectives a function's compiled program has, by name."""
    text = jax.jit(function).lower(*operands).compile().as_text() or ""
    names = "collective-permute|all-gather|all-reduce|reduce-scatter|all-to-all"
    return Counter(re.findall(rf"= \S+ ({names})(?:-start)?\(", text))


def spec(rank: int, dimension: int) -> P:
    entries: list[Any] = [None] * rank
    entries[dimension] = AXIS
    return P(*entries)


def over_mesh(form: dict[str, int], size: int, matmul: Callable[..., Any]) -> Callable[..., Any]:
    """A matmul of [b, m, k] and [k, n], of whole arrays.

    What nothing is said of lies on every device; a gathered result is compared on each of them.
    """
    ((argument, dimension),) = form.items()
    lhs, rhs, out = P(), P(), P(AXIS)
    if argument == "gather_lhs":
        lhs = spec(3, dimension)
    elif argument == "gather_rhs":
        rhs = spec(2, dimension)
    else:
        lhs, rhs, out = spec(3, 2), spec(2, 0), spec(3, dimension)

    def local(x: Any, w: Any) -> Any:
        y = matmul(x, w, AXIS, **form)
        return y if argument == "scatter" else y[None]

    return jax.shard_map(local, mesh=mesh_of(size), in_specs=(lhs, rhs), out_specs=out)


def expected(form: dict[str, int], size: int) -> Callable[..., Any]:
    """The same by one matmul of whole arrays."""

    def matmul(x: Any, w: Any) -> Any:
        y = jnp.matmul(x, w)
        return y if "scatter" in form else jnp.broadcast_to(y, (size, *y.shape))

    return matmul


def with_gradients(matmul: Callable[..., Any]) -> Callable[..., Any]:
    def step(x: Any, w: Any, cotangent: Any) -> Any:
        y, pull_back = jax.vjp(matmul, x, w)
        return y, *pull_back(cotangent)

    return step


def assert_equal(got: Any, wanted: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, got, wanted)


def layers(matmul: Callable[..., Any], size: int) -> Callable[..., Any]:
    """Two layers as tensor parallelism has them: weights by columns, then by rows."""

    def local(x: Any, up: Any, down: Any) -> Any:
        hidden = matmul(x, up, AXIS, gather_lhs=-2)
        return matmul(hidden * hidden, down, AXIS, scatter=-2)

    specs = (P(None, AXIS), P(None, AXIS), P(AXIS))
    return jax.shard_map(local, mesh=mesh_of(size), in_specs=specs, out_specs=specs[0])


def collectives(lhs: Any, rhs: Any, axis: str, **form: int) -> Any:
    """The definition."""
    ((argument, dimension),) = form.items()
    if argument == "gather_lhs":
        return jax.lax.all_gather(lhs, axis, axis=dimension % lhs.ndim, tiled=True) @ rhs
    if argument == "gather_rhs":
        return lhs @ jax.lax.all_gather(rhs, axis, axis=dimension, tiled=True)
    dimension %= lhs.ndim
    return jax.lax.psum_scatter(lhs @ rhs, axis, scatter_dimension=dimension, tiled=True)
