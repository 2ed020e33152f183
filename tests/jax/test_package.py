"""The public names, the layers, the doctests."""

import ast
import doctest
import importlib
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import pytest

import jaxbw

PACKAGE = Path(jaxbw.__file__).parent

EMULATOR = "jaxbw.emulator"  # all of it is one layer

# Top to bottom, docs/architecture.md: a module imports only what stands below it.
LAYERS = [
    "jaxbw.flax.linen",
    "jaxbw.flax.nnx",
    "jaxbw.flax.pending",
    "jaxbw.flax",
    "jaxbw",
    "jaxbw.exporting",
    "jaxbw.profiling.call",
    "jaxbw.profiling.gpu",
    "jaxbw.profiling.emulated",
    "jaxbw.profiling.stamped",
    "jaxbw.profiling.profile",
    "jaxbw.profiling.record",
    "jaxbw.profiling.build",
    "jaxbw.profiling",
    "jaxbw.api",
    "jaxbw.collective",
    "jaxbw.arguments",
    "jaxbw.tuning.autotune",
    "jaxbw.tuning.session",
    "jaxbw.tuning.find",
    "jaxbw.tuning.measure",
    "jaxbw.tuning.launching",
    "jaxbw.tuning.xla_form",
    "jaxbw.tuning",
    "jaxbw.fused",
    "jaxbw.checkpoint_policies",
    "jaxbw.matmul_plan",
    "jaxbw.primitives.collective_dot_general",
    "jaxbw.primitives.plain_collective",
    "jaxbw.primitives.overlap",
    "jaxbw.primitives.ring",
    "jaxbw.primitives.fused_dot_general",
    "jaxbw.primitives.dot_general",
    "jaxbw.primitives.partitioning",
    "jaxbw.primitives.partitioned_call",
    "jaxbw.primitives.shards",
    "jaxbw.primitives.serve",
    "jaxbw.primitives.gemm",
    "jaxbw.primitives.originals",
    "jaxbw.primitives.transposition",
    "jaxbw.primitives",
    "jaxbw.model.report",
    "jaxbw.model.ours",
    "jaxbw.model.naive",
    "jaxbw.model.modelled",
    "jaxbw.model.trace",
    "jaxbw.model.pipeline",
    "jaxbw.model.teams",
    "jaxbw.model.costs",
    "jaxbw.model.replay",
    "jaxbw.model.memory",
    "jaxbw.model.schedule",
    "jaxbw.model.clock",
    "jaxbw.model.machine",
    "jaxbw.model.kernel",
    "jaxbw.model",
    "jaxbw.selection.select",
    "jaxbw.selection.estimate",
    "jaxbw.selection.search",
    "jaxbw.selection.xla",
    "jaxbw.selection.xla.features",
    "jaxbw.selection.tuned.use",
    "jaxbw.selection.tuned.products",
    "jaxbw.selection.tuned",
    "jaxbw.selection.tuned.features",
    "jaxbw.selection.tuned.files",
    "jaxbw.selection.tuned.trees",
    "jaxbw.selection.cost_model",
    "jaxbw.selection.candidates",
    "jaxbw.selection.workload",
    "jaxbw.selection.eligibility",
    "jaxbw.selection.implementations",
    "jaxbw.selection.devices",
    "jaxbw.selection.machine",
    "jaxbw.batch_invariance",
    "jaxbw.selection.tile_order",
    "jaxbw.selection.config",
    "jaxbw.selection.manifest",
    "jaxbw.selection.kernel_table",
    "jaxbw.selection",
    "jaxbw.problem",
    "jaxbw.epilogue",
    "jaxbw.compat",
    "jaxbw.log",
    EMULATOR,
    "jaxbw.perfetto",
    "jaxbw._native",
]


def test_public_names() -> None:
    assert sorted(jaxbw.__all__) == [
        "GemmConfig",
        "__version__",
        "autotune",
        "batch_invariant",
        "checkpoint_policies",
        "collective_matmul",
        "dot_general",
        "explain",
        "export_disabled_checks",
        "gated_matmul",
        "implementation",
        "matmul",
        "profile",
        "target",
        "use_tuned",
    ]
    for name in jaxbw.__all__:
        assert getattr(jaxbw, name) is not None


def modules() -> dict[str, Path]:
    """Every module but those of other layers' owners, by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] in ("kernels", "emulator", "bench", "cli", "__main__"):
            continue
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        found[".".join(("jaxbw", *parts))] = path
    return found


def imports(path: Path) -> set[str]:
    """The modules of jaxbw that a file imports, wherever it does."""
    known = set(LAYERS)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module or "")
    ours = {name for name in found if name.split(".")[0] == "jaxbw"}
    return {EMULATOR if name.startswith(EMULATOR) else name for name in ours}


def test_every_module_has_a_layer() -> None:
    assert set(modules()) | {EMULATOR, "jaxbw._native"} == set(LAYERS)


@pytest.mark.parametrize(
    "name", [name for name in LAYERS if name not in (EMULATOR, "jaxbw._native")]
)
def test_layers(name: str) -> None:
    for imported in imports(modules()[name]):
        assert LAYERS.index(imported) > LAYERS.index(name), f"{name} imports {imported}"


def test_the_emulator_stands_by_itself() -> None:
    for path in (PACKAGE / "emulator").glob("*.py"):
        assert imports(path) <= {EMULATOR, "jaxbw.perfetto", "jaxbw._native"}, path


def test_private_jax_is_in_compat_only() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path.name != "compat.py":
            assert "jax._src" not in path.read_text(), path


@pytest.mark.parametrize(
    "name",
    [
        "jaxbw.api",
        "jaxbw.batch_invariance",
        "jaxbw.model.machine",
        "jaxbw.profiling.call",
        "jaxbw.checkpoint_policies",
        "jaxbw.selection.config",
        "jaxbw.selection.devices",
        "jaxbw.selection.implementations",
        "jaxbw.selection.tuned.use",
    ],
)
def test_examples_in_docstrings(name: str) -> None:
    module: ModuleType = importlib.import_module(name)
    names = {"jaxbw": jaxbw, "jax": jax, "jnp": jnp}
    with jax.default_device(jax.devices("cpu")[0]):
        results = doctest.testmod(module, extraglobs=names)
    assert results.attempted > 0
    assert results.failed == 0
