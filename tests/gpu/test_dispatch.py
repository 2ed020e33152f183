"""How calls reach the GPU: as parts of a CUDA graph, as one program each, and from any thread."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import dispatch
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

import jaxbw

from . import direct

pytestmark = pytest.mark.gpu

KERNEL = partial(jaxbw.matmul, implementation="sm90")


@pytest.fixture(autouse=True)
def _on_hopper() -> None:
    if direct.device_for("sm90") is None:
        pytest.skip("no device runs the sm90 kernels")


def test_a_chain_is_one_graph() -> None:
    x, w = dispatch.operands()
    lowered = jax.jit(dispatch.chain(KERNEL)).lower(x, w)
    graph = partial(lowered.compile(), x, w)
    launches = lowered.compile(compiler_options=dispatch.NO_COMMAND_BUFFERS)
    assert dispatch.launches(graph)["driver_calls"].get("cuGraphLaunch") == 1
    assert "cuGraphLaunch" not in dispatch.launches(partial(launches, x, w))["driver_calls"]
    np.testing.assert_array_equal(graph(), launches(x, w))


@pytest.mark.parametrize("parts", [2, 4])
def test_a_split_and_unaligned_matmul_is_captured_whole(parts: int) -> None:
    """The repack of its operands too."""
    config = jaxbw.GemmConfig(128, 128, split_k=parts)
    random = np.random.default_rng(0)
    x, w = (random.integers(-2, 3, (251, 251)).astype(np.float32) for _ in range(2))
    given = [jnp.asarray(each, jnp.bfloat16) for each in (x, w)]

    def matmul(x: jax.Array, w: jax.Array) -> Any:
        y = KERNEL(x, w, config=config)
        for _ in range(7):
            y = KERNEL(jnp.sign(y), w, config=config)
        return y

    expected = x @ w
    for _ in range(7):
        expected = np.sign(expected) @ w
    call = partial(jax.jit(matmul).lower(*given).compile(), *given)
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(call(), np.float32), bf16(expected))
    assert dispatch.launches(call)["driver_calls"].get("cuGraphLaunch", 0) >= 1


def test_eager_calls_from_eight_threads() -> None:
    def work(number: int) -> None:
        random = np.random.default_rng(number)
        for size in (64, 72, 136):
            x, w = (random.integers(-2, 3, (size, size)).astype(np.float32) for _ in range(2))
            given = [jnp.asarray(each, jnp.bfloat16) for each in (x, w)]
            for _ in range(10):
                np.testing.assert_array_equal(np.asarray(KERNEL(*given), np.float32), bf16(x @ w))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))


def bf16(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rounded to bfloat16, as float32."""
    return np.asarray(jnp.asarray(x, jnp.bfloat16), np.float32)
