"""`python -m jaxbw` on a machine with a GPU."""

import json
import subprocess
import sys

import pytest

from jaxbw._src.selection import devices

pytestmark = pytest.mark.gpu


def test_doctor_tries_the_kernels_of_this_gpu() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "jaxbw", "doctor", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    told = json.loads(done.stdout)
    assert (done.returncode, told["problems"]) == (0, [])
    device = devices.running_device()
    assert device is not None
    assert told["serving"] == device.family
    assert {each["implementation"] for each in told["self_test"]} == {device.family}
    assert "gpu" in told["platforms"]


def test_a_profile_names_the_kernel() -> None:
    """CUPTI sees the name that is in the table, which is what profilers show."""
    import jax
    import jax.numpy as jnp

    import jaxbw
    from jaxbw._src.lab import cupti

    x = jnp.ones((256, 256), jnp.bfloat16)
    matmul = jax.jit(jaxbw.matmul)
    jax.block_until_ready(matmul(x, x))
    with cupti.recorded() as kernels:
        jax.block_until_ready(matmul(x, x))
    assert [name for name, _ in kernels] == [jaxbw.explain(x, x).kernel]
