"""The public names, the layers, the doctests."""

import ast
import doctest
import graphlib
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import pytest

import jaxbw

PACKAGE = Path(jaxbw.__file__).parent

# Top to bottom, docs/architecture.md: a module imports only from its own room and from those below.
ROOMS = [
    "jaxbw.__main__",
    "jaxbw._src.lab.cli",
    "jaxbw._src.lab.bench",
    "jaxbw.flax",
    "jaxbw._src.api.pending",
    "jaxbw",
    "jaxbw.checkpoint_policies",
    "jaxbw._src.lab.profiling",
    "jaxbw._src.lab.explain_function",
    "jaxbw._src.lab.explain",
    "jaxbw._src.lab.explain_grouped",
    "jaxbw._src.lab.tuning",
    "jaxbw._src.lab.model",
    "jaxbw._src.lab",
    "jaxbw._src.api",
    "jaxbw._src.primitives",
    "jaxbw._src.selection",
    "jaxbw._src.families",
    "jaxbw._src.ragged",
    "jaxbw._src.problem",
    "jaxbw._src.pieces",
    "jaxbw._src.epilogue",
    "jaxbw._src.block_formats",
    "jaxbw._src.stochastic",
    "jaxbw._src.scale_tiles",
    "jaxbw._src.compat",
    "jaxbw._src.log",
    "jaxbw.emulator",
    "jaxbw._src.emulator",
    "jaxbw._src.perfetto",
    "jaxbw._src",
    "jaxbw._native",
]


def test_public_names() -> None:
    assert sorted(jaxbw.__all__) == [
        "BlockScaled",
        "GemmConfig",
        "Quantized",
        "__version__",
        "accelerate",
        "autotune",
        "batch_invariant",
        "checkpoint_policies",
        "collective_matmul",
        "dot_general",
        "einsum",
        "explain",
        "explain_function",
        "export_disabled_checks",
        "fp8_dot_general",
        "fp8_ragged_dot",
        "gated_matmul",
        "gated_ragged_dot",
        "implementation",
        "matmul",
        "mxfp8_dot_general",
        "mxfp8_ragged_dot",
        "nvfp4_dot_general",
        "profile",
        "quantize",
        "ragged_dot",
        "ragged_dot_general",
        "scaled_dot_general",
        "scaled_matmul",
        "target",
        "use_tuned",
    ]
    for name in jaxbw.__all__:
        assert getattr(jaxbw, name) is not None


def modules() -> dict[str, Path]:
    """Every module, by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        found[".".join(("jaxbw", *parts))] = path
    return found


def room(name: str) -> str:
    """The room that a module stands in: the longest of its prefixes."""
    inside = [each for each in ROOMS if f"{name}.".startswith(f"{each}.")]
    return max(inside, key=len)


def imports(path: Path, *, when_loaded: bool = False) -> set[str]:
    """The modules of jaxbw that a file imports: anywhere in it, or only as it is loaded.

    What it imports for annotations alone does not count: that is never loaded.
    """
    known = modules()
    found = set()
    tree = ast.parse(path.read_text())
    tree.body = [each for each in tree.body if not _is_for_annotations(each)]
    for node in tree.body if when_loaded else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = inner in known or inner == "jaxbw._native"
                found.add(inner if is_module else node.module or "")
    return {name for name in found if name.split(".")[0] == "jaxbw"}


def _is_for_annotations(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def test_every_room_has_a_module() -> None:
    assert {room(name) for name in modules()} | {"jaxbw._native"} == set(ROOMS)


def test_rooms() -> None:
    for name, path in modules().items():
        for imported in imports(path):
            above, below = ROOMS.index(room(name)), ROOMS.index(room(imported))
            assert above <= below, f"{name} imports {imported}"


def test_no_circles() -> None:
    graph = {name: imports(path, when_loaded=True) for name, path in modules().items()}
    list(graphlib.TopologicalSorter(graph).static_order())


def test_import_enters_no_laboratory() -> None:
    """What serves a call is small; no cost model is loaded before the first choice."""
    program = "import sys, jaxbw; print(*(name for name in sys.modules if name[:5] == 'jaxbw'))"
    run = [sys.executable, "-c", program]
    loaded = subprocess.run(run, check=True, capture_output=True, text=True).stdout.split()
    assert len(loaded) < 40
    for name in ("jaxbw._src.lab", "jaxbw._src.selection.search", "jaxbw._src.emulator"):
        assert name not in loaded


def test_private_jax_is_in_compat_only() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path.name != "compat.py":
            assert "jax._src" not in path.read_text(), path


@pytest.mark.parametrize(
    "name",
    [
        "jaxbw._src.api.accelerate",
        "jaxbw._src.api.einsum",
        "jaxbw._src.api.matmul",
        "jaxbw._src.api.ragged",
        "jaxbw._src.lab.explain",
        "jaxbw._src.lab.explain_function",
        "jaxbw._src.lab.model.machine",
        "jaxbw._src.lab.profiling.call",
        "jaxbw.checkpoint_policies",
        "jaxbw._src.selection.config",
        "jaxbw._src.selection.devices",
        "jaxbw._src.selection.policy",
    ],
)
def test_examples_in_docstrings(name: str) -> None:
    module: ModuleType = importlib.import_module(name)
    names = {"jaxbw": jaxbw, "jax": jax, "jnp": jnp}
    with jax.default_device(jax.devices("cpu")[0]):
        results = doctest.testmod(module, extraglobs=names)
    assert results.attempted > 0
    assert results.failed == 0
