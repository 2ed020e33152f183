"""Matmuls on several devices of one process, from several threads at the same time.

tests/gpu has the same for GPUs.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxbw

THREADS = 2  # for each device
SIZES = ((72, 64, 40), (24, 136, 72))  # m, k, n


def integers(shape: tuple[int, ...], number: int) -> Any:
    """Small ones, of which every matmul is exact in bfloat16."""
    return np.random.default_rng([*shape, number]).choice([-1, 0, 0, 1], shape).astype(np.float32)


def check(devices: Sequence[jax.Device], implementation: str | None, rounds: int) -> None:
    """Multiplies on all devices at once: compiled and eagerly, with gradients, numbers of its own.

    All threads start together and share the compiled function.

    Raises:
      AssertionError: a result is wrong, or lies on another device.
    """
    start = threading.Barrier(len(devices) * THREADS)

    def matmul(x: Any, w: Any) -> Any:
        return jaxbw.matmul(x, w, implementation=implementation)

    @jax.jit
    def step(x: Any, w: Any, cotangent: Any) -> Any:
        y, pull_back = jax.vjp(matmul, x, w)
        return y, *pull_back(cotangent)

    def work(number: int) -> None:
        device = devices[number % len(devices)]
        start.wait(timeout=60)
        for m, k, n in SIZES * rounds:
            x, w, cotangent = (integers(shape, number) for shape in ((m, k), (k, n), (m, n)))
            given = [
                jax.device_put(array.astype(jnp.bfloat16), device) for array in (x, w, cotangent)
            ]
            wanted = [x @ w, cotangent @ w.T, x.T @ cotangent]
            compiled, eager = step(*given), matmul(*given[:2])
            for result, reference in zip((*compiled, eager), (*wanted, wanted[0]), strict=True):
                assert result.devices() == {device}
                np.testing.assert_array_equal(np.asarray(result, np.float32), reference)

    with ThreadPoolExecutor(start.parties) as pool:
        list(pool.map(work, range(start.parties)))
