"""Times of XLA, and of our kernel beside it: what benchmarks/measure_xla.py wrote."""

from __future__ import annotations

import json
import lzma
import pathlib
from typing import Any

from measuring.configurations import whole_lines
from measuring.matmuls import Matmul

Row = dict[str, Any]


def read(path: pathlib.Path) -> dict[Matmul, Row]:
    """The rows of a file, which may be compressed by xz."""
    if path.suffix == ".xz":
        lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    else:
        lines = whole_lines(path)
    rows = map(json.loads, lines)
    return {Matmul.of_row(row): row for row in rows}
