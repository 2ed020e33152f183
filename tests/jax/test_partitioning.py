"""Programs of several devices: kernels on shards, and the collectives of lax.dot_general."""

import collections
import contextlib
import functools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxbw
from jaxbw._src.epilogue import Epilogue
from jaxbw._src.primitives.gemm import TARGET
from jaxbw._src.primitives.partitioned_call import PartitionedCall
from jaxbw._src.primitives.partitioning import TARGET as PARTITIONED
from jaxbw._src.selection import select
from jaxbw._src.selection.policy import FREE, Policy
from jaxbw._src.selection.tuned_matmuls import TunedMatmuls
from jaxbw._src.selection.xla import XlaTime

from .epilogues import CASES as EPILOGUES
from .epilogues import formula, numbers

COLLECTIVE = re.compile(
    r" (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
MATMUL = (((1,), (0,)), ((), ()))
BATCHED = (((2,), (1,)), ((0,), (0,)))
TWO = (((1, 2), (0, 1)), ((), ()))
THREE = (((2,), (0,)), ((), ()))
SIZES: dict[Any, tuple[tuple[int, ...], tuple[int, ...]]] = {
    MATMUL: ((32, 64), (64, 128)),
    BATCHED: ((8, 16, 32), (8, 32, 64)),
    TWO: ((32, 8, 16), (8, 16, 64)),
    THREE: ((4, 8, 32), (32, 64)),
}


@dataclass(frozen=True)
class Case:
    lhs: P
    rhs: P
    out: P
    dims: Any = MATMUL
    merged: bool = False  # two all-reduces of lax are one here


CASES = {
    "replicated": Case(P(), P(), P()),
    "m": Case(P("x"), P(), P("x")),
    "n": Case(P(), P(None, "y"), P(None, "y")),
    "m, n": Case(P("x"), P(None, "y"), P("x", "y")),
    "k": Case(P(None, "y"), P("y"), P()),
    "m, k": Case(P("x", "y"), P("y"), P("x")),
    "k, n": Case(P(None, "x"), P("x", "y"), P(None, "y")),
    "m over two axes": Case(P(("y", "x")), P(), P(("y", "x"))),
    "k over two axes": Case(P(None, ("x", "y")), P(("x", "y")), P()),
    "k of lhs alone": Case(P(None, "y"), P(), P()),
    "k, scattered": Case(P(None, "y"), P("y"), P("y")),
    "batch": Case(P("x"), P("x"), P("x"), BATCHED),
    "batch, m": Case(P("x", "y"), P("x"), P("x", "y"), BATCHED),
    "batch, k": Case(P("x", None, "y"), P("x", "y"), P("x"), BATCHED),
    "batch, n": Case(P("x"), P("x", None, "y"), P("x", None, "y"), BATCHED),
    "one of two k": Case(P("x", "y"), P("y"), P("x"), TWO),
    "the other of two k": Case(P("x", None, "y"), P(None, "y"), P("x"), TWO),
    "two k": Case(P(None, "x", "y"), P("x", "y"), P(), TWO, merged=True),
    "two m": Case(P("x", "y"), P(), P("x", "y"), THREE, merged=True),
    "two m, k": Case(P("x", None, "y"), P("y"), P("x"), THREE),
}
# Both operands want an axis, and one of them has to go without: here XLA's partitioner and ours
# choose different ways at times.
CONFLICTS = {
    "m and n": Case(P("x"), P(None, "x"), P("x")),
    "m and k": Case(P("x"), P("x"), P("x")),
    "k and n": Case(P(None, "x"), P(None, "x"), P(None, "x")),
    "m, k and k, n": Case(P("x", "y"), P("x", "y"), P("x")),
}


def mesh_of(kind: AxisType, shape: tuple[int, ...] = (2, 4)) -> jax.sharding.Mesh:
    return jax.make_mesh(
        shape,
        ("x", "y", "z")[: len(shape)],
        axis_types=(kind,) * len(shape),
        devices=jax.devices("cpu")[: math.prod(shape)],
    )


def integers(shape: tuple[int, ...], number: int = 0) -> np.ndarray:
    """Of so few values that bfloat16 holds all of their sums."""
    generator = np.random.default_rng([*shape, number])
    return generator.integers(-1, 2, shape).astype(jnp.bfloat16)


def exact(x: Any) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


def put(mesh: jax.sharding.Mesh, x: Any, spec: P) -> jax.Array:
    array: jax.Array = jax.device_put(x, NamedSharding(mesh, spec))
    return array


def compiled(mesh: jax.sharding.Mesh, function: Any, *operands: Any) -> Any:
    explicit = mesh.axis_types[0] == AxisType.Explicit
    with jax.set_mesh(mesh) if explicit else contextlib.nullcontext():
        return jax.jit(function).lower(*operands).compile()


def collectives(program: Any) -> dict[str, int]:
    return dict(collections.Counter(COLLECTIVE.findall(program.as_text())))


def kernels(program: Any) -> int:
    text: str = program.as_text()
    return text.count(f'custom_call_target="{TARGET}"')


def step_of(matmul: Any, case: Case, mesh: jax.sharding.Mesh) -> Any:
    """The matmul and its gradients, of operands and a cotangent."""
    if mesh.axis_types[0] == AxisType.Explicit:
        matmul = functools.partial(matmul, out_sharding=case.out)

    def result(lhs: Any, rhs: Any) -> Any:
        out = matmul(lhs, rhs, case.dims)
        if mesh.axis_types[0] == AxisType.Auto:
            out = lax.with_sharding_constraint(out, NamedSharding(mesh, case.out))
        return out

    def step(lhs: Any, rhs: Any, cotangent: Any) -> Any:
        out, pull_back = jax.vjp(result, lhs, rhs)
        return out, *pull_back(cotangent)

    return step


def operands_of(case: Case, mesh: jax.sharding.Mesh) -> list[jax.Array]:
    shapes = SIZES[case.dims]
    out = jax.eval_shape(
        lambda x, y: lax.dot_general(x, y, case.dims),
        *(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes),
    )
    return [
        put(mesh, integers(shape, number), spec)
        for number, (shape, spec) in enumerate(
            zip((*shapes, out.shape), (case.lhs, case.rhs, case.out), strict=True)
        )
    ]


KINDS = pytest.mark.parametrize(
    "kind", [AxisType.Auto, AxisType.Explicit], ids=lambda kind: kind.name
)
EMULATED = functools.partial(jaxbw.dot_general, implementation="emulator")


@pytest.mark.sampled(2)
@KINDS
@pytest.mark.parametrize("name", CASES)
def test_collectives_are_those_of_lax(name: str, kind: AxisType) -> None:
    """Forward and backward."""
    case, mesh = CASES[name], mesh_of(kind)
    given = operands_of(case, mesh)
    ours, theirs = (
        compiled(mesh, step_of(matmul, case, mesh), *given)
        for matmul in (EMULATED, lax.dot_general)
    )
    assert kernels(ours) == 3
    wanted = collectives(theirs)
    if case.merged:
        # XLA sums over one dimension's axes, then over the other's. Ours is one sum over both.
        wanted["all-reduce"] -= 1
    assert collectives(ours) == wanted
    for got, as_lax in zip(ours.output_shardings, theirs.output_shardings, strict=True):
        assert got.spec == as_lax.spec


@pytest.mark.sampled(2)
@KINDS
@pytest.mark.parametrize("name", ["replicated", "m, k", "batch, n", "two k"])
def test_results_are_those_of_one_device(name: str, kind: AxisType) -> None:
    case, mesh = CASES[name], mesh_of(kind)
    given = operands_of(case, mesh)
    got = compiled(mesh, step_of(EMULATED, case, mesh), *given)(*given)
    whole = [jnp.asarray(exact(x), jnp.float32) for x in given]
    out, pull_back = jax.vjp(
        functools.partial(lax.dot_general, dimension_numbers=case.dims), *whole[:2]
    )
    for x, wanted in zip(got, (out, *pull_back(whole[2])), strict=True):
        np.testing.assert_array_equal(exact(x), exact(wanted))


def test_parts_of_float8_results_are_summed_in_float32() -> None:
    """They were rounded to float8 first: 400 - 375 was 0."""
    mesh = jax.make_mesh((2,), ("k",), (AxisType.Auto,))
    lhs = np.concatenate([np.full((1, 50), 8), np.full((1, 50), -6)], 1)
    rhs = np.concatenate([np.full((50, 1), 1), np.full((50, 1), 1.25)])
    given = [
        jax.device_put(jnp.asarray(x, jnp.float8_e4m3fn), NamedSharding(mesh, spec))
        for x, spec in ((lhs, P(None, "k")), (rhs, P("k")))
    ]
    dims = (((1,), (0,)), ((), ()))
    result = jax.jit(functools.partial(EMULATED, dimension_numbers=dims))(*given)
    assert result.dtype == jnp.float8_e4m3fn
    assert float(result[0, 0]) == float(jnp.asarray(400 - 375, jnp.float8_e4m3fn))


def received(program: Any) -> float:
    """Elements that a device receives in collectives, as these are implemented in rings."""
    total = 0.0
    for line in program.as_text().splitlines():
        if (found := COLLECTIVE.search(line)) is None:
            continue
        shapes = re.findall(r"[a-z0-9]+\[([0-9,]+)\]", line[: found.start()])
        elements = sum(math.prod(map(int, shape.split(","))) for shape in shapes)
        rows = re.search(r"replica_groups=(?:\[\d+,(\d+)\]|\{\{([\d,]+)\})", line)
        group = 1 if rows is None else int(rows[1] or len(rows[2].split(",")))
        passes = {"all-reduce": 2, "reduce-scatter": group}.get(found[1], 1)
        share = 1 if found[1] == "collective-permute" else 1 - 1 / group
        total += elements * passes * share
    return total


@pytest.mark.parametrize("name", CONFLICTS)
def test_where_operands_are_in_each_others_way_no_more_is_received(name: str) -> None:
    case, mesh = CONFLICTS[name], mesh_of(AxisType.Auto)
    given = operands_of(case, mesh)[:2]
    ours, theirs = (
        compiled(mesh, functools.partial(matmul, dimension_numbers=case.dims), *given)
        for matmul in (EMULATED, lax.dot_general)
    )
    assert kernels(ours) == 1
    assert received(ours) <= received(theirs)
    np.testing.assert_array_equal(exact(ours(*given)), exact(given[0]) @ exact(given[1]))


def test_an_uneven_contraction_is_gathered_not_padded() -> None:
    mesh = mesh_of(AxisType.Auto, (4,))
    lhs, rhs = integers((8, 6)), integers((6, 8), 1)

    def matmul(lhs: Any, rhs: Any) -> Any:
        lhs = lax.with_sharding_constraint(lhs * 1, NamedSharding(mesh, P(None, "x")))
        rhs = lax.with_sharding_constraint(rhs * 1, NamedSharding(mesh, P("x")))
        return jaxbw.matmul(lhs, rhs, implementation="emulator")

    given = put(mesh, lhs, P()), put(mesh, rhs, P())
    program = compiled(mesh, matmul, *given)
    assert kernels(program) == 1
    np.testing.assert_array_equal(exact(program(*given)), exact(lhs) @ exact(rhs))


# Epilogues


def layer(implementation: str, x: Any, w: Any, b: Any, r: Any) -> Any:
    return jaxbw.matmul(x, w, bias=b, activation="relu", residual=r, implementation=implementation)


@pytest.mark.parametrize(
    ("x", "w", "b", "r", "epilogue_in_kernel"),
    [
        (P("x"), P(None, "y"), P("y"), P("x", "y"), True),
        (P("x"), P(None, "y"), P(), P(), True),
        (P("x", "y"), P("y"), P(), P("x"), False),
    ],
    ids=["column parallel", "column parallel, whole bias and residual", "row parallel"],
)
def test_epilogue(x: P, w: P, b: P, r: P, epilogue_in_kernel: bool) -> None:
    mesh = mesh_of(AxisType.Auto)
    arrays = [integers(s, i) for i, s in enumerate([(16, 32), (32, 64), (64,), (16, 64)])]
    given = [put(mesh, array, spec) for array, spec in zip(arrays, (x, w, b, r), strict=True)]

    def step(implementation: str, *given: Any) -> Any:
        def loss(*given: Any) -> Any:
            out = layer(implementation, *given)
            return (out.astype(jnp.float32) ** 2).sum(), out

        return jax.grad(loss, (0, 1, 2, 3), has_aux=True)(*given)

    ours, theirs = (
        compiled(mesh, functools.partial(step, name), *given) for name in ("emulator", "xla")
    )
    assert collectives(ours) == collectives(theirs)
    assert kernels(ours) == 3
    # XLA has an epilogue to compute where the contraction is divided, on what was summed.
    forward = compiled(mesh, functools.partial(layer, "emulator"), *given)
    assert ("maximum" in forward.as_text()) != epilogue_in_kernel
    a, c, d, e = map(exact, arrays)
    wanted = np.maximum(a @ c + d, 0) + e
    np.testing.assert_array_equal(exact(forward(*given)), wanted)
    assert collectives(forward) == ({} if epilogue_in_kernel else {"all-reduce": 1})


@pytest.mark.parametrize("divided", ["n", "k"])
@pytest.mark.parametrize(
    "name", ["all, relu", "bias along m", "traced alpha and beta", "scales, all"]
)
def test_every_term_of_an_epilogue(name: str, divided: str) -> None:
    case, mesh = EPILOGUES[name], mesh_of(AxisType.Auto)
    by_k = divided == "k"
    along_m = case.get("bias_axis") == -2
    given = {
        "lhs": ((16, 32), P("x", "y" if by_k else None)),
        "rhs": ((32, 64), P("y") if by_k else P(None, "y")),
        "c": ((16, 64), P("x")),
        "bias": ((16,) if along_m else (64,), P("x") if along_m else P()),
        "residual": ((16, 64), P(None, "y")),
        "alpha": ((), P()),
        "beta": ((), P()),
        "lhs_scale": ((16,), P("x")),
        "rhs_scale": ((64,), P()),
    }
    whole = {
        key: integers(shape, number)
        for number, (key, (shape, _)) in enumerate(given.items())
        if key in ("lhs", "rhs") or case.get(key) is True
    }
    divided_arrays = {key: put(mesh, x, given[key][1]) for key, x in whole.items()}

    def matmul(given: Any) -> Any:
        return jaxbw.matmul(**given, **numbers(case), implementation="emulator")

    program = compiled(mesh, matmul, divided_arrays)
    assert kernels(program) == 1
    terms: dict[str, Any] = {key: exact(x) for key, x in whole.items()}
    wanted = formula(**terms, **numbers(case))
    np.testing.assert_array_equal(exact(program(divided_arrays)), exact(wanted))


def test_a_bias_of_several_dimensions() -> None:
    mesh = mesh_of(AxisType.Auto)
    x, w, b = integers((4, 8, 32)), integers((32, 4, 16), 1), integers((4, 16), 2)
    given = put(mesh, x, P("x")), put(mesh, w, P(None, "y")), put(mesh, b, P("y"))
    matmul = functools.partial(jaxbw.dot_general, implementation="emulator")
    program = compiled(mesh, lambda x, w, b: matmul(x, w, THREE, bias=b), *given)
    assert kernels(program) == 1
    assert collectives(program) == {}
    wanted = np.einsum("abk,kcd->abcd", exact(x), exact(w)) + exact(b)
    np.testing.assert_array_equal(exact(program(*given)), wanted)


def test_rows_and_columns_may_be_divided_unevenly() -> None:
    mesh = mesh_of(AxisType.Auto)
    x, w = integers((7, 5)), integers((5, 13), 1)

    def matmul(x: Any, w: Any) -> Any:
        x = lax.with_sharding_constraint(x * 1, NamedSharding(mesh, P("y")))
        w = lax.with_sharding_constraint(w * 1, NamedSharding(mesh, P(None, "x")))
        return jaxbw.matmul(x, w, implementation="emulator")

    given = put(mesh, x, P()), put(mesh, w, P())
    program = compiled(mesh, matmul, *given)
    assert kernels(program) == 1
    np.testing.assert_array_equal(exact(program(*given)), exact(x) @ exact(w))


@KINDS
def test_gated(kind: AxisType) -> None:
    mesh = mesh_of(kind)
    arrays = [integers(s, i) for i, s in enumerate([(16, 32), (32, 64), (32, 64)])]
    specs = (P("x"), P(None, "y"), P(None, "y"))
    given = [put(mesh, array, spec) for array, spec in zip(arrays, specs, strict=True)]

    def step(implementation: str, *given: Any) -> Any:
        def loss(*given: Any) -> Any:
            out = jaxbw.gated_matmul(*given, activation="relu", implementation=implementation)
            return out.astype(jnp.float32).sum(), out

        return jax.grad(loss, (0, 1, 2), has_aux=True)(*given)

    ours, theirs = (
        compiled(mesh, functools.partial(step, name), *given) for name in ("emulator", "xla")
    )
    assert collectives(ours) == collectives(theirs)
    assert kernels(ours) == 5
    _, out = ours(*given)
    x, gate, up = map(exact, arrays)
    matmul = np.maximum(x @ gate, 0) * (x @ up)
    np.testing.assert_array_equal(exact(out), exact(matmul.astype(jnp.bfloat16)))


def test_a_gated_matmul_of_divided_contractions_is_summed_first() -> None:
    mesh = mesh_of(AxisType.Auto)
    arrays = [integers(s, i) for i, s in enumerate([(16, 32), (32, 64), (32, 64)])]
    specs = (P(None, "y"), P("y"), P("y"))
    given = [put(mesh, array, spec) for array, spec in zip(arrays, specs, strict=True)]
    gated = functools.partial(jaxbw.gated_matmul, activation="relu")
    ours, theirs = (
        compiled(mesh, functools.partial(gated, implementation=name), *given)
        for name in ("emulator", "xla")
    )
    assert collectives(ours) == collectives(theirs)
    np.testing.assert_array_equal(exact(ours(*given)), exact(theirs(*given)))


# shard_map


@pytest.mark.sampled(2)
@KINDS
@pytest.mark.parametrize(
    ("manual", "lhs", "rhs"),
    [
        # Axes of the mesh, of the contraction, and of m, in all orders: XLA numbers the devices of
        # a group by the result's sharding, not by the mesh.
        ("y", P("y", "x"), P("x")),
        ("y", P(("y", "z"), "x"), P("x")),
        ("y", P(("y", "x"), "z"), P("z")),
        ("y", P("y", ("z", "x")), P(("z", "x"))),
        ("x", P(("x", "z"), "y"), P("y")),
        ("z", P(("z", "y"), "x"), P("x")),
    ],
)
def test_inside_a_shard_map_over_some_axes(manual: str, lhs: P, rhs: P, kind: AxisType) -> None:
    mesh = mesh_of(kind, (2, 2, 2))
    given = put(mesh, integers((32, 64)), lhs), put(mesh, integers((64, 32), 1), rhs)
    inner = P(lhs[0][1:] if isinstance(lhs[0], tuple) else None, lhs[1])

    def local(matmul: Any, x: Any, w: Any) -> Any:
        if kind == AxisType.Auto:
            return matmul(x, w, MATMUL)
        # There what comes in is whole along the other axes.
        x, w = jax.sharding.reshard(x, inner), jax.sharding.reshard(w, rhs)
        return matmul(x, w, MATMUL, out_sharding=P(inner[0], None))

    def program(matmul: Any) -> Any:
        mapped = jax.shard_map(
            functools.partial(local, matmul),
            mesh=mesh,
            in_specs=(P(manual), P()),
            out_specs=P(manual),
            axis_names={manual},
        )
        return compiled(mesh, mapped, *given)

    ours, theirs = (program(matmul) for matmul in (EMULATED, lax.dot_general))
    assert kernels(ours) == 1
    assert collectives(ours) == collectives(theirs)
    assert collectives(ours)["all-reduce"] == 1
    np.testing.assert_array_equal(exact(ours(*given)), exact(given[0]) @ exact(given[1]))


def test_the_gradient_inside_a_shard_map_over_some_axes() -> None:
    """Of float32 parameters: XLA's CPU compiler aborts on lax's own bfloat16 sum of them there."""
    mesh = mesh_of(AxisType.Auto, (2, 2, 2))
    x, w = integers((32, 64)), integers((64, 32), 1)
    given = put(mesh, x, P(("y", "z"), "x")), put(mesh, w.astype(np.float32), P("x"))

    def step(matmul: Any, *given: Any) -> Any:
        def local(x: Any, w: Any) -> Any:
            return matmul(x, lax.pcast(w, ("y",), to="varying").astype(jnp.bfloat16), MATMUL)

        mapped = jax.shard_map(
            local, mesh=mesh, in_specs=(P("y"), P()), out_specs=P("y"), axis_names={"y"}
        )

        def loss(*given: Any) -> Any:
            out: Any = mapped(*given)
            return out.astype(jnp.float32).sum()

        return jax.grad(loss, (0, 1))(*given)

    ours, theirs = (
        compiled(mesh, functools.partial(step, matmul), *given)
        for matmul in (EMULATED, lax.dot_general)
    )
    assert kernels(ours) == 2
    assert collectives(ours) == collectives(theirs)
    ones = np.ones((32, 32))
    for got, wanted in zip(ours(*given), (ones @ exact(w).T, exact(x).T @ ones), strict=True):
        np.testing.assert_array_equal(exact(got), wanted)


def test_a_shard_map_in_a_shard_map() -> None:
    mesh = mesh_of(AxisType.Auto, (2, 2, 2))
    given = put(mesh, integers((32, 64)), P(("x", "z"), "y")), put(mesh, integers((64, 32)), P("y"))

    def inner(x: Any, w: Any) -> Any:
        return EMULATED(x, w, MATMUL)

    def outer(x: Any, w: Any) -> Any:
        mapped = jax.shard_map(inner, in_specs=(P("z"), P()), out_specs=P("z"), axis_names={"z"})
        return mapped(x, w)

    program = compiled(
        mesh,
        jax.shard_map(outer, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), axis_names={"x"}),
        *given,
    )
    assert kernels(program) == 1
    assert collectives(program) == {"all-reduce": 1}
    np.testing.assert_array_equal(exact(program(*given)), exact(given[0]) @ exact(given[1]))


def test_inside_a_shard_map_over_all_axes() -> None:
    """The sum is the caller's; check_vma holds the gradient's types to it."""
    mesh = mesh_of(AxisType.Auto)
    given = put(mesh, integers((16, 64)), P("x", "y")), put(mesh, integers((64, 32), 1), P("y"))

    def step(matmul: Any, *given: Any) -> Any:
        local = jax.shard_map(
            lambda x, w: lax.psum(matmul(x, w, MATMUL), "y"),
            mesh=mesh,
            in_specs=(P("x", "y"), P("y")),
            out_specs=P("x"),
        )

        def loss(*given: Any) -> Any:
            out: Any = local(*given)  # type: ignore[no-untyped-call]
            return out.astype(jnp.float32).sum(), out

        return jax.grad(loss, (0, 1), has_aux=True)(*given)

    ours, theirs = (
        compiled(mesh, functools.partial(step, matmul), *given)
        for matmul in (EMULATED, lax.dot_general)
    )
    assert kernels(ours) == 3
    assert collectives(ours) == collectives(theirs)
    jax.tree.map(np.testing.assert_array_equal, ours(*given), theirs(*given))


# What is lowered, and refused


def test_in_shardings_of_which_no_type_tells() -> None:
    mesh = mesh_of(AxisType.Auto)
    x, w = integers((32, 64)), integers((64, 32), 1)
    shardings = NamedSharding(mesh, P("x", "y")), NamedSharding(mesh, P("y"))
    matmul = functools.partial(EMULATED, dimension_numbers=MATMUL)
    program = jax.jit(matmul, in_shardings=shardings).lower(x, w).compile()
    assert kernels(program) == 1
    assert collectives(program) == {"all-reduce": 1}


def test_left_alone_a_cpu_has_xlas_own_matmul() -> None:
    mesh = mesh_of(AxisType.Auto)
    given = operands_of(CASES["m, k"], mesh)[:2]
    for matmul in (jaxbw.matmul, functools.partial(jaxbw.matmul, activation="relu")):
        text = jax.jit(matmul).lower(*given).as_text()
        assert PARTITIONED not in text
        assert text.count("stablehlo.dot_general") == 1


def test_a_program_for_gpus_is_lowered_without_them(cuda_hlo: Callable[..., str]) -> None:
    """For devices that are here, and for a mesh of none."""
    case = CASES["m, k"]
    abstract = jax.sharding.AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    described = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(abstract, spec))
        for shape, spec in zip(SIZES[MATMUL], (case.lhs, case.rhs), strict=True)
    ]
    for given in (operands_of(case, mesh_of(AxisType.Auto))[:2], described):
        with jaxbw.target("H200"):
            for implementation in (None, "sm90"):
                text = cuda_hlo(
                    functools.partial(jaxbw.matmul, implementation=implementation), *given
                )
                assert text.count(f"@{PARTITIONED}(") == 1
                assert "reduction={" in text
        assert PARTITIONED not in cuda_hlo(jaxbw.matmul, *given)


def test_xla_is_weighed_for_what_a_device_computes_not_for_the_whole(
    cuda_hlo: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "xla_time", lambda problem, device: XlaTime(0.0, 0.0))
    given = operands_of(CASES["m, k"], mesh_of(AxisType.Auto))[:2]
    alone = [jnp.asarray(np.asarray(x)) for x in given]
    with jaxbw.target("H200"):
        assert cuda_hlo(jaxbw.matmul, *given).count(f"@{PARTITIONED}(") == 1
        assert TARGET not in cuda_hlo(jaxbw.matmul, *alone)


def test_gspmd_has_xlas_matmul() -> None:
    given = operands_of(CASES["m, k"], mesh_of(AxisType.Auto))[:2]
    with jax_flag("jax_use_shardy_partitioner", False):
        either = functools.partial(jaxbw.matmul, implementation=("emulator", "xla"))
        assert "stablehlo.dot_general" in jax.jit(either).lower(*given).as_text()
        strict = functools.partial(jaxbw.matmul, implementation="emulator")
        with pytest.raises(NotImplementedError, match="GSPMD; leave jax_use_shardy_partitioner on"):
            jax.jit(strict).lower(*given)


@contextlib.contextmanager
def jax_flag(name: str, value: Any) -> Iterator[None]:
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    yield
    jax.config.update(name, before)


def test_an_unreduced_result_is_xlas() -> None:
    mesh = mesh_of(AxisType.Explicit, (2,))
    given = put(mesh, integers((16, 32)), P(None, "x")), put(mesh, integers((32, 16), 1), P("x"))
    strict = functools.partial(
        jaxbw.matmul, out_sharding=P(unreduced={"x"}), implementation="emulator"
    )
    with (
        jax.set_mesh(mesh),
        pytest.raises(NotImplementedError, match=r"unreduced; .*sum over the devices"),
    ):
        jax.jit(strict).lower(*given)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=lambda kind: kind.name)
def test_what_an_epilogue_reads_may_be_whole(kind: AxisType) -> None:
    """Bias, c and residual of a result that is divided: their gradients are of their types."""
    mesh = mesh_of(kind, (2, 2))
    whole = {
        "lhs": integers((16, 32)),
        "rhs": integers((32, 8), 1),
        "bias": integers((8,), 2),
        "c": integers((16, 8), 3),
        "residual": integers((16, 8), 4),
    }
    specs = {"lhs": P("x"), "rhs": P(None, "y")}
    divided = {name: put(mesh, x, specs.get(name, P())) for name, x in whole.items()}

    def derivatives(given: Any) -> Any:
        def loss(given: Any) -> Any:
            return jaxbw.matmul(**given, activation="relu").astype(jnp.float32).sum()

        return jax.grad(loss)(given), jax.jvp(loss, (given,), (given,))

    got = compiled(mesh, derivatives, divided)(divided)
    wanted = jax.jit(derivatives)(whole)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(exact(x), exact(y)), got, wanted)


def test_what_no_kernel_takes_of_a_shard_is_an_error_of_the_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jaxbw._src.primitives import dot_general, partitioning

    def refuse(*_: Any) -> None:
        raise NotImplementedError("not such a shard")

    given = operands_of(CASES["m"], mesh_of(AxisType.Auto))[:2]
    monkeypatch.setitem(partitioning._locals, dot_general.dot_general_p.name, refuse)
    lowered = jax.jit(functools.partial(jaxbw.matmul, implementation="emulator")).lower(*given)
    with pytest.raises(jax.errors.JaxRuntimeError, match="NotImplementedError: not such a shard"):
        lowered.compile()


@pytest.mark.parametrize(
    "precision",
    [
        None,
        (lax.Precision.HIGHEST, lax.Precision.DEFAULT),
        lax.DotAlgorithmPreset.BF16_BF16_F32,
    ],
)
def test_the_call_is_text_and_back(precision: Any) -> None:
    tuned = TunedMatmuls.of({}, "here")
    params = {
        "dimension_numbers": TWO,
        "precision": precision,
        "preferred_element_type": np.dtype("bfloat16"),
        "out_sharding": P("x"),
        "policy": Policy(("sm90", "xla"), jaxbw.GemmConfig(128, 64, cluster=(2, 1)), "H200", tuned),
        "epilogue": Epilogue(2, bias=np.dtype("float32"), activation="relu", save=True),
    }
    call = PartitionedCall("p", "cuda", ((2, True), (4, False)), params)
    back = PartitionedCall.decoded(call.encoded().encode())
    assert back == PartitionedCall(
        "p", "cuda", ((2, True), (4, False)), params | {"out_sharding": None}
    )
    plain = {"dimension_numbers": MATMUL, "policy": FREE}
    plain |= {"precision": None, "preferred_element_type": None}
    call = PartitionedCall("p", "cpu", None, plain | {"out_sharding": None})
    assert PartitionedCall.decoded(call.encoded()) == call


def test_exported() -> None:
    """The call is text: what is exported can be compiled where nobody lowered it."""
    given = operands_of(CASES["m, k"], mesh_of(AxisType.Auto))[:2]
    matmul = jax.jit(functools.partial(jaxbw.matmul, implementation="emulator"))
    checks = [jax.export.DisabledSafetyCheck.custom_call(PARTITIONED)]
    exported = jax.export.export(matmul, disabled_checks=checks)(*given)
    back = jax.export.deserialize(exported.serialize())
    program = jax.jit(back.call).lower(*given).compile()
    assert kernels(program) == 1
    np.testing.assert_array_equal(exact(program(*given)), exact(given[0]) @ exact(given[1]))
