"""Every link inside the repository leads somewhere, and every file that a page names is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
# In backticks, with a folder: such as `cuda/params.h`, or below cuda/ or jaxbw/ `gemm/sm90.cuh`.
FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:cc|cuh|h|json|md|png|py|svg|toml|txt))`")
FOLDERS = [ROOT, ROOT / "cuda", ROOT / "jaxbw"]

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def anchor(heading: str) -> str:
    """What GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """Of all headings; each is there once, so that it has its own."""
    found = [anchor(heading) for heading in HEADING.findall(FENCED.sub("", page.read_text()))]
    assert len(found) == len(set(found)), f"{page.name} has a heading twice"
    return set(found)


def test_anchors_are_those_of_github() -> None:
    assert anchor("`jaxbw.emulator`: what, and why?") == "jaxbwemulator-what-and-why"


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(FENCED.sub("", page.read_text())):
        if target.startswith("https://"):
            continue
        file, _, heading = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.is_relative_to(ROOT), f"{page.name}: {target}"
        assert linked.is_file(), f"{page.name}: {target}"  # no page of a site shows a folder
        if heading:
            assert heading in anchors(linked), f"{page.name}: {target}"


@each_page
def test_the_files_that_a_page_names_are_there(page: Path) -> None:
    for name in FILE.findall(page.read_text()):
        assert any((folder / name).exists() for folder in FOLDERS), f"{page.name}: {name}"
