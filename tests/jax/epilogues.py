"""Matmuls with epilogues for the tests of the fused operation: cases, operands, the formula."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

M, K, N = 6, 16, 8
UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
VECTORS = ("bias", "alpha", "beta", "lhs_scale", "rhs_scale")  # and scalars: in float32
ARRAYS = ("c", "bias", "residual", "alpha", "beta", "lhs_scale", "rhs_scale")

# What stands in a call beside lhs and rhs; True for an array, which `arrays` makes.
CASES: dict[str, Mapping[str, Any]] = {
    "bias": {"bias": True},
    "bias along m": {"bias": True, "bias_axis": -2},
    "alpha": {"alpha": -0.5},
    "c": {"c": True},
    "alpha and beta": {"c": True, "alpha": 0.5, "beta": -2},
    "residual": {"residual": True},
    "relu": {"activation": "relu"},
    "relu, residual": {"activation": "relu", "residual": True},
    "silu, bias": {"activation": "silu", "bias": True},
    "gelu, bias": {"activation": "gelu", "bias": True},
    "gelu_exact, bias along m": {"activation": "gelu_exact", "bias": True, "bias_axis": -2},
    "all, relu": {
        "alpha": 2,
        "c": True,
        "beta": 0.5,
        "bias": True,
        "activation": "relu",
        "residual": True,
    },
    "all along m, gelu_exact": {
        "alpha": 0.25,
        "c": True,
        "beta": -1,
        "bias": True,
        "bias_axis": -2,
        "activation": "gelu_exact",
        "residual": True,
    },
    "traced alpha and beta": {"alpha": True, "c": True, "beta": True},
    "traced alpha, silu": {"alpha": True, "bias": True, "activation": "silu", "residual": True},
    "scales": {"lhs_scale": True, "rhs_scale": True},
    "scales of rows, silu": {"lhs_scale": True, "bias": True, "activation": "silu"},
    "scales, all": {
        "lhs_scale": True,
        "rhs_scale": True,
        "alpha": True,
        "c": True,
        "beta": 0.5,
        "bias": True,
        "activation": "relu",
        "residual": True,
    },
}

Arrays = dict[str, Any]
Operand = Callable[..., Any]


def arrays(
    case: Mapping[str, Any],
    operand: Operand,
    dtype: Any = "float32",
    sizes: tuple[int, int, int] = (M, K, N),
    batch: tuple[int, ...] = (),
) -> Arrays:
    """The arrays of a case: lhs, rhs, and what its epilogue has, vectors and scalars in float32."""
    m, k, n = sizes
    shapes = {
        "lhs": (*batch, m, k),
        "rhs": (*batch, k, n),
        "c": (*batch, m, n),
        "bias": (m if case.get("bias_axis") == -2 else n,),
        "residual": (*batch, m, n),
        "alpha": (),
        "beta": (),
        "lhs_scale": (*batch, m),
        "rhs_scale": (*batch, n),
    }
    names = ["lhs", "rhs", *(name for name in ARRAYS if case.get(name) is True)]
    return {
        name: operand(shapes[name], "float32" if name in VECTORS else dtype, number)
        for number, name in enumerate(names)
    }


def numbers(case: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a case that are no arrays."""
    return {name: value for name, value in case.items() if value is not True}


def formula(
    lhs: Any,
    rhs: Any,
    *,
    c: Any = None,
    bias: Any = None,
    bias_axis: int = -1,
    activation: str | None = None,
    residual: Any = None,
    alpha: Any = 1,
    beta: Any = 1,
    lhs_scale: Any = None,
    rhs_scale: Any = None,
) -> Any:
    """What the operation means, in the operands' own dtype."""
    z = alpha * jnp.matmul(lhs, rhs)
    if lhs_scale is not None:
        z = z * lhs_scale[..., :, None]
    if rhs_scale is not None:
        z = z * rhs_scale[..., None, :]
    if c is not None:
        z = z + beta * c
    if bias is not None:
        z = z + (bias if bias_axis == -1 else bias[..., None])
    d = activate(activation, z)
    return d if residual is None else d + residual


def activate(name: str | None, z: Any) -> Any:
    """The activations, written out."""
    if name == "relu":
        return jnp.where(z > 0, z, 0)
    if name == "silu":
        return z / (1 + jnp.exp(-z))
    if name == "gelu":
        return z / 2 * (1 + jnp.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    if name == "gelu_exact":
        return z / 2 * (1 + jax.lax.erf(z / np.sqrt(2)))
    return z


def in_float64(function: Callable[..., Any], *trees: Any) -> Any:
    """A function of arrays, computed in float64 by one program, as NumPy arrays."""
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: np.asarray(x).astype(np.float64), trees)
        return jax.tree.map(np.asarray, jax.jit(function)(*wide))


def assert_same(
    transformed: Callable[..., Any], pair: Sequence[Any], *trees: Any, tolerance: float = 1e-9
) -> None:
    """Compares what a transformation makes of a matmul and of its formula, in float64.

    There is nothing but the formula, so that nothing else can differ.

    Args:
      transformed: of a matmul and arrays: what is compared, a tree of arrays.
      pair: the matmul and its formula.
      *trees: the arrays, in any dtype.
      tolerance: relative, and of elements near 0 absolute.
    """
    got, wanted = in_float64(lambda *arrays: [transformed(f, *arrays) for f in pair], *trees)
    jax.tree_util.tree_map_with_path(
        lambda path, x, y: np.testing.assert_allclose(
            x, y, rtol=tolerance, atol=tolerance, err_msg=jax.tree_util.keystr(path)
        ),
        got,
        wanted,
    )
