"""Two GPUs in one process: matmuls from several threads, and those that communicate."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxbw
from jaxbw._src.primitives.gemm import TARGET
from jaxbw._src.selection import devices

from ..jax import several_devices

pytestmark = pytest.mark.gpus


@pytest.fixture(scope="module")
def family() -> str:
    device = devices.running_device()
    assert device is not None
    assert device.family is not None
    return device.family


def test_threads_of_several_devices(family: str) -> None:
    several_devices.check(jax.devices("gpu")[:2], family, rounds=20)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("form", [{"gather_lhs": 0}, {"gather_rhs": 0}, {"scatter": 0}], ids=str)
def test_collective_matmul(form: dict[str, int], overlap: bool, family: str) -> None:
    """With gradients, exactly: small integers, few of them not 0."""
    mesh = Mesh(np.array(jax.devices("gpu")[:2]), ("x",))
    specs = {
        "gather_lhs": (P("x"), P(None, "x"), P(None, "x")),
        "gather_rhs": (P("x"), P("x"), P("x")),
        "scatter": (P(None, "x"), P("x"), P("x")),
    }
    *given, out = specs[next(iter(form))]
    keywords: dict[str, Any] = {"implementation": family, "overlap": overlap, **form}
    matmul = jax.shard_map(
        functools.partial(jaxbw.collective_matmul, axis_name="x", **keywords),
        mesh=mesh,
        in_specs=tuple(given),
        out_specs=out,
    )

    def step(x: Any, w: Any, cotangent: Any) -> Any:
        y, pull_back = jax.vjp(matmul, x, w)
        return y, *pull_back(cotangent)

    m, k, n = 512, 256, 384
    x, w, cotangent = (
        several_devices.integers(shape, i) for i, shape in enumerate(((m, k), (k, n), (m, n)))
    )
    arrays = [
        jax.device_put(jnp.asarray(array, jnp.bfloat16), jax.NamedSharding(mesh, spec))
        for array, spec in zip((x, w, cotangent), (*given, out), strict=True)
    ]
    compiled = jax.jit(step).lower(*arrays).compile()
    text = compiled.as_text() or ""
    kernels = 6 if overlap else 3  # on the ring two for each matmul
    assert text.count(f'custom_call_target="{TARGET}"') == kernels, text
    for result, wanted in zip(
        compiled(*arrays), (x @ w, cotangent @ w.T, x.T @ cotangent), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(result, np.float32), wanted)
