"""Device times from CUPTI's records: by a CUPTI that stands in for the real one.

It is opened once per process: so each test starts one.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from .conftest import Build

PROGRAM = """
from jaxbw._src.lab import cupti

cupti._libraries = lambda: {libraries}
for _ in range(2):
    try:
        with cupti.recorded() as kernels:
            assert kernels == []
    except RuntimeError as error:
        print(type(error).__name__, error)
    else:
        print(kernels)
"""


def run(libraries: list[Path], environment: Mapping[str, str] | None = None) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(libraries=[*map(str, libraries)])],
        env=dict(os.environ, **(environment or {})),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_kernels_are_in_the_order_of_their_starts(build: Build) -> None:
    """And records that were dropped before do not count.

    After a `jax.profiler.trace` there is one. For it, JAX's binding throws out of CUPTI's C
    callback, so that the process aborts: GPU tests did, from 2026-11-22 to 2026-11-27.
    """
    found = [("earlier", 0.0005), ("later", 0.002)]
    assert run([Path("no such file.so"), build("fake_cupti.cc")]) == [str(found)] * 2


def test_a_dropped_record_is_an_error(build: Build) -> None:
    said = run([build("fake_cupti.cc")], {"JAXBW_FAKE_DROPPED": "3"})
    assert said == ["RuntimeError CUPTI has dropped 3 records of 2 kernels"] * 2


def test_without_cupti() -> None:
    said = run([Path("no such file.so")])
    assert said == ['DriverError no CUPTI, which measures kernels: pip install "jax[cuda13]"'] * 2
