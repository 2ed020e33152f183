"""Each private part of JAX that jaxbw leans on does what jaxbw takes it to do."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.lib import xla_client  # type: ignore[attr-defined]
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir
from jax.sharding import PartitionSpec

from jaxbw._src import compat

MATRIX = jnp.ones((2, 2))
PARAMS: dict[str, Any] = {
    "dimension_numbers": (((1,), (0,)), ((), ())),
    "precision": None,
    "preferred_element_type": None,
    "out_sharding": None,
}


def test_ensure_arraylike() -> None:
    (one,) = compat.ensure_arraylike("call", np.ones(2))
    assert isinstance(one, jax.Array)
    assert len(compat.ensure_arraylike("call", 1.0, np.ones(2))) == 2
    with pytest.raises(TypeError, match="call"):
        compat.ensure_arraylike("call", [1.0], 1.0)


def test_is_concrete() -> None:
    assert all(map(compat.is_concrete, (MATRIX, MATRIX[0], jax.device_put(np.ones(2)))))
    assert not any(map(compat.is_concrete, (None, 1.0, np.ones(2), jax.random.key(0))))

    def traced(x: jax.Array) -> jax.Array:
        assert not compat.is_concrete(x)
        return x

    for transform in (jax.jit, jax.vmap, jax.grad):
        transform(traced)(jnp.float32(1) if transform is jax.grad else MATRIX)


def test_abstract_type() -> None:
    for x in (MATRIX, jax.ShapeDtypeStruct((2, 2), jnp.float32), jax.typeof(MATRIX)):
        assert compat.abstract_type(x) == jax.typeof(MATRIX)


def test_canonicalize() -> None:
    assert compat.canonicalize_dtype("bfloat16", "call") == jnp.bfloat16
    highest = jax.lax.Precision.HIGHEST
    assert compat.canonicalize_precision("highest") == (highest, highest)
    assert compat.canonicalize_precision(None) is None
    assert compat.canonicalize_sharding(None, "call") is None
    with pytest.raises(TypeError, match="call"):
        compat.canonicalize_sharding("x", "call")


def test_convert_element_type() -> None:
    weak = compat.convert_element_type(MATRIX, MATRIX.dtype, True)
    assert jax.typeof(weak).weak_type
    assert not jax.typeof(compat.convert_element_type(weak, MATRIX.dtype, False)).weak_type


TRACED: dict[str, Any] = {
    "jit": lambda f: f,
    "grad": lambda f: jax.grad(lambda x: f(x).sum()),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(lambda x: f(x).sum())),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,)),
    "jvp of grad": lambda f: lambda x: jax.jvp(jax.grad(lambda x: f(x).sum()), (x,), (x,)),
    "vmap": lambda f: jax.vmap(f, 2, 2),
    "vmap of grad": lambda f: jax.vmap(jax.grad(lambda x: f(x).sum())),
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(f, 2, 2)(x).sum()),
}
TRANSPOSED: dict[str, Any] = {
    "once": (lambda x: x.transpose(1, 2, 0), (1, 2, 0)),
    "twice": (lambda x: jnp.swapaxes(x.transpose(1, 2, 0), 0, 1), (2, 1, 0)),
    "called": (lambda x: jax.jit(jnp.transpose)(x), (2, 1, 0)),
}


@pytest.mark.parametrize(
    ("traced", "case"),
    [
        (traced, case)
        for traced in TRACED
        for case in TRANSPOSED
        if case != "called" or not ("jvp" in traced or "vmap" in traced)  # which call another one
    ],
)
def test_before_transposition(traced: str, case: str) -> None:
    transposed, permutation = TRANSPOSED[case]

    def untransposed(x: Any) -> Any:
        original, found = compat.before_transposition(transposed(x))
        assert found == permutation
        return original**3

    shape = (2, 3, 4, 5) if "vmap" in traced else (2, 3, 4)
    x = jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)
    lowered = jax.jit(TRACED[traced](untransposed)).lower(x)
    assert "stablehlo.transpose" not in lowered.as_text()
    expected = jax.jit(TRACED[traced](lambda x: x**3))(x)
    jax.tree.map(np.testing.assert_array_equal, lowered.compile()(x), expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda x: x.T + 1,
        lambda x: jax.jit(lambda x: x.T + 1)(x),
        lambda x: jax.jit(lambda x: x.T + x)(x),
        lambda x: jax.lax.scan(lambda _, x: (None, x.T), None, x)[1],
        jax.checkpoint(lambda x: x.T),
    ],
)
def test_what_is_not_known_to_be_transposed(function: Any) -> None:
    cube = jnp.ones((2, 2, 2))
    assert compat.before_transposition(cube.T)[1] is None

    def seen(x: Any) -> Any:
        y = function(x)
        assert compat.before_transposition(y) == (y, None)
        return y

    jax.jit(seen).trace(cube)


def test_dot_general_type_and_matmul() -> None:
    wide = jnp.ones((2, 3), jnp.bfloat16)
    aval, effects = compat.dot_general_type(
        jax.typeof(wide.T), jax.typeof(wide), {**PARAMS, "preferred_element_type": jnp.float32}
    )
    assert (aval.shape, aval.dtype) == ((3, 3), jnp.float32)
    assert not effects
    assert compat.lax_dot_general(wide.T, wide, PARAMS).shape == (3, 3)
    with pytest.raises(TypeError, match="contracting dimensions"):
        compat.dot_general_type(jax.typeof(wide), jax.typeof(wide), PARAMS)


def test_ragged_dot_general_type() -> None:
    dims = jax.lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))
    params = {
        "ragged_dot_dimension_numbers": dims,
        "precision": None,
        "preferred_element_type": None,
    }
    lhs, rhs, sizes = (jax.ShapeDtypeStruct(x, jnp.int16) for x in ((5, 2), (3, 2, 4), (3,)))
    with jax.set_mesh(explicit_mesh()):  # there lax asks for an out_sharding
        result = compat.ragged_dot_general_type(lhs, rhs, sizes, params)
    assert (result.shape, result.dtype) == ((5, 4), jnp.int16)
    with pytest.raises(TypeError, match="group dimension size"):
        compat.ragged_dot_general_type(lhs, rhs, jax.ShapeDtypeStruct((2,), jnp.int16), params)


def explicit_mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))


def test_shardings() -> None:
    assert compat.spec_entries(MATRIX) == (None, None)
    assert compat.explicit_sharding(MATRIX) is None
    assert compat.permuted_sharding(jax.typeof(MATRIX), (1, 0)) is None
    with jax.set_mesh(explicit_mesh()):
        sharded = jax.device_put(MATRIX, PartitionSpec("x", None))
        assert compat.spec_entries(sharded) == ("x", None)
        permuted = compat.permuted_sharding(jax.typeof(sharded), (1, 0))
        assert tuple(permuted.spec) == (None, "x")
        assert compat.in_whole(sharded, {-2: 2, -1: 4}) is sharded
        assert compat.spec_entries(compat.in_whole(sharded, {-2: 4})) == (None, None)
        assert compat.explicit_sharding(sharded) == sharded.aval.sharding
        canonical = compat.canonicalize_sharding(PartitionSpec("x", None), "call")
        assert tuple(canonical.spec) == ("x", None)


def test_explicit_mode_types_are_those_of_lax() -> None:
    import jaxbw

    with jax.set_mesh(explicit_mesh()):
        lhs = jax.device_put(MATRIX, PartitionSpec("x", None))

        def types(matmul: Any) -> Any:
            out, pull_back = jax.vjp(matmul, lhs, MATRIX)
            return jax.tree.map(jax.typeof, (out, pull_back(out)))

        assert types(jaxbw.matmul) == types(jnp.matmul)
        batched = jax.device_put(jnp.ones((2, 2, 2)), PartitionSpec("x", None, None))
        assert jax.typeof(jax.vmap(jaxbw.matmul)(batched, batched)) == jax.typeof(
            jax.vmap(jnp.matmul)(batched, batched)
        )
        named = PartitionSpec(None, "x")
        assert jax.typeof(jaxbw.matmul(MATRIX, MATRIX, out_sharding=named)) == jax.typeof(
            jnp.matmul(MATRIX, MATRIX, out_sharding=named)
        )


def test_varying_axes_are_those_of_lax() -> None:
    import jaxbw

    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def gradient(matmul: Any) -> Any:
        local = jax.shard_map(
            matmul,
            mesh=mesh,
            in_specs=(PartitionSpec("x"), PartitionSpec()),
            out_specs=PartitionSpec("x"),
        )
        return jax.jit(jax.grad(lambda x, y: local(x, y).sum(), (0, 1)))(MATRIX, 2 * MATRIX)

    for fused in (jaxbw.matmul, lambda x, y: jaxbw.matmul(x, y, bias=jnp.zeros(2))):
        for got, wanted in zip(gradient(fused), gradient(jnp.matmul), strict=True):
            np.testing.assert_array_equal(got, wanted)
    with pytest.raises(ValueError, match="out_specs"):
        jax.shard_map(
            jaxbw.matmul,
            mesh=mesh,
            in_specs=(PartitionSpec("x"), PartitionSpec()),
            out_specs=PartitionSpec(),
        )(MATRIX, MATRIX)


def test_vary() -> None:
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    types: list[str] = []

    def local(x: Any, y: Any) -> Any:
        types.extend(str(jax.typeof(compat.vary(z, "x"))) for z in (x, y))
        return compat.vary(x, "x")

    for check in (True, False):
        specs = (PartitionSpec("x"), PartitionSpec())
        jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=check)(
            MATRIX, MATRIX
        )
    assert types == ["float32[2,2]{V:x}"] * 2 + ["float32[2,2]"] * 2


def test_apply_eagerly() -> None:
    double = Primitive("double")
    double.def_abstract_eval(lambda x: x)
    compat.apply_eagerly(double)
    mlir.register_lowering(double, mlir.lower_fun(lambda x: 2 * x, multiple_results=False))
    np.testing.assert_array_equal(double.bind(MATRIX), 2 * MATRIX)


def test_register_dead_code_rule() -> None:
    same = Primitive("same")
    same.multiple_results = True
    same.def_abstract_eval(lambda *x: list(x))
    mlir.register_lowering(same, lambda ctx, *x: list(x))

    def without_unused(used: list[bool], equation: Any) -> Any:
        def those(x: Any) -> Any:
            return [each for each, is_used in zip(x, used, strict=True) if is_used]

        left = equation.replace(invars=those(equation.invars), outvars=those(equation.outvars))
        return used, left

    compat.register_dead_code_rule(same, without_unused)
    for number, text in enumerate(("sine", "cosine")):
        one = jax.jit(lambda x, i=number: same.bind(jnp.sin(x), jnp.cos(x))[i])
        found = one.lower(MATRIX).as_text()
        assert [name for name in ("sine", "cosine") if f"stablehlo.{name}" in found] == [text]


def test_is_one_device() -> None:
    seen = []
    probe = Primitive("probe")
    probe.def_abstract_eval(lambda x: x)

    def lower(ctx: Any, x: Any) -> Any:
        seen.append(compat.is_one_device(ctx))
        return [x]

    mlir.register_lowering(probe, lower)
    one = jax.jit(probe.bind)
    one.trace(MATRIX).lower(lowering_platforms=("cuda",))
    mesh = jax.sharding.AbstractMesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, PartitionSpec("x"))
    sharded = jax.ShapeDtypeStruct((2, 2), jnp.float32, sharding=rows)
    one.trace(sharded).lower(lowering_platforms=("cuda",))
    local = jax.jit(jax.shard_map(probe.bind, mesh=mesh, in_specs=rows.spec, out_specs=rows.spec))
    local.trace(sharded).lower(lowering_platforms=("cuda",))
    square = jax.sharding.AbstractMesh(
        (2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    rows = jax.sharding.NamedSharding(square, PartitionSpec("x"))
    sharded = jax.ShapeDtypeStruct((2, 2), jnp.float32, sharding=rows)
    partly = jax.jit(
        jax.shard_map(
            probe.bind, mesh=square, in_specs=rows.spec, out_specs=rows.spec, axis_names={"x"}
        )
    )
    partly.trace(sharded).lower(lowering_platforms=("cuda",))
    assert seen == [True, False, True, False]


def test_the_mesh_of_a_shard_map_over_some_axes() -> None:
    seen: list[Any] = []
    probe = Primitive("probe")
    probe.def_abstract_eval(lambda x: x)

    def lower(ctx: Any, x: Any) -> Any:
        found = compat.partly_manual_mesh(ctx)
        seen.append((found, None if found is None else compat.auto_mesh(ctx).axis_types))
        return [x]

    mlir.register_lowering(probe, lower)
    kinds = jax.sharding.AxisType
    for kind in (kinds.Auto, kinds.Explicit):
        mesh = jax.sharding.AbstractMesh((2, 4), ("x", "y"), axis_types=(kind, kind))
        rows = jax.sharding.NamedSharding(mesh, PartitionSpec("x"))
        sharded = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=rows)
        mapped = jax.shard_map(
            probe.bind, mesh=mesh, in_specs=rows.spec, out_specs=rows.spec, axis_names={"x"}
        )
        for function in (mapped, probe.bind):
            jax.jit(function).trace(sharded).lower(lowering_platforms=("cuda",))
    there = (((2, True), (4, False)), (kinds.Manual, kinds.Auto))
    assert seen == [there, (None, None)] * 2


def test_partition_refusal() -> None:
    seen: list[Any] = []
    probe = Primitive("probe")
    probe.def_abstract_eval(lambda x: x)

    def lower(ctx: Any, x: Any) -> Any:
        seen.append(compat.partition_refusal(ctx))
        return [x]

    mlir.register_lowering(probe, lower)
    jax.jit(probe.bind).trace(MATRIX).lower()
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        jax.jit(lambda x: probe.bind(x)).trace(MATRIX).lower()
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)
    assert seen[0] is None
    assert "GSPMD" in seen[1]


@pytest.mark.parametrize(
    ("axes", "tiling", "tiles"),
    [
        ((2, 4), ((0,), (1,)), np.arange(8).reshape(2, 4)),
        ((2, 4), ((1,), ()), np.arange(8).reshape(2, 4).T.reshape(4, 1, 2)),
        ((2, 4), ((1, 0), ()), np.arange(8).reshape(2, 4).T.reshape(8, 1)),
        ((2, 4), ((), ()), None),
    ],
)
def test_xla_shardings(axes: Any, tiling: Any, tiles: Any) -> None:
    sharding = compat.hlo_sharding(axes, tiling)
    found = compat.tile_assignment(sharding)
    if tiles is None:
        assert found is None
    else:
        assert found is not None
        np.testing.assert_array_equal(found.reshape(tiles.shape), tiles)
    assert compat.tile_assignment(None) is None


def test_a_sharding_that_no_matmul_has() -> None:
    with pytest.raises(ValueError, match=r"a matmul of an array that is sharded .*manual"):
        compat.tile_assignment(xla_client.HloSharding.manual())


def test_without_mesh() -> None:
    """jax 0.12 takes the number of devices from the mesh in force where nothing else says it."""
    types = jax.sharding.AxisType
    for kind in (types.Auto, types.Explicit):
        mesh = jax.make_mesh((2,), ("x",), axis_types=(kind,), devices=jax.devices("cpu")[:2])
        with jax.set_mesh(mesh):
            with compat.without_mesh():
                inside = jax.jit(jnp.sin).lower(MATRIX).as_text()
            outside = jax.jit(jnp.cos).lower(MATRIX).as_text()
        assert "num_partitions = 1" in inside
        assert "num_partitions = 2" in outside


def test_lower_unplaced() -> None:
    """A loop that begins with a constant, in a rule for what varies over a mesh axis."""
    primitive = Primitive("sum_in_a_loop")
    primitive.def_abstract_eval(lambda x: x.update(shape=()))

    def total(x: Any) -> Any:
        return jax.lax.fori_loop(0, len(x), lambda i, y: y + x[i], jnp.float32(0))

    def rule(ctx: Any, x: Any) -> Any:
        return compat.lower_unplaced(total, ctx, (x,))

    mlir.register_lowering(primitive, rule)
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    each = jax.shard_map(
        lambda x: jax.lax.psum(primitive.bind(x), "x"),
        mesh=mesh,
        in_specs=PartitionSpec("x"),
        out_specs=PartitionSpec(),
    )
    assert jax.jit(each)(np.arange(6, dtype=np.float32)) == 15


@pytest.mark.usefixtures("compiled_anew")
def test_register_partitioner() -> None:
    """XLA asks, and does what it is told: here to double the rows that a device has."""
    asked = []

    def partition(shapes: Any, shardings: Any, shape: Any, sharding: Any, text: bytes) -> Any:
        asked.append((shapes[0].dimensions(), shape.is_tuple(), text))
        rows = compat.hlo_sharding((2,), ((0,), ()))
        local = jax.jit(lambda x: (2 * x, 2 * x))
        lowered = local.lower(jax.ShapeDtypeStruct((1, 2), jnp.float32))
        module: Any = lowered.compiler_ir("stablehlo")
        code = mlir.module_to_bytecode(module)
        return code, [rows], compat.hlo_tuple_sharding(shape, [rows, rows])

    compat.register_partitioner("jaxbw_test_double", partition)
    double = Primitive("double")
    double.multiple_results = True
    double.def_abstract_eval(lambda x: [x, x])
    mlir.register_lowering(
        double,
        lambda ctx, x: (
            stablehlo.CustomCallOp(
                [x.type, x.type],
                [x],
                call_target_name=ir.StringAttr.get("jaxbw_test_double"),
                api_version=mlir.i32_attr(2),
                backend_config=ir.StringAttr.get("a text"),
            ).results
        ),
    )
    mesh = jax.make_mesh(
        (2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices("cpu")[:2]
    )
    given = jax.device_put(MATRIX, jax.sharding.NamedSharding(mesh, PartitionSpec("x")))
    np.testing.assert_array_equal(jax.jit(double.bind)(given), [2 * MATRIX, 2 * MATRIX])
    assert asked == [((2, 2), True, b"a text")]
