"""What all tests share: the environment, hypothesis' settings, and the rule for GPU tests."""

import contextlib
import os

import pytest

# Else JAX takes three quarters of a GPU's memory at once, and the direct launcher gets too little.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

with contextlib.suppress(ImportError):  # the tests on a GPU do without it
    import hypothesis

    # The same examples on every run: a red test is red for its change.
    hypothesis.settings.register_profile("jaxbw", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("jaxbw")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        from jaxbw import _native

        if not _native.devices():
            pytest.fail("this test is marked gpu, and the CUDA driver shows no GPU", pytrace=False)
