"""Grouped matmuls under JAX's transformations, against a dense form that JAX knows all about."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxbw

from .epilogues import assert_same
from .ragged_cases import CONTRACTION, dense, dense_contraction, integers, normal, rows

SIZES = np.array([3, 0, 4, 2], np.int32)
M, K, N, G = 11, 3, 2, len(SIZES)
X, W, DY = normal((M, K)), normal((G, K, N)), normal((M, N))


def weight_gradient(lhs: Any, rhs: Any, sizes: Any) -> Any:
    return jaxbw.ragged_dot_general(lhs, rhs, sizes, CONTRACTION)


# A grouped matmul of either form, its meaning, and operands.
FORMS: dict[str, tuple[Any, Any, Any]] = {
    "rows": (jaxbw.ragged_dot, dense, (X, W)),
    "contraction": (weight_gradient, dense_contraction, (X, DY)),
}


def gradient(function: Callable[..., Any], lhs: Any, rhs: Any) -> Any:
    """Both, of a loss whose cotangents are of no special kind."""

    def loss(lhs: Any, rhs: Any) -> Any:
        return jnp.sin(function(lhs, rhs, SIZES)).sum()

    return jax.grad(loss, (0, 1))(lhs, rhs)


def pushed(function: Callable[..., Any], lhs: Any, rhs: Any) -> Any:
    return jax.jvp(lambda x, w: function(x, w, SIZES), (lhs, rhs), (jnp.cos(lhs), jnp.cos(rhs)))


def second(function: Callable[..., Any], lhs: Any, rhs: Any) -> Any:
    """Forward over reverse, and reverse over reverse: all of the transposes again."""
    tangents = jnp.cos(lhs), jnp.cos(rhs)

    def inner(lhs: Any, rhs: Any) -> Any:
        of_lhs, of_rhs = gradient(function, lhs, rhs)
        return (jnp.cos(of_lhs) * tangents[0]).sum() + (jnp.cos(of_rhs) * tangents[1]).sum()

    pushed = jax.jvp(lambda *xs: gradient(function, *xs), (lhs, rhs), tangents)[1]
    return pushed, jax.grad(inner, (0, 1))(lhs, rhs)


@pytest.mark.parametrize(
    ("transformed", "form"),
    # The gradient of rows is of both forms, so that its derivatives transpose all there is.
    [(gradient, "rows"), (gradient, "contraction"), (pushed, "rows"), (second, "rows")],
)
def test_derivatives(transformed: Any, form: str) -> None:
    *pair, operands = FORMS[form]
    assert_same(transformed, pair, *operands)


@pytest.mark.parametrize("transposed", [False, True])
def test_transposed_weights(transposed: bool) -> None:
    """Weights as they lie, also in the gradient: no matrix is transposed but by a flag."""
    operands = X, W.swapaxes(1, 2) if transposed else W

    def value(function: Callable[..., Any], x: Any, w: Any) -> Any:
        w = w.mT if transposed else w
        return function(x, w, SIZES)

    def both(function: Callable[..., Any], x: Any, w: Any) -> Any:
        y, pull_back = jax.vjp(lambda x, w: value(function, x, w), x, w)
        return y, pull_back(jnp.cos(y))

    assert_same(both, (jaxbw.ragged_dot, dense), *operands)
    ours = primitives(lambda *xs: both(jaxbw.ragged_dot, *xs), *map(np.float32, operands))
    kinds = [(x.params["ragged_contraction"], x.params["transposed"]) for x in ours]
    assert kinds == [(False, transposed), (True, False), (False, not transposed)]
    assert ours[1].outvars[0].aval.shape[1:] == operands[1].shape


def primitives(function: Callable[..., Any], *operands: Any) -> list[Any]:
    """The grouped matmuls that a function is traced to, without those that nothing uses."""
    found = []

    def visit(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            if equation.primitive.name == "jaxbw_ragged_dot":
                found.append(equation)
            for inner in jax.tree.leaves(
                list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
            ):
                if hasattr(inner, "eqns"):
                    visit(inner)

    visit(jax.make_jaxpr(function)(*operands).jaxpr)
    return found


# Of lhs, rhs and sizes: every combination that maps something; and of which there are gradients.
AXES = [(0, None, None), (None, 1, None), (None, None, 0), (0, 2, None), (1, None, 1), (None, 0, 0)]
AXES = [*AXES, (2, 0, 0)]
GRADIENTS = AXES[1:4]


def test_vmap() -> None:
    """With gradients, of what is not mapped, too: of both forms, that is."""
    sizes = np.array([[3, 0, 4, 2], [0, 0, 0, 0], [5, 5, 5, 5]], np.int32)

    def mapped(function: Callable[..., Any], lhs: Any, rhs: Any) -> Any:
        scale = jnp.arange(1.0, 4.0)
        results: list[Any] = []
        for axes in AXES:
            x, w = (
                y if axis is None else jnp.stack([y * s for s in scale], axis)
                for y, axis in zip((lhs, rhs), axes[:2], strict=True)
            )
            s = SIZES if axes[2] is None else jnp.stack([*sizes], axes[2])
            of = jax.vmap(function, axes)
            if axes not in GRADIENTS:
                results.append(of(x, w, s))
                continue
            y, pull_back = jax.vjp(lambda x, w, of=of, s=s: of(x, w, s), x, w)
            results.append((y, pull_back(jnp.cos(y))))
        return results

    assert_same(mapped, (jaxbw.ragged_dot, dense), X, W)


def test_nested_vmap() -> None:
    """Axes of one operand within axes of another, and offsets of each."""
    x, w = integers((2, M, K)), integers((3, G, K, N))

    def products(x: Any, w: Any, offsets: Any) -> Any:
        def one(x: Any, w: Any, offset: Any) -> Any:
            return jaxbw.ragged_dot(x, w, SIZES, group_offset=offset)

        return jax.vmap(jax.vmap(one, (None, 0, None)), (0, None, 0))(x, w, offsets)

    offsets = np.array([0, 2], np.int32)
    got = np.asarray(jax.jit(products)(x, w, offsets))
    for i, j in np.ndindex(2, 3):
        np.testing.assert_array_equal(got[i, j], rows(x[i], w[j], SIZES, int(offsets[i])))


def test_sizes_have_no_derivative() -> None:
    zeros = np.zeros(G, jax.dtypes.float0)
    x, w = integers(X.shape), integers(W.shape)

    @jax.jit
    def derivatives() -> Any:
        def value(sizes: Any) -> Any:
            return jaxbw.ragged_dot(x, w, sizes).sum()

        pushed = jax.jvp(jaxbw.ragged_dot, (x, w, SIZES), (x, w, zeros))[1]
        of_sizes = jax.grad(value, allow_int=True)(SIZES)
        assert of_sizes.dtype == jax.dtypes.float0
        return pushed

    np.testing.assert_array_equal(derivatives(), 2 * rows(x, w, SIZES))


def test_scan_and_checkpoint() -> None:
    """A policy of ours keeps the result; without it the forward pass runs again."""

    def loss(policy: Any) -> Callable[..., Any]:
        def layer(x: Any, w: Any) -> Any:
            y = jaxbw.ragged_dot(x, w, SIZES)
            return jnp.sin(y) @ jnp.ones((N, K), y.dtype), None

        def run(x: Any, w: Any) -> Any:
            step = layer if policy is None else jax.checkpoint(layer, policy=policy)
            return lax.scan(step, x, w)[0].sum()

        return jax.value_and_grad(run, (0, 1))

    weights = np.stack([W, 2 * W, 3 * W])

    def losses(policies: Sequence[Any], x: Any, w: Any) -> Any:
        return [loss(policy)(x, w) for policy in policies]

    policies = jaxbw.checkpoint_policies
    kept = (policies.dots_saveable, policies.dots_with_no_batch_dims_saveable)
    again = jax.checkpoint_policies.dots_saveable
    assert_same(losses, ([None], [kept[0]]), X, weights)
    counts = [
        len(primitives(loss(policy), *map(np.float32, (X, weights))))
        for policy in (None, *kept, again)
    ]
    assert counts == [3, 3, 3, 4]


def test_cotangent_of_a_wide_result() -> None:
    """Of bfloat16 operands it is rounded as they were, unless more is asked for."""
    x, w = X.astype(jnp.bfloat16), W.astype(jnp.bfloat16)

    def pulled(precision: Any, dtype: Any, *operands: Any) -> Any:
        def call(x: Any, w: Any) -> Any:
            return jaxbw.ragged_dot(x, w, SIZES, precision, dtype)

        y, pull_back = jax.vjp(call, *operands)
        return pull_back(y)

    def dtypes(precision: Any, dtype: Any = "float32", operands: Any = (x, w)) -> list[Any]:
        _, *backward = primitives(lambda *xs: pulled(precision, dtype, *xs), *operands)
        return [tuple(v.aval.dtype.name for v in each.invars[:2]) for each in backward]

    narrow, wide = ("bfloat16", "bfloat16"), ("bfloat16", "float32")
    assert dtypes(None) == [narrow, narrow]
    assert dtypes("highest") == [wide, wide[::-1]]
    half = X.astype(np.float16), W.astype(np.float16)
    assert dtypes(None, operands=half) == [("float16", "float32"), ("float32", "float16")]

    @jax.jit
    def both(x: Any, w: Any) -> Any:
        def call(function: Any) -> Any:
            y, pull_back = jax.vjp(lambda x, w: function(x, w, SIZES, None, "float32"), x, w)
            return pull_back(y)

        return call(jaxbw.ragged_dot), call(lax.ragged_dot)

    ours, theirs = both(x, w)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype == jnp.bfloat16
        a, b = (np.asarray(y, np.float64) for y in (a, b))
        # A rounding of each cotangent, and one of the result: of sums of three terms or four.
        assert np.abs(a - b).max() <= 2**-8 * (1 + 4) * np.abs(b).max()


def test_scales() -> None:
    """Derivatives of both modes of all there is of `Quantized` operands, and under `vmap`."""
    wide = np.dtype(np.float64)
    of_rows, of_columns = normal((M, 1), 1), normal((G, 1, N), 1)
    up, of_up = normal((G, K, N), 2), normal((G, 1, N), 2)
    axes = (0, None, None, None, 0, None)

    def ours(x: Any, w: Any, u: Any, s: Any, t: Any, r: Any) -> Any:
        q = jaxbw.Quantized(x, s, None, wide)
        left, right = (jaxbw.Quantized(y, z, y.mT, wide) for y, z in ((w, t), (u, r)))
        return (
            jaxbw.ragged_dot(q, left, SIZES, activation="silu"),
            jaxbw.gated_ragged_dot(q, left, right, SIZES),
        )

    def formula(x: Any, w: Any, u: Any, s: Any, t: Any, r: Any) -> Any:
        z, other = dense(s * x, w * t, SIZES), dense(s * x, u * r, SIZES)
        return jax.nn.silu(z), jax.nn.silu(z) * other

    def transformed(function: Callable[..., Any], *given: Any) -> Any:
        y, pull_back = jax.vjp(function, *given)
        cotangents = pull_back(jax.tree.map(jnp.cos, y))
        pushed = jax.jvp(function, given, tuple(map(jnp.cos, given)))[1]
        mapped = [
            x if axis is None else jnp.stack([x, 2 * x], axis)
            for x, axis in zip(given, axes, strict=True)
        ]
        return cotangents, pushed, jax.vmap(function, axes)(*mapped)

    assert_same(transformed, (ours, formula), X, W, up, of_rows, of_columns, of_up)


# Several devices


def mesh(kind: AxisType) -> jax.sharding.Mesh:
    return jax.make_mesh((4,), ("i",), axis_types=(kind,), devices=jax.devices("cpu")[:4])


PARTS: dict[str, Any] = {
    "experts": ((P(), P("i"), P()), P()),
    "columns": ((P(), P(None, None, "i"), P()), P(None, "i")),
    "contraction": ((P(None, "i"), P(None, "i"), P()), P()),
}


@pytest.mark.parametrize("part", PARTS)
def test_shard_map(part: str) -> None:
    """Each device's experts, columns, or part of the contraction; value and gradients."""
    x, w = normal((M, 8)), normal((G, 8, 4))
    in_specs, out_specs = PARTS[part]

    def body(x: Any, w: Any, sizes: Any) -> Any:
        if part == "columns":
            return jaxbw.ragged_dot(x, w, sizes)
        offset = lax.axis_index("i") * w.shape[0] if part == "experts" else None
        return lax.psum(jaxbw.ragged_dot(x, w, sizes, group_offset=offset), "i")

    def sharded(x: Any, w: Any, sizes: Any) -> Any:
        part = jax.shard_map(body, mesh=mesh(AxisType.Auto), in_specs=in_specs, out_specs=out_specs)
        return part(x, w, sizes)

    def both(function: Callable[..., Any], x: Any, w: Any) -> Any:
        return function(x, w, SIZES), gradient(function, x, w)

    assert_same(both, (sharded, dense), x, w)


def test_automatic_sharding() -> None:
    x, w = integers((12, 8)), integers((G, 8, 4))
    on = mesh(AxisType.Auto)
    for spec in ((P(), P(None, None, "i")), (P(None, "i"), P("i"))):
        given = (jax.device_put(y, NamedSharding(on, s)) for y, s in zip((x, w), spec, strict=True))
        y = jax.jit(jaxbw.ragged_dot)(*given, SIZES)
        np.testing.assert_array_equal(y, rows(x, w, SIZES))


def test_explicit_sharding() -> None:
    """Columns are sharded as they are; of a sharded contraction the result's must be given."""
    x, w = integers((12, 8)), integers((G, 8, 4))
    with jax.set_mesh(mesh(AxisType.Explicit)):
        left, right = jax.device_put(x, P()), jax.device_put(w, P(None, None, "i"))

        @jax.jit
        def both(x: Any, w: Any) -> Any:
            y, pull_back = jax.vjp(lambda x, w: jaxbw.ragged_dot(x, w, SIZES), x, w)
            return y, *pull_back(y)

        y, of_lhs, of_rhs = both(left, right)
        assert jax.typeof(y).sharding.spec == P(None, "i")
        assert (jax.typeof(of_lhs).sharding, jax.typeof(of_rhs).sharding) == (
            *(jax.typeof(z).sharding for z in (left, right)),
        )
        np.testing.assert_array_equal(y, rows(x, w, SIZES))
        left, right = jax.device_put(x, P(None, "i")), jax.device_put(w, P(None, "i"))
        with pytest.raises(ValueError, match="pass out_sharding"):
            jaxbw.ragged_dot(left, right, SIZES)
        y = jaxbw.ragged_dot(left, right, SIZES, out_sharding=P())
        np.testing.assert_array_equal(y, rows(x, w, SIZES))


# What serves it

KERNELS = pytest.mark.parametrize(
    ("emulated", "target"), [("emulator-sm90", "H200"), ("emulator", "B200")]
)


def test_a_strict_implementation_says_why_not() -> None:
    x, w = np.ones((M, 8), jnp.bfloat16), np.ones((G, 8, 8), jnp.bfloat16)
    wide = np.ones((G, 8, 8), np.float32)
    with pytest.raises(NotImplementedError, match=r"ragged_dot.*'sm90'.*float32.*\n.*run on XLA"):
        jaxbw.ragged_dot(x.astype(np.float32), wide, SIZES, implementation="sm90")
    q, u = jaxbw.quantize(x, "e4m3", axis=-1), jaxbw.quantize(wide, "e4m3", axis=-2)
    with pytest.raises(NotImplementedError, match=r"'sm90'.*rhs has n as its last dimension.*both"):
        jaxbw.ragged_dot(q, u, SIZES, None, "bfloat16", implementation="sm90")
    with pytest.raises(NotImplementedError, match="rhs is float32; kernels multiply operands of"):
        jaxbw.ragged_dot(x, wide, SIZES, implementation="kernel")
    with pytest.raises(NotImplementedError, match="kernels run on CUDA, not on this platform"):
        jaxbw.ragged_dot(x, w, SIZES, implementation="sm90")
    y = jaxbw.ragged_dot(x, w, SIZES, implementation=("sm90", "xla"))
    np.testing.assert_array_equal(np.asarray(y)[:, 0], [8] * 9 + [0] * 2)


@KERNELS
def test_kernels(
    emulated: str,
    target: str,
    cuda_hlo: Callable[..., str],
    custom_calls: Callable[..., list[str]],
) -> None:
    """The value and both gradients are a launch each, and right in the emulator."""
    x, w = (integers(shape).astype(jnp.bfloat16) for shape in ((80, 16), (3, 16, 24)))
    dy, sizes = integers((80, 24)).astype(jnp.bfloat16), np.array([17, 0, 50], np.int32)

    def both(x: Any, w: Any, dy: Any, implementation: Any = None) -> Any:
        def call(x: Any, w: Any) -> Any:
            return jaxbw.ragged_dot(x, w, sizes, implementation=implementation)

        y, pull_back = jax.vjp(call, x, w)
        return y, *pull_back(dy)

    ours = jax.jit(both, static_argnums=3)(x, w, dy, emulated)
    theirs = jax.jit(both)(x, w, dy)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))
    with jaxbw.target(target):
        assert len(custom_calls(cuda_hlo(both, x, w, dy))) == 3


@KERNELS
def test_kernels_with_epilogues(
    emulated: str,
    target: str,
    cuda_hlo: Callable[..., str],
    custom_calls: Callable[..., list[str]],
) -> None:
    """Each is one launch, and right in the emulator; c is added to in place."""
    x, w, u = (integers(s, 1).astype(jnp.bfloat16) for s in ((80, 16), (3, 16, 24), (3, 16, 24)))
    dy, sizes = integers((80, 24)).astype(jnp.bfloat16), np.array([17, 0, 50], np.int32)
    bias, c = integers((3, 24)), integers((3, 16, 24))

    def results(x: Any, w: Any, u: Any, bias: Any, dy: Any, c: Any, how: Any = None) -> Any:
        return (
            jaxbw.ragged_dot(
                *(x, w, sizes), bias=bias, alpha=0.5, activation="relu", implementation=how
            ),
            jaxbw.gated_ragged_dot(x, w, u, sizes, activation="relu", implementation=how),
            jaxbw.ragged_dot_general(
                *(x, dy, sizes, CONTRACTION, None, np.float32), c=c, implementation=how
            ),
        )

    operands = x, w, u, bias, dy, c
    ours = jax.jit(results, static_argnums=6)(*operands, emulated)
    theirs = jax.jit(results)(*operands)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))
    with jaxbw.target(target):
        calls = custom_calls(cuda_hlo(results, *operands))
    assert len(calls) == 3
    assert ["output_operand_alias" in call for call in calls] == [False, False, True]


@KERNELS
def test_kernels_of_float8(
    cuda_hlo: Callable[..., str],
    custom_calls: Callable[..., list[str]],
    emulated: str,
    target: str,
) -> None:
    """One launch each, of weights as they lie, and right in the emulator."""
    sizes, bias = np.array([17, 0, 50], np.int32), integers((3, 24))
    x, w, u = (integers(s, 1) for s in ((80, 160), (3, 24, 160), (3, 24, 160)))
    q = jaxbw.quantize(x, "e5m2", axis=-1)
    t, r = (jaxbw.quantize(y, "e4m3", axis=-1) for y in (w, u))
    narrow = jnp.float8_e4m3fn
    plain = x.astype(narrow), w.astype(narrow)

    def results(q: Any, t: Any, r: Any, plain: Any, how: Any = None) -> Any:
        kept = jaxbw.Quantized(jnp.matrix_transpose(t.data), t.mT.scale, t.data, t.dtype)
        return (
            jaxbw.ragged_dot(
                *(q, kept, sizes), bias=bias, alpha=0.5, activation="relu", implementation=how
            ),
            jaxbw.ragged_dot(q, t.mT, sizes, "highest", "bfloat16", implementation=how),
            jaxbw.gated_ragged_dot(q, t.mT, r.mT, sizes, activation="relu", implementation=how),
            jaxbw.ragged_dot(plain[0], plain[1].mT, sizes, None, "float16", implementation=how),
        )

    operands = q, t, r, plain
    ours = jax.jit(results, static_argnums=4)(*operands, emulated)
    theirs = jax.jit(results)(*operands)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))
    np.testing.assert_array_equal(ours[3], rows(x, w.swapaxes(1, 2), sizes).astype(np.float16))
    with jaxbw.target(target):
        calls = custom_calls(cuda_hlo(results, *operands))
    assert len(calls) == 4
    kernels = [re.search(r"jaxbw_\w+_grouped_(\w+?)_(nt|1cta)", call) for call in calls]
    accurate = "8bit_promoted" if target == "H200" else "8bit"  # Blackwell's sums are float32's
    assert sorted(found[1] for found in kernels if found) == ["8bit"] * 3 + [accurate]


def test_kernels_of_float8_along_n() -> None:
    """On Blackwell, of weights as they are quantized, and of a ragged contraction."""
    sizes = np.array([17, 0, 50], np.int32)
    x, w, u, dy = (integers(s, 1) for s in ((80, 160), (3, 160, 32), (3, 160, 32), (80, 32)))
    q = jaxbw.quantize(x, "e5m2", axis=-1)
    t, r = (jaxbw.quantize(y, "e4m3", axis=-2) for y in (w, u))
    narrow, wide = jnp.float8_e4m3fn, np.float32
    contraction = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())

    def results(how: Any) -> Any:
        return (
            jaxbw.ragged_dot(q, t, sizes, None, "bfloat16", implementation=how),
            jaxbw.gated_ragged_dot(q, t, r, sizes, activation="relu", implementation=how),
            jaxbw.ragged_dot_general(
                *(x.astype(narrow), dy.astype(jnp.float8_e5m2), sizes, contraction),
                preferred_element_type=wide,
                implementation=how,
            ),
        )

    for ours, theirs in zip(results("emulator"), results("xla"), strict=True):
        np.testing.assert_array_equal(ours.astype(wide), theirs.astype(wide))
