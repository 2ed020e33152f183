"""jax.export: round trips on the CPU, programs for CUDA made on the CPU, symbolic shapes."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jaxbw
from jaxbw._src.primitives.gemm import TARGET
from jaxbw._src.primitives.partitioning import TARGET as PARTITIONED

Operand = Callable[..., Any]

K, N = 64, 40


def fused(x: Any, w: Any) -> Any:
    return jaxbw.matmul(x, w, bias=jnp.full(N, 0.5), activation="gelu")


def loss(x: Any, w: Any) -> Any:
    return fused(x, w).astype(jnp.float32).sum()


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "plain": lambda x, w: jaxbw.matmul(x, w),
    "fused": fused,
    "gated": lambda x, w: jaxbw.gated_matmul(x, w, 2 * w),
    "gradient": jax.grad(loss, (0, 1)),
}


def exported(
    function: Any, *types: Any, platforms: tuple[str, ...] = ("cpu",), vjp_order: int = 0
) -> Any:
    """Exported, serialised and read again."""
    there = export.export(
        jax.jit(function), platforms=platforms, disabled_checks=jaxbw.export_disabled_checks
    )(*types)
    return export.deserialize(there.serialize(vjp_order=vjp_order))


def rows(text: str, dtype: Any = jnp.bfloat16, columns: int = K) -> Any:
    """The type [rows, columns], of symbolic rows."""
    return jax.ShapeDtypeStruct((*export.symbolic_shape(text), columns), dtype)


@pytest.mark.parametrize("implementation", [None, "emulator", "emulator-sm90"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_round_trip(name: str, implementation: str | None, operand: Operand) -> None:
    x, w = operand((24, K)), operand((K, N), number=1)
    chosen = jaxbw.implementation(implementation) if implementation else contextlib.nullcontext()
    with chosen:
        there = exported(FUNCTIONS[name], x, w)
        wanted = jax.jit(FUNCTIONS[name])(x, w)
    assert (f"@{TARGET}" in there.mlir_module()) == (implementation is not None)
    jax.tree.map(np.testing.assert_array_equal, there.call(x, w), wanted)


def test_an_exported_function_is_differentiated(operand: Operand) -> None:
    x, w = (jnp.round(operand(shape, "float32")) for shape in ((24, K), (K, N)))

    def relu(x: Any, w: Any) -> Any:  # of integers, so that sums are exact
        return jaxbw.matmul(x, w, activation="relu")

    there = exported(relu, x, w, vjp_order=1)
    for got, wanted in zip(
        *(jax.grad(lambda x, w, f=f: f(x, w).sum(), (0, 1))(x, w) for f in (there.call, relu)),
        strict=True,
    ):
        np.testing.assert_array_equal(got, wanted)


def test_the_custom_call_has_to_be_allowed(operand: Operand) -> None:
    x, w = operand((24, K)), operand((K, N), number=1)
    with jaxbw.target("H200"), pytest.raises(ValueError, match=TARGET):
        export.export(jax.jit(jaxbw.matmul), platforms=["cuda"])(x, w)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_for_cuda_on_a_cpu(name: str, family: str, operand: Operand) -> None:
    """For CUDA alone, and for both, where the platform is asked when the program is loaded."""
    x, w = operand((24, K)), operand((K, N), number=1)
    calls = 3 if name == "gradient" else 1
    only = exported(FUNCTIONS[name], x, w, platforms=("cuda",))
    assert only.mlir_module().count(f"@{TARGET}") == calls
    assert f'kernel = "jaxbw_{family}' in only.mlir_module()
    both = exported(FUNCTIONS[name], x, w, platforms=("cuda", "cpu"))
    assert both.mlir_module().count(f"@{TARGET}") == calls
    jax.tree.map(np.testing.assert_array_equal, both.call(x, w), jax.jit(FUNCTIONS[name])(x, w))


def test_the_gradient_comes_along_for_cuda(family: str, operand: Operand) -> None:
    x, w = operand((24, K)), operand((K, N), number=1)
    there = exported(fused, x, w, platforms=("cuda",), vjp_order=1)
    # The forward kernel again, for what the gradient looks at, and a matmul for each operand.
    assert there.vjp().mlir_module().count(f"@{TARGET}") == 3


@pytest.mark.parametrize("local", [False, True])
def test_over_two_devices(local: bool, operand: Operand) -> None:
    """Inside a shard_map kernels serve each device's part; else XLA asks what that is."""
    mesh = jax.sharding.AbstractMesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.sharding.PartitionSpec("x")
    sharding = jax.sharding.NamedSharding(mesh, split)
    x = jax.ShapeDtypeStruct((64, K), jnp.bfloat16, sharding=sharding)
    matmul: Any = jaxbw.matmul
    if local:
        in_specs = (split, jax.sharding.PartitionSpec())
        matmul = jax.shard_map(jaxbw.matmul, mesh=mesh, in_specs=in_specs, out_specs=split)
    with jaxbw.target("H200"):
        there = exported(matmul, x, operand((K, N)), platforms=("cuda",))
    assert there.nr_devices == 2
    target = TARGET if local else PARTITIONED
    assert there.mlir_module().count(f"@{target}") == 1


def test_symbolic_sizes_are_xlas(family: str, operand: Operand) -> None:
    """A kernel is chosen for sizes; a program that has none does without."""
    w = operand((K, N), number=1)
    there = exported(FUNCTIONS["gradient"], rows("b"), w, platforms=("cpu", "cuda"))
    assert TARGET not in there.mlir_module()
    for m in (1, 24):
        x = operand((m, K))
        wanted = jax.jit(FUNCTIONS["gradient"])(x, w)
        jax.tree.map(np.testing.assert_array_equal, there.call(x, w), wanted)
    choice = jaxbw.explain(rows("b"), w)
    assert choice.implementation == "xla"
    assert [refusal.reason for refusal in choice.refused] == [
        "a dimension is symbolic; a kernel is chosen for every m and batch under "
        "jaxbw.batch_invariant()"
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("implementation", ["emulator", "emulator-sm90"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_batch_invariant_kernel_serves_symbolic_rows(
    name: str, implementation: str, operand: Operand
) -> None:
    """One program for every m, with the bits of programs that know it."""
    w = operand((K, N), number=1)
    with jaxbw.implementation((implementation, "xla")), jaxbw.batch_invariant():
        there = exported(FUNCTIONS[name], rows("b"), w)
        # The gradient of w is a sum over m: there XLA serves.
        assert there.mlir_module().count(f"@{TARGET}") == (2 if name == "gradient" else 1)
        for m in (1, 7, 136):
            x = operand((m, K))
            got = jax.tree.leaves(there.call(x, w))
            wanted = jax.tree.leaves(jax.jit(FUNCTIONS[name])(x, w))
            np.testing.assert_array_equal(got[0], wanted[0])
            assert [a.shape for a in got] == [b.shape for b in wanted]


def test_a_copy_whose_size_is_known_is_made_for_symbolic_rows(operand: Operand) -> None:
    """The rows of rhs are not multiples of 16 bytes: the call's workspace has room for them."""
    w = operand((K, N - 1), number=1)
    with jaxbw.implementation("emulator"), jaxbw.batch_invariant():
        there = exported(jaxbw.matmul, rows("b"), w)
        for m in (3, 130):
            x = operand((m, K))
            np.testing.assert_array_equal(there.call(x, w), jax.jit(jaxbw.matmul)(x, w))


def given_types(case: str) -> tuple[Any, Any, dict[str, Any]]:
    """Matmuls with symbolic dimensions: lhs, rhs, and what else stands in the call."""
    b, s = export.symbolic_shape("b, s")

    def of(*shape: Any, dtype: Any = jnp.bfloat16) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    contract_first = {"dimension_numbers": (((0,), (0,)), ((), ()))}
    cases: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "rows": (of(b, K), of(K, N), {}),
        "batch and rows": (of(b, s, K), of(K, N), {"bias": of(N), "residual": of(b, s, N)}),
        "c": (of(b, K), of(K, N), {"c": of(b, N), "beta": 2}),
        "factors": (of(b, K), of(K, N), {"c": of(b, N), "alpha": of(), "beta": of()}),
        "scales": (of(b, K), of(K, N), {"lhs_scale": of(b), "rhs_scale": of(N)}),
        "batches": (of(b, 16, K), of(b, K, N), {}),
        "all but n and k": (of(b, s, K), of(b, K, N), {}),
        "transposed": (of(K, 8 * b), of(K, N), contract_first),
        "unaligned rows": (of(b, K - 1), of(K - 1, N), {}),
        "transposed, unaligned": (of(K, b), of(K, N), contract_first),
        "unaligned columns": (of(b, K), of(K, N - 1), {}),
        "unaligned columns of each": (of(b, 16, K), of(b, K, N - 1), {}),
        "perhaps none": (of(b - 1, K), of(K, N), {}),
        "n": (of(16, K), of(K, b), {}),
        "k": (of(16, b), of(b, N), {}),
    }
    return cases[case]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("rows", None),
        ("batch and rows", None),
        ("c", None),
        ("factors", None),
        ("scales", None),
        ("batches", None),
        ("all but n and k", None),
        ("transposed", None),
        ("unaligned columns", None),  # rhs is copied, whose size is known
        ("unaligned rows", "a dimension of lhs is symbolic, and a copy of it"),
        ("unaligned columns of each", "a dimension of rhs is symbolic, and a copy of it"),
        ("transposed, unaligned", "a dimension of lhs is symbolic, and a copy of it"),
        ("perhaps none", "may be 0"),
        ("n", "n or k is symbolic"),
        ("k", "n or k is symbolic"),
    ],
)
def test_which_symbolic_sizes_a_kernel_serves(case: str, reason: str | None, family: str) -> None:
    lhs, rhs, others = given_types(case)
    with jaxbw.batch_invariant():
        choice = jaxbw.explain(lhs, rhs, **others)
    if reason is not None:
        assert choice.implementation == "xla"
        assert reason in str(choice)
        return
    assert choice.implementation == family
    assert "priced for" in choice.reason

    arrays = {name: x for name, x in others.items() if isinstance(x, jax.ShapeDtypeStruct)}
    numbers = {name: x for name, x in others.items() if name not in arrays}
    matmul = jaxbw.dot_general if "dimension_numbers" in others else jaxbw.matmul

    def call(lhs: Any, rhs: Any, arrays: Any) -> Any:
        return matmul(lhs, rhs, **arrays, **numbers)

    with jaxbw.batch_invariant():
        text = exported(call, lhs, rhs, arrays, platforms=("cuda",)).mlir_module()
        # The same launch as of any m that is known.
        known = jaxbw.explain(
            *(sized(x) for x in (lhs, rhs)), **{k: sized(v) for k, v in others.items()}
        )
    assert f'kernel = "{known.kernel}"' in text
    assert choice.config == known.config


def sized(x: Any) -> Any:
    """A type with 24 for each b and 5 for each s."""
    if not isinstance(x, jax.ShapeDtypeStruct):
        return x
    numbers = {"b": 24, "s": 5, "8*b": 192}
    return jax.ShapeDtypeStruct([numbers.get(str(size), size) for size in x.shape], x.dtype)


def test_a_given_configuration_serves_symbolic_rows(family: str) -> None:
    x, w = rows("b"), jax.ShapeDtypeStruct((K, N), jnp.bfloat16)
    config = jaxbw.GemmConfig(128, 64, cluster=(2, 1), stages=3)
    choice = jaxbw.explain(x, w, config=config)
    assert choice.implementation == family
    assert choice.config is not None
    assert choice.config.cluster == (2, 1)
    split = jaxbw.GemmConfig(128, 64, split_k=2)
    assert jaxbw.explain(x, w, config=split).implementation == "xla"
    with pytest.raises(NotImplementedError, match="a dimension is symbolic"):
        jaxbw.explain(x, w, config=split, implementation=family)
