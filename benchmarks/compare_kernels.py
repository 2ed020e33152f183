"""Builds of the kernels by turns in one process: what a change to cuda/ is worth.

    cp -r jaxbw/kernels /tmp/before                   # then change cuda/, and build
    python benchmarks/compare_kernels.py --kernels before=/tmp/before after=jaxbw/kernels \
        --out record.json

Each matmul runs in the configurations that the selection ranks first, with the kernels of each
directory, in random order, round after round: what differs from run to run, or from host to host,
is in all of them. Results must agree. Builds share the installed host code, so GemmParams and the
shared memory's layout must be those of all of them.

By default the matmuls are the benchmark's suite; --draw takes random ones, of which no choice was
made.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from jaxbw import _native
from jaxbw._src.lab.bench.case import DTYPES, suite
from jaxbw._src.lab.tuning.launching import Bench, Gpu, Launch
from jaxbw._src.lab.tuning.measure import launch_of, off, rotated
from jaxbw._src.problem import itemsize
from jaxbw._src.selection import manifest
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.devices import Device
from jaxbw._src.selection.select import ranking
from jaxbw._src.selection.tuned import table_for
from measuring import matmuls
from measuring.builds import parse_builds
from measuring.environment import environment, running_gpu
from measuring.matmuls import Matmul
from measuring.measurements import geometric_mean

REPEATS = 3  # launches at each visit
ROUNDS = 12  # visits at most
SECONDS = 0.4  # of device time for a matmul; beyond it there are fewer rounds, 4 at least

Key = tuple[str, GemmConfig]  # a build's name, and what it runs


def compare(
    bench: Bench, matmul: Matmul, builds: Mapping[str, Path], device: Device, count: int
) -> list[dict[str, Any]]:
    """Measures a matmul; a row for each configuration, with the microseconds of each build.

    Args:
      bench: what measures.
      builds: the directory of each build, by name.
      count: configurations, those that the selection ranks first.

    Raises:
      RuntimeError: results differ.
    """
    problem = matmul.problem
    tuned = table_for(device.machine.name, itemsize(problem.lhs_dtype))
    _, ranked = ranking(
        problem, device, device.family or "", manifest.kernels(), tuned=tuned, kept=count
    )
    launches: dict[Key, Launch] = {}
    expected: dict[Key, float] = {}
    for each in ranked:
        launch = launch_of(bench, problem, device, each.config)
        for name, directory in builds.items():
            launches[name, each.config] = _with_kernels(directory, launch)
            expected[name, each.config] = each.cost.total
    for (name, config), deviation in off(bench, problem, launches).items():
        raise RuntimeError(f"{matmul}: {config} of {name} is {deviation:.2g} off")
    once = sum(expected.values()) * (1 + REPEATS)
    rounds = min(ROUNDS, max(4, int(SECONDS * 1e6 / once)))
    times = rotated(bench, launches, expected, rounds, REPEATS, seed=0)
    return [
        {
            **asdict(matmul),
            "config": str(each.config),
            "us": {name: round(times[name, each.config], 3) for name in builds},
        }
        for each in ranked
    ]


def _with_kernels(directory: Path, launch: Launch) -> Launch:
    """The same launch with the kernels of a directory."""

    def call(operands: int, result: int, wait: bool) -> None:
        _native.set_kernel_directory(str(directory))
        launch(operands, result, wait)

    return call


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Each build's time over that of the first: geometric means, and the extremes.

    `all` is over all configurations, `best` over matmuls, each build in its fastest one.
    """
    least: dict[tuple[object, ...], dict[str, float]] = {}
    for row in rows:
        matmul = tuple(value for name, value in row.items() if name not in ("config", "us"))
        fastest = least.setdefault(matmul, dict.fromkeys(row["us"], math.inf))
        for name, us in row["us"].items():
            fastest[name] = min(fastest[name], us)
    first, *others = rows[0]["us"]
    found = {}
    for name in others:
        ratios = [row["us"][name] / row["us"][first] for row in rows]
        found[name] = {
            "all": round(geometric_mean(ratios), 4),
            "best": round(geometric_mean([us[name] / us[first] for us in least.values()]), 4),
            "least": round(min(ratios), 4),
            "most": round(max(ratios), 4),
        }
    return found


def main() -> None:
    """Parses arguments, measures, prints a line for each configuration, writes the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", nargs="+", required=True, metavar="NAME=DIRECTORY")
    parser.add_argument("--shapes", nargs="*", default=[], metavar="M,N,K,LAYOUT[,EPILOGUE]")
    parser.add_argument("--draw", type=int, default=0, help="how many random matmuls")
    parser.add_argument("--seed", type=int, default=1, help="of the random matmuls")
    matmuls.add_types(parser)
    parser.add_argument("--count", type=int, default=4, help="configurations of each")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        builds = parse_builds(arguments.kernels)
    except ValueError as error:
        parser.error(str(error))
    device = running_gpu(parser)
    wanted = [matmuls.parse(text) for text in arguments.shapes]
    wanted += matmuls.draw(arguments.draw, arguments.seed)
    wanted = matmuls.of_types(wanted or [Matmul(*shape) for shape in suite()], arguments)
    bench, rows = Gpu(jnp.dtype(DTYPES[arguments.dtype])), list[dict[str, Any]]()
    here = environment(device, "device time (CUPTI) of all kernels of a call")
    for matmul in wanted:
        found = compare(bench, matmul, builds, device, arguments.count)
        for row in found:
            times = "  ".join(f"{name} {us:.2f}" for name, us in row["us"].items())
            print(f"{matmul!s:24} {times}  {row['config']}", flush=True)
        rows += found
        record = {"environment": here, "summary": summary(rows), "rows": rows}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    for name, each in summary(rows).items():
        print(f"{name} over {next(iter(builds))}: {each}")


if __name__ == "__main__":
    main()
