"""Device times of many launch configurations, to calibrate and to judge the selection by.

    python benchmarks/measure_configs.py --draw 60 --seed 1 --out calibration.jsonl
    python benchmarks/measure_configs.py --shapes 4096,4096,4096,nn --count 400 --out one.jsonl
    python benchmarks/measure_configs.py --draw 60 --epilogue bias_gelu --out fused.jsonl

Which ones, and how often, jaxbw/_src/lab/tuning/measure.py says. Each matmul is a line of JSON;
those that --out has already are left out: a run can be resumed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

from measuring import matmuls, records
from measuring.matmuls import Matmul

from jaxbw._src.lab.tuning.launching import Bench, Gpu
from jaxbw._src.lab.tuning.measure import Effort, Measured, measure
from jaxbw._src.selection import devices
from jaxbw._src.selection.devices import Device
from jaxbw._src.selection.tuned_matmuls import config_from_json, config_to_json

_FIELDS = [field.name for field in dataclasses.fields(Matmul)]  # of a row: older ones have less


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
    for line in whole_lines(path):
        row = json.loads(line)
        matmul = Matmul(**{name: row[name] for name in _FIELDS if name in row})
        found[matmul] = [from_json(entry) for entry in row["measured"]]
    return found


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


def running_gpu(parser: argparse.ArgumentParser) -> Device:
    """The GPU; the parser exits where there is none that kernels run on."""
    device = devices.running_device()
    if device is None or device.family is None:
        parser.error("there is no GPU that kernels run on")
    return device


def main() -> None:
    """Parses arguments, measures, prints a line for each matmul."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="*", default=[], metavar="M,N,K,LAYOUT[,EPILOGUE]")
    parser.add_argument("--least", type=int, default=1, help="m, n and k of the random matmuls")
    parser.add_argument(
        "--multiples", type=int, nargs="+", default=matmuls.MULTIPLES, help="sizes are of one of"
    )
    arguments, device = parse(parser, draw=0, seed=1)
    wanted = [matmuls.parse(text) for text in arguments.shapes]
    wanted += matmuls.draw(
        *(arguments.draw, arguments.seed, arguments.epilogue, arguments.least, arguments.multiples)
    )
    effort = Effort(count=arguments.count)
    bench = Gpu()
    for matmul, measured in run(bench, wanted, device, effort, arguments.out, arguments.budget):
        fastest = measured[0]
        by_model = min(measured, key=lambda each: each.modelled)
        ratio = by_model.microseconds / fastest.microseconds
        print(
            f"{matmul!s:24} {fastest.microseconds:9.2f} us, the model's first {ratio:5.3f} of it; "
            f"{len(measured)}: {fastest.config}",
            flush=True,
        )


if __name__ == "__main__":
    main()
