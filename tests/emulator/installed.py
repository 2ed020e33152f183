"""The kernels of the installed package, as tests load them: their PTX, parsed once."""

import functools
import hashlib
from pathlib import Path

import pytest

from jaxbw import _native, emulator
from jaxbw._src.selection import manifest


@functools.cache
def text(name: str) -> str:
    """The PTX of a kernel; a build without kernels skips the test that asks."""
    found = [kernel for kernel in manifest.kernels() if kernel.name == name]
    if not found:
        pytest.skip(f"{name} has not been built")
    return manifest.ptx(found[0])


@functools.cache
def load(name: str) -> emulator.Module:
    """A kernel, ready to launch."""
    return emulator.Module(text(name), f"{name}.ptx")


@functools.cache
def fingerprint() -> str:
    """Of kernels, runtime and emulator: what results of a long run hold for."""
    digest = hashlib.sha256(Path(_native.__file__).read_bytes())
    for path in sorted(manifest.directory().glob("*.ptx")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
