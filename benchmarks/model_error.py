"""The cost model against measured times, and its constants fitted to them.

    python benchmarks/model_error.py results.json
    python benchmarks/model_error.py results.json --fit l2_bytes_per_ns dram_bytes_per_ns_sm

Reads rows of compare_xla.py that have a configuration of ours. Fitting changes the named constants
of the machine, within a factor of two, for the least mean square of the logarithms' differences; it
prints what to write into jaxbw/selection/machines.toml and changes nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import random
from typing import Any

import jax
import jax.numpy as jnp

from jaxbw import GemmConfig
from jaxbw.problem import reduce_dot_general
from jaxbw.selection.machine import Machine, machines
from jaxbw.selection.search import price
from jaxbw.selection.workload import Workload, workload

CONTRACTING = {"nn": ((1,), (0,)), "nt": ((1,), (1,)), "tn": ((0,), (0,)), "tt": ((0,), (1,))}
STEPS = 2000  # of the fit, each a random change of some constants


@dataclasses.dataclass(frozen=True)
class Measured:
    """One configuration of one product, and what it took."""

    label: str
    work: Workload
    config: GemmConfig
    microseconds: float


def read(path: pathlib.Path) -> list[Measured]:
    """The rows of a results file that say how our kernel was launched."""
    rows = [row for row in json.loads(path.read_text())["rows"] if "fields" in row]
    return [_measured(row) for row in rows]


def _measured(row: dict[str, Any]) -> Measured:
    config = GemmConfig(**(row["fields"] | {"cluster": tuple(row["fields"]["cluster"])}))
    m, n, k, layout = row["m"], row["n"], row["k"], row["layout"]
    dtype = jnp.dtype(row["dtype"])
    lhs = jax.ShapeDtypeStruct((m, k) if layout[0] == "n" else (k, m), dtype)
    rhs = jax.ShapeDtypeStruct((k, n) if layout[1] == "n" else (n, k), dtype)
    problem = reduce_dot_general(lhs, rhs, (CONTRACTING[layout], ((), ())), dtype).problem
    work = workload(problem, swapped=config.swap_ab)
    return Measured(f"{m}x{n}x{k} {layout} {config}", work, config, row["median_us"])


def modelled(machine: Machine, measured: Measured) -> float:
    """The model's time, in microseconds."""
    return price(machine.family, machine, measured.work, measured.config).cost.total


def error(machine: Machine, rows: list[Measured]) -> float:
    """The root mean square of the logarithms of modelled over measured times."""
    ratios = (math.log(modelled(machine, row) / row.microseconds) for row in rows)
    return math.sqrt(sum(ratio**2 for ratio in ratios) / len(rows))


def fit(machine: Machine, rows: list[Measured], names: list[str]) -> Machine:
    """The machine with the named constants changed for the least error: a random search."""
    draw = random.Random(0)
    best, least = machine, error(machine, rows)
    for _ in range(STEPS):
        changes = {}
        for name in names:
            start, value = getattr(machine, name), getattr(best, name)
            value *= math.exp(draw.gauss(0, 0.1)) if draw.random() < 0.5 else 1
            changes[name] = min(max(value, start / 2), start * 2)
        candidate = dataclasses.replace(best, **changes)
        if (found := error(candidate, rows)) < least:
            best, least = candidate, found
    return best


def main() -> None:
    """Prints modelled and measured times, and the fitted constants."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--machine", choices=machines(), default="H200")
    parser.add_argument("--fit", nargs="+", metavar="CONSTANT", default=[])
    arguments = parser.parse_args()
    machine, rows = machines()[arguments.machine], read(arguments.results)
    if not rows:
        parser.error(f"{arguments.results} has no rows with fields; run compare_xla.py again")
    fitted = fit(machine, rows, arguments.fit) if arguments.fit else machine
    for row in rows:
        time = modelled(fitted, row)
        ratio = time / row.microseconds
        print(f"{row.microseconds:9.2f} us measured {time:9.2f} modelled {ratio:5.2f}  {row.label}")
    print(f"root mean square of the logarithms' differences: {error(fitted, rows):.3f}")
    for name in arguments.fit:
        print(f"{name} = {getattr(fitted, name):.4g}  (was {getattr(machine, name):.4g})")


if __name__ == "__main__":
    main()
