"""Compares the Blackwell model with the ladders that others have published.

    python benchmarks/compare_model.py --out benchmarks/results/DATE_model_ladders.json

It needs no GPU, and it measures nothing: both sides are other people's figures and this model's.
"""

import argparse
import json
import statistics
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from jaxbw._src.lab.model.clock import throttled
from jaxbw._src.lab.model.machine import Replayed, constants, replayed
from jaxbw._src.lab.model.modelled import run
from jaxbw._src.lab.model.schedule import Shape
from measuring.ladders import LADDERS, Rung

JUDGED = ("Modular", "Tilus", "Pallas")
CLEAR = 0.10  # published neighbours that differ by more have an order to be kept
_LANES = 32


def naive_us(machine: Replayed, shape: Shape, ghz: float) -> float:
    """The modelled time of a kernel without tensor cores: a thread for each element.

    Its loads hit L1 and keep the load units busy, and nothing else. Neighboring lanes have
    neighboring columns, so that one instruction of a warp is one access.
    """
    loads = shape.flops / _LANES  # instructions of warps: two for two operations
    cycles = loads * machine["load_wavefront_cycles"] / machine["sm_count"]
    return (cycles / ghz + machine["launch_ns"]) / 1000


def modelled(machine: Replayed, rung: Rung) -> dict[str, Any]:
    """A rung's modelled TFLOP/s, and how they came about."""
    if not rung.candidates:
        clock = throttled(machine, 0.01, "light")
        us = naive_us(machine, rung.shape, clock.ghz) + rung.host_us
        return {"value": rung.shape.flops / us / 1e6, "us": us, "clock": str(clock)}
    runs = [
        (run(machine, kernel, rung.shape, raster, rung.clock, warm=rung.warm), kernel, raster)
        for kernel, raster in rung.candidates
    ]
    best, kernel, raster = min(runs, key=lambda each: each[0].us)
    us = best.us + rung.host_us
    busiest = max(best.outcome.busy.items(), key=lambda each: each[1])
    return {
        "value": rung.shape.flops / us / 1e6,
        "us": us,
        "clock": str(best.clock),
        "waves": best.plan.waves,
        "busiest": f"{busiest[0]} {busiest[1] / best.outcome.time:.0%}",
        "tile": f"{kernel.block_m}x{kernel.block_n}, {kernel.stages} stages",
        "raster": asdict(raster),
    }


def compare(machine: Replayed) -> dict[str, Any]:
    """Every ladder, rung by rung, and what they come to."""
    ladders: dict[str, Any] = {}
    for name, rungs in LADDERS.items():
        rows = []
        for rung in rungs:
            row: dict[str, Any] = {"rung": rung.name, "fitted": rung.fitted}
            row |= {"published": rung.published, **modelled(machine, rung)}
            row["error"] = row["value"] / rung.published - 1
            rows.append(row)
        ladders[name] = {"rungs": rows, **summary(rows)}
    return ladders


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Errors of the rungs, and neighbours whose order is lost."""
    errors = [abs(row["error"]) for row in rows]
    free = [abs(row["error"]) for row in rows if not row["fitted"]]
    lost = [
        f"{below['rung']} / {above['rung']}"
        for below, above in pairwise(rows)
        if abs(above["published"] / below["published"] - 1) > CLEAR
        and (above["published"] > below["published"]) != (above["value"] > below["value"])
    ]
    return {
        "median_error": statistics.median(errors),
        "median_error_without_fitted": statistics.median(free),
        "largest_error": max(errors),
        "beyond_20_percent": sum(error > 0.2 for error in errors),
        "order_lost": lost,
    }


def main() -> None:
    """Prints the comparison, and writes it where --out says."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    machine = replayed("B200")
    ladders = compare(machine)
    known = [row for name in JUDGED for row in ladders[name]["rungs"]]
    print(f"{', '.join(JUDGED)} together: " + json.dumps(summary(known) | {"order_lost": None}))
    for name, ladder in ladders.items():
        print(name)
        for row in ladder["rungs"]:
            text = f"  {row['rung']:24s} modelled {row['value']:8.4g}"
            text += f"  published {row['published']:8.4g}  {row['error']:+7.1%}"
            print(text + ("  fitted" if row["fitted"] else ""), row.get("busiest", ""))
        rest = {key: value for key, value in ladder.items() if key != "rungs"}
        print("  " + json.dumps(rest))
    if args.out:
        command = "python benchmarks/compare_model.py --out " + str(args.out)
        used = {constant.name: constant.value for constant in constants("B200")}
        record = {
            "command": command,
            "note": "both sides are other people's figures and a model's: nothing was measured",
            "together": summary(known) | {"ladders": JUDGED, "order_lost": None},
            "ladders": ladders,
            "constants": used,
        }
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
