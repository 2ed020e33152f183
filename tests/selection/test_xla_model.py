"""XLA as a candidate: what its model says, when that decides, and what is refused."""

import math
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxbw
from jaxbw import GemmConfig
from jaxbw._src.problem import GemmProblem, reduce_dot_general
from jaxbw._src.selection import xla
from jaxbw._src.selection.devices import TARGETS, Device
from jaxbw._src.selection.tuned.files import to_bytes
from jaxbw._src.selection.tuned.trees import LEAF
from jaxbw._src.selection.tuned_matmuls import SWITCH
from jaxbw._src.selection.xla import XlaModel, XlaTime, xla_time
from jaxbw._src.selection.xla.features import FEATURES, Rates, rough

from .made_up_trees import Tree, columns

H200 = TARGETS["H200"]
X, W = jnp.ones((256, 512), jnp.bfloat16), jnp.ones((512, 128), jnp.bfloat16)
# By itself the formula's time; half of it for those who look at the rows of few.
FEW: Tree = [(FEATURES.index("log2 m"), 4, 1), (LEAF, math.log(0.5), 0), (LEAF, 0, 0)]
ENTRY: dict[str, Any] = {
    **{"version": xla.VERSION, "made": {"matmuls": 3}, "layouts": ["nn", "nt"]},
    "sizes": {"m": [1, 8192], "n": [64, 8192], "k": [64, 8192], "mnk": [2**12, 2**39]},
    "kinds": [
        "bfloat16 matmul",
        "gelu(bfloat16 matmul + bias bfloat16)",
        "silu(bfloat16 matmul) * up",
    ],
    "rates": {
        "sm_count": 132,
        "launch": 2.5,
        "reduce": 2.0,
        "flops": 6e6,
        "load": 20,
        "bytes": 4e6,
    },
    **{"features": list(FEATURES), "trees": columns(FEW)},
    **{"margins": [[16, 1.5], [2**31, 1.1]], "unaligned": 2.0},
}

Says = Callable[[float, float], None]


@pytest.fixture(autouse=True)
def _no_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Says:
    """Has the model say times for whatever it covers."""
    model = XlaModel.of(ENTRY)
    monkeypatch.setattr(xla, "_load", lambda name: model)

    def say(us: float, with_margin: float) -> None:
        monkeypatch.setattr(XlaModel, "time", lambda self, problem: XlaTime(us, with_margin))

    return say


def problem(m: int = 256, n: int = 128, k: int = 512) -> GemmProblem:
    lhs, rhs = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((m, k), (k, n)))
    return reduce_dot_general(lhs, rhs, (((1,), (0,)), ((), ())), lhs.dtype).problem


def explained(*operands: Any, device: str = "H200", **options: Any) -> Any:
    return jaxbw.explain(*(operands or (X, W)), device=device, **options)


# --- what decides


def test_xla_is_taken_where_it_is_quicker_with_confidence(says: Says) -> None:
    kernel = explained(implementation="kernel")
    us = kernel.cost.total
    says(us / 2, us / 1.031)
    choice = explained()
    assert (choice.implementation, choice.kernel, choice.config) == ("xla", None, None)
    assert choice.xla_us == us / 2
    assert choice.candidates == kernel.candidates
    told = f"{us / 2:.2f} us, with its margin {us / 1.031:.2f}"
    assert choice.reason == f"modelled {told}, the best kernel {us:.2f} us"
    says(us / 2, us / 1.029)
    choice = explained()
    assert (choice.implementation, choice.xla_us) == ("sm90", us / 2)
    assert (choice.kernel, choice.config) == (kernel.kernel, kernel.config)
    assert choice.reason.startswith(f"{kernel.reason}; {us:.2f} us, XLA {us / 2:.2f} us, with")


def test_who_asks_for_a_kernel_has_one(says: Says) -> None:
    says(0.0, 0.0)
    assert explained().implementation == "xla"
    for name in ("kernel", "sm90", ("sm90", "xla"), ("kernel", "xla")):
        assert explained(implementation=name).implementation == "sm90"
    with jaxbw.implementation("kernel"):
        assert explained().implementation == "sm90"
    for config in (GemmConfig(128, 128), GemmConfig(scheduler="dynamic")):
        assert explained(config=config).implementation == "sm90"
    with jaxbw.batch_invariant():
        assert explained().implementation == "sm90"
    assert explained(implementation="emulator-sm90").implementation == "emulator-sm90"


def test_where_nothing_was_measured_nothing_changes(
    says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(0.0, 0.0)
    for device in set(TARGETS) - {"H200", "H100"}:
        assert explained(device=device).implementation in ("sm90", "sm100")
        assert explained(device=device).xla_us is None
    bias, sum_of_two = jnp.ones(128, jnp.bfloat16), jnp.stack([X, X])
    assert explained(X, W, bias=bias, activation="gelu").implementation == "xla"
    assert explained(X, W, W, activation="silu").implementation == "xla"
    for options in (
        {"activation": "relu"},
        {"bias": bias},
        {"bias": jnp.ones(128), "activation": "gelu"},
        {"bias": bias, "activation": "gelu", "alpha": 2.0},
        {"c": jnp.ones((256, 128), jnp.bfloat16)},
        {"preferred_element_type": jnp.float32},
        {"precision": "highest"},
        {"dimension_numbers": (((0,), (0,)), ((), ()))},
    ):
        lhs = X.T if "dimension_numbers" in options else X
        assert explained(lhs, W, **options).implementation == "sm90", options
    assert explained(sum_of_two, jnp.stack([W, W])).implementation == "sm90"
    assert explained(X.astype("float16"), W.astype("float16")).implementation == "sm90"
    assert explained(jnp.ones((256, 32), X.dtype), W[:32]).implementation == "sm90"
    monkeypatch.setenv(SWITCH, "off")
    assert explained().implementation == "sm90"


def test_a_part_of_a_gpu_is_another_one(says: Says) -> None:
    says(1.0, 1.0)
    whole = Device("NVIDIA H200", (9, 0), 132, 2**37)
    assert xla_time(problem(), whole) == xla_time(problem(), H200) == XlaTime(1.0, 1.0)
    assert xla_time(problem(), replace(whole, sm_count=60)) is None
    assert xla_time(problem(), Device("A100", (8, 0), 108, 2**36)) is None


def lowered(function: Any, *operands: Any) -> str:
    with jaxbw.target("H200"):
        traced = jax.jit(function).trace(*operands)
        text: str = traced.lower(lowering_platforms=("cuda",)).as_text()
    return text


def test_each_matmul_of_a_gradient_is_weighed_by_itself(
    says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(1e6, 1e6)

    def step() -> Any:  # a new one: what is lowered is kept by function
        return jax.value_and_grad(lambda x, w: jaxbw.matmul(x, w).astype("float32").sum(), (0, 1))

    def time(self: XlaModel, problem: GemmProblem) -> XlaTime:
        return XlaTime(0.0, 0.0) if problem.layout == "nt" else XlaTime(1e6, 1e6)

    assert lowered(step(), X, W).count("@jaxbw_gemm") == 3
    monkeypatch.setattr(XlaModel, "time", time)
    text = lowered(step(), X, W)
    assert text.count("@jaxbw_gemm") == 2
    assert text.count("dot_general") == 1
    says(0.0, 0.0)
    tangents = jax.jit(lambda x, w: jax.jvp(jaxbw.matmul, (x, w), (x, w)))
    assert "@jaxbw_gemm" not in lowered(tangents, X, W)
    fused = jax.grad(lambda x: jaxbw.matmul(x, W, bias=W[0], activation="gelu").sum())
    assert "dot_general" in lowered(fused, X)


# --- the model


def test_the_trees_correct_the_formula() -> None:
    model = XlaModel.of(ENTRY)
    for m, factor, margin in ((8, 0.5, 1.5), (16, 0.5, 1.5), (17, 1.0, 1.1), (512, 1.0, 1.1)):
        us = rough(problem(m), model.rates).us * factor
        assert model.time(problem(m)) == pytest.approx((us, us * margin))
    # Rows of lhs, of rhs and the result: where they are not aligned, there have to be few.
    for odd in (problem(8, k=511), problem(8, n=127)):
        us, with_margin = model.time(odd)
        assert with_margin == pytest.approx(2 * us)
        assert model.covers(odd)
    assert not model.covers(problem(65, n=127))


def test_the_formula_is_the_larger_of_waves_and_memory() -> None:
    rates = Rates(sm_count=100, launch=2.0, reduce=1.5, flops=1e6, load=30, bytes=1e6)
    one_wave = rough(problem(1280, 1280, 4096), rates)  # 100 tiles of 128x128
    assert (one_wave.waves, one_wave.rows, one_wave.columns, one_wave.parts) == (1, 1, 1, 1)
    assert one_wave.us == pytest.approx(2 + 2 * 128 * 128 * 4096 / 1e6)
    by_memory = rough(problem(64, 8192, 512), rates._replace(flops=1e9))
    moved = 2 * (64 * 512 + 512 * 8192 + 64 * 8192)
    assert by_memory.us == pytest.approx(2 + moved / 1e6)
    assert by_memory.memory == pytest.approx(moved / 1e6 / by_memory.us)
    long = rough(problem(64, 64, 65536), rates._replace(bytes=1e12))
    assert (long.parts, long.waves) == (32, 0.64)  # in two tiles of 64x32, bound by their loads
    assert long.us == pytest.approx(2 + 1.5 + 2 * 30 * (64 + 32) * 2048 / 1e6)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"version": 99}, "it has version 99, not 5"),
        ({"more": 1}, "it has not the keys"),
        ({"features": ["m"]}, "its features are not those of this jaxbw"),
        ({"trees": columns()}, "it has no trees"),
        ({"margins": [3]}, "int"),
        ({"trees": columns([(99, 0, 0)])}, "a feature that is none of"),
        ({"sizes": {"m": [1, 2]}}, "n"),
        ({"rates": {"launch": 1}}, "missing"),
    ],
)
def test_what_is_no_model_is_refused(
    change: Any, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "h200.npz").write_bytes(to_bytes(ENTRY | change))
    monkeypatch.setattr(resources, "files", lambda package: tmp_path)
    xla._load.cache_clear()
    try:
        with pytest.raises(ImportError, match=f"h200.npz is no model .*{fault}.*: reinstall it"):
            xla_time(problem(), H200)
    finally:
        xla._load.cache_clear()
