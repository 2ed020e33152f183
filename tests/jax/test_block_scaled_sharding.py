"""Block-scaled operands in programs of several devices: a kernel for each shard, tiles and all."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxbw
from jaxbw._src.api.mxfp8_mlp import mxfp8_mlp
from jaxbw._src.primitives.partitioning import TARGET
from jaxbw._src.primitives.quantize_blocks import PARTITIONED
from jaxbw._src.primitives.quantize_blocks import TARGET as QUANTIZING

from .test_mxfp8_kernels import integers
from .test_partitioning import collectives, compiled, kernels, mesh_of

DIMS: Any = (((1,), (0,)), ((), ()))


def put(mesh: Any, q: Any, spec: P) -> Any:
    """A matrix, quantized: data and tiles divided alike, where tiles are as many."""
    along = [*spec, *[None] * (2 - len(spec))][:: 1 if q.axis == -1 else -1]

    def placed(x: Any) -> Any:
        names = [
            name
            if size % math.prod(mesh.shape[each] for each in np.atleast_1d(name or [])) == 0
            else None
            for name, size in zip(along, x.shape, strict=False)
        ]
        return jax.device_put(x, NamedSharding(mesh, P(*names)))

    placed_q: Any = jax.tree.map(placed, q)
    return placed_q


@dataclass(frozen=True)
class Case:
    x: P
    w: P
    collectives: dict[str, int]
    m: int = 512
    k: int = 512


CASES = {
    "m": Case(P("x"), P(), {}),
    "n": Case(P(), P(None, "x"), {}),
    "m, n": Case(P("x"), P(None, "y"), {}),
    "k": Case(P(None, "y"), P("y"), {"all-reduce": 1}),
    "m, k": Case(P("x", "y"), P("y"), {"all-reduce": 1}),
    "m, of a k that is no whole tiles": Case(P("x"), P(), {}, k=160),
    "m of one k tile": Case(P("x"), P(), {}, k=128),
    "rows that are no whole tiles": Case(P(("x", "y")), P(), {"all-gather": 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_quantized_arrays(name: str) -> None:
    """Given as such, as weights are: the bits of one device, and no collective but the sum."""
    case, mesh = CASES[name], mesh_of(AxisType.Auto)
    x, w = integers((case.m, case.k)), integers((case.k, 512), 1, axis=0)
    whole = [jaxbw.quantize(x, "mxfp8"), jaxbw.quantize(w, "mxfp8", axis=0)]
    given = [put(mesh, whole[0], case.x), put(mesh, whole[1], case.w)]

    def product(q: Any, u: Any) -> Any:
        return jaxbw.matmul(q, u, implementation="emulator")

    program = jax.jit(product).lower(*given).compile()
    assert kernels(program) == 1
    assert collectives(program) == case.collectives
    np.testing.assert_array_equal(program(*given), jax.jit(product)(*whole))


@pytest.mark.parametrize("format", ["mxfp8", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("name", ["m, n", "m, k"])
def test_arrays_quantized_on_shards(name: str, format: str) -> None:
    """Blocks and tiles are whole on every device: quantizing needs no collective, either."""
    case, mesh = CASES[name], mesh_of(AxisType.Auto)
    x, w = integers((case.m, case.k)), integers((case.k, 512), 1, axis=0)
    global_scale = np.float32(2**-6) if format == "nvfp4" else None

    def product(x: Any, w: Any) -> Any:
        options: Any = {"global_scale": global_scale, "implementation": "emulator"}
        q, u = jaxbw.quantize(x, format, **options), jaxbw.quantize(w, format, axis=0, **options)
        return jaxbw.matmul(q, u, implementation="emulator")

    given = [
        jax.device_put(x, NamedSharding(mesh, case.x)),
        jax.device_put(w, NamedSharding(mesh, case.w)),
    ]
    program = jax.jit(product).lower(*given).compile()
    assert kernels(program) == 1
    assert quantizing_kernels(program) == 2
    assert collectives(program) == case.collectives
    np.testing.assert_array_equal(program(*given), jax.jit(product)(x, w))


def quantizing_kernels(program: Any) -> int:
    text: str = program.as_text()
    return text.count(f'custom_call_target="{QUANTIZING}"')


def small(shape: tuple[int, ...], number: int) -> Any:
    """Of which sums are exact in any order."""
    return np.random.default_rng(number).integers(-1, 2, shape).astype(np.float32)


RANKS: dict[str, tuple[Any, Any, P, P, dict[str, int]]] = {
    "batch, k": ((8, 128, 512), (8, 512, 128), P("x", None, "y"), P("x", "y"), {"all-reduce": 1}),
    "dimensions before rows": ((4, 256, 128), (128, 512), P("x"), P(None, "y"), {}),
    "a vector": ((256,), (256, 512), P("x"), P("x", "y"), {"all-reduce": 1}),
    "parameters in parts": ((256, 512), (512, 256), P("x"), P("x"), {"all-gather": 2}),
}


@pytest.mark.parametrize("name", RANKS)
def test_ranks(name: str) -> None:
    mesh, (x_shape, w_shape, x_spec, w_spec, wanted) = mesh_of(AxisType.Auto), RANKS[name]
    x, w = small(x_shape, 0), small(w_shape, 1)

    def product(x: Any, w: Any) -> Any:
        with jaxbw.implementation("emulator"):
            q, u = jaxbw.quantize(x, "mxfp8"), jaxbw.quantize(w, "mxfp8", axis=-2)
            return jaxbw.matmul(q, u)

    given = [
        jax.device_put(each, NamedSharding(mesh, spec)) for each, spec in ((x, x_spec), (w, w_spec))
    ]
    program = jax.jit(product).lower(*given).compile()
    assert kernels(program) == 1
    assert quantizing_kernels(program) == 2
    assert collectives(program) == wanted
    np.testing.assert_array_equal(program(*given), jax.jit(product)(x, w))


@pytest.mark.parametrize("is_gated", [False, True])
def test_epilogues(is_gated: bool) -> None:
    """Fused on shards of rows and columns, behind the sum where k is divided."""
    mesh = mesh_of(AxisType.Auto)
    x, w, v, bias = (
        small(shape, i) for i, shape in enumerate([(256, 512), (512, 512), (512, 512), (512,)])
    )
    whole = [jaxbw.quantize(x, "mxfp8"), *(jaxbw.quantize(a, "mxfp8", axis=0) for a in (w, v))]

    def product(q: Any, u: Any, up: Any, bias: Any) -> Any:
        options: Any = {"activation": "relu", "implementation": "emulator"}
        if is_gated:
            return jaxbw.gated_matmul(q, u, up, **options)
        return jaxbw.matmul(q, u, bias=bias, **options)

    wanted = jax.jit(product)(*whole, bias)
    for specs, is_summed in (((P("x"), P(None, "y")), False), ((P("x", "y"), P("y")), True)):
        given = [put(mesh, q, specs[i > 0]) for i, q in enumerate(whole)]
        program = jax.jit(product).lower(*given, bias).compile()
        assert kernels(program) == 1 + (is_gated and is_summed)
        assert [*collectives(program)] == ["all-reduce"] * is_summed
        np.testing.assert_array_equal(program(*given, bias), wanted)


def test_a_result_in_a_format() -> None:
    """The matmul is the kernel's, and what quantizes it is local."""
    mesh = mesh_of(AxisType.Auto)
    whole = [
        jaxbw.quantize(small((256, 128), 0), "mxfp8"),
        jaxbw.quantize(small((128, 512), 1), "mxfp8", axis=0),
    ]

    def product(q: Any, u: Any) -> Any:
        return jaxbw.matmul(q, u, out_format="mxfp8", implementation="emulator")

    given = [put(mesh, whole[0], P("x")), put(mesh, whole[1], P(None, "y"))]
    program = jax.jit(product).lower(*given).compile()
    assert kernels(program) == 1
    assert collectives(program) == {}
    jax.tree.map(np.testing.assert_array_equal, program(*given), jax.jit(product)(*whole))


def test_a_step_of_the_recipe() -> None:
    """Data along one axis, two layers along the other: six kernels a device, and sums alone."""
    mesh = mesh_of(AxisType.Auto)
    x, w, v = small((256, 128), 0), small((128, 512), 1), small((512, 128), 2)

    def loss(weights: Any, x: Any) -> Any:
        hidden = jaxbw.mxfp8_dot_general(x, weights[0], DIMS)
        return jaxbw.mxfp8_dot_general(jax.nn.relu(hidden), weights[1], DIMS)

    def step(weights: Any, x: Any, bar: Any) -> Any:
        with jaxbw.implementation("emulator"):
            out, pull_back = jax.vjp(loss, weights, x)
            return out, pull_back(bar)

    bar = small((256, 128), 3)
    specs = ((P(None, "y"), P("y")), P("x"), P("x"))
    given = jax.tree.map(
        lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec)), ((w, v), x, bar), specs
    )
    program = jax.jit(step).lower(*given).compile()
    assert kernels(program) == 6
    # Of the second layer's result, the first one's cotangent, and both gradients; XLA joins some.
    assert [*collectives(program)] == ["all-reduce"]
    jax.tree.map(np.testing.assert_array_equal, program(*given), jax.jit(step)((w, v), x, bar))


def test_explicit_axes_and_a_shard_map_over_some() -> None:
    x, w = small((256, 128), 0), small((128, 512), 1)

    def product(x: Any, w: Any) -> Any:
        with jaxbw.implementation("emulator"):
            q, u = jaxbw.quantize(x, "mxfp8"), jaxbw.quantize(w, "mxfp8", axis=0)
            return jaxbw.matmul(q, u)

    wanted = jax.jit(product)(x, w)
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh, function = mesh_of(kind), product
        if kind == AxisType.Auto:
            specs: Any = {"in_specs": (P("x"), P()), "out_specs": P("x")}
            function = jax.shard_map(product, mesh=mesh, axis_names={"x"}, **specs)
        given = [
            jax.device_put(each, NamedSharding(mesh, spec))
            for each, spec in ((x, P("x")), (w, P(None, "y")))
        ]
        program = compiled(mesh, function, *given)
        assert kernels(program) == 1
        assert quantizing_kernels(program) == 2
        assert collectives(program) == {}
        np.testing.assert_array_equal(program(*given), wanted)


EXPLICIT: dict[str, tuple[tuple[int, ...], P]] = {
    "rows": ((512, 256), P("x")),
    "k": ((256, 512), P(None, "y")),
    "both": ((256, 512), P("x", "y")),
    "rows over two axes": ((1024, 256), P(("x", "y"))),
    "batch, both": ((2, 256, 512), P(None, "x", "y")),
    "less than tiles": ((64, 128), P("x", "y")),
    "less than blocks": ((20, 72), P("x", "y")),
    "no whole tiles": ((140, 192), P("y", "x")),
}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"axis": -2},
    {"both": True},
    {"both": True, "square": True},
)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("format", ["mxfp8", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("name", EXPLICIT)
def test_types_in_an_explicit_mesh(name: str, format: str, options: dict[str, Any]) -> None:
    """Values of one device; what is whole on every device stays divided, and the rest is whole."""
    (shape, spec), mesh = EXPLICIT[name], mesh_of(AxisType.Explicit)
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    with jax.set_mesh(mesh):
        given = jax.device_put(x, NamedSharding(mesh, spec))

    def run(x: Any, implementation: str) -> Any:
        q = jaxbw.quantize(x, format, **options, implementation=implementation)
        return q, q.dequantized()

    with jax.set_mesh(mesh):
        program = jax.jit(partial(run, implementation="emulator")).lower(given).compile()
    assert quantizing_kernels(program) == 1
    got = program(given)
    wanted = jax.jit(partial(run, implementation="xla"))(x)
    jax.tree.map(np.testing.assert_array_equal, got, wanted)
    if not name.startswith(("less", "no whole")):
        along = [*spec, *[None] * (len(shape) - len(spec))]
        turned = [*along[:-2], along[-1], along[-2]]
        for each in (got[0].data, got[0].scale):
            wanted = along if got[0].axis == -1 else turned
            assert [*each.sharding.spec][: len(along)] == wanted


RECIPES: dict[str, Any] = {
    "mxfp8": jaxbw.mxfp8_dot_general,
    "nvfp4": jaxbw.nvfp4_dot_general,
    "nvfp4 with a key": partial(jaxbw.nvfp4_dot_general, key=jax.random.key(0)),
    "fp8_current": jaxbw.fp8_dot_general,
}


# With a key there is all that there is without.
@pytest.mark.parametrize(
    "recipe", [pytest.param(x, marks=[pytest.mark.long] * (x == "nvfp4")) for x in RECIPES]
)
def test_gradients_in_an_explicit_mesh(recipe: str) -> None:
    """They are divided as the operands are, though what they contract is divided, too."""
    mesh, specs = mesh_of(AxisType.Explicit), (P("x", None), P(None, "y"), P("x", "y"))
    arrays = [small(shape, i) for i, shape in enumerate([(256, 512), (512, 512), (256, 512)])]

    def step(x: Any, w: Any, bar: Any) -> Any:
        out, pull_back = jax.vjp(lambda x, w: RECIPES[recipe](x, w, DIMS), x, w)
        return out, *pull_back(bar)

    with jax.set_mesh(mesh):
        given = [
            jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(arrays, specs, strict=True)
        ]
        out, *bars = jax.jit(step)(*given)
    assert [each.sharding.spec for each in bars] == [*specs[:2]]
    jax.tree.map(np.testing.assert_array_equal, (out, *bars), jax.jit(step)(*arrays))


def test_a_block_whose_hidden_layer_is_mxfp8() -> None:
    """Seven matmuls: one is computed again."""
    mesh = mesh_of(AxisType.Auto)
    arrays = small((4, 128, 128), 0), small((128, 512), 1), small((512, 128), 2)

    def block(x: Any, w: Any, v: Any) -> Any:
        return mxfp8_mlp(x, [w, None, v, None], "relu")

    def step(*arrays: Any) -> Any:
        with jaxbw.implementation("emulator"):
            out, pull_back = jax.vjp(block, *arrays)
            return out, pull_back(out)

    given = [
        jax.device_put(x, NamedSharding(mesh, spec))
        for x, spec in zip(arrays, (P("x"), P(None, "y"), P("y")), strict=True)
    ]
    program = jax.jit(step).lower(*given).compile()
    assert kernels(program) == 7
    assert [*collectives(program)] == ["all-reduce"]
    jax.tree.map(np.testing.assert_array_equal, program(*given), jax.jit(step)(*arrays))
    with jaxbw.target("B200"):
        lowered = jax.jit(block).trace(*given).lower(lowering_platforms=("cuda",))
    assert lowered.as_text().count(f"@{TARGET}(") == 2
    assert lowered.as_text().count(f"@{PARTITIONED}(") == 3
