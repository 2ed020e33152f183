"""MXFP8 operands reach the Blackwell kernels, by lowering and emulated: XLA's form, bit by bit."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxbw
from jaxbw import GemmConfig

Lower = Callable[..., str]
Calls = Callable[[str], list[str]]
F32 = np.float32


def integers(shape: Any, number: int = 0, axis: int = -1) -> Any:
    """Times a power of two for each 32 along an axis: their products are exact, and so are sums."""
    rng = np.random.default_rng([*shape, number])
    values = np.moveaxis(rng.integers(-3, 4, shape), axis, -1)
    *rows, k = values.shape
    exponents = rng.integers(-2, 3, (*rows, -(-k // 32))).repeat(32, -1)[..., :k]
    return np.moveaxis(values * np.exp2(exponents), -1, axis).astype(F32)


def both_ways(function: Callable[..., Any], *operands: Any) -> None:
    """A function of an implementation and operands, emulated and by XLA, in one program."""

    @jax.jit
    def compared(*operands: Any) -> Any:
        return function("emulator", *operands), function("xla", *operands)

    emulated, by_xla = compared(*operands)
    jax.tree.map(np.testing.assert_array_equal, emulated, by_xla)
    assert all(np.isfinite(np.asarray(x, F32)).all() for x in jax.tree.leaves(by_xla))


def operands(m: int, n: int, k: int, right: str = "mxfp8") -> tuple[Any, Any]:
    x, w = integers((m, k)), integers((k, n), 1, axis=0)
    return jaxbw.quantize(x, "mxfp8"), jaxbw.quantize(w, right, axis=0)


_extent = st.one_of(st.integers(1, 300), st.sampled_from([1, 31, 33, 127, 129]))


@settings(max_examples=settings().max_examples // 5)  # each is a program
@given(m=_extent, n=_extent, k=_extent)
def test_shapes(m: int, n: int, k: int) -> None:
    def product(implementation: str, q: Any, u: Any) -> Any:
        return jaxbw.matmul(q, u, implementation=implementation)

    both_ways(product, *operands(m, n, k))


CONFIGS = {
    "pair": GemmConfig(256, 128, cta_group=2, cluster=(2, 1)),
    "wide pair": GemmConfig(256, 256, cta_group=2, cluster=(2, 1)),
    "swapped": GemmConfig(128, 64, swap_ab=True),
    "split": GemmConfig(128, 128, split_k=2),
}


@pytest.mark.parametrize("config", CONFIGS)
def test_configurations(config: str) -> None:
    """With all of an epilogue, and other bits in rhs."""
    configured(CONFIGS[config], *operands(200, 136, 500, "mxfp8_e5m2"))


def configured(config: GemmConfig, q: Any, u: Any) -> None:
    """A matmul of 200 x 136 with all of an epilogue, by a kernel in this configuration."""
    c, residual, bias = integers((200, 136), 2), integers((200, 136), 3), integers((136,), 4)

    def product(implementation: str, q: Any, u: Any) -> Any:
        given: Any = {"config": config} if implementation == "emulator" else {}
        terms = {"alpha": 0.5, "beta": 2.0, "c": c, "bias": bias, "residual": residual}
        return jaxbw.matmul(
            q, u, activation="relu", implementation=implementation, **terms, **given
        )

    both_ways(product, q, u)


def test_results_of_8_bits() -> None:
    q, u = operands(136, 144, 96)

    def product(implementation: str, q: Any, u: Any) -> Any:
        plain = jaxbw.matmul(
            q,
            u,
            alpha=2.0**-4,
            preferred_element_type="float8_e5m2",
            implementation=implementation,
        )
        scaled = jaxbw.matmul(
            q,
            u,
            out_scale=8.0,
            preferred_element_type="float8_e4m3fn",
            implementation=implementation,
        )
        return plain, scaled

    both_ways(product, q, u)


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)], ids=str)
def test_vmap(axes: Any) -> None:
    """A batch of both, or of one, whose matrices end in the middle of a tile of scales."""
    w = integers((3, 96, 40)[axes[1] is None :], 1, axis=-2)
    mapped(axes, jaxbw.quantize(w, "mxfp8", axis=-2))


def mapped(axes: Any, u: Any) -> None:
    """vmap over one of 72 rows of k 96, or three, in MXFP8, and u."""
    q = jaxbw.quantize(integers((3, 72, 96)[axes[0] is None :]), "mxfp8")

    def product(implementation: str, q: Any, u: Any) -> Any:
        def one(q: Any, u: Any) -> Any:
            return jaxbw.matmul(q, u, implementation=implementation)

        return jax.vmap(one, axes)(q, u)

    both_ways(product, q, u)


def test_dimensions_in_front_of_rows() -> None:
    """A stack of matrices, or one, as it suits the tiles."""
    w = jaxbw.quantize(integers((64, 40), 1, axis=0), "mxfp8", axis=0)
    for shape in ((2, 3, 50, 64), (2, 128, 64), (1, 50, 64)):
        x = jaxbw.quantize(integers(shape), "mxfp8")
        both_ways(lambda by, x, w: jaxbw.matmul(x, w, implementation=by), x, w)


def gated_operands(m: int, n: int, k: int, right: str = "mxfp8") -> tuple[Any, Any, Any]:
    q, gate = operands(m, n, k, right)
    return q, gate, jaxbw.quantize(integers((k, n), 2, axis=0), right, axis=0)


@settings(max_examples=settings().max_examples // 10)  # each is a program
@given(m=_extent, n=_extent, k=_extent)
def test_gated_shapes(m: int, n: int, k: int) -> None:
    def gated(implementation: str, q: Any, gate: Any, up: Any) -> Any:
        return jaxbw.gated_matmul(q, gate, up, activation="relu", implementation=implementation)

    both_ways(gated, *gated_operands(m, n, k))


GATED_CONFIGS = {
    "alone": GemmConfig(128, 256),
    "pair": GemmConfig(256, 256, cta_group=2, cluster=(2, 1)),
    "split": GemmConfig(128, 256, split_k=2),
}


@pytest.mark.parametrize("config", GATED_CONFIGS)
def test_gated_configurations(config: str) -> None:
    """With a result of 8 bits and its scale, and other bits in the right operands."""

    def gated(implementation: str, q: Any, gate: Any, up: Any) -> Any:
        given: Any = {"config": GATED_CONFIGS[config]} if implementation == "emulator" else {}
        return jaxbw.gated_matmul(
            *(q, gate, up),
            activation="relu",
            out_scale=64.0,
            preferred_element_type="float8_e4m3fn",
            implementation=implementation,
            **given,
        )

    both_ways(gated, *gated_operands(200, 144, 500, "mxfp8_e5m2"))


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, None), (None, 0, 0)], ids=str)
def test_gated_vmap(axes: Any) -> None:
    x = integers((3, 72, 96)[axes[0] is None :])
    rights = (integers((3, 96, 40)[axes[1] is None :], i, axis=-2) for i in (1, 2))
    q, gate, up = jaxbw.quantize(x, "mxfp8"), *(jaxbw.quantize(w, "mxfp8", axis=-2) for w in rights)

    def gated(implementation: str, *operands: Any) -> Any:
        def one(q: Any, gate: Any, up: Any) -> Any:
            return jaxbw.gated_matmul(q, gate, up, activation="relu", implementation=implementation)

        return jax.vmap(one, axes)(*operands)

    both_ways(gated, q, gate, up)


def test_one_nan_is_a_row() -> None:
    x = integers((130, 40))
    x[3, 35] = np.nan
    q, u = jaxbw.quantize(x, "mxfp8"), jaxbw.quantize(integers((40, 7), 1, 0), "mxfp8", axis=0)
    got = np.isnan(np.asarray(jaxbw.matmul(q, u, implementation="emulator")))
    assert got[3].all()
    assert got.sum() == 7


def test_lowering(cuda_hlo: Lower, custom_calls: Calls) -> None:
    """Data and tiles go into the call as they are: no transposition, no other order of scales."""
    q, u = operands(512, 256, 1024)
    with jaxbw.target("B200"):
        text = cuda_hlo(jaxbw.matmul, q, u)
    (call,) = custom_calls(text)
    assert re.search(r'kernel = "jaxbw_sm100_8bit_mx_[12]cta"', call)
    assert "mx = 32 : i32" in call
    assert "tensor<1x4x8x512xf8E8M0FNU>, tensor<1x2x8x512xf8E8M0FNU>" in call
    assert not re.search(r"stablehlo\.(transpose|convert|pad|dot_general)", text)


def test_gated_lowering(cuda_hlo: Lower, custom_calls: Calls) -> None:
    """The tiles of all three go into the one call as they are."""
    with jaxbw.target("B200"):
        text = cuda_hlo(jaxbw.gated_matmul, *gated_operands(512, 256, 1024))
    (call,) = custom_calls(text)
    assert re.search(r'kernel = "jaxbw_sm100_8bit_mx_[12]cta"', call)
    assert "gated = 1 : i32" in call
    tiles = "tensor<1x2x8x512xf8E8M0FNU>"
    assert f"tensor<1x4x8x512xf8E8M0FNU>, {tiles}, {tiles})" in call
    assert not re.search(r"stablehlo\.(transpose|convert|pad|dot_general)", text)


@pytest.mark.parametrize(("m", "block_n"), [(16, 128), (8192, 256)])
def test_gated_tile(m: int, block_n: int) -> None:
    """Halves, or wholes, of tiles of scales of gate and up: selection knows, and says so."""
    operands = [jax.ShapeDtypeStruct((rows, 4096), jnp.bfloat16) for rows in (m, 8192, 8192)]
    q, gate, up = (jax.eval_shape(lambda x: jaxbw.quantize(x, "mxfp8"), x) for x in operands)
    choice = jaxbw.explain(q, gate.mT, device="B200", rhs_up=up.mT)
    assert str(choice.kernel).startswith("jaxbw_sm100_8bit_mx_")
    assert choice.config is not None
    assert choice.config.block_n == block_n
    refused = "of a gated matmul in an MX format, with cta_group 1, it is 128 or 256"
    with pytest.raises(NotImplementedError, match=refused):
        jaxbw.explain(
            *(q, gate.mT),
            rhs_up=up.mT,
            device="B200",
            implementation="sm100",
            config=GemmConfig(128, 64),
        )


def test_explain() -> None:
    """As it is computed: of what lies in memory."""
    q, u = operands(512, 256, 1024)
    choice = jaxbw.explain(q, u, device="B200")
    assert str(choice.kernel).startswith("jaxbw_sm100_8bit_mx_")
    assert choice.repacked == ()
    assert choice.estimate is not None
    (only,) = jaxbw.explain_function(jaxbw.matmul, q, u, device="B200").matmuls
    assert only.choice == choice


def test_accumulators_leave_room_for_scales() -> None:
    """A tile of 256 columns has one; what is chosen says so, and can be given."""
    q, u = operands(128, 256, 128)
    config = GemmConfig(128, 256)
    choice = jaxbw.explain(q, u, device="B200", implementation="sm100", config=config)
    assert choice.config is not None
    assert choice.config.accumulators == 1
    with pytest.raises(NotImplementedError, match="set accumulators to 1"):
        jaxbw.explain(
            *(q, u),
            device="B200",
            implementation="sm100",
            config=GemmConfig(128, 256, accumulators=2),
        )


def test_what_is_refused() -> None:
    q, u = operands(64, 64, 64)
    f = jaxbw.quantize(jnp.ones((64, 64)), "nvfp4")
    reasons = {
        "the operands are mxfp8 and nvfp4; kernels take": ((q, f.mT), "B200"),
        "MX formats are for sm100": ((q, u), "H200"),
    }
    for reason, (call, device) in reasons.items():
        choice = jaxbw.explain(*call, device=device)
        assert choice.implementation == "xla"
        assert reason in str(choice)
    # Rows of scales lie along a batch: not a kernel's tiles.
    x = jaxbw.quantize(integers((5, 64)), "mxfp8")
    y = jaxbw.quantize(integers((5, 7, 64)), "mxfp8")
    dims = (((1,), (2,)), ((0,), (0,)))
    with pytest.raises(NotImplementedError, match="tiles of scales are not those of the matrices"):
        jaxbw.dot_general(x, y, dims, implementation="emulator")
