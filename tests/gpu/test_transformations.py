"""Exported, cached, serialised and rematerialised programs on the GPU of this machine.

tests/jax/test_export.py, test_compiled.py and test_checkpoint.py say the same on the CPU.
"""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.experimental import serialize_executable

import jaxbw
from jaxbw._src.primitives.gemm import TARGET
from jaxbw._src.selection import devices

from . import environment

pytestmark = pytest.mark.gpu

K, N = 256, 192
BIAS = jnp.arange(N, dtype=jnp.float32)


@pytest.fixture
def family() -> str:
    """The kernels that this machine's GPU runs."""
    device = devices.running_device()
    assert device is not None
    assert device.family is not None, device
    return device.family


def integers(shape: tuple[int, ...], number: int = 0) -> Any:
    """Small integers, whose sums are exact."""
    generator = np.random.default_rng([*shape, number])
    return jnp.asarray(generator.integers(-2, 3, shape), jnp.bfloat16)


def fused(x: Any, w: Any) -> Any:
    return jaxbw.matmul(x, w, bias=BIAS, activation="relu", residual=x[:, :N])


def test_an_exported_program_serves_every_m(family: str) -> None:
    w = integers((K, N))
    rows = jax.ShapeDtypeStruct((*export.symbolic_shape("b"), K), jnp.bfloat16)
    with jaxbw.batch_invariant(), jaxbw.implementation(family):
        there = export.export(
            jax.jit(fused), platforms=["cuda"], disabled_checks=jaxbw.export_disabled_checks
        )(rows, w)
        read = export.deserialize(there.serialize())
        assert f"@{TARGET}" in read.mlir_module()
        for m in (1, 7, 136, 4096):
            x = jax.random.normal(jax.random.key(m), (m, K), jnp.bfloat16)
            np.testing.assert_array_equal(read.call(x, w), jax.jit(fused)(x, w))


def test_a_compiled_program_is_serialised(family: str) -> None:
    x, w = integers((64, K)), integers((K, N), 1)
    with jaxbw.implementation(family):
        compiled = jax.jit(fused).lower(x, w).compile()
    serialised = pickle.dumps(serialize_executable.serialize(compiled))
    payload, in_tree, out_tree = pickle.loads(serialised)
    read = serialize_executable.deserialize_and_load(
        payload, in_tree, out_tree, execution_devices=jax.devices()[:1]
    )
    np.testing.assert_array_equal(read(x, w), compiled(x, w))


def test_a_second_process_finds_the_program_in_the_cache(family: str, tmp_path: Path) -> None:
    variables = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    program = str(environment.ROOT / "tests" / "jax" / "cached_program.py")

    def run(block_n: int) -> list[str]:
        command = [sys.executable, program, family, str(block_n)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
        return done.stdout.split()

    total = str(float(64 * 24 * 40))
    assert run(64) == [total, "0", "1"]
    assert run(64) == [total, "1", "0"]
    assert run(128) == [total, "0", "1"]


@pytest.mark.parametrize("name", ["nothing_saveable", "dots_saveable", "preactivation"])
def test_what_is_computed_again_is_the_same(family: str, name: str) -> None:
    """Of integers, so that any kernel gives the same bits: with z, without it, and z alone."""
    x, w, v = integers((128, K)), integers((K, N), 1), integers((N, 64), 2)
    ours = jaxbw.checkpoint_policies
    policies: dict[str, Any] = {
        "nothing_saveable": jax.checkpoint_policies.nothing_saveable,
        "dots_saveable": ours.dots_saveable,
        "preactivation": jax.checkpoint_policies.save_only_these_names(ours.PREACTIVATION),
    }

    def step(block: Any) -> Any:
        def loss(x: Any, w: Any, v: Any) -> Any:
            # The cotangents of relu's sides are 1 and 0.
            return jaxbw.matmul(block(x, w), v, preferred_element_type=jnp.float32).sum()

        with jaxbw.implementation((family, "xla")):
            return jax.jit(jax.grad(loss, (0, 1)))(x, w, v)

    got, wanted = step(jax.checkpoint(fused, policy=policies[name])), step(fused)
    jax.tree.map(np.testing.assert_array_equal, got, wanted)
