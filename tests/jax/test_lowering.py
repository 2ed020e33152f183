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
from jaxbw._src.selection import select

from .epilogues import CASES, arrays, numbers

Operand = Callable[..., Any]
Lower = Callable[..., str]
Calls = Callable[[str], list[str]]

COPIES = re.compile(r"stablehlo\.(transpose|copy|pad|slice|concatenate|gather|dot_general)\b")


def attributes(line: str) -> dict[str, str]:
    """The attributes of a custom call, as they are printed."""
    (block,) = re.findall(r"mhlo\.backend_config = \{([^}]*)\}", line)
    return dict(entry.split(" = ", 1) for entry in block.split(", "))


def operands_of(line: str) -> list[str]:
    """The operands of a custom call."""
    return re.findall(r"%[\w#]+", line.split("(")[1].split(")")[0])


def strict(family: str) -> Callable[..., Any]:
    return functools.partial(jaxbw.matmul, implementation=family)


def test_attributes(family: str, operand: Operand, cuda_hlo: Lower, custom_calls: Calls) -> None:
    lhs, rhs = operand((256, 512)), operand((512, 128), number=1)
    text = cuda_hlo(strict(family), lhs, rhs)
    (call,) = custom_calls(text)
    chosen = jaxbw.explain(lhs, rhs, implementation=family)
    assert chosen.config is not None
    config = chosen.config
    integers = {
        "lhs_major": _native.Major.K.value,
        "rhs_major": _native.Major.MN.value,
        "promoted": 0,
        "counters": 0,
        **dict.fromkeys(("has_c", "has_bias", "has_residual", "bias_along_m"), 0),
        **dict.fromkeys(("has_lhs_scale", "has_rhs_scale", "has_out_scale"), 0),
        **dict.fromkeys(("lhs_blocks", "rhs_blocks", "mx", "out_mx"), 0),
        **dict.fromkeys(("gated", "save", "activation", "split_tail", "wave"), 0),
        "block_m": config.block_m,
        "block_n": config.block_n,
        "pingpong": int(config.pingpong),
        "k_spans": (config.block_k or 0) // 64,
        "cluster_m": config.cluster[0],
        "cluster_n": config.cluster[1],
        "cluster_k": config.cluster_k,
        "cta_group": config.cta_group,
        "stages": config.stages,
        "swizzle": config.swizzle,
        "raster": {"m": 0, "n": 1}[config.raster],
        "split_k": config.split_k,
        "swap_ab": int(config.swap_ab),
        "accumulators": config.accumulators,
        "scheduler": {"static": 0, "clc": 1, "none": 2}[config.scheduler or ""],
    }
    assert attributes(call) == {
        "kernel": f'"{chosen.kernel}"',
        "alpha": "1.000000e+00 : f32",
        "beta": "1.000000e+00 : f32",
        **{name: f"{value} : i32" for name, value in integers.items()},
    }
    assert not COPIES.search(text)
    # Row-major, as the tensor maps take the buffers to be.
    assert call.count("dense<[2, 1, 0]>") == 3
    assert "ui8" not in call  # there is nothing to repack, nor to split


@pytest.mark.parametrize(
    ("config", "backward"),
    [
        (jaxbw.GemmConfig(scheduler="static"), "static"),
        (jaxbw.GemmConfig(scheduler="dynamic"), "dynamic"),
        (jaxbw.GemmConfig(128, 128, scheduler="static"), None),
    ],
    ids=str,
)
def test_a_scheduler_without_a_tile_holds_for_gradients(
    config: jaxbw.GemmConfig,
    backward: str | None,
    family: str,
    operand: Operand,
    cuda_hlo: Lower,
    custom_calls: Calls,
) -> None:
    numbers = {
        "sm90": {"static": 0, "dynamic": 2, None: 0},
        "sm100": {"static": 0, "dynamic": 1, None: 1},
    }[family]
    lhs, rhs = operand((256, 512)), operand((512, 128), number=1)

    def step(lhs: Any, rhs: Any, cotangent: Any) -> Any:
        y, pull_back = jax.vjp(functools.partial(strict(family), config=config), lhs, rhs)
        return y, pull_back(cotangent)

    calls = custom_calls(cuda_hlo(step, lhs, rhs, operand((256, 128))))
    found = [attributes(call)["scheduler"] for call in calls]
    wanted = [numbers[config.scheduler], *[numbers[backward]] * 2]
    assert found == [f"{number} : i32" for number in wanted]


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
    """Both backward matmuls run on kernels of other layouts, never on transposed operands."""
    lhs_shape, rhs_shape, dims = DIMS[case]
    lhs, rhs = operand(lhs_shape), operand(rhs_shape, number=1)

    def matmul(lhs: Any, rhs: Any) -> Any:
        return jaxbw.dot_general(lhs, rhs, dims, implementation=family)

    def step(lhs: Any, rhs: Any, cotangent: Any) -> Any:
        out, pull_back = jax.vjp(matmul, lhs, rhs)
        return out, pull_back(cotangent)

    out = jax.eval_shape(matmul, lhs, rhs)
    text = cuda_hlo(step, lhs, rhs, jnp.ones(out.shape, out.dtype))
    assert len(custom_calls(text)) == 3
    assert not COPIES.search(text)


@pytest.mark.parametrize("case", CASES)
def test_fused_is_one_call(
    case: str, family: str, operand: Operand, cuda_hlo: Lower, custom_calls: Calls
) -> None:
    keywords = CASES[case]
    given = arrays(keywords, operand, "bfloat16", (256, 512, 128))

    def fused(given: Any) -> Any:
        return jaxbw.matmul(**given, **numbers(keywords), implementation=family)

    text = cuda_hlo(fused, given)
    (call,) = custom_calls(text)
    found = attributes(call)
    activations = {None: 0, "relu": 1, "gelu": 2, "silu": 3, "gelu_exact": 4}
    for name, value in {
        "has_c": "c" in given,
        "has_bias": "bias" in given,
        "has_residual": "residual" in given,
        "bias_along_m": keywords.get("bias_axis") == -2,
        "activation": activations[keywords.get("activation")],
        "save": 0,
    }.items():
        assert found[name] == f"{int(value)} : i32", name
    for name in ("alpha", "beta"):
        assert float(found[name].split(" ")[0]) == numbers(keywords).get(name, 1)
    # A number beside a factor in memory lies there, too.
    beside = "alpha" in given and "c" in given and "beta" not in given
    assert len(operands_of(call)) == len(given) + beside
    assert not re.search(r"stablehlo\.(add|multiply|maximum|tanh|logistic|convert)\b", text)

    def step(given: Any, cotangent: Any) -> Any:
        out, pull_back = jax.vjp(fused, given)
        return out, pull_back(cotangent)

    text = cuda_hlo(step, given, jnp.ones((256, 128), jnp.bfloat16))
    forward, *backward = custom_calls(text)
    scaled = "lhs_scale" in given or "rhs_scale" in given  # whose cotangents are of lhs @ rhs
    assert len(backward) == 2 + scaled
    assert not COPIES.search(text)
    # What the gradient needs of the inside of the epilogue comes out of the same kernel.
    inside = keywords.get("activation") not in (None, "relu") or "residual" in given
    inside = inside and "activation" in keywords
    assert attributes(forward)["save"] == f"{int(inside)} : i32"
    for call in backward:
        assert float(attributes(call)["alpha"].split(" ")[0]) == numbers(keywords).get("alpha", 1)


@pytest.mark.parametrize(
    ("c", "output", "in_place"),
    [
        ("bfloat16", None, True),
        ("float32", "float32", True),
        ("float32", "bfloat16", False),
        ("float16", None, False),
    ],
)
def test_c_is_overwritten_where_it_can_be(
    c: str,
    output: str | None,
    in_place: bool,
    family: str,
    operand: Operand,
    cuda_hlo: Lower,
    custom_calls: Calls,
) -> None:
    call = functools.partial(strict(family), preferred_element_type=output)
    given = operand((256, 512)), operand((512, 128), number=1), operand((256, 128), c)
    (line,) = custom_calls(cuda_hlo(lambda lhs, rhs, c: call(lhs, rhs, c=c), *given))
    assert ("operand_index = 2" in line) == in_place


def test_a_gated_matmul_is_one_call_and_five_with_its_gradient(
    family: str, operand: Operand, cuda_hlo: Lower, custom_calls: Calls
) -> None:
    given = operand((256, 512)), operand((512, 128), number=1), operand((512, 128), number=2)
    fused = functools.partial(jaxbw.gated_matmul, implementation=family)
    text = cuda_hlo(fused, *given)
    (call,) = custom_calls(text)
    assert len(operands_of(call)) == 3
    assert [attributes(call)[x] for x in ("gated", "save", "activation")] == [
        "1 : i32",
        "0 : i32",
        "3 : i32",
    ]
    assert not COPIES.search(text)

    def step(*given: Any) -> Any:
        out, pull_back = jax.vjp(fused, *given)
        return out, pull_back(out)

    text = cuda_hlo(step, *given)
    forward, *backward = custom_calls(text)
    assert attributes(forward)["save"] == "1 : i32"
    assert len(backward) == 4
    assert not COPIES.search(text)
    # The second matmul of x's gradient is added to the first, in its place.
    (added,) = (call for call in backward if attributes(call)["has_c"] == "1 : i32")
    assert "operand_index = 2" in added


@pytest.mark.parametrize(
    ("lhs", "rhs"),
    [
        ((8, 100), (100, 8)),
        ((8, 64), (64, 100)),
        ((3, 5), (5, 7)),
        ((1, 1), (1, 1)),
        ((1, 64), (64, 1)),
        ((64, 1), (1, 64)),
        ((3, 5, 7), (3, 7, 9)),
    ],
)
def test_no_size_is_too_odd(
    lhs: Any, rhs: Any, family: str, operand: Operand, cuda_hlo: Lower, custom_calls: Calls
) -> None:
    """What TMA cannot address is repacked within the call, into a workspace; XLA pads nothing."""
    text = cuda_hlo(jaxbw.matmul, operand(lhs), operand(rhs, number=1))
    (call,) = custom_calls(text)
    assert f'"jaxbw_{family}' in call
    assert not COPIES.search(text)


def test_float32_is_sm100s_as_tf32(operand: Operand, cuda_hlo: Lower, custom_calls: Calls) -> None:
    """As XLA's own default on such a GPU; whoever asks for more gets XLA's matmul."""
    lhs, rhs = operand((256, 512), "float32"), operand((512, 128), "float32", 1)
    with jaxbw.target("B200"):
        (call,) = custom_calls(cuda_hlo(jaxbw.matmul, lhs, rhs))
        assert "tf32" in call
        for precision in ("highest", jax.lax.Precision.HIGH):
            exact = functools.partial(jaxbw.matmul, precision=precision)
            assert not custom_calls(cuda_hlo(exact, lhs, rhs))
        with jax.default_matmul_precision("highest"):
            assert not custom_calls(cuda_hlo(jaxbw.matmul, lhs, rhs))
    with jaxbw.target("H200"):
        assert not custom_calls(cuda_hlo(jaxbw.matmul, lhs, rhs))


def test_vmapped_matmuls_stay_one_call(
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


def test_inside_a_shard_map_over_every_axis_kernels_see_whole_arrays(
    operand: Operand, custom_calls: Calls
) -> None:
    """Elsewhere in a program of several devices: tests/jax/test_partitioning.py."""
    mesh = jax.sharding.AbstractMesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, PartitionSpec("x"))
    lhs = jax.ShapeDtypeStruct((256, 512), jnp.bfloat16, sharding=rows)
    rhs = jax.ShapeDtypeStruct((512, 128), jnp.bfloat16)
    local = jax.shard_map(
        jaxbw.matmul,
        mesh=mesh,
        in_specs=(PartitionSpec("x"), PartitionSpec()),
        out_specs=PartitionSpec("x"),
    )
    with jaxbw.target("H200"):
        traced = jax.jit(local).trace(lhs, rhs)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert len(custom_calls(text)) == 1
