"""The tuned table of a machine, from measured times: jaxbw/_src/selection/tuned.

    python benchmarks/tune_selection.py times.jsonl.xz --out jaxbw/_src/selection/tuned/h200.npz

Reads what measure_configs.py wrote, several files where there are (of a matmul that two have, the
later one counts), and grows regression trees (LightGBM) for the logarithms of measured over
modelled times, so that choices lose little (measuring/samples.py: Loss). Configurations are
compared with others of the same matmul only, and slow ones weigh little. Of several tile orders of
a configuration the one counts that selection would give it: the mean of all would tell against
those of which several were measured. It also tells what choices lose without a table, and with one
from matmuls of other sizes: a part of them is left out in turn.
"""

from __future__ import annotations

import argparse
import datetime
import math
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxbw._src.selection import tuned
from jaxbw._src.selection.machine import Machine, machines
from jaxbw._src.selection.tuned import Table
from jaxbw._src.selection.tuned.features import FEATURES
from jaxbw._src.selection.tuned.files import SIZES, to_bytes
from measuring import measurements
from measuring.measurements import Measurements, geometric_mean
from measuring.samples import FOLDS, Sample, grow, sample

FEWEST = 80  # matmuls of a table


def tune(samples: Sequence[Sample], made: Mapping[str, Any]) -> dict[str, Any]:
    """The table that measured matmuls give, as it lies in its file."""
    found = zip(*((*each.sizes, math.prod(each.sizes)) for each in samples), strict=True)
    sizes = {name: [min(of), max(of)] for name, of in zip(SIZES, found, strict=True)}
    return {
        **{"version": tuned.VERSION, "made": dict(made), "sizes": sizes},
        "tiles": tiles(samples),
        **{"features": list(FEATURES), "trees": grow(samples)},
    }


def tiles(samples: Sequence[Sample]) -> list[list[int]]:
    """The tiles that were measured: rows, columns, whether in pingpong."""
    columns = [FEATURES.index(name) for name in ("block_m", "block_n", "pingpong")]
    found = np.unique(np.concatenate([each.rows[:, columns] for each in samples]), axis=0)
    return [[int(number) for number in tile] for tile in found]


def regret(machine: Machine, measured: Measurements, table: Table | None) -> float:
    """The time of what is rated best over the least."""
    if table is None:
        return measured.regret(machine)
    rated = np.empty(len(measured.measured))
    for group, costs in measured.priced(machine):
        factors = table.factors(group.work, machine, group.table, costs)
        rated[group.rows] = costs.total * factors
    return measured.lost_by(machine, rated)


def check(machine: Machine, measured: Sequence[Measurements]) -> Iterator[float]:
    """What choices lose with tables from matmuls of other sizes."""
    samples = [sample(machine, each) for each in measured]
    sizes = list(dict.fromkeys(each.sizes for each in samples))
    for fold in range(FOLDS):
        left_out = set(sizes[fold::FOLDS])
        table = Table.of(tune([each for each in samples if each.sizes not in left_out], {}))
        for each, its in zip(measured, samples, strict=True):
            if its.sizes in left_out:
                yield regret(machine, each, table)


def summary(name: str, regrets: Sequence[float]) -> str:
    """One line."""
    beyond = sum(each > 1.15 for each in regrets)
    return (
        f"{name}: {geometric_mean(regrets):.4f} of the best, at most {max(regrets):.3f}, "
        f"{beyond} of {len(regrets)} beyond 1.15"
    )


def main() -> None:
    """Writes the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=pathlib.Path, nargs="+")
    parser.add_argument("--machine", choices=machines(), default="H200")
    parser.add_argument("--out", type=pathlib.Path, help="the table; without it only the check")
    arguments = parser.parse_args()
    machine = machines()[arguments.machine]
    each_once = {
        each.matmul: each for path in arguments.results for each in measurements.read(path, machine)
    }
    measured = list(each_once.values())
    if len(measured) < FEWEST:
        parser.error(f"{len(measured)} matmuls are too few for a table")
    print(summary("the model alone", [regret(machine, each, None) for each in measured]))
    print(summary("with a table from other matmuls", list(check(machine, measured))), flush=True)
    if arguments.out is not None:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        )
        made = {
            "command": " ".join(["python", *sys.argv]),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "commit": commit.stdout.strip(),
            "products": len(measured),
            "configurations": sum(len(each.measured) for each in measured),
        }
        table = tune([sample(machine, each) for each in measured], made)
        Table.of(table)
        arguments.out.write_bytes(to_bytes(table))
        print(f"{len(table['trees']['counts'])} trees, {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
