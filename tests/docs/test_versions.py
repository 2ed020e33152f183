"""The versions that the pages name are those that the project asks for."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import jax
import toolchain
from packaging.requirements import Requirement

from jaxbw import _native

from .test_links import PAGES, ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OR_NEWER = re.compile(r"([\w+]+)(?: on `PATH`)?[\s(]+(\d+(?:\.\d+)*) or newer")
DRIVER = re.compile(r"driver (?:for|older than) CUDA (\d+)")


def named(pattern: re.Pattern[str]) -> Iterator[tuple[str, Any]]:
    """The page, and the groups, of every place that matches."""
    for page in PAGES:
        for match in pattern.finditer(page.read_text()):
            yield page.name, match.groups()


def floor(specifiers: str) -> str:
    """The version of `>=`."""
    [least] = re.findall(r">=([\d.]+)", specifiers)
    return str(least)


def requirement(name: str, requirements: list[str]) -> Requirement:
    [found] = [r for r in map(Requirement, requirements) if r.name == name]
    return found


def test_or_newer() -> None:
    oldest = {
        "Python": floor(PROJECT["requires-python"]),
        "JAX": floor(str(requirement("jax", PROJECT["dependencies"]).specifier)),
        "nvcc": ".".join(map(str, toolchain.OLDEST)),
    }
    places = list(named(OR_NEWER))
    assert {"README.md", "CONTRIBUTING.md"} <= {page for page, _ in places}
    for page, (what, version) in places:
        assert oldest[what] == version, f"{page}: {what} {version}"


def test_readme_names_the_least_python_and_jax() -> None:
    readme = [what for page, (what, _) in named(OR_NEWER) if page == "README.md"]
    assert {"Python", "JAX"} <= set(readme)


def test_the_driver() -> None:
    places = list(named(DRIVER))
    assert "README.md" in {page for page, _ in places}
    major = _native.CUDA_VERSION // 1000
    assert {(int(version)) for _, (version,) in places} == {major}
    assert f"cuda{major}" in EXTRAS


def test_the_pythons_of_the_classifiers() -> None:
    prefix = "Programming Language :: Python :: "
    versions = [c.removeprefix(prefix) for c in PROJECT["classifiers"] if c.startswith(prefix)]
    assert versions[0] == floor(PROJECT["requires-python"])


def test_the_build_takes_the_oldest_jaxlib() -> None:
    """A handler built against a newer FFI is refused by an older jaxlib."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    [pinned] = re.findall(r"==([\d.]+)", str(requirement("jaxlib", build).specifier))
    least = floor(str(requirement("jax", PROJECT["dependencies"]).specifier))
    assert pinned == least
    assert tuple(map(int, pinned.split("."))) <= jax.__version_info__


def test_the_compilers_of_other_people() -> None:
    page = (ROOT / "benchmarks" / "results" / "static-report.md").read_text()
    for name in ("triton", "nvidia-cutlass-dsl"):
        [pinned] = re.findall(
            r"==([\d.]+)", str(requirement(name, EXTRAS["independent"]).specifier)
        )
        assert re.findall(rf"\b{name} ([\d.]+\d)", page) == [pinned], name
