"""Times of XLA, and of our kernel beside it: what benchmarks/measure_xla.py wrote."""

from __future__ import annotations

import pathlib
from typing import Any

from measuring.configurations import rows
from measuring.matmuls import Matmul

Row = dict[str, Any]


def read(path: pathlib.Path) -> dict[Matmul, Row]:
    """The rows of a file, which may be compressed by xz."""
    return {Matmul.of_row(row): row for row in rows(path)}
