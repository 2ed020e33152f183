"""jaxbw.collective_matmul over the CPU's devices: values, derivatives, and what is communicated."""

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxbw
from jaxbw._src.primitives import ring

from .collective_matmuls import (
    AXIS,
    FORMS,
    ON_RING,
    PLAIN,
    assert_equal,
    collectives,
    communication,
    expected,
    integers,
    layers,
    mesh_of,
    over_mesh,
    with_gradients,
)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("form", "size"),
    [*((form, 8) for form in FORMS), *((form, size) for form in FORMS[1::3] for size in (1, 2, 5))],
    ids=str,
)
@pytest.mark.parametrize(
    "matmul", [ON_RING, PLAIN, jaxbw.collective_matmul], ids=["ring", "plain", "default"]
)
def test_is_the_matmul_of_whole_arrays(
    form: dict[str, int], size: int, matmul: Callable[..., Any]
) -> None:
    x, w = integers((2 * size, size, 3 * size)), integers((3 * size, size), 1)
    matmul = over_mesh(form, size, matmul)
    reference = with_gradients(expected(form, size))
    cotangent = integers(jax.eval_shape(expected(form, size), x, w).shape, 2)
    assert_equal(jax.jit(with_gradients(matmul))(x, w, cotangent), reference(x, w, cotangent))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_only_permutes_communicate(form: dict[str, int]) -> None:
    """One less than there are devices; an all-reduce only for what every device had all of."""
    size = 8
    x, w = integers((8, 8, 8)), integers((8, 8))
    matmul = over_mesh(form, size, ON_RING)
    assert communication(matmul, x, w) == {"collective-permute": size - 1}

    def pull_back(x: Any, w: Any, cotangent: Any) -> Any:
        return jax.vjp(matmul, x, w)[1](cotangent)

    found = communication(pull_back, x, w, jax.eval_shape(matmul, x, w))
    # One ring gathers the cotangent for both matmuls; or one scatters, and one gathers x or w.
    permutes = size - 1 if "scatter" in form else 2 * (size - 1)
    assert found == {"collective-permute": permutes} | (
        {} if "scatter" in form else {"all-reduce": 1}
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("form", [form for form in FORMS if "scatter" in form], ids=str)
def test_halves_of_chunks_are_scattered(
    form: dict[str, int], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One travels while the other is multiplied: twice as many transfers, the same result."""
    monkeypatch.setattr(ring, "FULL", 1)
    x, w = integers((2 * size, 2 * size, 3 * size)), integers((3 * size, 2 * size), 1)
    matmul = over_mesh(form, size, ON_RING)
    reference = with_gradients(expected(form, size))
    cotangent = integers(jax.eval_shape(expected(form, size), x, w).shape, 2)
    assert_equal(jax.jit(with_gradients(matmul))(x, w, cotangent), reference(x, w, cotangent))
    assert communication(matmul, x, w)["collective-permute"] == 2 * (size - 1)


def test_small_and_odd_chunks_are_not_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    size, form = 4, {"scatter": 0}
    for rows, full in ((12, 1), (16, 16 * 8 // (2 * size) + 1)):
        monkeypatch.setattr(ring, "FULL", full)
        x, w = integers((rows, 1, 8)), integers((8, 8), 1)
        matmul = over_mesh(form, size, ON_RING)
        assert communication(matmul, x, w)["collective-permute"] == size - 1
    monkeypatch.setattr(ring, "FULL", full - 1)
    again = over_mesh(form, size, lambda *given, **form: ON_RING(*given, **form))
    assert communication(again, x, w)["collective-permute"] == 2 * (size - 1)


def test_a_chunk_of_symbolic_size_is_whole() -> None:
    matmul = over_mesh({"scatter": 1}, 2, ON_RING)
    (batch,) = jax.export.symbolic_shape("b")
    x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((batch, 8, 8), (8, 8)))
    exported = jax.export.export(jax.jit(matmul))(x, w)
    assert exported.mlir_module().count("stablehlo.collective_permute") == 1


def test_a_training_step_has_no_other_collective() -> None:
    size = 8
    x, up, down = integers((2, 16, 8)), integers((8, 24), 1), integers((24, 8), 2)

    def loss(matmul: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arrays: (layers(matmul, size)(*arrays) * x).sum()

    step = jax.jit(jax.value_and_grad(loss(ON_RING), (0, 1, 2)))
    reference = jax.value_and_grad(loss(collectives), (0, 1, 2))
    assert_equal(step(x, up, down), reference(x, up, down))
    found = communication(jax.grad(loss(ON_RING), (0, 1, 2)), x, up, down)
    # Forward the ring of x, whose chunks XLA keeps for the gradient of `up` (the scattered result
    # is not asked for); backward that of the cotangent, and one that scatters the gradient of x.
    assert found == {"collective-permute": 3 * (size - 1)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("matmul", [ON_RING, PLAIN], ids=["ring", "plain"])
@pytest.mark.parametrize("form", [{"gather_lhs": 1}, {"gather_rhs": 0}, {"scatter": 1}], ids=str)
def test_derivatives_of_all_modes(form: dict[str, int], matmul: Callable[..., Any]) -> None:
    size = 2
    x, w = integers((2, 4, 4)), integers((4, 4), 1)
    tangents = integers(x.shape, 2), integers(w.shape, 3)

    def derivatives(matmul: Callable[..., Any]) -> Any:
        def loss(x: Any, w: Any) -> Any:
            return (matmul(x, w) ** 2).sum()

        @jax.jit
        def all_of_them(x: Any, w: Any) -> Any:
            gradient = jax.grad(loss, (0, 1))
            return (
                jax.jvp(matmul, (x, w), tangents),
                jax.jvp(gradient, (x, w), tangents),  # forward over reverse
                jax.grad(lambda x, w: (gradient(x, w)[0] * x).sum(), (0, 1))(x, w),
                jax.linear_transpose(lambda x: matmul(x, w), x)(matmul(x, w)),
            )

        return all_of_them(x, w)

    got = derivatives(over_mesh(form, size, matmul))
    assert_equal(got, derivatives(expected(form, size)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", [{"gather_lhs": 1}, {"gather_rhs": 1}, {"scatter": 2}], ids=str)
@pytest.mark.parametrize("axes", [(0, None), (None, 2), (3, 0)])
def test_vmap(form: dict[str, int], axes: tuple[int | None, int | None]) -> None:
    """Of what is called in the shard_map; of the outside, jax.shard_map's own rule is."""
    x, w = integers((2, 4, 4)), integers((4, 4), 1)
    batch = 3
    x, w = (
        y if axis is None else jnp.stack([y + i for i in range(batch)], axis)
        for y, axis in zip((x, w), axes, strict=True)
    )

    def mapped(matmul: Callable[..., Any]) -> Any:
        return jax.jit(jax.vmap(with_gradients(matmul), (*axes, None)))

    reference = expected(form, 2)
    one = (y if axis is None else y.take(0, axis) for y, axis in zip((x, w), axes, strict=True))
    cotangent = integers(jax.eval_shape(reference, *one).shape, 2)
    got = mapped(over_mesh(form, 2, ON_RING))(x, w, cotangent)
    assert_equal(got, mapped(reference)(x, w, cotangent))


def test_a_vmap_inside() -> None:
    """A batch of weights, sharded like the batch of activations, is one matmul each."""
    x, w = integers((3, 4, 8)), integers((3, 8, 4), 1)

    def local(x: Any, w: Any) -> Any:
        return jax.vmap(lambda x, w: ON_RING(x, w, AXIS, scatter=0))(x, w)

    specs = (P(None, None, AXIS), P(None, AXIS))
    matmul = jax.shard_map(local, mesh=mesh_of(4), in_specs=specs, out_specs=P(None, AXIS))
    assert_equal(jax.jit(matmul)(x, w), x @ w)
    assert communication(matmul, x, w) == {"collective-permute": 3}


@pytest.mark.parametrize(
    ("policy", "matmuls"),
    [
        (jax.checkpoint_policies.nothing_saveable, 7),
        (jaxbw.checkpoint_policies.dots_saveable, 6),
        (jax.checkpoint_policies.everything_saveable, 6),
    ],
)
def test_checkpoint_policies_know_it(policy: Any, matmuls: int) -> None:
    """Two matmuls forward, four backward, and what is computed again."""

    def loss(*arrays: Any) -> Any:
        return jax.checkpoint(layers(ON_RING, 2), policy=policy)(*arrays).sum()

    operands = integers((2, 8, 4)), integers((4, 8), 1), integers((8, 4), 2)
    program = jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(*operands)
    assert str(program).count("= jaxbw_collective_dot_general[") == matmuls


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums_of_devices_are_float32(dtype: str) -> None:
    """In the dtype itself, 2048 + 1 + 1 + ... is 2048 for float16, and so with 256 for bfloat16."""
    large = {"bfloat16": 256, "float16": 2048}[dtype]

    @jax.jit
    @functools.partial(
        jax.shard_map,
        mesh=mesh_of(8),
        in_specs=(P(None, AXIS), P(AXIS)),
        out_specs=(P(AXIS), P(None, AXIS)),
    )
    def matmuls(x: Any, w: Any) -> Any:
        scattered = ON_RING(x, w, AXIS, scatter=0)
        return scattered, ON_RING(x, jnp.ones((8, 2), dtype), AXIS, gather_lhs=1)

    for place in range(8):
        x = jnp.broadcast_to(jnp.ones(8).at[place].set(large), (8, 8)).astype(dtype)
        wanted = jnp.full((8, 16), large + 7, jnp.float32).astype(dtype)
        assert_equal(matmuls(x, jnp.ones((8, 16), dtype)), (wanted, wanted))


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("dtype", ["int32", "complex64", "float64", "bool"])
def test_other_dtypes(dtype: str, overlap: bool) -> None:
    with jax.enable_x64(dtype == "float64"):
        x, w = integers((4, 8)).astype(dtype), integers((8, 4), 1).astype(dtype)
        matmul = jax.shard_map(
            lambda x, w: jaxbw.collective_matmul(x, w, AXIS, scatter=1, overlap=overlap),
            mesh=mesh_of(4),
            in_specs=(P(None, AXIS), P(AXIS)),
            out_specs=P(None, AXIS),
        )
        result, wanted = jax.jit(matmul)(x, w), jnp.matmul(x, w)
        assert result.dtype == wanted.dtype
        assert_equal(result, wanted)


def test_preferred_element_type() -> None:
    x, w = integers((4, 8), dtype=jnp.bfloat16), integers((8, 4), 1, jnp.bfloat16)

    def matmul(x: Any, w: Any) -> Any:
        keywords: dict[str, Any] = {"scatter": 0, "preferred_element_type": jnp.float32}
        return ON_RING(x, w, AXIS, **keywords)

    specs = (P(None, AXIS), P(AXIS))
    sharded = jax.shard_map(matmul, mesh=mesh_of(4), in_specs=specs, out_specs=P(AXIS))
    result, pull_back = jax.vjp(sharded, x, w)
    assert result.dtype == jnp.float32
    assert [y.dtype for y in pull_back(result)] == [jnp.bfloat16] * 2


def test_outside_of_jit() -> None:
    x, w = integers((8, 4)), integers((4, 8), 1)
    specs = (P(AXIS), P(None, AXIS))
    for check in (True, False):
        matmul: Callable[..., Any] = jax.shard_map(
            lambda x, w: ON_RING(x, w, AXIS, gather_lhs=0),
            mesh=mesh_of(4),
            in_specs=specs,
            out_specs=specs[1],
            check_vma=check,
        )
        assert_equal(matmul(x, w), x @ w)


def test_an_axis_of_several() -> None:
    mesh = Mesh(np.array(jax.devices("cpu")[:8]).reshape(2, 2, 2), ("data", "a", "b"))
    x, w = integers((4, 8, 8)), integers((8, 8), 1)

    def local(x: Any, w: Any) -> Any:
        return ON_RING(x, w, ("a", "b"), gather_lhs=1)

    specs = (P("data", ("a", "b")), P(None, ("a", "b")))
    matmul = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P("data", None, ("a", "b")))
    assert_equal(jax.jit(matmul)(x, w), x @ w)
    # Weights that every row of "data" has are summed over it, and over nothing else.
    gradient = jax.grad(lambda x, w: matmul(x, w).sum(), (0, 1))
    assert_equal(jax.jit(gradient)(x, w), jax.grad(lambda x, w: (x @ w).sum(), (0, 1))(x, w))
    assert communication(gradient, x, w) == {"collective-permute": 6, "all-reduce": 1}


@pytest.mark.parametrize("implementation", [None, "emulator-sm90"])
def test_over_some_axes(implementation: str | None) -> None:
    """XLA divides along the others, and kernels serve what it makes."""
    mesh = Mesh(np.array(jax.devices("cpu")[:8]).reshape(2, 4), ("data", AXIS))
    x, w = integers((2, 32, 64), 0, jnp.bfloat16), integers((64, 128), 1, jnp.bfloat16)
    x = jax.device_put(x, jax.NamedSharding(mesh, P("data", AXIS)))

    def local(x: Any, w: Any) -> Any:
        keywords: dict[str, Any] = {"gather_lhs": 1, "implementation": implementation}
        return ON_RING(x, w, AXIS, preferred_element_type=jnp.float32, **keywords)

    matmul = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(P(None, AXIS), P(None, AXIS)),
        out_specs=P(None, None, AXIS),
        axis_names={AXIS},
    )
    assert_equal(jax.jit(matmul)(x, w), jnp.matmul(x, w, preferred_element_type=jnp.float32))


def test_the_result_varies() -> None:
    """Where it is checked, nobody may take one device's result for everybody's."""
    for form in ({"gather_lhs": 0}, {"scatter": 0}):
        with pytest.raises(ValueError, match="out_specs"):
            jax.shard_map(
                lambda x, w, form=form: ON_RING(x, w, AXIS, **form),
                mesh=mesh_of(2),
                in_specs=(P(), P()),
                out_specs=P(),
            )(integers((4, 4)), integers((4, 4)))


def test_on_the_emulator() -> None:
    """Two devices, each of which runs kernels while the other does."""
    x, w = (integers((64, 128), i, jnp.bfloat16) for i in (0, 1))

    def local(x: Any, w: Any) -> Any:
        y = ON_RING(x, w.T, AXIS, gather_lhs=0, implementation="emulator-sm90")
        return ON_RING(y, w, AXIS, scatter=0, implementation="emulator-sm90")

    matmul = jax.shard_map(local, mesh=mesh_of(2), in_specs=(P(AXIS), P(AXIS)), out_specs=P(AXIS))
    hidden = (np.asarray(x, np.float32) @ np.asarray(w, np.float32).T).astype(jnp.bfloat16)
    wanted = hidden.astype(np.float64) @ np.asarray(w, np.float64)
    result = np.asarray(jax.jit(matmul)(x, w))
    assert_equal(result, wanted.astype(jnp.bfloat16))


X, W = integers((4, 6)), integers((6, 10))
REFUSED: list[tuple[dict[str, Any], Any, Any, str]] = [
    ({}, X, W, "0 of gather_lhs, gather_rhs and scatter are given"),
    ({"gather_lhs": 0, "scatter": 0}, X, W, "2 of gather_lhs, gather_rhs and scatter are given"),
    ({"scatter": 2}, X, W, r"lhs f32\[4,6\], rhs f32\[6,10\]: scatter is 2; the result has 2 dim"),
    ({"gather_rhs": -3}, X, W, "gather_rhs is -3; rhs has 2 dimensions"),
    ({"gather_lhs": 0}, X, W[None], r"rhs is \[k, n\]; use jax.vmap"),
    ({"gather_lhs": 0}, X, X, "the last dimension of lhs, 6, is not the first of rhs, 4"),
    (
        {"gather_lhs": 1},
        X,
        W,
        r"'model' of 2 devices: the last dimension of lhs, 12 when gathered from 6, is not the "
        r"first of rhs, 6",
    ),
    ({"gather_rhs": 0}, X, W, "lhs, 6, is not the first of rhs, 12 when gathered from 6"),
    (
        {"scatter": 0},
        X[:3],
        W,
        r"dimension 0 of the result \[3,10\] is scattered, and 2 does not divide it; pad it",
    ),
]


@pytest.mark.parametrize(("form", "x", "w", "message"), REFUSED)
def test_errors(form: dict[str, Any], x: Any, w: Any, message: str) -> None:
    matmul = jax.shard_map(
        lambda x, w: ON_RING(x, w, AXIS, **form),
        mesh=mesh_of(2),
        in_specs=(P(), P()),
        out_specs=P(AXIS),
    )
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(matmul, x, w)


def test_it_is_for_shard_map() -> None:
    def matmul(x: Any) -> Any:
        return ON_RING(x, W, AXIS, gather_lhs=0)

    for function in (matmul, jax.vmap(matmul, axis_name=AXIS)):
        with pytest.raises(ValueError, match=r"'model' is not an axis of a .* whose axes are none"):
            function(X[None])


@pytest.mark.parametrize(
    ("form", "overlap", "problem"),
    [
        ({"scatter": 0}, True, r"f32\[1,2,6\] @ f32\[1,6,10\]"),
        ({"scatter": 0}, False, r"f32\[1,4,6\] @ f32\[1,6,10\]"),
        ({"scatter": 0}, None, r"f32\[1,4,6\] @ f32\[1,6,10\]"),
        ({"gather_lhs": 0}, True, r"f32\[1,4,6\] @ f32\[1,6,10\]"),
        ({"gather_lhs": 0}, False, r"f32\[1,8,6\] @ f32\[1,6,10\]"),
        ({"gather_rhs": 1}, False, r"f32\[1,4,6\] @ f32\[1,6,20\]"),
    ],
    ids=str,
)
def test_a_strict_kernel_refuses_at_trace_time(
    form: dict[str, int], overlap: bool | None, problem: str
) -> None:
    keywords: dict[str, Any] = {
        **{"overlap": overlap, "implementation": "sm90", "precision": "highest"},
        **form,
    }
    matmul = jax.shard_map(
        lambda x, w: jaxbw.collective_matmul(x, w, AXIS, **keywords),
        mesh=mesh_of(2),
        in_specs=P(),
        out_specs=P(AXIS),
    )
    with pytest.raises(NotImplementedError, match=f"{problem}.* precision is"):
        jax.eval_shape(matmul, X, W)


def test_overlap_is_a_bool_or_none() -> None:
    with pytest.raises(TypeError, match="overlap is 'ring'; it is True, False or None"):
        jaxbw.collective_matmul(X, W, AXIS, scatter=0, overlap=cast(Any, "ring"))
