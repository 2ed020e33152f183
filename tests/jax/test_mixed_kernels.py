"""MXFP4 weights beside MXFP8 activations reach the Blackwell kernels: XLA's form, bit by bit."""

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxbw
from jaxbw import GemmConfig

from .test_fp4_kernels import array
from .test_mxfp8_kernels import CONFIGS, both_ways, configured, integers, mapped

Lower = Callable[..., str]
Calls = Callable[[str], list[str]]
F32 = np.float32
FORMATS = ("mxfp8", "mxfp8_e5m2")


def weights(k: int, n: int, number: int = 1) -> Any:
    return jaxbw.quantize(array("mxfp4", (k, n), number, axis=0), "mxfp4", axis=0)


def operands(m: int, n: int, k: int, left: str = "mxfp8") -> tuple[Any, Any]:
    return jaxbw.quantize(integers((m, k)), left), weights(k, n)


_extent = st.one_of(st.integers(1, 300), st.sampled_from([1, 31, 33, 127, 129]))


@settings(max_examples=settings().max_examples // 5)  # each is a program
@given(left=st.sampled_from(FORMATS), m=_extent, n=_extent, k=_extent, turned=st.booleans())
def test_shapes(left: str, m: int, n: int, k: int, turned: bool) -> None:
    """Of any k: rows of weights are padded so that TMA can unpack them. In either order."""

    def product(implementation: str, q: Any, u: Any) -> Any:
        q, u = (u.mT, q.mT) if turned else (q, u)
        return jaxbw.matmul(q, u, implementation=implementation)

    both_ways(product, *operands(m, n, k, left))


def test_exact() -> None:
    """The very numbers, so that a fault of both ways would be seen."""
    x, w = integers((130, 200)), array("mxfp4", (200, 70), 1, axis=0)
    q, u = jaxbw.quantize(x, "mxfp8"), jaxbw.quantize(w, "mxfp4", axis=0)
    np.testing.assert_array_equal(jaxbw.matmul(q, u, implementation="emulator"), x @ w)


def test_against_float64() -> None:
    """Of what the operands stand for; sums of 320 in float32."""
    keys = jax.random.split(jax.random.key(0))
    x, w = (jax.random.normal(key, (320, 320)) for key in keys)
    q, u = jaxbw.quantize(x[:100], "mxfp8"), jaxbw.quantize(w, "mxfp4", axis=0)
    left, right = (np.asarray(each.dequantized(), np.float64) for each in (q, u))
    got = np.asarray(jaxbw.matmul(q, u, implementation="emulator"))
    most = np.abs(left) @ np.abs(right)
    assert (np.abs(got - left @ right) <= 320 * 2.0**-24 * most).all()


OF_MIXED = CONFIGS | {"deep": GemmConfig(128, 64, block_k=256)}


@pytest.mark.parametrize("config", OF_MIXED)
def test_configurations(config: str) -> None:
    configured(OF_MIXED[config], *operands(200, 136, 500, "mxfp8_e5m2"))


def test_a_layer_whose_hidden_values_are_mxfp8() -> None:
    """A gated matmul of gpt-oss' kind, of k that is no multiple of 128, then another."""
    q, gate = operands(3, 160, 96)
    up, down = weights(96, 160, 2), weights(160, 40)

    def layer(implementation: str, q: Any, gate: Any, up: Any, down: Any) -> Any:
        by: Any = {"implementation": implementation}
        hidden = jaxbw.gated_matmul(q, gate, up, activation="relu", out_format="mxfp8", **by)
        return jaxbw.matmul(hidden, down, **by)

    both_ways(layer, q, gate, up, down)


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)], ids=str)
def test_vmap(axes: Any) -> None:
    w = array("mxfp4", (3, 96, 40)[axes[1] is None :], 1, axis=-2)
    mapped(axes, jaxbw.quantize(w, "mxfp4", axis=-2))


def test_scaled_matmul() -> None:
    """Scales as jax.nn has them, which the call arranges; a derivative of the data of 8 bits."""
    q, u = operands(40, 24, 128)
    scale = np.exp2(np.arange(40 * 4) % 3).reshape(1, 40, 4).astype(jnp.float8_e8m0fnu)

    def product(implementation: str, lhs: Any, rhs: Any, scale: Any) -> Any:
        def one(lhs: Any) -> Any:
            with jaxbw.implementation(implementation):
                return jaxbw.scaled_matmul(lhs, rhs, scale, scale[:, :24])

        found, pull = jax.vjp(one, lhs)
        return found, pull(jnp.full_like(found, 2.0**-8))[0].astype(F32)

    both_ways(product, q.data[None], u.data[None], scale)


def test_scaled_dot_general(cuda_hlo: Lower, custom_calls: Calls) -> None:
    """As jax.nn's, with a config of MXFP4 for rhs; backward the cotangent's 8 bits meet its 4."""
    mxfp8 = jax.nn.get_scaled_dot_general_config("mxfp8")
    of_weights = SimpleNamespace(
        data_type=jnp.float4_e2m1fn,
        scale_type=jnp.float8_e8m0fnu,
        block_size=32,
        global_scale=None,
    )
    x, w = integers((40, 64)), array("mxfp4", (64, 24), 1, axis=0)

    def product(x: Any, w: Any, implementation: Any = None) -> Any:
        return jaxbw.scaled_dot_general(
            x,
            w,
            (((1,), (0,)), ((), ())),
            configs=[mxfp8, of_weights, mxfp8],
            implementation=implementation,
        )

    np.testing.assert_array_equal(product(x, w, "emulator"), x @ w)
    both_ways(lambda by, x, w: product(x, w, by), x, w)
    large = [jax.ShapeDtypeStruct(shape, F32) for shape in ((512, 256), (256, 1024))]
    with jaxbw.target("B200"):
        calls = custom_calls(
            cuda_hlo(jax.value_and_grad(lambda *xs: product(*xs).sum(), (0, 1)), *large)
        )
    matmuls = [call for call in calls if "jaxbw_sm100_8bit_mx_" in call]
    assert len(matmuls) == 3
    assert sum("f4E2M1FN" in call for call in matmuls) == 2


def test_one_nan_is_a_column() -> None:
    w = array("mxfp4", (40, 130), axis=0)
    w[35, 3] = np.nan
    q, u = jaxbw.quantize(integers((7, 40)), "mxfp8"), jaxbw.quantize(w, "mxfp4", axis=0)
    got = np.isnan(np.asarray(jaxbw.matmul(q, u, implementation="emulator")))
    assert got[:, 3].all()
    assert got.sum() == 7


def test_lowering(cuda_hlo: Lower, custom_calls: Calls) -> None:
    """Data and tiles go into the call as they are, the 4 bits packed."""
    q, u = operands(512, 256, 1024)
    with jaxbw.target("B200"):
        text = cuda_hlo(jaxbw.matmul, q, u)
    (call,) = custom_calls(text)
    assert re.search(r'kernel = "jaxbw_sm100_8bit_mx_[12]cta"', call)
    assert "mx = 32 : i32" in call
    assert (
        "(tensor<1x512x1024xf8E4M3FN>, tensor<1x256x1024xf4E2M1FN>, "
        "tensor<1x4x8x512xf8E8M0FNU>, tensor<1x2x8x512xf8E8M0FNU>)"
    ) in call
    assert not re.search(r"stablehlo\.(transpose|convert|pad|dot_general|bitcast)", text)


def test_price() -> None:
    """The time of MXFP8 where tensor cores bound both; less where weights come from memory."""

    def microseconds(m: int, right: str, k: int = 8192) -> float:
        x, w = (jnp.zeros((rows, k), jnp.bfloat16) for rows in (m, 8192))
        q, u = (
            jax.eval_shape(lambda x, name=name: jaxbw.quantize(x, name), x)
            for x, name in ((x, "mxfp8"), (w, right))
        )
        choice = jaxbw.explain(q, u.mT, device="B200")
        assert choice.cost is not None
        assert choice.repacked == (("rhs",) if m > 8192 else ())
        assert jaxbw.explain(q, u.mT, device="B200", config=choice.config).config == choice.config
        return choice.cost.total

    assert microseconds(8192, "mxfp4") == pytest.approx(microseconds(8192, "mxfp8"), rel=0.1)
    assert 0.5 < microseconds(16, "mxfp4") / microseconds(16, "mxfp8") < 0.8
    assert microseconds(16, "mxfp4", 8192 - 64) == pytest.approx(microseconds(16, "mxfp4"), rel=0.1)
    microseconds(9000, "mxfp4", 8192 - 64)  # where weights are what is copied


def test_weights_of_gpt_oss_are_not_copied(cuda_hlo: Lower, custom_calls: Calls) -> None:
    """Of a k that is no multiple of 128: they were padded once, and few rows are at each call."""
    q, u = operands(16, 256, 2880)
    assert u.shape == (2880, 256)
    assert u.data.shape == (256, 2944)
    with jaxbw.target("B200"):
        text = cuda_hlo(jaxbw.matmul, q, u)
    (call,) = custom_calls(text)
    assert "tensor<1x256x2944xf4E2M1FN>" in call
    assert not re.search(r"stablehlo.*tensor<256x2\d+xf4E2M1FN>\) -> tensor<256x2", text)
    assert jaxbw.explain(q, u, device="B200").repacked == ()


def test_what_is_refused() -> None:
    q, u = operands(64, 64, 64)
    f = jaxbw.quantize(np.ones((64, 64), F32), "nvfp4", axis=0)
    reasons = {
        "the operands are mxfp8 and nvfp4; kernels take mxfp8, mxfp8_e5m2 and mxfp4 in any mix, or "
        "nvfp4 of both: take mxfp4 in place of nvfp4": ((q, f), "B200"),
        "MX formats are for sm100": ((q, u), "H200"),
    }
    for reason, (call, device) in reasons.items():
        choice = jaxbw.explain(*call, device=device)
        assert choice.implementation == "xla"
        assert reason in str(choice), str(choice)


def test_a_symbolic_k_stays_as_it_is() -> None:
    """Data are padded to 32 alone, as those of 8 bits beside them."""
    x, w = integers((3, 96)), integers((5, 96), 1)
    sizes = jax.export.symbolic_shape("k")
    types = [jax.ShapeDtypeStruct((rows, *sizes), F32) for rows in (3, 5)]

    @jax.jit
    def product(x: Any, w: Any) -> Any:
        q, u = jaxbw.quantize(x, "mxfp8"), jaxbw.quantize(w, "mxfp4")
        return jaxbw.matmul(q, u.mT)

    exported = jax.export.export(product)(*types)
    np.testing.assert_array_equal(exported.call(x, w), product(x, w))
