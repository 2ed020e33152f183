"""Operands that are transposed, however that is spelled, cost no copy, nor do their gradients.

Where a copy is needed, as for a batch dimension in the middle, there are no more of them than XLA
makes for its own matmuls.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import jaxbw
from jaxbw import _native

from .epilogues import CASES, arrays, numbers
from .test_dot_general import integers, matmuls
from .test_lowering import COPIES, attributes

Operand = Callable[..., Any]
Lower = Callable[..., str]
Calls = Callable[[str], list[str]]
Function = Callable[[Any, Any], Any]

matmul = jaxbw.matmul
einsum = functools.partial(jnp.einsum, _dot_general=jaxbw.dot_general)
MATRICES = ((256, 512), (128, 512))
STACKS = ((4, 256, 512), (4, 128, 512))

# The operands' shapes, and a matmul that transposes them; the layout that is left.
SPELLINGS: dict[str, tuple[tuple[Any, Any], str, Function]] = {
    "w.T": (MATRICES, "nt", lambda x, w: matmul(x, w.T)),
    "x.T": (((512, 256), (512, 128)), "tn", lambda x, w: matmul(x.T, w)),
    "both": (((512, 256), (128, 512)), "tt", lambda x, w: matmul(x.T, w.T)),
    "mT": (STACKS, "nt", lambda x, w: matmul(x, w.mT)),
    "mT, broadcast": (((4, 256, 512), (1, 128, 512)), "nt", lambda x, w: matmul(x, w.mT)),
    "T, broadcast": (((4, 256, 512), (128, 512, 1)), "nt", lambda x, w: matmul(x, w.T.mT.mT)),
    "transpose": (STACKS, "nt", lambda x, w: matmul(x, jnp.transpose(w, (0, 2, 1)))),
    "lax.transpose": (MATRICES, "nt", lambda x, w: matmul(x, lax.transpose(w, (1, 0)))),
    "swapaxes": (MATRICES, "nt", lambda x, w: matmul(x, jnp.swapaxes(w, 0, 1))),
    "moveaxis": (MATRICES, "nt", lambda x, w: matmul(x, jnp.moveaxis(w, 0, 1))),
    "matrix_transpose": (STACKS, "nt", lambda x, w: matmul(x, jnp.matrix_transpose(w))),
    "permute_dims": (MATRICES, "nt", lambda x, w: matmul(x, jnp.permute_dims(w, (1, 0)))),
    "a function of its own": (MATRICES, "nt", lambda x, w: matmul(x, jax.jit(jnp.transpose)(w))),
    "twice": (((256, 512), (512, 128)), "nn", lambda x, w: matmul(x, w.T.T)),
    "three times": (STACKS, "nt", lambda x, w: matmul(x, w.T.T.mT)),
    "dot_general": (
        ((256, 512), (512, 128)),
        "nn",
        lambda x, w: jaxbw.dot_general(x, w.T, (((1,), (1,)), ((), ()))),
    ),
    "vmap": (STACKS, "nt", jax.vmap(lambda x, w: matmul(x, w.T))),
    "vmap of one": (
        ((4, 256, 512), (128, 512)),
        "nt",
        jax.vmap(lambda x, w: matmul(x, w.T), (0, None)),
    ),
    "checkpoint": (MATRICES, "nt", jax.checkpoint(lambda x, w: matmul(x, w.T))),
    "jit": (MATRICES, "nt", jax.jit(lambda x, w: matmul(x, w.T))),
    "einsum": (MATRICES, "nt", lambda x, w: einsum("mk,nk->mn", x, w)),
    "einsum, transposed": (MATRICES, "nt", lambda x, w: einsum("mk,nk->nm", x, w)),
}


def step(function: Function) -> Callable[..., Any]:
    """A matmul and its gradients."""

    def run(x: Any, w: Any, cotangent: Any) -> Any:
        out, pull_back = jax.vjp(function, x, w)
        return out, *pull_back(cotangent)

    return run


def cotangent(function: Function, *operands: Any) -> Any:
    out = jax.eval_shape(function, *operands)
    return np.ones(out.shape, out.dtype)


def layout(call: str) -> str:
    """The operands' layouts of a custom call, as in kernels.toml."""
    found = attributes(call)
    lhs, rhs = (int(found[name].split(" ")[0]) for name in ("lhs_major", "rhs_major"))
    return ("n" if lhs == _native.Major.K.value else "t") + (
        "n" if rhs == _native.Major.MN.value else "t"
    )


@pytest.mark.parametrize("case", SPELLINGS)
def test_no_spelling_costs_a_copy(
    case: str, family: str, operand: Operand, cuda_hlo: Lower, custom_calls: Calls
) -> None:
    (lhs, rhs), expected, function = SPELLINGS[case]
    x, w = operand(lhs), operand(rhs, number=1)
    with jaxbw.implementation((family, "xla")):
        text = cuda_hlo(function, x, w)
        (call,) = custom_calls(text)
        assert layout(call) == expected
        assert not COPIES.search(text)
        text = cuda_hlo(step(function), x, w, cotangent(function, x, w))
    assert len(custom_calls(text)) == 3
    assert not COPIES.search(text)


@pytest.mark.parametrize("case", CASES)
def test_nor_does_a_fused_one(
    case: str, family: str, operand: Operand, cuda_hlo: Lower, custom_calls: Calls
) -> None:
    keywords = CASES[case]
    given = arrays(keywords, operand, "bfloat16", (256, 512, 128))
    given["rhs"] = given["rhs"].T.copy()

    def fused(given: Any) -> Any:
        rhs = given["rhs"].T
        return matmul(**{**given, "rhs": rhs}, **numbers(keywords), implementation=family)

    def run(given: Any, cotangent: Any) -> Any:
        out, pull_back = jax.vjp(fused, given)
        return out, pull_back(cotangent)

    text = cuda_hlo(run, given, jnp.ones((256, 128), jnp.bfloat16))
    assert layout(custom_calls(text)[0]) == "nt"
    scaled = "lhs_scale" in given or "rhs_scale" in given  # whose cotangents are of lhs @ rhs
    assert len(custom_calls(text)) == 3 + scaled
    assert not COPIES.search(text)


def test_nor_does_a_gated_one(
    family: str, operand: Operand, cuda_hlo: Lower, custom_calls: Calls
) -> None:
    x, gate, up = operand((256, 512)), operand((128, 512), number=1), operand((128, 512), number=2)

    def gated(x: Any, gate: Any, up: Any) -> Any:
        return jaxbw.gated_matmul(x, gate.T, up.T, implementation=family)

    def run(*given: Any) -> Any:
        out, pull_back = jax.vjp(gated, *given)
        return out, pull_back(out)

    text = cuda_hlo(run, x, gate, up)
    assert len(custom_calls(text)) == 5
    assert not COPIES.search(text)
    # One kernel reads both right operands alike: of one that is transposed there is a copy.
    text = cuda_hlo(lambda x, gate, up: gated(x, gate, up.T), x, gate, up.T)
    assert len(COPIES.findall(text)) == 1


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("axis", [AxisType.Auto, AxisType.Explicit])
def test_nor_does_one_in_a_shard_map(
    axis: AxisType,
    check_vma: bool,
    family: str,
    operand: Operand,
    custom_calls: Calls,
) -> None:
    mesh = AbstractMesh((2,), ("x",), axis_types=(axis,))
    rows, whole = PartitionSpec("x"), PartitionSpec()

    def sharded(shape: tuple[int, ...], spec: PartitionSpec) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))

    local = jax.shard_map(
        lambda x, w: matmul(x, jnp.swapaxes(w, 0, 1), implementation=family),
        mesh=mesh,
        in_specs=(rows, whole),
        out_specs=rows,
        check_vma=check_vma,
    )
    given = sharded((256, 512), rows), sharded((128, 512), whole), sharded((256, 128), rows)
    text = jax.jit(step(local)).trace(*given).lower(lowering_platforms=("cuda",)).as_text()
    assert len(custom_calls(text)) == 3
    assert not COPIES.search(text)


def test_what_is_kept_for_the_gradient_is_the_original(operand: Operand) -> None:
    x, w = operand((256, 512)), operand((128, 512), number=1)
    _, pull_back = jax.eval_shape(lambda x, w: jax.vjp(jax.jit(SPELLINGS["w.T"][2]), x, w), x, w)
    assert sorted(leaf.shape for leaf in jax.tree.leaves(pull_back)) == [(128, 512), (256, 512)]


def test_the_cotangent_is_read_in_place_too(
    family: str, operand: Operand, cuda_hlo: Lower, custom_calls: Calls
) -> None:
    """Of a transposed result that one is written, as it is; and none of the backward pass."""
    x, w = operand((256, 512)), operand((512, 128), number=1)
    function = jax.jit(lambda x, w: matmul(x, w, implementation=family).T)
    text = cuda_hlo(step(function), x, w, cotangent(function, x, w))
    assert len(custom_calls(text)) == 3
    assert len(COPIES.findall(text)) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: matmul(x, w.T.astype(jnp.bfloat16)),  # of the conversion's result
        lambda x, w: jax.jit(matmul)(x, w.astype(jnp.bfloat16).T),  # before the call
        lambda x, w: matmul(x, w.astype(jnp.bfloat16).T, config=jaxbw.GemmConfig(128, 128)),
    ],
)
def test_what_is_not_seen_is_copied(
    function: Function, family: str, operand: Operand, cuda_hlo: Lower, custom_calls: Calls
) -> None:
    x, w = operand((256, 512)), operand((128, 512), "float32", 1)
    with jaxbw.implementation(family):
        text = cuda_hlo(function, x, w)
    (call,) = custom_calls(text)
    assert layout(call) == "nn"
    assert len(COPIES.findall(text)) == 1


# What is computed is the same


TRANSFORMED: dict[str, Callable[[Function], Function]] = {
    "jit": lambda f: f,
    "grad": lambda f: jax.grad(lambda x, w: (f(x, w) ** 2).sum(), (0, 1)),
    "jvp": lambda f: lambda x, w: jax.jvp(f, (x, w), (w, x)),
    "linearize": lambda f: lambda x, w: jax.linearize(f, x, w)[1](w, x),
    "jacrev": lambda f: jax.jacrev(f, 1),
    "hessian": lambda f: jax.hessian(lambda x, w: (f(x, w) ** 2).sum(), (0, 1)),
    "vmap of grad": lambda f: (
        lambda x, w: jax.vmap(jax.grad(lambda x, w: (f(x, w) ** 2).sum(), (0, 1)), (0, None))(
            jnp.stack([x, w]), w
        )
    ),
    "grad of vmap": lambda f: jax.grad(
        lambda x, w: (jax.vmap(f, (0, 1), 1)(jnp.stack([x, w]), jnp.stack([w, x], 1)) ** 2).sum(),
        (0, 1),
    ),
    "scan": lambda f: jax.grad(
        lambda x, w: lax.scan(lambda c, w: (f(c, w), None), x, jnp.stack([w, x]))[0].sum(), (0, 1)
    ),
    "grad of what is closed over": lambda f: lambda x, w: jax.grad(lambda x: f(x, w).sum())(x),
}


@pytest.mark.parametrize("transformed", [*TRANSFORMED, "grad, eagerly"])
def test_transformations_agree_with_jnp(transformed: str) -> None:
    """Of integers, whose sums are exact."""
    x, w = (
        jnp.asarray(np.random.default_rng(i).integers(-2, 3, (3, 3)).astype(np.float32))
        for i in range(2)
    )
    name, _, eagerly = transformed.partition(", ")

    def result(matmul: Function) -> Any:
        function = TRANSFORMED[name](lambda x, w: matmul(x.T, jnp.swapaxes(w, 0, 1)))
        return (function if eagerly else jax.jit(function))(x, w)

    jax.tree.map(np.testing.assert_array_equal, result(matmul), result(jnp.matmul))


@hypothesis.settings(max_examples=20)
@hypothesis.given(matmuls(), st.data())
def test_any_transposition_of_any_matmul(case: Any, data: st.DataObject) -> None:
    """With its gradients, of integers."""
    lhs_shape, rhs_shape, dims = case
    orders = [data.draw(st.permutations(range(len(shape)))) for shape in (lhs_shape, rhs_shape)]
    given = [
        integers(shape, number).transpose(order)
        for number, (shape, order) in enumerate(zip((lhs_shape, rhs_shape), orders, strict=True))
    ]

    def matmul(dot_general: Any) -> Function:
        def function(x: Any, y: Any) -> Any:
            x, y = (lax.transpose(x, np.argsort(o)) for x, o in zip((x, y), orders, strict=True))
            return dot_general(x, y, dims)

        return function

    out = jax.eval_shape(matmul(lax.dot_general), *given)
    g = integers(out.shape, 2)
    both = [step(matmul(f)) for f in (jaxbw.dot_general, lax.dot_general)]
    ours, theirs = jax.jit(lambda *given: [f(*given) for f in both])(*given, g)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.parametrize("axis", [AxisType.Auto, AxisType.Explicit])
def test_sharded_programs_agree_with_jnp(axis: AxisType) -> None:
    """Without a shard_map, too; the result and the gradients are sharded alike."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(axis, axis))
    with jax.set_mesh(mesh):
        x = jax.device_put(integers((4, 8), 0), NamedSharding(mesh, PartitionSpec("x", "y")))
        w = jax.device_put(integers((6, 8), 1), NamedSharding(mesh, PartitionSpec(None, "y")))
        sharding = NamedSharding(mesh, PartitionSpec("x", None))
        out_sharding = sharding if axis == AxisType.Explicit else None

        def loss(matmul: Any, x: Any, w: Any) -> Any:
            return (matmul(x, w.T, out_sharding=out_sharding) ** 2).sum()

        ours, theirs = (
            jax.jit(jax.value_and_grad(functools.partial(loss, matmul), (0, 1)))(x, w)
            for matmul in (matmul, jnp.matmul)
        )
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert jax.tree.map(jax.typeof, ours) == jax.tree.map(jax.typeof, theirs)


@pytest.mark.parametrize("implementation", ["emulator", "emulator-sm90"])
def test_the_kernels_matmul_is_right(
    implementation: str, operand: Operand, assert_matmul_close: Callable[..., None]
) -> None:
    x, w, g = operand((72, 40)), operand((48, 72), number=1), operand((40, 48), number=2)
    function = functools.partial(matmul, implementation=implementation)
    results = jax.jit(step(lambda x, w: function(x.T, w.T)))(x, w, g)
    x, w, g = (np.asarray(a).astype(np.float64) for a in (x, w, g))
    for result, (lhs, rhs) in zip(results, ((x.T, w.T), (w.T, g.T), (g.T, x.T)), strict=True):
        assert_matmul_close(result, lhs @ rhs, np.abs(lhs) @ np.abs(rhs), lhs.shape[1])


# Where copies are needed

EINSUMS = {
    # shapes, and how many copies a kernel needs: of the matmul; of it and its gradients
    "btd,dhk->bthk": ((2, 64, 128), (128, 4, 64), 0, 0),  # projections of attention's heads
    "btd,hdk->bthk": ((2, 64, 128), (4, 128, 64), 1, 2),
    "btd,dhk->bhtk": ((2, 64, 128), (128, 4, 64), 1, 2),
    "bthk,hkd->btd": ((2, 64, 4, 32), (4, 32, 128), 0, 0),
    "bhqd,bhkd->bhqk": ((2, 4, 64, 32), (2, 4, 128, 32), 0, 0),  # queries by keys
    "bqhd,bkhd->bhqk": ((2, 64, 4, 32), (2, 128, 4, 32), 2, 4),
    "bhqk,bhkd->bhqd": ((2, 4, 64, 128), (2, 4, 128, 32), 0, 0),  # by values
    "bhqk,bkhd->bqhd": ((2, 4, 64, 128), (2, 128, 4, 32), 2, 4),
    "mbk,bkn->bmn": ((8, 3, 16), (3, 16, 32), 1, 2),  # a batch dimension in the middle
    "mbk,bkn->mbn": ((8, 3, 16), (3, 16, 32), 2, 4),
    "mab,bna->mn": ((64, 8, 16), (16, 32, 8), 1, 4),
}


def copies(function: Callable[..., Any], *operands: Any) -> int:
    """How many arrays of a compiled program are others, in another order of dimensions."""
    text = str(jax.jit(function).lower(*operands).compile().as_text())
    found: int = text.count(" copy(")
    for layout, permutation in re.findall(
        r"\{([\d,]+)\} transpose\(.*?dimensions=\{([\d,]+)\}", text
    ):
        dims = [int(dim) for dim in permutation.split(",")]
        read = [dims[int(i)] for i in layout.split(",")]  # from the innermost dimension on
        found += read != sorted(read, reverse=True)
    return found


@pytest.mark.parametrize("spec", EINSUMS)
def test_einsum_on_the_kernels(spec: str) -> None:
    """With its gradients, of integers: exact."""
    sizes = {"b": 2, "t": 5, "d": 16, "h": 3, "k": 8, "q": 4, "m": 6, "n": 7, "a": 2}
    given, result = spec.split("->")
    x, w, g = (
        integers(tuple(sizes[letter] for letter in letters), i).astype(jnp.bfloat16)
        for i, letters in enumerate((*given.split(","), result))
    )
    with jaxbw.implementation("emulator-sm90"):
        ours = jax.jit(step(lambda x, w: einsum(spec, x, w)))(x, w, g)
    wide = [a.astype(jnp.float32) for a in (x, w, g)]
    theirs = jax.jit(step(lambda x, w: jnp.einsum(spec, x, w)))(*wide)
    for got, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(got, np.asarray(wanted).astype(jnp.bfloat16))


@pytest.mark.parametrize("spec", EINSUMS)
def test_copies_of_einsum_are_no_more_than_xlas(spec: str, operand: Operand) -> None:
    lhs, rhs, forward, both = EINSUMS[spec]
    x, w = operand(lhs, "float32"), operand(rhs, "float32", 1)

    def xla(x: Any, w: Any) -> Any:
        return jnp.einsum(spec, x, w)

    def kernel(x: Any, w: Any) -> Any:
        return einsum(spec, x, w)

    g = cotangent(xla, x, w)
    ours = [np.asarray(x).astype(jnp.bfloat16) for x in (x, w, g)]
    with jaxbw.implementation("emulator-sm90"):
        assert copies(kernel, *ours[:2]) == forward <= copies(xla, x, w)
        assert copies(step(kernel), *ours) == both <= copies(step(xla), x, w, g)


@hypothesis.settings(max_examples=15)
@hypothesis.given(matmuls((2, 3, 5), least=1))
def test_copies_are_no_more_than_xlas(case: Any) -> None:
    lhs, rhs, dims = case

    def count(implementation: str, dtype: Any) -> int:
        matmul = functools.partial(
            jaxbw.dot_general, dimension_numbers=dims, implementation=implementation
        )
        return copies(matmul, np.ones(lhs, dtype), np.ones(rhs, dtype))

    assert count("emulator-sm90", jnp.bfloat16) <= count("xla", jnp.float32)
