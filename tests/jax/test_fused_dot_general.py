"""dot_general with an epilogue: biases of several dimensions, every kind of dimension numbers."""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw

from .epilogues import Operand, activate, assert_same


class Case(NamedTuple):
    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    dims: Any
    bias: tuple[int, ...]
    bias_axis: int = -1


HEADS = ((2, 3, 8), (8, 4, 6), (((2,), (0,)), ((), ())))
CASES = {
    "one of two dimensions": Case(*HEADS, (6,)),
    "two dimensions": Case(*HEADS, (4, 6)),
    "two of lhs": Case(*HEADS, (2, 3), -2),
    "two contracted": Case((2, 3, 4, 6), (4, 6, 8), (((2, 3), (0, 1)), ((), ())), (8,)),
    "rhs transposed": Case((5, 8), (6, 8), (((1,), (1,)), ((), ())), (6,)),
    "around the contraction": Case((5, 8), (4, 8, 6), (((1,), (1,)), ((), ())), (4, 6)),
    "batch": Case((2, 5, 8), (2, 8, 3, 2), (((2,), (1,)), ((0,), (0,))), (3, 2)),
}


def arrays(case: Case, operand: Operand, dtype: str = "float32") -> dict[str, Any]:
    result = jax.eval_shape(
        lambda x, y: jax.lax.dot_general(x, y, case.dims), *map(np.ones, case[:2])
    )
    shapes = {"lhs": case.lhs, "rhs": case.rhs, "bias": case.bias}
    shapes |= {"residual": result.shape, "c": result.shape}
    return {name: operand(shape, dtype, i) for i, (name, shape) in enumerate(shapes.items())}


def ours(case: Case, given: Any, **keywords: Any) -> Any:
    return jaxbw.dot_general(
        **given,
        dimension_numbers=case.dims,
        bias_axis=case.bias_axis,
        activation="silu",
        alpha=0.5,
        beta=-1,
        **keywords,
    )


def formula(case: Case, given: Any) -> Any:
    z = 0.5 * jax.lax.dot_general(given["lhs"], given["rhs"], case.dims) - given["c"]
    bias = given["bias"]
    if case.bias_axis == -2:
        of_rhs = len(case.rhs) - len(case.dims[0][1]) - len(case.dims[1][1])
        bias = bias.reshape(bias.shape + (1,) * of_rhs)
    return activate("silu", z + bias) + given["residual"]


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name: str, operand: Operand) -> None:
    case, given = CASES[name], arrays(CASES[name], operand)

    def derivatives(function: Any, given: Any) -> Any:
        def loss(given: Any) -> Any:
            out = function(case, given)
            return (out * jnp.cos(given["residual"])).sum(), out

        return jax.value_and_grad(loss, has_aux=True)(given)

    assert_same(derivatives, (ours, formula), given)


@pytest.mark.parametrize(
    ("name", "batched", "axis"),
    [
        *((name, "lhs", axis) for name, axis in itertools.product(("two dimensions",), range(4))),
        *((name, "rhs", axis) for name, axis in itertools.product(("two dimensions",), range(4))),
        *((name, "lhs", axis) for name, axis in itertools.product(("two of lhs",), range(4))),
        ("two dimensions", "bias", 1),
    ],
)
def test_vmap(name: str, batched: str, axis: int, operand: Operand) -> None:
    """The new dimension may come between those of the bias."""
    case, given = CASES[name], arrays(CASES[name], operand)
    given[batched] = np.stack([np.asarray(given[batched]) * x for x in (1, -2, 3)], axis)
    in_axes = ({key: axis if key == batched else None for key in given},)

    def vmapped(function: Any, given: Any) -> Any:
        return jax.vmap(functools.partial(function, case), in_axes)(given)

    assert_same(vmapped, (ours, formula), given)


@pytest.mark.parametrize("name", ["two dimensions", "two of lhs"])
def test_the_kernel_reads_the_bias_as_one_vector(name: str) -> None:
    """In the emulator; small integers, whose sums are exact in any order."""
    case = CASES[name]._replace(lhs=(2, 3, 64), rhs=(64, 4, 16), bias_axis=CASES[name].bias_axis)
    case = case._replace(bias=(4, 16) if case.bias_axis == -1 else (2, 3))
    generator = np.random.default_rng(0)
    x, w, b = (
        jax.device_put(generator.integers(-3, 4, shape).astype(jnp.bfloat16))
        for shape in (case.lhs, case.rhs, case.bias)
    )

    @functools.partial(jax.jit, static_argnums=0)
    def matmul(implementation: str) -> Any:
        return jaxbw.dot_general(
            x,
            w,
            case.dims,
            bias=b,
            bias_axis=case.bias_axis,
            activation="relu",
            preferred_element_type=jnp.float32,
            implementation=implementation,
        )

    kernel = matmul("emulator")
    np.testing.assert_array_equal(kernel, matmul("xla"))
    assert len(np.unique(kernel)) > 20


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"bias": np.ones(8)}, r"bias f32\[8\] is not \[6\] or \[4,6\], the columns"),
        ({"bias": np.ones(())}, r"bias f32\[\] is not \[6\] or \[4,6\]"),
        ({"bias": np.ones((4, 6)), "bias_axis": -2}, r"is not \[3\] or \[2,3\], the rows"),
        ({"residual": np.ones((3, 4, 6))}, r"residual f32\[3,4,6\] is not shaped as the result"),
        ({"c": np.ones((2, 3, 24))}, r"not shaped as the result, f32\[2,3,4,6\]; broadcast it"),
    ],
)
def test_errors(keywords: Any, message: str) -> None:
    lhs, rhs, dims = HEADS
    with pytest.raises(ValueError, match=f"jaxbw.dot_general: .*{message}"):
        jaxbw.dot_general(np.ones(lhs), np.ones(rhs), dims, **keywords)
