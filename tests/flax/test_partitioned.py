"""Layers whose parameters are divided among devices: results, shardings, what is communicated."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxbw
from jaxbw.flax import linen

from .oracle import normal


def mesh(kind: AxisType) -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("data", "model"), (kind, kind))


class Projections(nn.Module):
    """As of attention: the heads are divided, each with its part of a bias of two dimensions."""

    library: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        init = nn.initializers.normal(1.0)
        heads = self.library.DenseGeneral(
            (4, 16),
            dtype=jnp.bfloat16,
            kernel_init=nn.with_partitioning(init, (None, "model", None)),
            bias_init=nn.with_partitioning(init, ("model", None)),
        )
        out = self.library.DenseGeneral(
            64,
            axis=(-2, -1),
            dtype=jnp.bfloat16,
            kernel_init=nn.with_partitioning(init, ("model", None, None)),
        )
        result: jax.Array = out(heads(x))
        return result


def test_a_kernel_on_each_device() -> None:
    """In the emulator. The metadata of Flax says where the parameters go."""
    devices, layer = mesh(AxisType.Auto), Projections(linen)
    x = jax.device_put(normal((4, 16, 64), 0, jnp.bfloat16), NamedSharding(devices, P("data")))
    boxed = jax.jit(layer.init)(jax.random.key(1), x)
    variables = jax.device_put(nn.meta.unbox(boxed), nn.get_sharding(boxed, devices))
    with jaxbw.implementation("emulator"):
        compiled = jax.jit(layer.apply).lower(variables, x).compile()
    text = compiled.as_text() or ""
    assert text.count('"jaxbw_gemm_v10"') == 2
    assert text.count("all-reduce(") == 1
    assert "all-gather(" not in text
    whole = jax.device_get((variables, x))
    exact, terms = apart(whole), apart(whole, np.abs)
    # Two casts to bfloat16 behind the heads, two of the result's parts and of their sum.
    error = np.abs(np.asarray(compiled(variables, x)).astype(np.float64) - exact)
    assert (error <= 4 * 2.0**-8 * terms).all()


def apart(arrays: Any, change: Any = lambda x: x) -> Any:
    """The two layers in float64, of operands in bfloat16."""
    variables, x = arrays
    wide = [
        change(np.asarray(jnp.asarray(y, jnp.bfloat16)).astype(np.float64))
        for y in (
            x,
            *(variables["params"]["DenseGeneral_0"][name] for name in ("kernel", "bias")),
            *(variables["params"]["DenseGeneral_1"][name] for name in ("kernel", "bias")),
        )
    ]
    x, w, b, v, c = wide
    return np.einsum("bthk,hkd->btd", np.einsum("btd,dhk->bthk", x, w) + b, v) + c


@pytest.mark.parametrize("name", ["DenseGeneral", "Einsum"])
def test_shardings_in_types_are_flaxs(name: str) -> None:
    devices, x = mesh(AxisType.Explicit), normal((4, 16, 64))
    arguments: dict[str, dict[str, Any]] = {
        "DenseGeneral": {"features": (4, 16)},
        "Einsum": {"shape": (64, 4, 16), "einsum_str": "btd,dhk->bthk"},
    }
    results = []
    for library in (nn, linen):
        layer = getattr(library, name)(**arguments[name])
        variables = jax.jit(layer.init)(jax.random.key(1), x)
        with jax.set_mesh(devices):
            specs = {"kernel": P(None, "model"), "bias": P("model")}
            placed = {
                key: jax.device_put(variables["params"][key], NamedSharding(devices, spec))
                for key, spec in specs.items()
            }
            rows = jax.device_put(x, NamedSharding(devices, P("data")))

            def loss(parameters: Any, x: Any, layer: Any = layer) -> Any:
                out = layer.apply({"params": parameters}, x)
                return (out**2).sum(), out

            results.append(jax.jit(jax.grad(loss, (0, 1), has_aux=True))(placed, rows))
    types = [str(jax.tree.map(jax.typeof, result)) for result in results]
    assert types[0] == types[1]
    got, wanted = map(jax.device_get, results[::-1])
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), got, wanted)
