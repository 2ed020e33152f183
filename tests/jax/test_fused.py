"""matmul with an epilogue: values and derivatives against the formula in float64, on XLA."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import jaxbw

from .epilogues import (
    CASES,
    UNIT_ROUNDOFF,
    K,
    M,
    N,
    Operand,
    arrays,
    assert_same,
    formula,
    in_float64,
    numbers,
)

ACTIVATIONS = [None, "relu", "silu", "gelu", "gelu_exact"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_exact(case: str, operand: Operand) -> None:
    """Value, gradient, gradient of the gradient."""
    given = arrays(CASES[case], operand)
    weights = operand((M, N), "float32", 9)
    direction = arrays(CASES[case], functools.partial(_shifted, operand))

    def derivatives(function: Any, given: Any, weights: Any, direction: Any) -> Any:
        def loss(given: Any) -> Any:
            out = function(**given, **numbers(CASES[case]))
            assert out.dtype == weights.dtype
            return (out * weights).sum(), out

        def slope(given: Any) -> Any:
            gradient, out = jax.grad(loss, has_aux=True)(given)
            matmuls = jax.tree.map(lambda x, y: (x * y).sum(), gradient, direction)
            return sum(jax.tree.leaves(matmuls)), (gradient, out)

        return jax.grad(slope, has_aux=True)(given)

    assert_same(derivatives, (jaxbw.matmul, formula), given, weights, direction)


def _shifted(operand: Operand, shape: Any, dtype: Any, number: int) -> Any:
    return operand(shape, dtype, number + 20)


@pytest.fixture
def optimized() -> Iterator[None]:
    """XLA as a user has it: without, its tanh is less exact than these bounds in float32."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.usefixtures("optimized")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_value_and_gradient(case: str, dtype: str, operand: Operand) -> None:
    given = arrays(CASES[case], operand, dtype)
    weights = operand((M, N), "float32", 9)

    def loss(function: Any, given: Any, weights: Any) -> Any:
        out = function(**given, **numbers(CASES[case]))
        return (out.astype(weights.dtype) * weights).sum(), out

    gradient = functools.partial(jax.grad, has_aux=True, argnums=1)
    got, out = jax.jit(gradient(loss), static_argnums=0)(jaxbw.matmul, given, weights)
    wanted, reference = in_float64(functools.partial(gradient(loss), formula), given, weights)
    unit = UNIT_ROUNDOFF[dtype]
    # The cast, and the float32 sums of K terms: an activation has a slope of at most 1.13.
    scale = 1.13 * np.abs(reference).max()
    sums = 2 * (K + 4) * 2.0**-24 * _magnitude(given)
    assert out.dtype == dtype
    error = np.abs(np.asarray(out).astype(np.float64) - reference)
    assert (error <= unit * np.abs(reference) + sums + 2.0**-20 * scale).all()
    plain = jax.jit(lambda given: jaxbw.matmul(**given, **numbers(CASES[case])))(given)
    np.testing.assert_array_equal(out, plain)  # differentiated, it computes the same
    for name, x in got.items():
        assert x.dtype == given[name].dtype
        # z is rounded where it is saved, its cotangent where it is multiplied: of each of K terms.
        # That of a factor is a sum over the result, whose terms may cancel.
        error = np.abs(np.asarray(x).astype(np.float64) - wanted[name]).max()
        size = (
            np.abs(wanted[name]).max()
            if x.ndim
            else in_float64(functools.partial(_scaled, name), given, weights)
        )
        assert error <= 16 * unit * max(1, size), name


def _scaled(name: str, given: Any, weights: Any) -> Any:
    """The sum of magnitudes of what a factor scales, as they count in the result's."""
    scaled = given["c"] if name == "beta" else jnp.abs(given["lhs"]) @ jnp.abs(given["rhs"])
    return jnp.abs(scaled * weights).sum()


def _magnitude(given: Any) -> Any:
    sizes = {name: np.abs(np.asarray(x).astype(np.float64)) for name, x in given.items()}
    rows, columns = (sizes.pop(f"{side}_scale", np.ones(1)) for side in ("lhs", "rhs"))
    total = 2 * rows[:, None] * columns * (sizes.pop("lhs") @ sizes.pop("rhs"))
    return total.max() + sum(2 * x.max() for x in sizes.values())


def test_everything_up_to_the_cast_is_float32() -> None:
    """2^8 + 1 is no bfloat16: a sum rounded before its last term would lose the 1."""
    lhs = jnp.array([[256.0, 1.0]], jnp.bfloat16)
    ones = jnp.ones((2, 1), jnp.bfloat16)
    for keywords in (
        {"bias": jnp.array([-256.0])},
        {"c": jnp.array([[-256.0]], jnp.bfloat16)},
        {"c": jnp.array([[128.0]], jnp.bfloat16), "beta": -2},
        {"residual": jnp.array([[-256.0]])},
    ):
        result = jaxbw.matmul(lhs, ones, **keywords)
        assert result.dtype == jnp.bfloat16
        assert result[0, 0] == 1
    assert jaxbw.matmul(lhs, ones, alpha=1 / 257)[0, 0] == 1


def test_residual_is_added_behind_the_activation() -> None:
    one = jnp.ones((1, 1))
    assert jaxbw.matmul(one, -one, residual=one, activation="relu")[0, 0] == 1
    assert jaxbw.matmul(one, -one, c=one / 2, activation="relu")[0, 0] == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bias_axis", [-1, -2])
@pytest.mark.parametrize(
    "axes",
    [
        {"lhs": 0},
        {"rhs": 0},
        {"bias": 0},
        {"c": 1},
        {"residual": 2},
        {"lhs": 1, "rhs": 1},
        {"lhs": 2, "rhs": 2, "c": 0},
        {"lhs": 1, "residual": 0},
        {"rhs": 2, "c": 2},
        {"lhs": 0, "rhs": 0, "c": 0, "bias": 1, "residual": 0},
    ],
    ids=str,
)
def test_vmap(axes: Any, bias_axis: int, operand: Operand) -> None:
    case = {"bias": True, "c": True, "residual": True, "bias_axis": bias_axis, "activation": "gelu"}
    given = arrays(case, operand)
    for name, axis in axes.items():
        given[name] = np.stack([np.asarray(given[name]) * factor for factor in (1, -2, 3)], axis)
    weights = operand((M, N), "float32", 9)

    def vmapped(function: Any, given: Any, weights: Any) -> Any:
        def loss(given: Any) -> Any:
            return (function(**given, **numbers(case)) * weights).sum()

        in_axes = ({name: axes.get(name) for name in given},)
        return jax.vmap(jax.value_and_grad(loss), in_axes)(given)

    assert_same(vmapped, (jaxbw.matmul, formula), given, weights)


SHAPES = [
    ((8,), (8, 6)),
    ((4, 8), (8,)),
    ((2, 3, 4, 8), (8, 6)),
    ((2, 4, 8), (2, 8, 6)),
    ((4, 8), (2, 8, 6)),
    ((3, 1, 4, 8), (1, 2, 8, 6)),
    ((1, 4, 8), (1, 8, 6)),
]


@pytest.mark.parametrize(("lhs_shape", "rhs_shape"), SHAPES)
def test_shapes(lhs_shape: Any, rhs_shape: Any, operand: Operand) -> None:
    """c and residual are shaped as jnp.matmul's result, whatever the dot_general's is."""
    given: Any = {"lhs": operand(lhs_shape, "float32"), "rhs": operand(rhs_shape, "float32", 1)}
    shape = jax.eval_shape(jnp.matmul, *given.values()).shape
    given |= {"c": operand(shape, "float32", 2), "residual": operand(shape, "float32", 3)}
    biases: list[Any] = [(None, -1)]
    if len(rhs_shape) > 1:
        biases.append((operand(rhs_shape[-1:], "float32", 4), -1))
    if len(lhs_shape) > 1:
        biases.append((operand(lhs_shape[-2:-1], "float32", 5), -2))
    vectors, axes = zip(*biases, strict=True)
    # Where the result has no n, the formula's rows are its last dimension.
    formula_axes = axes if len(rhs_shape) > 1 else [-1] * len(axes)

    def both(given: Any, vectors: Any) -> Any:
        return [
            [
                function(**given, bias=bias, bias_axis=axis, activation="silu", alpha=0.5)
                for bias, axis in zip(vectors, of_function, strict=True)
            ]
            for function, of_function in ((jaxbw.matmul, axes), (formula, formula_axes))
        ]

    for result, wanted in zip(*jax.jit(both)(given, vectors), strict=True):
        assert result.shape == shape
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 8, 6), (4, 0, 6), (4, 8, 0)])
def test_zero_sizes(m: int, k: int, n: int) -> None:
    given: Any = {"lhs": np.ones((m, k)), "rhs": np.ones((k, n)), "c": np.ones((m, n))}
    given["bias"] = np.ones(n)
    fused = functools.partial(jaxbw.matmul, activation="relu")
    np.testing.assert_array_equal(fused(**given), np.full((m, n), k + 2))
    jax.grad(lambda x: fused(**(given | {"lhs": x})).sum())(given["lhs"])


def test_nan_passes_through(operand: Operand) -> None:
    lhs = operand((4, 8)).at[1, 2].set(jnp.nan)
    for activation in ACTIVATIONS:
        result = jaxbw.matmul(lhs, operand((8, 6)), bias=jnp.zeros(6), activation=activation)
        np.testing.assert_array_equal(jnp.isnan(result).all(axis=1), [False, True, False, False])


def test_the_backward_pass_keeps_what_it_looks_at(operand: Operand) -> None:
    """Never c, bias or residual, so that c can be overwritten; z or d only where it is needed."""
    given = arrays(CASES["all, relu"], operand)

    def kept(case: str) -> int:
        def fused(given: Any) -> Any:
            return jaxbw.matmul(**given, **numbers(CASES[case]))

        _, pull_back = jax.vjp(fused, arrays(CASES[case], operand))
        return [x.shape for x in jax.tree.leaves(pull_back)].count((M, N))

    assert given["c"].shape == (M, N)
    assert kept("alpha and beta") == kept("residual") == kept("bias") == 0
    assert kept("relu") == kept("relu, residual") == kept("all, relu") == kept("silu, bias") == 1


@pytest.mark.parametrize(
    ("rows", "steps"), [((2048,), 2), ((16, 96), 2), ((3, 341), 1), ((511,), 1), ((2, 4096), 1)]
)
def test_the_gradient_of_a_bias_is_summed_in_steps(rows: tuple[int, ...], steps: int) -> None:
    """XLA's single kernel for up to 4,096 rows is slow; 1023 have no part of some 32."""

    def loss(bias: Any, x: Any) -> Any:
        out = jaxbw.matmul(x, jnp.eye(8), bias=bias, activation="relu")
        return (out * x).sum()

    x = jnp.asarray(np.random.default_rng(0).integers(-8, 9, (*rows, 8)), jnp.float32)
    gradient = jax.grad(loss)
    wanted = np.asarray(x).clip(0).reshape(-1, 8).sum(0)
    np.testing.assert_array_equal(jax.jit(gradient)(jnp.zeros(8), x), wanted)
    assert str(jax.make_jaxpr(gradient)(jnp.zeros(8), x)).count("optimization_barrier") == steps - 1


def test_a_scan_keeps_of_each_layer_what_the_layer_does(operand: Operand) -> None:
    """Its operand and z, in 16 bits; nothing of what the activation's derivative consists of."""
    x, w = operand((M, K)), operand((3, K, K), number=1)

    def layer(x: Any, w: Any) -> Any:
        return jaxbw.matmul(x, w, activation="gelu", residual=x), None

    _, pull_back = jax.vjp(lambda x, w: jax.lax.scan(layer, x, w)[0], x, w)
    kept = sorted(str(jax.typeof(x)) for x in jax.tree.leaves(pull_back))
    assert kept == [f"bfloat16[3,{K},{K}]", *[f"bfloat16[3,{M},{K}]"] * 2]


def test_what_is_not_differentiated_keeps_nothing(operand: Operand) -> None:
    """As of frozen weights, or of a residual alone."""
    given = arrays(CASES["relu, residual"], operand)

    def kept(*names: str) -> list[tuple[int, ...]]:
        def fused(moving: Any) -> Any:
            return jaxbw.matmul(**given, **moving, activation="gelu")

        moving = {name: given.pop(name) for name in names}
        _, pull_back = jax.vjp(fused, moving)
        given.update(moving)
        return sorted(x.shape for x in jax.tree.leaves(pull_back))

    assert kept("lhs") == sorted([(K, N), (M, N)])
    assert kept("rhs") == sorted([(M, K), (M, N)])
    assert kept("residual") == []


def test_shard_map_checks_what_varies(operand: Operand) -> None:
    """Gradients of operands that are the same everywhere are summed over the mesh."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    given = arrays(CASES["all, relu"], operand)
    rows, same = PartitionSpec("x"), PartitionSpec()
    specs = {"lhs": rows, "rhs": same, "c": rows, "bias": same, "residual": rows}

    def fused(given: Any) -> Any:
        return jaxbw.matmul(**given, **numbers(CASES["all, relu"]))

    local = jax.shard_map(fused, mesh=mesh, in_specs=(specs,), out_specs=rows)
    got = jax.jit(jax.grad(lambda given: local(given).sum()))(given)
    wanted = jax.grad(lambda given: fused(given).sum())(given)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), got, wanted)
