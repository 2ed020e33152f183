"""The kernels of jaxbw.collective_matmul, and which SMs they take beside a collective."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import jaxbw

from .collective_matmuls import AXIS, ON_RING, PLAIN


def mesh_on_cuda(size: int) -> jax.sharding.AbstractMesh:
    """Devices that are not here: matmuls are lowered for them only."""
    return jax.sharding.AbstractMesh((size,), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))


@pytest.mark.parametrize(
    ("form", "sums"),
    [({"gather_lhs": 0}, 0), ({"gather_lhs": 1}, 3), ({"scatter": 0}, 3)],
    ids=str,
)
def test_every_matmul_on_a_ring_is_a_kernel(
    form: dict[str, int], sums: int, family: str, custom_calls: Any
) -> None:
    """And adds the sums that have arrived in its epilogue."""
    mesh = mesh_on_cuda(4)
    keywords: dict[str, Any] = {"implementation": family, **form}

    def local(x: Any, w: Any) -> Any:
        return ON_RING(x, w, AXIS, **keywords)

    specs = {"gather_lhs": [(P(AXIS), P()), (P(None, AXIS), P())], "scatter": [(P(), P())]}
    ((argument, dimension),) = form.items()
    in_specs = specs[argument][dimension]
    matmul = jax.shard_map(local, mesh=mesh, in_specs=in_specs, out_specs=P(AXIS))
    x, w = (
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=jax.NamedSharding(mesh, s))
        for shape, s in zip(((512, 256), (256, 512)), in_specs, strict=True)
    )
    lowered = jax.jit(matmul).trace(x, w).lower(lowering_platforms=("cuda",)).as_text()
    found = custom_calls(lowered)
    assert len(found) == 4
    assert lowered.count("stablehlo.collective_permute") == 3
    assert "stablehlo.dot_general" not in lowered
    assert sum(line.split("->")[0].count("xf32>") for line in found) == sums


@pytest.mark.parametrize("form", [{"gather_lhs": 0}, {"gather_rhs": 0}, {"scatter": 1}], ids=str)
def test_the_matmul_beside_a_collective_is_a_kernel(
    form: dict[str, int], family: str, custom_calls: Any
) -> None:
    keywords: dict[str, Any] = {"implementation": family, **form}

    def matmul(x: Any, w: Any) -> Any:
        return PLAIN(x, w, AXIS, **keywords)

    mesh = mesh_on_cuda(4)
    sharded = jax.shard_map(
        matmul, mesh=mesh, in_specs=(P(), P()), out_specs=P(AXIS), check_vma=False
    )
    rows = 64 if "gather_rhs" in form else 256
    x, w = (
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=jax.NamedSharding(mesh, P()))
        for shape in ((512, 256), (rows, 512))
    )
    text = jax.jit(sharded).trace(x, w).lower(lowering_platforms=("cuda",)).as_text()
    assert len(custom_calls(text)) == 1
    assert "stablehlo.dot_general" not in text


STATIC, CLC, NONE = 0, 1, 2  # the scheduler attribute
ALONE = {"sm90": STATIC, "sm100": CLC}
DYNAMIC = {"sm90": NONE, "sm100": CLC}
TILES = {
    "sm90": jaxbw.GemmConfig(128, 128),
    "sm100": jaxbw.GemmConfig(256, 128, cta_group=2, cluster=(2, 1)),
}


def schedulers(
    form: dict[str, int], overlap: bool, devices: int = 4, config: jaxbw.GemmConfig | None = None
) -> tuple[list[int], list[int]]:
    """Of the matmuls of a forward pass, and of both passes, on CUDA."""
    keywords: dict[str, Any] = {"overlap": overlap, "config": config, **form}
    mesh = mesh_on_cuda(devices)
    matmul = jax.shard_map(
        lambda x, w: jaxbw.collective_matmul(x, w, AXIS, **keywords),
        mesh=mesh,
        in_specs=(P(), P()),
        out_specs=P(AXIS),
        check_vma=False,
    )

    def of(function: Callable[..., Any]) -> list[int]:
        x = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16, sharding=jax.NamedSharding(mesh, P()))
        lowered = jax.jit(function).trace(x, x).lower(lowering_platforms=("cuda",))
        return [int(found) for found in re.findall(r"scheduler = (\d) :", lowered.as_text())]

    def both(x: Any, w: Any) -> Any:
        y, pull_back = jax.vjp(matmul, x, w)
        return y, pull_back(y)

    return of(matmul), of(both)


@pytest.mark.parametrize(
    ("form", "overlap", "beside"),
    [
        ({"gather_lhs": 0}, True, "111"),
        ({"scatter": 0}, True, "111"),
        ({"gather_lhs": 0}, False, "011"),
        ({"gather_rhs": 1}, False, "011"),
        ({"scatter": 0}, False, "000"),  # both gradients wait for its one collective
    ],
    ids=str,
)
def test_matmuls_beside_a_collective_take_the_sms_that_are_free(
    form: dict[str, int], overlap: bool, beside: str, family: str
) -> None:
    wanted = [(DYNAMIC if each == "1" else ALONE)[family] for each in beside]
    forward, both = schedulers(form, overlap)
    each = 4 if overlap else 1  # matmuls of chunks
    assert forward == wanted[:1] * each
    assert both == [scheduler for scheduler in wanted for _ in range(each)]


@pytest.mark.parametrize("overlap", [True, False])
def test_a_given_scheduler_stays(overlap: bool, family: str) -> None:
    for name, scheduler in (("static", STATIC), ("dynamic", DYNAMIC[family])):
        config = jaxbw.GemmConfig(scheduler=name)
        _, found = schedulers({"gather_lhs": 0}, overlap, config=config)
        assert set(found) == {scheduler}


def test_a_given_tile_has_its_own_scheduler(family: str) -> None:
    """The gradients are other matmuls, whose tiles are chosen."""
    _, found = schedulers({"gather_lhs": 0}, True, config=TILES[family])
    assert found == [ALONE[family]] * 4 + [DYNAMIC[family]] * 8


def test_a_batch_invariant_matmul_beside_a_collective(family: str) -> None:
    config = jaxbw.GemmConfig(batch_invariant=True)
    _, found = schedulers({"gather_lhs": 0}, True, config=config)
    assert set(found) == {DYNAMIC[family]}


@pytest.mark.parametrize("overlap", [True, False])
def test_one_device_has_no_collective(overlap: bool, family: str) -> None:
    _, found = schedulers({"gather_lhs": 0}, overlap, devices=1)
    assert found == [ALONE[family]] * 3
