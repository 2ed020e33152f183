"""jaxbw.collective_matmul by one collective of XLA, which is what it mostly chooses."""

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import jaxbw
from jaxbw._src.lab.bench import statistics
from jaxbw._src.primitives.overlap import RING_IS_FASTER, Chunk

from .collective_matmuls import (
    AXIS,
    FORMS,
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

XLA_ARMS = "collective and product", "XLA as shipped"


def test_a_symbolic_default_is_one_collective() -> None:
    matmul = over_mesh({"gather_lhs": 1}, 2, jaxbw.collective_matmul)
    (batch,) = jax.export.symbolic_shape("b")
    x, w = (
        jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((batch, 8192, 8192), (8192, 4096))
    )
    text = jax.export.export(jax.jit(matmul))(x, w).mlir_module()
    assert "stablehlo.all_gather" in text
    assert "stablehlo.collective_permute" not in text


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_collectives_of_xla(form: dict[str, int]) -> None:
    """Without overlapping: forward, backward, and both in one program, which gathers once."""
    size = 8
    x, w = integers((8, 8, 8)), integers((8, 8))
    cotangent = integers(jax.eval_shape(expected(form, size), x, w).shape)

    def pull_back(matmul: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, w, cotangent: jax.vjp(matmul, x, w)[1](cotangent)

    wanted, *ours = (
        [
            communication(matmul, x, w),
            *(communication(of(matmul), x, w, cotangent) for of in (pull_back, with_gradients)),
        ]
        for matmul in (
            over_mesh(form, size, given) for given in (collectives, PLAIN, jaxbw.collective_matmul)
        )
    )
    assert wanted[0] == {"reduce-scatter" if "scatter" in form else "all-gather": 1}
    assert ours == [wanted] * 2


def test_a_training_step_has_the_collectives_of_xla() -> None:
    size = 8
    operands = integers((2, 16, 8)), integers((8, 24), 1), integers((24, 8), 2)

    def step(matmul: Callable[..., Any]) -> Callable[..., Any]:
        def loss(*arrays: Any) -> Any:
            return (layers(matmul, size)(*arrays) * operands[0]).sum()

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))

    default = step(jaxbw.collective_matmul)
    assert_equal(default(*operands), step(collectives)(*operands))
    found = communication(default, *operands)
    assert found == communication(step(collectives), *operands)
    assert "collective-permute" not in found


def collectives_of_default(
    size: int,
    form: dict[str, int],
    lhs: tuple[int, ...],
    rhs: tuple[int, ...],
    call: Callable[..., Any] = lambda matmul, x, w: matmul(x, w),
) -> set[str]:
    """Those that the default lowers a device's matmul of these shapes to."""
    keywords: dict[str, Any] = {"axis_name": AXIS, **form}

    def local(x: Any, w: Any) -> Any:
        return call(functools.partial(jaxbw.collective_matmul, **keywords), x, w)

    matmul = jax.shard_map(
        local, mesh=mesh_of(size), in_specs=P(), out_specs=P(AXIS), check_vma=False
    )
    x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in (lhs, rhs))
    text = jax.jit(matmul).lower(x, w).as_text()
    return set(re.findall(r"stablehlo\.(collective_permute|all_gather|reduce_scatter)", text))


@pytest.mark.parametrize(
    ("size", "form", "lhs", "rhs", "wanted"),
    [
        (2, {"gather_lhs": 0}, (4096, 8192), (8192, 4096), "collective_permute"),
        (2, {"gather_rhs": 1}, (4096, 8192), (8192, 4096), "collective_permute"),
        (2, {"gather_lhs": 1}, (2, 2048, 8192), (8192, 4096), "collective_permute"),
        (2, {"gather_lhs": 0}, (8192, 8192), (8192, 4096), "collective_permute"),
        (2, {"gather_lhs": 0}, (4095, 8192), (8192, 4096), "all_gather"),  # smaller than measured
        (2, {"gather_lhs": 0}, (4096, 8191), (8191, 4096), "all_gather"),
        (2, {"gather_lhs": 0}, (4096, 8192), (8192, 4095), "all_gather"),
        (2, {"gather_lhs": 0}, (4096, 8192), (8192, 8192), "all_gather"),  # a larger result
        (2, {"gather_lhs": 1}, (8192, 8192), (16384, 4096), "all_gather"),  # a sum of matmuls
        (2, {"scatter": 0}, (8192, 8192), (8192, 8192), "reduce_scatter"),
        (4, {"gather_lhs": 0}, (4096, 8192), (8192, 4096), "all_gather"),
        (2, {"gather_lhs": 0}, (4096, 0), (0, 4096), "all_gather"),
    ],
    ids=str,
)
def test_the_default_is_what_was_measured_faster(
    size: int, form: dict[str, int], lhs: tuple[int, ...], rhs: tuple[int, ...], wanted: str
) -> None:
    assert collectives_of_default(size, form, lhs, rhs) == {wanted}


def test_a_differentiated_default_gathers_once_for_all() -> None:
    """A ring forward would send again what the gradient's matmul gathers."""

    def gradients(matmul: Callable[..., Any], x: Any, w: Any) -> Any:
        y, pull_back = jax.vjp(matmul, x, w)
        return jax.tree.leaves(pull_back(y))[0]

    def tangent(matmul: Callable[..., Any], x: Any, w: Any) -> Any:
        return jax.jvp(matmul, (x, w), (x, w))[1]

    shapes = (4096, 8192), (8192, 4096)
    assert collectives_of_default(2, {"gather_lhs": 0}, *shapes, gradients) == {
        "all_gather",
        "reduce_scatter",
    }
    assert collectives_of_default(2, {"gather_lhs": 0}, *shapes, tangent) == {"all_gather"}


def test_the_default_is_in_the_results_files() -> None:
    """Nothing else there is faster on a ring, and no other derivative than what gathers has."""
    folder = Path(__file__).parents[2] / "benchmarks" / "results"
    ring_wins, dynamic_wins = {}, set()
    for name in ("2_gather", "2_scatter", "4"):
        text = (folder / f"2026-11-22_h200_collective_scheduler_{name}.json").read_text()
        for case in json.loads(text)["cases"]:
            times = {arm: [[us] for us in row["rounds_us"]] for arm, row in case["arms"].items()}
            static = times["one collective, static"]
            dynamic = times.get("one collective", times["jaxbw"])  # it was the default everywhere
            best = min(static, dynamic, *(times[arm] for arm in XLA_ARMS), key=statistics.median)
            if statistics.ratio(best, times["ring"]).low > 1:
                assert (case["form"], case["backward"]) == ("gather", False)
                devices = int(name[0])
                ring_wins[devices] = Chunk(case["m"] // devices, case["n"] // devices, case["k"])
            if statistics.ratio(static, dynamic).low > 1:
                dynamic_wins.add((case["form"], case["backward"]))
    assert ring_wins == RING_IS_FASTER
    assert dynamic_wins == {("gather", True)}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_collective_sums_in_the_dtype_of_the_result(dtype: str) -> None:
    """As XLA's own matmul does; a float32 result has float32 sums."""

    def local(x: Any, w: Any) -> Any:
        return PLAIN(x, w, AXIS, scatter=0, preferred_element_type=dtype)

    matmul = jax.shard_map(
        local, mesh=mesh_of(4), in_specs=(P(None, AXIS), P(AXIS)), out_specs=P(AXIS)
    )
    x, w = integers((8, 8), dtype=jnp.bfloat16), integers((8, 8), 1, jnp.bfloat16)
    text = jax.jit(matmul).lower(x, w).as_text()
    short = {"bfloat16": "bf16", "float32": "f32"}[dtype]
    (types,) = re.findall(r"\}\) : \((tensor<8x8x\w+>)\) -> tensor<2x8x\w+>", text)
    assert types == f"tensor<8x8x{short}>"
    assert_equal(matmul(x, w), jnp.matmul(x, w, preferred_element_type=dtype))
