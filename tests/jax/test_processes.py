"""Programs of several processes, as on several hosts: `jax.distributed` on the CPUs of this one."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("one_of_processes.py")
DEVICES = 4
SECONDS = 240


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
    return port


# What four show with a device each, two show with two: the others are as far away.
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.long)])
def test_the_same_program_on_several_processes(count: int) -> None:
    """Sharded training and collective_matmul, XLA's collectives being gloo's."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX", "XLA"))}
    environment |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(DEVICES // count)}
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # each compiles the same programs
    coordinator = f"localhost:{free_port()}"
    processes = [
        subprocess.Popen(
            [sys.executable, SCRIPT, coordinator, str(count), str(number)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(count)
    ]
    try:
        told = [process.communicate(timeout=SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, text in zip(processes, told, strict=True):
        assert process.returncode == 0, text
        assert f"done {count} {DEVICES}" in text
