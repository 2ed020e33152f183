"""CUPTI's times of kernels, behind what else a process may have done."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

PROGRAM = """
import functools
import tempfile

import jax
import jax.numpy as jnp

import jaxbw
from jaxbw._src.lab import cupti

x = jnp.ones((256, 256), jnp.bfloat16)
ours = functools.partial(jaxbw.matmul, implementation="sm90")
matmul = jax.jit(ours)
chain = jax.jit(lambda x: functools.reduce(ours, [x] * 8))
jax.block_until_ready([matmul(x, x), chain(x)])
if {traced}:
    with jax.profiler.trace(tempfile.mkdtemp()):
        jax.block_until_ready(chain(x))
chosen = jaxbw.explain(x, x, implementation="sm90").kernel
for count in (3, 5):
    with cupti.recorded() as kernels:
        jax.block_until_ready([matmul(x, x) for _ in range(count)])
    assert [name for name, _ in kernels] == [chosen] * count, kernels
"""


@pytest.mark.parametrize("traced", [False, True])
def test_behind_a_graph_and_another_profiler(traced: bool) -> None:
    """In a process where JAX's own binding would abort: see tests/native/test_kernel_times.py."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(traced=traced)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
