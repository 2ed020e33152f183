"""Every link inside the repository leads somewhere, and every file that is named is there.

Named by a page, or by a comment, docstring or string of the sources.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
LINKED = [*PAGES, ROOT / "benchmarks" / "NOTEBOOK.md"]

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
# In backticks, with a folder: such as `cuda/params.h`, or below cuda/ or jaxbw/ `gemm/sm90.cuh`.
FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:cc|cuh|h|json|md|png|py|svg|toml|txt))`")
FOLDERS = [ROOT, ROOT / "cuda", ROOT / "jaxbw", ROOT / "jaxbw" / "_src"]
# Wherever it stands: a path that begins with a folder of ours, or the name of a results file.
TOP = r"(?:jaxbw|cuda|benchmarks|tests|docs|examples|tools|cmake)"
PATH = re.compile(
    rf"(?<![\w/.{{}}~$*+-]){TOP}/[\w./-]*\.(?:py|md|json|jsonl|cuh?|cc|h|toml)\b(?:\.xz)?(?![\w*])"
)
RECORD = re.compile(r"\b20\d\d-\d\d-\d\d_\w+\.(?:json|jsonl|md|txt)\b")
RESULTS = ROOT / "benchmarks" / "results"
# Built, or written by a command that the page gives.
MADE = re.compile(r"jaxbw/kernels/|DATE_")
SUFFIXES = {".py", ".pyi", ".toml", ".cu", ".cuh", ".h", ".cc"}
SOURCES = [
    file
    for folder in ("jaxbw", "cuda", "benchmarks")
    for file in (ROOT / folder).rglob("*")
    if file.suffix in SUFFIXES and ROOT / "jaxbw" / "kernels" not in file.parents
]

each_page = pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)


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
    assert not missing(page)


def missing(file: Path) -> list[str]:
    """The paths and records that a file names, and that are not in the tree."""
    text = file.read_text()
    paths = [name for name in PATH.findall(text) if not MADE.search(name)]
    gone = [name for name in paths if not (ROOT / name).exists()]
    names = set(RECORD.findall(text))
    return gone + [n for n in names if not any((RESULTS / f"{n}{x}").exists() for x in ("", ".xz"))]


def test_what_is_missing_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "benchmarks/gone.py, 2026-01-01_gone.json, jaxbw/kernels/manifest.json, README.md"
    )
    assert missing(page) == ["benchmarks/gone.py", "2026-01-01_gone.json"]


def test_the_files_that_sources_name_are_there() -> None:
    assert len(SOURCES) > 200
    found = {file.relative_to(ROOT): missing(file) for file in SOURCES}
    assert not {file: names for file, names in found.items() if names}
