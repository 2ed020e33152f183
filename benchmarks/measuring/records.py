"""Times of our kernels, with their configurations, in records of other benchmarks."""

from __future__ import annotations

import json
import pathlib
import statistics
from collections.abc import Iterator
from typing import Any

from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.tuned_matmuls import config_from_json
from measuring.matmuls import Matmul

# Of configurations until 2026-11-24; what is recorded has the values that are left.
FORMER_FIELDS = ("operand_swizzle", "store_buffers", "tma_store")


def read(path: pathlib.Path) -> dict[Matmul, list[tuple[GemmConfig, float]]]:
    """The matmuls of a record, with microseconds of configurations, the fastest first.

    Of a configuration that was measured several times the last one counts. Two kinds are known:
    those of `python -m jaxbw bench` (plain matmuls, in bursts), and rows whose arm is the text of
    a configuration, as in benchmarks/results/2026-11-22_h200_configurations.json.
    """
    times: dict[Matmul, dict[GemmConfig, float]] = {}
    for row in json.loads(path.read_text())["rows"]:
        for matmul, config, us in _benched(row) if "arms" in row else _by_text(row):
            times.setdefault(matmul, {})[config] = us
    return {matmul: sorted(by.items(), key=lambda entry: entry[1]) for matmul, by in times.items()}


def _benched(row: dict[str, Any]) -> Iterator[tuple[Matmul, GemmConfig, float]]:
    case, ours = row["case"], row["arms"].get("jaxbw")
    if row["mode"] != "burst" or case["epilogue"] != "none" or ours is None:
        return
    if "fields" in ours["details"]:
        matmul = Matmul(*(case[name] for name in ("m", "n", "k", "layout", "dtype")))
        us = statistics.median(time for times in ours["rounds"] for time in times)
        fields = ours["details"]["fields"]
        kept = {name: value for name, value in fields.items() if name not in FORMER_FIELDS}
        yield matmul, config_from_json(kept), us


def _by_text(row: dict[str, Any]) -> Iterator[tuple[Matmul, GemmConfig, float]]:
    if row["arm"].startswith("block"):
        matmul = Matmul(row["m"], row["n"], row["k"], row["layout"])
        yield matmul, config_of(row["arm"]), row["median_us"]


def config_of(text: str) -> GemmConfig:
    """The configuration that str() gave so; of its block_k only that it is one span."""
    values: dict[str, Any] = {}
    for part in text.split(", "):
        name, value = part.split(" ", 1)
        if name == "block":
            values["block_m"], values["block_n"] = map(int, value.split("x")[:2])
        elif name == "cluster":
            values["cluster"] = tuple(map(int, value.split("x")))
        elif name == "swizzle":
            width, _, values["raster"] = value.split()
            values["swizzle"] = int(width)
        elif value != "as fit":
            values[name] = value == "True" if value in ("True", "False") else int(value)
    return GemmConfig(**values)
