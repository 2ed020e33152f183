"""What the tests of Flax's layers share: activations as in Flax, float64, what a program has."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float32": 2.0**-24}
ACTIVATIONS: dict[str | None, Callable[[Any], Any]] = {
    None: lambda x: x,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "gelu_exact": lambda x: jax.nn.gelu(x, approximate=False),
}
FUSED, PLAIN = "jaxbw_fused_dot_general", "jaxbw_dot_general"


def normal(shape: tuple[int, ...], number: int = 0, dtype: Any = jnp.float32) -> Any:
    """A deterministic normal array."""
    generator = np.random.default_rng([*shape, number])
    return jax.device_put(generator.standard_normal(shape).astype(jnp.dtype(dtype)))


def wide(tree: Any) -> Any:
    """All arrays of a tree, as NumPy's in float64."""
    return jax.tree.map(lambda x: np.asarray(x).astype(np.float64), tree)


def in_float64(function: Callable[..., Any], *trees: Any) -> Any:
    """A function of arrays, computed in float64 by one program, as NumPy arrays."""
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(function)(*map(wide, trees)))


def slopes(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function's result, and the gradient of a sum that weighs each element differently."""

    def loss(*arguments: Any) -> Any:
        out = function(*arguments)
        weights = jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape)
        return (out * weights).sum(), out

    def both(*arguments: Any) -> Any:
        return jax.grad(loss, range(len(arguments)), has_aux=True)(*arguments)

    return both


def assert_one_tree(got: Any, wanted: Any) -> None:
    """One structure, equal arrays."""
    assert_one_structure(got, wanted)
    jax.tree.map(np.testing.assert_array_equal, got, wanted)


def assert_one_structure(*trees: Any) -> None:
    """Names and nesting."""
    first, second = (str(jax.tree.structure(tree)) for tree in trees)
    assert first == second


def assert_same(got: Any, wanted: Any) -> None:
    """In float64 there is nothing but the formula. Trees have one structure, too."""
    assert_one_structure(got, wanted)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), got, wanted)


def primitives(function: Callable[..., Any], *arguments: Any) -> Counter[str]:
    """How often each operation stands in a program, and in all programs within it."""

    def equations(jaxpr: Any) -> Iterator[Any]:
        for equation in jaxpr.eqns:
            yield equation
            for parameter in equation.params.values():
                for inner in parameter if isinstance(parameter, tuple | list) else [parameter]:
                    if hasattr(inner, "eqns"):
                        yield from equations(inner)
                    elif hasattr(inner, "jaxpr"):
                        yield from equations(inner.jaxpr)

    program = jax.make_jaxpr(function)(*arguments)
    return Counter(equation.primitive.name for equation in equations(program.jaxpr))
