"""docs/api.md lists exactly the public names."""

import importlib
import inspect
import re

import pytest

import jaxbw

from .test_links import ROOT

SECTION = re.compile(r"^## `(jaxbw[\w.]*)`\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `(\w+)` \| \S", re.MULTILINE)
SECTIONS = dict(SECTION.findall((ROOT / "docs" / "api.md").read_text()))


def test_every_public_module_has_a_section() -> None:
    modules = {f"jaxbw.{name}" for name in jaxbw.__all__ if inspect.ismodule(getattr(jaxbw, name))}
    assert {"jaxbw", "jaxbw.emulator", *modules} <= set(SECTIONS)


@pytest.mark.parametrize("package", SECTIONS)
def test_every_public_name_has_a_row(package: str) -> None:
    public = set(importlib.import_module(package).__all__) - {"__version__"}
    assert sorted(ROW.findall(SECTIONS[package])) == sorted(public)
