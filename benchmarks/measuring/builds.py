"""Builds of the kernels, as command lines name them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def parse_builds(texts: Sequence[str]) -> dict[str, Path]:
    """'name=directory' of each build.

    Raises:
      ValueError: there are less than two names, or a directory has no kernels.
    """
    builds = {name: Path(path) for name, _, path in (text.partition("=") for text in texts)}
    if len(builds) < 2:
        raise ValueError("--kernels takes two builds or more, as in before=/tmp/before after=...")
    for name, path in builds.items():
        if not any(path.glob("*.cubin")):
            raise ValueError(f"--kernels {name}={path}: there is no .cubin")
    return builds
