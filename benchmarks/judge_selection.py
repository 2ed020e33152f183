"""What the selection's choices lose against the best measured configuration, on random matmuls.

    python benchmarks/judge_selection.py --draw 40 --seed 2026 --out results.json

Measures each matmul as measure_configs.py does, the choices without and with the tuned table among
the configurations, and writes the ratio of each choice's time to the least one. The least of a
hundred medians is also the luckiest, so the choices and what came out best are timed once more, by
turns: "rematch" is the ratio of these times. The matmuls are drawn by a seed; the table was made
from others (tune_selection.py says from which); --epilogue judges it with one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from jaxbw._src.lab.bench.case import DTYPES
from jaxbw._src.lab.tuning.launching import Bench, Gpu
from jaxbw._src.lab.tuning.measure import Effort, Measured, launch_of, rotated
from jaxbw._src.problem import itemsize
from jaxbw._src.selection import manifest
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.devices import Device
from jaxbw._src.selection.select import ranking
from jaxbw._src.selection.tuned import Table, table_for
from measuring import configurations, matmuls
from measuring.environment import environment
from measuring.matmuls import Matmul
from measuring.measurements import geometric_mean

BEYOND = 1.1  # no choice may lose more
NAMES = ("model", "tuned")
RATIOS = ("ratio", "rematch")
REMATCH = Effort(final_rounds=40)


def choice(matmul: Matmul, device: Device, table: Table | None) -> GemmConfig:
    """What would be launched."""
    _, ranked = ranking(
        matmul.problem, device, device.family or "", manifest.kernels(), tuned=table, kept=1
    )
    return ranked[0].config


def choices(matmul: Matmul, device: Device) -> dict[str, GemmConfig]:
    """What would be launched, by the model alone and with the tuned table."""
    tuned = table_for(device.machine.name, itemsize(matmul.problem.lhs_dtype))
    tables = zip(NAMES, (None, tuned), strict=True)
    return {name: choice(matmul, device, table) for name, table in tables}


def rematch(
    bench: Bench, matmul: Matmul, device: Device, times: Mapping[GemmConfig, float]
) -> dict[GemmConfig, float]:
    """New times of some configurations, whose times were these; all in microseconds."""
    launches = {each: launch_of(bench, matmul.problem, device, each) for each in times}
    rounds = REMATCH.visits(REMATCH.final_rounds, times.values())
    return rotated(bench, launches, times, rounds, REMATCH.repeats, seed=1)


def judged(
    bench: Bench, matmul: Matmul, measured: Sequence[Measured], device: Device
) -> dict[str, Any]:
    """A matmul's row: the best configuration, and the choices with what they lose."""
    times = {each.config: each.microseconds for each in measured}
    best = min(times, key=times.__getitem__)
    chosen = choices(matmul, device)
    again = rematch(bench, matmul, device, {each: times[each] for each in (best, *chosen.values())})
    row: dict[str, Any] = {
        **{"matmul": str(matmul), "configurations": len(times)},
        **{"best": str(best), "best_us": round(times[best], 3)},
    }
    for name, config in chosen.items():
        row[name] = {
            "config": str(config),
            "us": round(times[config], 3),
            "ratio": round(times[config] / times[best], 4),
            "rematch": round(again[config] / again[best], 4),
        }
    return row


def summary(rows: Sequence[dict[str, Any]], name: str) -> dict[str, dict[str, float]]:
    """What the choices of one kind lose."""
    found = {}
    for kind in RATIOS:
        ratios = [row[name][kind] for row in rows]
        found[kind] = {
            "geometric_mean": round(geometric_mean(ratios), 4),
            "most": max(ratios),
            f"beyond_{BEYOND}": sum(ratio > BEYOND for ratio in ratios),
        }
    return found


def main() -> None:
    """Parses arguments, measures, prints a line for each matmul, writes the results file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    matmuls.add_types(parser)
    arguments, device = configurations.parse(parser, draw=40, seed=2026)
    wanted = matmuls.draw(arguments.draw, arguments.seed, arguments.epilogue)
    wanted = matmuls.of_types(wanted, arguments)
    times = arguments.out.with_suffix(".jsonl")
    effort = Effort(count=arguments.count)
    dtype = jnp.dtype(DTYPES[arguments.dtype])
    bench = Gpu(dtype)
    for _ in configurations.run(bench, wanted, device, effort, times, arguments.budget):
        pass
    rows = [
        judged(bench, each, found, device) for each, found in configurations.read(times).items()
    ]
    for row in rows:
        ratios = " ".join(
            f"{name} {row[name]['ratio']:5.3f} ({row[name]['rematch']:5.3f})" for name in NAMES
        )
        print(f"{row['matmul']:24} {row['best_us']:9.2f} us  {ratios}  {row['best']}")
    summaries = {name: summary(rows, name) for name in NAMES}
    for name, each in summaries.items():
        print(f"{name}: {each}")
    time = "device time (CUPTI) of all kernels of a call"
    results = {"environment": environment(device, time, dtype.itemsize), **summaries, "rows": rows}
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
