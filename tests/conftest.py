"""What all tests share: the environment, hypothesis' settings, tiers, and the rule for GPU tests."""

import contextlib
import os
from collections import defaultdict
from pathlib import Path

import pytest

from . import sampling

# Else JAX takes three quarters of a GPU's memory at once, and the direct launcher gets too little.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
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


# The fast tier, `pytest --fast`: files, and where not all of one, how the names of its tests begin.
FAST: dict[str, tuple[str, ...]] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only the fast tier: tests/conftest.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of other tiers are not even imported."""
    outside = str(collection_path.relative_to(Path(__file__).parent)) not in FAST
    return True if config.getoption("--fast") and collection_path.is_file() and outside else None


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    sampling.mark(items)
    if config.getoption("--fast"):
        here = Path(__file__).parent
        kept = [i for i in items if i.name.startswith(FAST[str(i.path.relative_to(here))] or ("",))]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


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
