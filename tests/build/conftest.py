"""The built kernels: their manifest, their files, and their machine code."""

import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxbw import _native

KERNELS = Path(_native.__file__).parent / "kernels"
ROOT = Path(__file__).resolve().parents[2]

# One line of nvdisasm: an address, perhaps a predicate, the opcode with its modifiers.
_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.a-z]*)", re.MULTILINE
)


def _tool(name: str) -> str:
    """A program of NVIDIA's wheels, else the one on PATH."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations if spec else None) or ():
        path = Path(root) / "cu13" / "bin" / name
        if path.exists():
            return str(path)
    found = shutil.which(name)
    assert found, f"{name} is missing; `pip install 'jaxbw[test]'` brings it"
    return found


@functools.cache
def _opcodes(cubin: Path) -> Counter[str]:
    done = subprocess.run([_tool("nvdisasm"), cubin], capture_output=True, text=True, check=True)
    return Counter(_INSTRUCTION.findall(done.stdout))


@pytest.fixture(scope="session")
def opcodes() -> Callable[[Path], Counter[str]]:
    """The instructions of a cubin, with their modifiers, and how often each occurs."""
    return _opcodes


@pytest.fixture(scope="session")
def resource_usage() -> Callable[[Path], dict[str, int]]:
    """What the cubin itself says of registers (REG), stack (STACK) and local memory (LOCAL)."""

    def read(cubin: Path) -> dict[str, int]:
        done = subprocess.run(
            [_tool("cuobjdump"), "-res-usage", cubin],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PATH": f"{Path(_tool('nvdisasm')).parent}:{os.environ['PATH']}"},
        )
        return {key: int(value) for key, value in re.findall(r"\b([A-Z]+):(\d+)", done.stdout)}

    return read


@pytest.fixture(scope="session")
def kernel_dir() -> Path:
    return KERNELS


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def manifest() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((KERNELS / "manifest.json").read_text())
    return parsed
