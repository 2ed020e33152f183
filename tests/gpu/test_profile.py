"""jaxbw.profile on a GPU: stamps of the kernel that runs there."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw
from jaxbw._src.lab.profiling import build
from jaxbw._src.lab.profiling.profile import MOMENTS

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]

CONFIGS = {
    "chosen": None,
    "pingpong": jaxbw.GemmConfig(block_m=64, block_n=128, pingpong=True),
    "cluster-k": jaxbw.GemmConfig(block_m=128, block_n=64, cluster_k=2),
    "split-k": jaxbw.GemmConfig(block_m=128, block_n=64, split_k=2),
}


@pytest.fixture(autouse=True)
def sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package has none."""
    monkeypatch.setenv(build.SOURCES, str(ROOT))


@pytest.mark.parametrize("name", CONFIGS)
def test_stamps_of_a_launch_are_in_order(name: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    x = jax.ShapeDtypeStruct((1024, 2048), jnp.bfloat16)
    w = jax.ShapeDtypeStruct((2048, 1024), jnp.bfloat16)
    found = jaxbw.profile(x, w, path=path, config=CONFIGS[name])
    assert found.unit == "us"
    assert found.lost == 0
    assert list(found.moments) == list(MOMENTS)
    load, full, multiply, done, _, stored, end = map(np.asarray, found.moments.values())
    for before, after in ((load, full), (full, multiply), (multiply, done), (stored, end)):
        assert np.all(before < after)
    # Of a launch that takes some microseconds; stamps of SMs are brought together to within one.
    assert found.profiled_us is not None
    assert found.normal_us is not None
    assert found.moments["exit"]
    assert 0 < max(found.moments["exit"]) < 3 * found.profiled_us + 5
    assert found.ghz is not None
    assert 0.3 < found.ghz < 3
    assert {"load", "multiply + epilogue"} <= set(found.shares)
    events = json.loads(path.read_text())["traceEvents"]
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")


@pytest.mark.parametrize("form", ["rows", "gathered", "contraction"])
def test_stamps_of_a_grouped_launch(form: str) -> None:
    x = jax.ShapeDtypeStruct((2048, 1024), jnp.bfloat16)
    w = jax.ShapeDtypeStruct((8, 1024, 768), jnp.bfloat16)
    options: dict[str, Any] = {}
    if form == "gathered":
        options["lhs_rows"] = jax.ShapeDtypeStruct((4096,), jnp.int32)
    if form == "contraction":
        w = jax.ShapeDtypeStruct((2048, 768), jnp.bfloat16)
        numbers = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
        options["dimension_numbers"] = numbers
    found = jaxbw.profile(x, w, group_sizes=[100, 0, 700, 300, 1, 64, 500, 300], **options)
    assert found.lost == 0
    assert list(found.moments) == list(MOMENTS)
    load, full, multiply, done, _, stored, end = map(np.asarray, found.moments.values())
    for before, after in ((load, full), (full, multiply), (multiply, done)):
        assert np.all(before < after)
    assert len(stored) <= len(end)  # not every CTA has a tile
    assert found.profiled_us is not None
    assert 0 < max(end) < 3 * found.profiled_us + 5
    assert {"load", "multiply + epilogue"} <= set(found.shares)
    table, grouped = found.kernels
    assert "group_table" in table
    assert grouped == found.choice.kernel
    assert "group_table" in str(found)


def test_a_profile_does_not_change_what_matmuls_compute() -> None:
    x = jax.random.normal(jax.random.key(0), (512, 512), jnp.bfloat16)
    before = jaxbw.matmul(x, x)
    jaxbw.profile(x, x)
    np.testing.assert_array_equal(before, jaxbw.matmul(x, x))
