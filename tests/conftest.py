"""What all tests share: environment, hypothesis' settings, tiers, and the rule for GPU tests."""

import contextlib
import gc
import os
import sys
from collections import defaultdict
from importlib import metadata
from pathlib import Path

import pytest

from . import sampling

# Else JAX takes three quarters of a GPU's memory at once, and the direct launcher gets too little.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# There is a worker for each core: threads of OpenMP and BLAS would wait for each other, spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Of glibc, for workers and what tests start: to keep what was freed. An emulated call of a program
# has large memories of its own, and clearing new pages for them was most of a small one.
os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(1 << 25))
os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(1 << 30))
# So that meshes can be made of this machine's CPU.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

# tests/gpu/run_all.py: worker gw5 of 16 on four GPUs sees the second.
if "JAXBW_TEST_GPUS" in os.environ and "PYTEST_XDIST_WORKER" in os.environ:
    _shared = os.environ["JAXBW_TEST_GPUS"].split(",")
    _number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    os.environ["CUDA_VISIBLE_DEVICES"] = _shared[_number % len(_shared)]

with contextlib.suppress(ImportError):  # the tests on a GPU do without it
    import hypothesis

    # The same examples on every run: a red test is red for its change.
    for name, examples in {"jaxbw": 30, "long": 300}.items():
        hypothesis.settings.register_profile(
            name, deadline=None, derandomize=True, max_examples=examples
        )
    hypothesis.settings.load_profile("jaxbw")


# The fast tier, `pytest --fast`: files of every room that take a second or two; where not all of
# one, how the names of its tests begin.
_ALL = ("test_",)
FAST: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "test_collection.py",
            "test_sampling.py",
            *(f"bench/test_{name}.py" for name in ("environment", "floors")),
            *(
                f"build/test_{name}.py"
                for name in ("assemble", "generate", "micro", "split", "table")
            ),
            *(f"cli/test_{name}.py" for name in ("model", "profile")),
            *(f"docs/test_{name}.py" for name in ("links", "reference", "versions")),
            *(f"model/test_{name}.py" for name in ("machine", "replay", "metamorphic")),
            *(f"native/test_{name}.py" for name in ("emulated_call", "module", "without_driver")),
            *(f"jax/test_{name}.py" for name in ("collective_kernels", "contexts", "errors")),
            *(f"jax/test_{name}.py" for name in ("lowering", "shards")),
            *(f"selection/test_{name}.py" for name in ("config", "cost_model", "explain")),
            *(f"selection/test_{name}.py" for name in ("find_matmuls", "records", "xla_model")),
        ),
        _ALL,
    ),
    # What the emulator has of instructions and checks; then a GEMM of each family.
    **{
        f"emulator/test_{name}.py": _ALL
        for name in """accepted deadlock findings hold lane_races lane_stores levels machine
        matrix_fragments mma number_formats ordering pair_allocation repack report tensor_map
        tma tmem umma umma_rules wgmma""".split()
    },
    "emulator/test_gemm_kernels.py": (
        "test_sm100[one tile-",
        "test_sm100[pair-",
        "test_sm90[plain-",
    ),
    "build/test_kernels.py": ("test_the_manifest", "test_no_file", "test_ptxas"),
    "flax/test_nnx.py": ("test_jit_and_an", "test_swap_layers"),
    "jax/test_accelerate.py": ("test_einsum", "test_explain_function", "test_nothing_is"),
    "jax/test_dot_general.py": ("test_stacks_are_read",),
    "jax/test_eager.py": ("test_arguments_of",),
    "jax/test_gated.py": ("test_value_and_gradient",),
    "jax/test_matmul.py": ("test_matches_jnp", "test_derivatives"),
    "jax/test_partitioning.py": ("test_gated",),
    "jax/test_transformations.py": ("test_reverse_mode", "test_vmap_is_one_launch"),
    "selection/test_select.py": ("test_every_candidate",),
}
# The tier of another Python, `pytest --other-python`: the fast one, and what another Python, JAX or
# XLA can break: calls, tracing, transformations, sharding, bindings, the package. Every test of
# these folders, with one in so many of its parameters.
OTHER_PYTHON = ("build/test_package.py", "jax/", "native/")
OTHER_PYTHON_SAMPLE = 12
# ... but for minutes of what depends on none of them: processes, and the host runtime, which is the
# same library in every wheel.
NOT_OTHER_PYTHON = (
    *("jax/test_processes.py", "jax/test_profile.py"),
    *(f"native/test_{name}.py" for name in ("doctor", "fake_driver", "kernel_times")),
)
# ... and of files about numbers only how the names of these tests begin. The kernels, the emulator
# and the format's arithmetic are the same code for all: here is how calls reach them through JAX.
REACHED_BY: dict[str, tuple[str, ...]] = {
    "jax/test_8bit_results.py": ("test_values_are",),
    "jax/test_accelerate.py": (
        *("test_a_model", "test_a_rule", "test_arguments", "test_batch", "test_compiled"),
        *("test_einsum", "test_every", "test_explain", "test_jaxs", "test_nothing", "test_outside"),
        *("test_programs", "test_strictness", "test_tuning", "test_what"),
    ),
    "jax/test_block_scaled.py": ("test_bits_of_jax",),
    "jax/test_block_scaled_matmul.py": ("test_derivatives", "test_formats", "test_layers"),
    "jax/test_block_scaled_ragged.py": ("test_by_pairs", "test_some_groups", "test_training"),
    "jax/test_block_scaled_sharding.py": (
        *("test_arrays", "test_explicit_axes", "test_ranks", "test_types_in"),
    ),
    "jax/test_block_scaled_training.py": ("test_beside_jax", "test_forward", "test_scan"),
    "jax/test_block_scales.py": ("test_derivatives", "test_matmul", "test_vmap"),
    "jax/test_emulator_implementation.py": (
        *("test_forward", "test_fused_gradients", "test_operands", "test_other", "test_refusals"),
        *("test_several", "test_two_threads"),
    ),
    "jax/test_fp4_kernels.py": ("test_lowering", "test_vmap"),
    "jax/test_fp8_ragged.py": ("test_gradients", "test_what_serves"),
    "jax/test_mixed_kernels.py": ("test_lowering", "test_scaled_dot_general"),
    "jax/test_mxfp8_kernels.py": ("test_lowering", "test_vmap"),
    "jax/test_out_format.py": ("test_nothing_else", "test_what_is_kept"),
    "jax/test_out_scale.py": ("test_a_scan", "test_several"),
    "jax/test_pieces.py": ("test_derivatives", "test_several"),
    "jax/test_quantize.py": ("test_a_derivative", "test_dtypes", "test_sharded", "test_vmapped"),
    "jax/test_quantize_blocks_kernel.py": ("test_export", "test_in_a_shard_map", "test_types"),
    "jax/test_quantize_kernel.py": ("test_a_program", "test_export", "test_in_a", "test_types"),
    "jax/test_scaled_matmul.py": ("test_beside_jax", "test_derivatives"),
    "jax/test_scales.py": ("test_shapes_of_matmul", "test_transposed", "test_vmap"),
}
PROGRAMS = Path(__file__).parents[1] / "build" / "programs-of-tests"  # see pytest_configure
QUICK_XLA = (
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_cpu_emitter_verification_level=0",
)
GRID_SAMPLE = 2  # of a test with several axes: sampling.mark


def pytest_configure(config: pytest.Config) -> None:
    """Without a GPU, XLA optimizes little: nearly all programs run once, and compiling is the time.

    By the environment, so that the processes that tests start do so too. A run with
    JAX_DISABLE_MOST_OPTIMIZATIONS=0 has what a user has.

    What was compiled is kept: a quarter of the programs recur in a run, and nearly all in the next.
    """
    if "not gpu" not in config.getoption("markexpr"):
        return
    settings = {
        "jax_compilation_cache_dir": str(PROGRAMS),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        "jax_disable_most_optimizations": True,
    }
    for name, value in settings.items():
        if name.upper() in os.environ:
            continue
        os.environ[name.upper()] = str(value)
        # The conftest.py of a folder that the command line names has been loaded before, with JAX.
        if "jax" in sys.modules:
            sys.modules["jax"].config.update(name, value)
    # One that another worker is just writing is compiled again.
    config.addinivalue_line(
        "filterwarnings", "ignore:Error reading persistent compilation cache entry"
    )
    if os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "0":
        return
    if metadata.version("jaxlib").startswith("0.10."):  # XLA ends a process for an unknown flag
        # Emitters through MLIR take two thirds of a compilation that optimizes nothing.
        os.environ.setdefault("XLA_FLAGS", " ".join(QUICK_XLA))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only the fast tier: tests/conftest.py")
    parser.addoption(
        "--other-python", action="store_true", help="only the tier of another Python, likewise"
    )


def _name(path: Path) -> str:
    return str(path.relative_to(Path(__file__).parent))


def _of_other_python(name: str) -> bool:
    return name.startswith(OTHER_PYTHON) and name not in NOT_OTHER_PYTHON


def _depends_on_python(item: pytest.Item) -> bool:
    name = _name(item.path)
    return _of_other_python(name) and item.name.startswith(REACHED_BY.get(name, _ALL))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of other tiers are not even imported."""
    name, other = _name(collection_path), config.getoption("--other-python")
    inside = name in FAST or (other and _of_other_python(name))
    tier = other or config.getoption("--fast")
    return True if tier and collection_path.is_file() and not inside else None


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    other = config.getoption("--other-python")
    if not other and not config.getoption("--fast"):
        sampling.mark(items, grids=GRID_SAMPLE)
        return
    fast = [i for i in items if i.name.startswith(FAST.get(_name(i.path), ("no test",)))]
    rest = [i for i in items if other and _depends_on_python(i) and i not in fast]
    sampling.mark(fast)
    sampling.mark(rest, unmarked=OTHER_PYTHON_SAMPLE)
    kept = {*fast, *rest}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_collection_finish() -> None:
    """What was collected stays, and JAX makes many short-lived objects.

    Looking through all of them was a tenth of the CPU time.
    """
    gc.freeze()
    gc.set_threshold(10_000)


_GPUS = {"gpu": 1, "gpus": 2}  # by marker, how many a test needs


def pytest_runtest_setup(item: pytest.Item) -> None:
    needed = max((_GPUS.get(marker.name, 0) for marker in item.iter_markers()), default=0)
    if needed:
        from jaxbw import _native

        found = len(_native.devices())
        if found < needed:
            pytest.fail(
                f"this test needs {needed} GPUs, and the CUDA driver shows {found}", pytrace=False
            )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How long each folder took, workers added up: what CONTRIBUTING.md's table is read from."""
    seconds: dict[Path, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[Path(report.nodeid.partition("::")[0]).parent] += report.duration
    for folder, duration in sorted(seconds.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{duration:7.1f} s  {folder}")
