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
    "jaxbw._src.api.pending",
    "jaxbw.flax",
    "jaxbw",
    "jaxbw._src.api.exporting",
    "jaxbw._src.lab.profiling.call",
    "jaxbw._src.lab.profiling.gpu",
    "jaxbw._src.lab.profiling.emulated",
    "jaxbw._src.lab.profiling.stamped",
    "jaxbw._src.lab.profiling.profile",
    "jaxbw._src.lab.profiling.record",
    "jaxbw._src.lab.profiling.build",
    "jaxbw._src.lab.profiling",
    "jaxbw._src.api.matmul",
    "jaxbw._src.api.collective",
    "jaxbw._src.api.arguments",
    "jaxbw._src.lab.tuning.autotune",
    "jaxbw._src.lab.tuning.session",
    "jaxbw._src.lab.tuning.find",
    "jaxbw._src.lab.tuning.measure",
    "jaxbw._src.lab.tuning.launching",
    "jaxbw._src.lab.tuning.xla_form",
    "jaxbw._src.lab.tuning",
    "jaxbw._src.api.fused",
    "jaxbw.checkpoint_policies",
    "jaxbw._src.api.matmul_plan",
    "jaxbw._src.primitives.collective_dot_general",
    "jaxbw._src.primitives.plain_collective",
    "jaxbw._src.primitives.overlap",
    "jaxbw._src.primitives.ring",
    "jaxbw._src.primitives.fused_dot_general",
    "jaxbw._src.primitives.dot_general",
    "jaxbw._src.primitives.partitioning",
    "jaxbw._src.primitives.partitioned_call",
    "jaxbw._src.primitives.shards",
    "jaxbw._src.primitives.serve",
    "jaxbw._src.primitives.gemm",
    "jaxbw._src.primitives.originals",
    "jaxbw._src.primitives.transposition",
    "jaxbw._src.primitives",
    "jaxbw._src.lab.model.report",
    "jaxbw._src.lab.model.ours",
    "jaxbw._src.lab.model.naive",
    "jaxbw._src.lab.model.modelled",
    "jaxbw._src.lab.model.trace",
    "jaxbw._src.lab.model.pipeline",
    "jaxbw._src.lab.model.teams",
    "jaxbw._src.lab.model.costs",
    "jaxbw._src.lab.model.replay",
    "jaxbw._src.lab.model.memory",
    "jaxbw._src.lab.model.schedule",
    "jaxbw._src.lab.model.clock",
    "jaxbw._src.lab.model.machine",
    "jaxbw._src.lab.model.kernel",
    "jaxbw._src.lab.model",
    "jaxbw._src.selection.select",
    "jaxbw._src.selection.estimate",
    "jaxbw._src.selection.search",
    "jaxbw._src.selection.xla",
    "jaxbw._src.selection.xla.features",
    "jaxbw._src.selection.use_tuned",
    "jaxbw._src.selection.tuned_products",
    "jaxbw._src.selection.tuned",
    "jaxbw._src.selection.tuned.features",
    "jaxbw._src.selection.tuned.files",
    "jaxbw._src.selection.tuned.trees",
    "jaxbw._src.selection.cost_model",
    "jaxbw._src.selection.candidates",
    "jaxbw._src.selection.workload",
    "jaxbw._src.selection.eligibility",
    "jaxbw._src.selection.implementations",
    "jaxbw._src.selection.devices",
    "jaxbw._src.selection.machine",
    "jaxbw._src.selection.batch_invariance",
    "jaxbw._src.selection.tile_order",
    "jaxbw._src.selection.config",
    "jaxbw._src.selection.manifest",
    "jaxbw._src.selection.kernel_table",
    "jaxbw._src.selection",
    "jaxbw._src.problem",
    "jaxbw._src.epilogue",
    "jaxbw._src.compat",
    "jaxbw._src.log",
    EMULATOR,
    "jaxbw._src.perfetto",
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
        assert imports(path) <= {EMULATOR, "jaxbw._src.perfetto", "jaxbw._native"}, path


def test_private_jax_is_in_compat_only() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path.name != "compat.py":
            assert "jax._src" not in path.read_text(), path


@pytest.mark.parametrize(
    "name",
    [
        "jaxbw._src.api.matmul",
        "jaxbw._src.selection.batch_invariance",
        "jaxbw._src.lab.model.machine",
        "jaxbw._src.lab.profiling.call",
        "jaxbw.checkpoint_policies",
        "jaxbw._src.selection.config",
        "jaxbw._src.selection.devices",
        "jaxbw._src.selection.implementations",
        "jaxbw._src.selection.use_tuned",
    ],
)
def test_examples_in_docstrings(name: str) -> None:
    module: ModuleType = importlib.import_module(name)
    names = {"jaxbw": jaxbw, "jax": jax, "jnp": jnp}
    with jax.default_device(jax.devices("cpu")[0]):
        results = doctest.testmod(module, extraglobs=names)
    assert results.attempted > 0
    assert results.failed == 0
