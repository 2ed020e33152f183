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
from jaxbw.flax import linen

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


def test_experts_by_all_to_all() -> None:
    """What comes of tokens that are sent to their experts is, to the bit, what of gathered ones."""
    mesh = Mesh(np.array(jax.devices("gpu")[:2]), ("expert",))
    gathers = linen.MoE(8, 512, dtype=jnp.bfloat16, expert_axis="expert")
    x = jax.random.normal(jax.random.key(1), (1024, 256), jnp.bfloat16)
    params = gathers.init(jax.random.key(0), x)["params"]
    specs = {name: P() if name == "router" else P("expert") for name in params}

    def step(layer: Any) -> Any:
        @functools.partial(
            jax.shard_map, mesh=mesh, in_specs=(specs, P("expert")), out_specs=P("expert")
        )
        def on_both(params: Any, x: Any) -> Any:
            return layer.apply({"params": params}, x)

        @jax.jit
        def derivatives(params: Any, x: Any) -> Any:
            y, pull_back = jax.vjp(on_both, params, x)
            return y, pull_back(jnp.cos(y))

        return derivatives

    sends = step(gathers.clone(dispatch="all_to_all"))
    assert "ragged-all-to-all" in (sends.lower(params, x).compile().as_text() or "")
    (y, gradients), (expected, of_gathered) = sends(params, x), step(gathers)(params, x)
    np.testing.assert_array_equal(y, expected)  # each is a sum of two rows
    for found, wanted in zip(jax.tree.leaves(gradients), jax.tree.leaves(of_gathered), strict=True):
        found, wanted = (np.asarray(each, np.float64) for each in (found, wanted))
        # Each way rounds to bfloat16 up to eight times: the cotangent of a token's row, of its
        # hidden values, gate's and up's, and of the token; and sums of these, in its own order.
        assert np.linalg.norm(found - wanted) <= 2 * 8 * 2.0**-9 * np.linalg.norm(wanted)
