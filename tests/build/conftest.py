"""The built kernels: their manifest, their files, and their machine code."""

import functools
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxbw import _native
from measuring import kernel_counts

KERNELS = Path(_native.__file__).parent / "kernels"
ROOT = Path(__file__).resolve().parents[2]

# One line of nvdisasm: an address, perhaps a predicate, the opcode with its modifiers.
_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.a-z]*)", re.MULTILINE
)


@functools.cache
def _opcodes(cubin: Path) -> Counter[str]:
    return Counter(_INSTRUCTION.findall(kernel_counts.output("nvdisasm", cubin)))


@pytest.fixture(scope="session")
def opcodes() -> Callable[[Path], Counter[str]]:
    """The instructions of a cubin, with their modifiers, and how often each occurs."""
    return _opcodes


@pytest.fixture(scope="session")
def resource_usage() -> Callable[[Path], dict[str, int]]:
    """What the cubin itself says of registers (REG), stack (STACK) and local memory (LOCAL)."""

    return kernel_counts.usage


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
