"""The package as a whole: what is in it, its size, what it links, and that its pins agree."""

import re
import subprocess
import sys
import tomllib
import zlib
from pathlib import Path
from typing import Any

import pytest
import toolchain

import jaxbw
from jaxbw import _native

PACKAGE = Path(jaxbw.__file__).parent
MEGABYTE = 1e6


def test_the_wheel_is_small(kernel_dir: Path) -> None:
    compiled = [Path(_native.__file__), *kernel_dir.iterdir()]
    zipped = sum(len(zlib.compress(path.read_bytes())) for path in compiled)
    assert zipped < 40 * MEGABYTE


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
    assert (PACKAGE / "_native.pyi").exists()


def test_the_extension_links_nothing_of_cuda() -> None:
    dynamic = subprocess.run(
        ["readelf", "--dynamic", _native.__file__], capture_output=True, text=True, check=True
    ).stdout
    needed = set(re.findall(r"NEEDED.*\[(.+?)\.so", dynamic))
    assert needed <= {
        "libc",
        "libm",
        "libdl",
        "libpthread",
        "libstdc++",
        "libgcc_s",
        "ld-linux-x86-64",
        "ld-linux-aarch64",
    }


def test_import_does_not_open_the_driver() -> None:
    code = "import jaxbw; print('libcuda' in open('/proc/self/maps').read())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_compiler_is_pinned_the_same_everywhere(root: Path) -> None:
    project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())
    [override] = project["tool"]["scikit-build"]["overrides"]
    pinned = [f"{toolchain.WHEELS}; sys_platform == 'linux'"]
    assert override["build"]["requires"] == pinned
    assert project["project"]["optional-dependencies"]["nvcc"] == pinned


def test_ci_tests_the_lowest_versions(root: Path) -> None:
    if not (root / ".ci").exists():  # the sdist's tests
        return
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["flax"]]
    constraints = (root / ".ci" / "lowest.txt").read_text()
    tested = dict(line.split("==") for line in constraints.splitlines() if "==" in line)
    for requirement in declared:
        name, version = requirement.split(">=")
        assert f"{tested[name]}.".startswith(f"{version}.")


def test_a_compiler_does_not_run_with_what_is_preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "libsanitizer.so")
    assert "LD_PRELOAD" not in toolchain.output(Path("/usr/bin/env"))
