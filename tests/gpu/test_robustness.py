"""Threads, streams, command buffers, garbage, too little memory, too many elements."""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbw
from jaxbw import GemmConfig

from . import direct, environment

pytestmark = pytest.mark.gpu

HERE = Path(__file__).parent
# Anything that XLA can capture, as soon as there is one launch; and nothing.
CAPTURES = {
    "with_command_buffers": (
        "--xla_gpu_graph_min_graph_size=1 "
        "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUSTOM_CALL,DYNAMIC_SLICE_FUSION"
    ),
    "without_command_buffers": "--xla_gpu_enable_command_buffer=",
}


@pytest.fixture(autouse=True)
def _on_hopper() -> None:
    if direct.device_for("sm90") is None:
        pytest.skip("no device runs the sm90 kernels")


def run(scenario: str, **variables: str) -> str:
    """Runs a scenario of fresh_process.py; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.fresh_process", scenario],
        cwd=environment.ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return done.stdout


@pytest.mark.parametrize("scenario", ["race_direct", "race_jax", "short_clusters", "broken_kernel"])
def test_in_a_fresh_process(scenario: str) -> None:
    run(scenario)


@pytest.mark.parametrize("scenario", CAPTURES)
def test_calls_follow_the_buffers(scenario: str, tmp_path: Path) -> None:
    library = tmp_path / "counting_libcuda.so"
    source = HERE / "counting_libcuda.cc"
    nvcc = environment.find_program("nvcc")
    subprocess.run([nvcc, "-shared", "-Xcompiler=-fPIC", "-o", library, source], check=True)
    run(scenario, JAXBW_LIBCUDA=str(library), XLA_FLAGS=CAPTURES[scenario])


# --- memory


@pytest.mark.parametrize("garbage", [0x00, 0x01, 0x7F, 0xFF])
def test_a_workspace_that_starts_as_garbage(garbage: int) -> None:
    """The memory that XLA hands out next was filled, by arrays that are gone."""
    random = np.random.default_rng(garbage)
    x, w = (random.integers(-2, 3, size).astype(np.float32) for size in ((500, 2001), (2001, 300)))
    wanted = x @ w
    given = [jnp.asarray(each, jnp.bfloat16) for each in (x, w)]
    for config in (
        GemmConfig(128, 128, split_k=4),
        GemmConfig(128, 128, split_k=3, split_tail=True, cluster=(2, 1)),
        GemmConfig(128, 128, swap_ab=True, split_k=2),
    ):
        arrays = [jnp.full(1 << size, garbage, jnp.uint8) for size in range(16, 27)]
        jax.block_until_ready(arrays)
        del arrays
        result = jaxbw.matmul(
            *given,
            preferred_element_type=jnp.float32,
            config=config,
            implementation="sm90",
        )
        np.testing.assert_array_equal(np.asarray(result), wanted)


@pytest.mark.alone
def test_out_of_memory_is_an_error_and_the_next_matmul_is_right() -> None:
    side = 300_000  # the result has 335 GiB

    def multiply(x: Any, w: Any) -> Any:
        return jaxbw.matmul(x, w, preferred_element_type=jnp.float32, implementation="sm90")

    large = jnp.ones((side, 8), jnp.bfloat16)
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        jax.block_until_ready(jax.jit(multiply)(large, large.T))
    small = jnp.ones((264, 136), jnp.bfloat16)
    result = np.asarray(jax.jit(multiply)(small, small.T))
    np.testing.assert_array_equal(result, np.full((264, 264), 136.0))


# --- more elements than 32 bits count


@dataclass(frozen=True)
class Huge:
    """A matmul of which an array has more than 2^31 elements, or two of them together."""

    m: int
    n: int
    k: int
    layout: str = "nn"
    batch: int = 1
    output: str = "bfloat16"
    config: GemmConfig | None = None
    epilogue: bool = False


HUGE = {
    "result by TMA": Huge(65_800, 32_768, 64),
    "result by rows": Huge(65_800, 32_771, 64),
    "result by columns": Huge(65_800, 32_768, 64, config=GemmConfig(128, 128, swap_ab=True)),
    "float32 result": Huge(65_800, 32_768, 64, output="float32"),
    "result of a batch": Huge(30_000, 30_000, 64, batch=3),
    "operands of the epilogue": Huge(65_800, 32_768, 64, epilogue=True),
    "sums of split tiles": Huge(40_000, 32_768, 256, config=GemmConfig(128, 256, split_k=2)),
    "lhs": Huge(70_000, 64, 32_768),
    "lhs transposed": Huge(70_000, 64, 32_768, layout="tn"),
    "lhs repacked": Huge(70_000, 64, 32_771),
    "lhs transposed and repacked": Huge(70_001, 64, 32_768, layout="tn"),
    "rhs": Huge(64, 70_000, 32_768),
    "rhs transposed": Huge(64, 70_000, 32_768, layout="nt"),
    "rhs repacked": Huge(64, 70_001, 32_768),
    "operands of a batch": Huge(1000, 1000, 32_768, batch=70),
}
BLOCK = 16_384  # of the result, that XLA computes again at a time


@pytest.mark.alone
@pytest.mark.parametrize("name", HUGE)
def test_more_than_2_31_elements(name: str) -> None:
    huge = HUGE[name]
    lhs = _integers((huge.batch, huge.m, huge.k), huge.layout[0] == "t", 1)
    rhs = _integers((huge.batch, huge.k, huge.n), huge.layout[1] == "t", 2)
    shape = huge.batch, huge.m, huge.n
    c = _integers(shape, False, 3) if huge.epilogue else None
    residual = _integers(shape, False, 4) if huge.epilogue else None

    @jax.jit
    def multiply(lhs: Any, rhs: Any, c: Any, residual: Any) -> Any:
        options: dict[str, Any] = dict(
            preferred_element_type=huge.output, implementation="sm90", config=huge.config
        )
        if huge.epilogue:
            return jaxbw.matmul(lhs, rhs, c=c, residual=residual, **options)
        contracting = (2 if huge.layout[0] == "n" else 1,), (1 if huge.layout[1] == "n" else 2,)
        return jaxbw.dot_general(lhs, rhs, (contracting, ((0,), (0,))), **options)

    @jax.jit
    def wrong(batch: Any, i: Any, j: Any, *given: Any) -> Any:
        """How many elements are wrong in a block of the result."""
        lhs, rhs, c, residual, result = given
        rows, columns = min(BLOCK, huge.m), min(BLOCK, huge.n)
        left = _cut(lhs, batch, (i, 0), (rows, huge.k), huge.layout[0])
        right = _cut(rhs, batch, (0, j), (huge.k, columns), huge.layout[1])
        wanted = jnp.matmul(left, right, preferred_element_type=jnp.float32)
        for term in (c, residual):
            if term is not None:
                wanted += _cut(term, batch, (i, j), (rows, columns)).astype(jnp.float32)
        got = _cut(result, batch, (i, j), (rows, columns))
        return jnp.sum(got != wanted.astype(got.dtype), dtype=jnp.int32)

    result = multiply(lhs, rhs, c, residual)
    for batch, i, j in itertools.product(range(huge.batch), _starts(huge.m), _starts(huge.n)):
        count = int(wrong(batch, i, j, lhs, rhs, c, residual, result))
        assert count == 0, f"{count} wrong in the block at {(batch, i, j)}"


def _starts(extent: int) -> Iterator[int]:
    """Of blocks, the last of which ends with the extent."""
    for start in range(0, extent, BLOCK):
        yield max(0, min(start, extent - BLOCK))


def _cut(
    array: Any, batch: Any, starts: tuple[Any, Any], sizes: tuple[int, int], letter: str = "n"
) -> Any:
    """A block of one matrix of a batch, which is stored transposed where the letter says so."""
    if letter == "t":
        return _cut(array, batch, starts[::-1], sizes[::-1]).T
    return jax.lax.dynamic_slice(array, (batch, *starts), (1, *sizes))[0]


def _integers(shape: tuple[int, int, int], transposed: bool, seed: int) -> Any:
    """[batch, rows, columns] of -2..2 that look random, so that no displacement goes unseen."""

    @jax.jit
    def fill() -> Any:
        batch, rows, columns = shape
        stored = (batch, columns, rows) if transposed else shape
        hashed = jnp.uint32(seed)
        for axis in range(3):
            index = jax.lax.broadcasted_iota(jnp.uint32, stored, axis)
            hashed = (hashed ^ index) * jnp.uint32(2654435761)
            hashed ^= hashed >> 15
        return (hashed % 5).astype(jnp.int32).astype(jnp.bfloat16) - 2

    return fill()
