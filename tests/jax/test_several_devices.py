"""Several devices in one process, and several threads: the CPU's. tests/gpu has the GPUs."""

import jax
import pytest

from .several_devices import check


@pytest.mark.parametrize("implementation", ["emulator", "emulator-sm90", None])
def test_threads_of_several_devices(implementation: str | None) -> None:
    check(jax.devices("cpu")[:3], implementation, rounds=2 if implementation is None else 1)
