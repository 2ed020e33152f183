"""The documentation as a site, by Sphinx: `make docs` builds it into build/site.

Warnings are errors. The pages are those that GitHub shows, and keep their places in the repository,
so that every link between them holds in both. Other files that they link to (code, results) come
along as downloads.
"""

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]

project = "jaxbw"
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "benchmarks/NOTEBOOK.md", "benchmarks/results/*.md"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "jaxbw"
html_copy_source = False

myst_heading_anchors = 3  # as GitHub makes them
suppress_warnings = ["myst.header"]

default_role = "code"  # docstrings have Markdown's backticks
autodoc_typehints = "none"  # the signature of an argument is told in words
autodoc_member_order = "bysource"

# Pages in their order; a caption over each group.
NAVIGATION = {
    "Use": [
        "docs/getting_started",
        "docs/flax",
        "docs/transformations",
        "docs/ragged",
        "docs/sharding",
        "docs/collective_matmul",
        "docs/selection",
        "docs/tuning",
        "docs/emulator",
        "docs/numerics",
        "docs/errors",
        "docs/api",
    ],
    "Inside": [
        "docs/blackwell_kernel",
        "docs/blackwell-model",
        "docs/profile",
        "docs/performance",
        "benchmarks/NOTEBOOK",
        "benchmarks/results/static-report",
        "docs/architecture",
    ],
    "Development": [
        "CONTRIBUTING",
        "docs/adding_a_configuration",
        "docs/adding_an_architecture",
        "CHANGELOG",
    ],
}

_listed = {page for pages in NAVIGATION.values() for page in pages}
NAVIGATION["Use"] += sorted({f"docs/{path.stem}" for path in ROOT.glob("docs/*.md")} - _listed)

_SECTION_OF_MODULE = re.compile(r"^## `(jaxbw[\w.]*)`\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_MEMBERS = """
```{{eval-rst}}
.. automodule:: {module}
   :members:
   :imported-members:
```

"""


def _complete(app: Sphinx, page: str, source: list[str]) -> None:
    """Adds what only a site has: its navigation, and docstrings behind the tables of names."""
    if page == root_doc:
        for caption, pages in NAVIGATION.items():
            listed = "\n".join(pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"
    elif page == "docs/api":
        source[0] = _SECTION_OF_MODULE.sub(
            lambda section: section[0] + _MEMBERS.format(module=section[1]), source[0]
        )
    elif page.startswith("benchmarks/"):  # reached from the page that tells of it
        source[0] = "---\norphan: true\n---\n" + source[0]


def _from_markdown(app: Sphinx, *args: Any) -> None:
    """Our docstrings' plural of code, and their indented code, as reStructuredText has them."""
    lines: list[str] = args[-1]
    text = re.sub(r"(`[^`\n]+`)(?=\w)", r"\1\\ ", "\n".join(lines))
    text = re.sub(r"^(\S.*\n)\n(?=    \S)", r"\1\n::\n\n", text, flags=re.MULTILINE)
    lines[:] = text.split("\n")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _complete)
    app.connect("autodoc-process-docstring", _from_markdown, priority=400)  # before napoleon
