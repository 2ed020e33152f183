"""Times of launch configurations: how they are measured, written as lines of JSON, and read."""

from __future__ import annotations

import argparse
import dataclasses
import json
import lzma
import math
import pathlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

from jaxbw._src.lab.tuning.launching import Bench
from jaxbw._src.lab.tuning.measure import Effort, Measured, measure
from jaxbw._src.selection.devices import Device
from jaxbw._src.selection.tuned_matmuls import config_from_json, config_to_json
from measuring import matmuls, records
from measuring.environment import running_gpu
from measuring.matmuls import Matmul


def to_json(measured: Measured) -> dict[str, Any]:
    """A configuration as what differs from the default, and its times."""
    return {
        "config": config_to_json(measured.config),
        "us": round(measured.microseconds, 3),
        "model": round(measured.modelled, 3),
    }


def from_json(entry: dict[str, Any]) -> Measured:
    """What `to_json` gave."""
    return Measured(config_from_json(entry["config"]), entry["us"], entry["model"])


def read(path: pathlib.Path) -> dict[Matmul, list[Measured]]:
    """The matmuls of a results file with their configurations; a torn last line is left out.

    A .json file is a record of another benchmark (`records`).
    """
    if path.suffix == ".json":
        return {
            matmul: [Measured(config, us, math.nan) for config, us in times]
            for matmul, times in records.read(path).items()
        }
    found: dict[Matmul, list[Measured]] = {}
    for row in rows(path):
        found[Matmul.of_row(row)] = [from_json(entry) for entry in row["measured"]]
    return found


def rows(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """The rows of a file, which may be compressed by xz; a torn last line is left out."""
    if path.suffix == ".xz":
        lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    else:
        lines = whole_lines(path)
    return map(json.loads, lines)


def whole_lines(path: pathlib.Path) -> list[str]:
    """The lines of a file; one that a killed run has torn is left out."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def run(
    bench: Bench,
    wanted: Iterable[Matmul],
    device: Device,
    effort: Effort,
    out: pathlib.Path,
    budget_s: float,
) -> Iterator[tuple[Matmul, list[Measured]]]:
    """Measures what the file does not have yet, until the time is over; appends as it goes."""
    start, done = time.monotonic(), read(out)
    out.write_text("".join(line + "\n" for line in whole_lines(out)))
    for matmul in wanted:
        if matmul in done:
            continue
        if time.monotonic() - start > budget_s:
            print(f"{budget_s:.0f} s are over; run again to go on", flush=True)
            return
        measured = measure(bench, matmul.problem, device, effort)
        row = {**dataclasses.asdict(matmul), "device": device.name}
        with out.open("a") as file:
            file.write(json.dumps({**row, "measured": [to_json(each) for each in measured]}) + "\n")
        yield matmul, measured


def parse(
    parser: argparse.ArgumentParser, *, draw: int, seed: int
) -> tuple[argparse.Namespace, Device]:
    """What is to be drawn and how it is measured, and the GPU; it exits where there is none."""
    parser.add_argument("--draw", type=int, default=draw, help="how many random matmuls")
    parser.add_argument("--seed", type=int, default=seed, help="of the random matmuls")
    parser.add_argument(
        "--epilogue", choices=matmuls.EPILOGUES, default="none", help="of the random matmuls"
    )
    parser.add_argument("--count", type=int, default=Effort.count, help="configurations of each")
    parser.add_argument("--budget", type=float, default=500, help="seconds, after which it stops")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    return arguments, running_gpu(parser)
