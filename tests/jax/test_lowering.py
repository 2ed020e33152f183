"""What a program lowered for CUDA holds: the custom call, its attributes, and no copies."""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

import jaxbw
from jaxbw import _native
from jaxbw.selection import select

Operand = Callable[..., Any]
Lower = Callable[..., str]
Calls = Callable[[str], list[str]]

COPIES = re.compile(r"stablehlo\.(transpose|copy|pad|slice|concatenate|gather|dot_general)\b")


def attributes(line: str) -> dict[str, str]:
    """The attributes of a custom call, as they are printed."""
    (block,) = re.findall(r"mhlo\.backend_config = \{([^}]*)\}", line)
    return dict(entry.split(" = ", 1) for entry in block.split(", "))


def strict(family: str) -> Callable[..., Any]:
    return functools.partial(jaxbw.matmul, implementation=family)


def test_attributes(family: str, operand: Operand, cuda_hlo: Lower, custom_calls: Calls) -> None:
    lhs, rhs = operand((256, 512)), operand((512, 128), number=1)
    text = cuda_hlo(strict(family), lhs, rhs)
    (call,) = custom_calls(text)
    chosen = jaxbw.explain(lhs, rhs, implementation=family)
    assert chosen.config is not None
    assert attributes(call) == {
        "kernel": f'"{chosen.kernel}"',
        "lhs_major": f"{_native.Major.K.value} : i32",
        "rhs_major": f"{_native.Major.MN.value} : i32",
        "activation": "0 : i32",
        "block_m": f"{chosen.config.block_m} : i32",
        "block_n": f"{chosen.config.block_n} : i32",
        "cluster_m": f"{chosen.config.cluster[0]} : i32",
        "cluster_n": f"{chosen.config.cluster[1]} : i32",
        "cta_group": f"{chosen.config.cta_group} : i32",
        "stages": f"{chosen.config.stages} : i32",
        "swizzle": f"{chosen.config.swizzle} : i32",
    }
    assert not COPIES.search(text)
    # Row-major, as the tensor maps take the buffers to be.
    assert call.count("dense<[2, 1, 0]>") == 3


DIMS = {
    "nn": ((256, 512), (512, 128), (((1,), (0,)), ((), ()))),
    "nt": ((256, 512), (128, 512), (((1,), (1,)), ((), ()))),
    "tn": ((512, 256), (512, 128), (((0,), (0,)), ((), ()))),
    "tt": ((512, 256), (128, 512), (((0,), (1,)), ((), ()))),
    "dense": ((4, 64, 512), (512, 128), (((2,), (0,)), ((), ()))),
    "heads": ((4, 64, 8, 64), (8, 64, 128), (((2, 3), (0, 1)), ((), ()))),
    "batched nn": ((4, 256, 512), (4, 512, 128), (((2,), (1,)), ((0,), (0,)))),
    "batched nt": ((4, 256, 512), (4, 128, 512), (((2,), (2,)), ((0,), (0,)))),
    "batched tn": ((4, 512, 256), (4, 512, 128), (((1,), (1,)), ((0,), (0,)))),
    "batched tt": ((4, 512, 256), (4, 128, 512), (((1,), (2,)), ((0,), (0,)))),
    "two batches": ((2, 4, 256, 512), (2, 4, 512, 128), (((3,), (2,)), ((0, 1), (0, 1)))),
}


@pytest.mark.parametrize("case", DIMS)
def test_forward_and_backward_copy_nothing(
    case: str, family: str, operand: Operand, cuda_hlo: Lower, custom_calls: Calls
) -> None:
    """Both backward products run on kernels of other layouts, never on transposed operands."""
    lhs_shape, rhs_shape, dims = DIMS[case]
    lhs, rhs = operand(lhs_shape), operand(rhs_shape, number=1)

    def product(lhs: Any, rhs: Any) -> Any:
        return jaxbw.dot_general(lhs, rhs, dims, implementation=family)

    def step(lhs: Any, rhs: Any, cotangent: Any) -> Any:
        out, pull_back = jax.vjp(product, lhs, rhs)
        return out, pull_back(cotangent)

    out = jax.eval_shape(product, lhs, rhs)
    text = cuda_hlo(step, lhs, rhs, jnp.ones(out.shape, out.dtype))
    assert len(custom_calls(text)) == 3
    assert not COPIES.search(text)


@pytest.mark.parametrize(
    ("activation", "with_bias"),
    [(None, True), ("relu", True), ("gelu", True), ("silu", True), ("relu", False)],
)
def test_fused_is_one_call(
    activation: str | None,
    with_bias: bool,
    family: str,
    operand: Operand,
    cuda_hlo: Lower,
    custom_calls: Calls,
) -> None:
    lhs, rhs, bias = operand((256, 512)), operand((512, 128), number=1), operand((128,))

    def fused(lhs: Any, rhs: Any, bias: Any) -> Any:
        return jaxbw.matmul(
            lhs,
            rhs,
            bias=bias if with_bias else None,
            activation=activation,
            implementation=family,
        )

    text = cuda_hlo(fused, lhs, rhs, bias)
    (call,) = custom_calls(text)
    number = {None: 0, "relu": 1, "gelu": 2, "silu": 3}[activation]
    assert attributes(call)["activation"] == f"{number} : i32"
    assert len(re.findall(r"%\w+", call.split("(")[1].split(")")[0])) == 2 + with_bias
    assert not re.search(r"stablehlo\.(add|maximum|tanh|logistic|convert)\b", text)

    def step(lhs: Any, rhs: Any, bias: Any, cotangent: Any) -> Any:
        out, pull_back = jax.vjp(fused, lhs, rhs, bias)
        return out, pull_back(cotangent)

    text = cuda_hlo(step, lhs, rhs, bias, jnp.ones((256, 128), jnp.bfloat16))
    assert len(custom_calls(text)) == 3
    assert not COPIES.search(text)


def test_vmapped_products_stay_one_call(
    family: str, operand: Operand, cuda_hlo: Lower, custom_calls: Calls
) -> None:
    lhs, rhs = operand((4, 64, 128)), operand((128, 64), number=1)
    for axes, operands in (((0, None), (lhs, rhs)), ((0, 0), (lhs, jnp.stack([rhs] * 4)))):
        text = cuda_hlo(jax.vmap(strict(family), axes), *operands)
        assert len(custom_calls(text)) == 1
        assert not COPIES.search(text)


def test_choosing_takes_verified_kernels_only(
    operand: Operand, cuda_hlo: Lower, custom_calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    lhs, rhs = operand((256, 512)), operand((512, 128), number=1)
    for device in ("H200", "B200"):
        with jaxbw.target(device):
            assert len(custom_calls(cuda_hlo(jaxbw.matmul, lhs, rhs))) == 1
    monkeypatch.setattr(select, "VERIFIED_FAMILIES", frozenset({"sm90"}))
    wide = operand((512, 256), number=1)  # nothing is cached of it
    with jaxbw.target("B200"):
        text = cuda_hlo(jaxbw.matmul, lhs, wide)
        assert not custom_calls(text)
        assert "stablehlo.dot_general" in text


@pytest.mark.parametrize(
    ("lhs", "rhs"),
    [
        (jnp.ones((8, 100), jnp.bfloat16), jnp.ones((100, 8), jnp.bfloat16)),
        (jnp.ones((8, 16), jnp.float32), jnp.ones((16, 8), jnp.float32)),
        (jnp.ones((8, 16), jnp.int8), jnp.ones((16, 8), jnp.int8)),
        (jnp.ones((8, 16), jnp.bfloat16), jnp.ones((16, 8), jnp.float16)),
        (jnp.ones((0, 16), jnp.bfloat16), jnp.ones((16, 8), jnp.bfloat16)),
        (jnp.ones((8, 0), jnp.bfloat16), jnp.ones((0, 8), jnp.bfloat16)),
    ],
)
def test_what_no_kernel_takes_is_xlas(
    lhs: Any, rhs: Any, cuda_hlo: Lower, custom_calls: Calls
) -> None:
    with jaxbw.target("H200"):
        text = cuda_hlo(jaxbw.matmul, lhs, rhs)
        assert not custom_calls(text)
        assert "stablehlo.dot_general" in text
        assert jaxbw.explain(lhs, rhs).implementation == "xla"
        assert not custom_calls(
            cuda_hlo(functools.partial(jaxbw.matmul, activation="relu"), lhs * 1.0, rhs * 1.0)
        )


def test_a_default_target_stands_in_for_a_missing_gpu(
    operand: Operand, cuda_hlo: Lower, custom_calls: Calls
) -> None:
    if _native.devices():
        pytest.skip("this machine has a GPU")
    lhs, rhs = operand((256, 512)), operand((512, 128), number=1)
    for family, device in (("sm100", "B200"), ("sm90", "H200")):
        (call,) = custom_calls(cuda_hlo(strict(family), lhs, rhs))
        with jaxbw.target(device):
            (named,) = custom_calls(cuda_hlo(strict(family), lhs, rhs))
        assert attributes(call) == attributes(named)
    assert not custom_calls(cuda_hlo(jaxbw.matmul, lhs, rhs))


def test_a_config_is_taken_over(
    family: str, operand: Operand, cuda_hlo: Lower, custom_calls: Calls
) -> None:
    lhs, rhs = operand((512, 512)), operand((512, 512), number=1)
    config = jaxbw.GemmConfig(128, 128, cluster=(2, 1), stages=3, swizzle=4)
    call = functools.partial(jaxbw.matmul, implementation=family, config=config)
    (line,) = custom_calls(cuda_hlo(call, lhs, rhs))
    found = attributes(line)
    assert [found[name] for name in ("block_n", "cluster_m", "stages", "swizzle")] == [
        f"{number} : i32" for number in (128, 2, 3, 4)
    ]


def test_partitioned_programs_are_xlas_and_shard_map_is_the_kernels(
    operand: Operand, custom_calls: Calls
) -> None:
    """XLA would gather the operands of a custom call that it cannot partition."""
    mesh = jax.sharding.AbstractMesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, PartitionSpec("x"))
    lhs = jax.ShapeDtypeStruct((256, 512), jnp.bfloat16, sharding=rows)
    rhs = jax.ShapeDtypeStruct((512, 128), jnp.bfloat16)

    def lower(function: Any) -> str:
        traced = jax.jit(function).trace(lhs, rhs)
        return str(traced.lower(lowering_platforms=("cuda",)).as_text())

    with jaxbw.target("H200"):
        text = lower(jaxbw.matmul)
        assert not custom_calls(text)
        assert "stablehlo.dot_general" in text
        local = jax.shard_map(
            jaxbw.matmul,
            mesh=mesh,
            in_specs=(PartitionSpec("x"), PartitionSpec()),
            out_specs=PartitionSpec("x"),
        )
        assert len(custom_calls(lower(local))) == 1
        with pytest.raises(NotImplementedError, match="shard_map"):
            lower(strict("sm90"))
