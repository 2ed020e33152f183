"""The tuned table of a machine, from measured times: jaxbw/selection/tuned.

    python benchmarks/tune_selection.py calibration.jsonl --out jaxbw/selection/tuned/h200.json

Reads what measure_configs.py wrote. The sizes are cut in two at the median product, along the
dimension that leaves the least error, and so on, while either part keeps enough products. For each
part, the kinds of configurations get factors: a ridge regression of the logarithms of measured over
modelled times, in which every product has an offset of its own (its configurations are compared
with each other only), slow configurations weigh little, and factors are drawn to those of the
larger range. It also tells what choices lose without a table, and with one from other products: a
part of them is left out in turn.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import math
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import model_error
import numpy as np
from model_error import Floats, Measurements, geometric_mean

from jaxbw.selection import tuned
from jaxbw.selection.machine import Machine, machines
from jaxbw.selection.tuned import Interval, Range, Table

FEWEST = 40  # products of a range
FOLDS = 8  # of the check
PULL = 4.0  # towards the larger range's factors, of which a product has about 0.1 for a kind
SLOW = 10.0  # exponent by which slow configurations weigh less
# With factors for clusters, too, choices of products that were not measured lose.
CORRECTED = ("tile", "parts", "swapped")  # what the corrected kinds' names begin with

Sizes = tuple[Interval, Interval, Interval]
EVERYTHING: Sizes = (Interval(1, None),) * 3


@dataclasses.dataclass(frozen=True)
class Sample:
    """One product as the regression sees it."""

    sizes: tuple[int, int, int]
    rows: Floats  # kinds of each configuration
    errors: Floats  # logarithms of measured over modelled times
    weights: Floats

    def centred(self) -> tuple[Floats, Floats]:
        """The rows and errors without the product's own offset, weighted; one product in all."""
        share = self.weights / self.weights.sum()
        root = np.sqrt(share)[:, None]
        return (
            (self.rows - share @ self.rows) * root,
            (self.errors - share @ self.errors) * root[:, 0],
        )


def sample(machine: Machine, measured: Measurements, names: Sequence[str]) -> Sample:
    """A product with the named kinds as columns."""
    rows = np.zeros((len(measured.measured), len(names)))
    column = {name: i for i, name in enumerate(names)}
    for group in measured.groups:
        for kind, mask in tuned.kinds(group.work, group.table):
            if kind in column:
                rows[group.rows[mask], column[kind]] = 1.0
    product = measured.product
    return Sample(
        (product.m, product.n, product.k),
        rows,
        np.log(measured.microseconds / measured.modelled(machine)),
        measured.slower**-SLOW,
    )


def kind_names(measured: Sequence[Measurements]) -> list[str]:
    """All kinds that were measured and are to be corrected."""
    found = {
        kind
        for each in measured
        for group in each.groups
        for kind, _ in tuned.kinds(group.work, group.table)
        if kind.startswith(CORRECTED)
    }
    return sorted(found)


def regress(samples: Sequence[Sample], prior: Floats) -> Floats:
    """The kinds' effects, drawn to those of the larger range."""
    centred = [each.centred() for each in samples]
    rows = np.concatenate([rows for rows, _ in centred])
    errors = np.concatenate([errors for _, errors in centred])
    left = rows.T @ rows + PULL * np.eye(len(prior))
    found: Floats = prior + np.linalg.solve(left, rows.T @ (errors - rows @ prior))
    return found


def squares(samples: Sequence[Sample], effects: Floats) -> float:
    """What the effects leave of the errors."""
    left = 0.0
    for each in samples:
        rows, errors = each.centred()
        left += float(np.sum((errors - rows @ effects) ** 2))
    return left


def cut(
    samples: Sequence[Sample], sizes: Sizes, prior: Floats
) -> Iterator[tuple[Sizes, Sequence[Sample], Floats]]:
    """The ranges, each with its products and effects."""
    effects = regress(samples, prior)
    least: tuple[float, list[tuple[Sizes, list[Sample]]]] | None = None
    for axis in range(3):
        ordered = sorted(each.sizes[axis] for each in samples)
        limit = ordered[len(ordered) // 2] - 1
        parts = [
            [each for each in samples if (each.sizes[axis] <= limit) == below]
            for below in (True, False)
        ]
        if min(map(len, parts)) < FEWEST:
            continue
        error = sum(squares(part, regress(part, effects)) for part in parts)
        if least is None or error < least[0]:
            low, high = sizes[axis]
            ends = (Interval(low, limit), Interval(limit + 1, high))
            found = [_with(sizes, axis, end) for end in ends]
            least = error, list(zip(found, parts, strict=True))
    if least is None:
        yield sizes, samples, effects
        return
    for part_sizes, part in least[1]:
        yield from cut(part, part_sizes, effects)


def _with(sizes: Sizes, axis: int, interval: Interval) -> Sizes:
    m, n, k = (interval if i == axis else each for i, each in enumerate(sizes))
    return m, n, k


def tune(machine: Machine, measured: Sequence[Measurements], made: dict[str, Any]) -> Table:
    """The table that measured products give."""
    names = kind_names(measured)
    samples = [sample(machine, each, names) for each in measured]
    ranges = []
    for (m, n, k), part, effects in cut(samples, EVERYTHING, np.zeros(len(names))):
        factors = np.exp(np.clip(effects, -math.log(tuned.MOST), math.log(tuned.MOST)))
        rounded = {name: round(float(f), 3) for name, f in zip(names, factors, strict=True)}
        ranges.append(Range(m, n, k, len(part), {k: f for k, f in rounded.items() if f != 1.0}))
    return Table(made, tuple(ranges))


def regret(machine: Machine, measured: Measurements, table: Table | None) -> float:
    """The time of what is rated best over the least."""
    rated = measured.modelled(machine)
    if table is not None:
        for group in measured.groups:
            rated[group.rows] *= table.factors(group.work, group.table)
    return float(measured.slower[rated.argmin()])


def check(machine: Machine, measured: Sequence[Measurements]) -> list[float]:
    """What choices lose with tables from other products."""
    found = []
    for fold in range(FOLDS):
        others = [each for i, each in enumerate(measured) if i % FOLDS != fold]
        table = tune(machine, others, {})
        found += [regret(machine, each, table) for each in measured[fold::FOLDS]]
    return found


def summary(name: str, regrets: Sequence[float]) -> str:
    """One line."""
    beyond = sum(each > 1.15 for each in regrets)
    return (
        f"{name}: {geometric_mean(regrets):.4f} of the best, at most {max(regrets):.3f}, "
        f"{beyond} of {len(regrets)} beyond 1.15"
    )


def to_json(table: Table) -> dict[str, Any]:
    """As the table lies in its file."""
    ranges = [
        {
            **{name: list(getattr(each, name)) for name in "mnk"},
            "products": each.products,
            "factors": each.factors,
        }
        for each in table.ranges
    ]
    return {"version": tuned.VERSION, "made": table.made, "ranges": ranges}


def main() -> None:
    """Writes the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--machine", choices=machines(), default="H200")
    parser.add_argument("--out", type=pathlib.Path, help="the table; without it only the check")
    arguments = parser.parse_args()
    machine = machines()[arguments.machine]
    measured = model_error.read(arguments.results, machine)
    if len(measured) < 2 * FEWEST:
        parser.error(f"{arguments.results} has {len(measured)} products, too few for a table")
    print(summary("the model alone", [regret(machine, each, None) for each in measured]))
    print(summary("with a table from other products", check(machine, measured)))
    if arguments.out is not None:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        )
        table = tune(
            machine,
            measured,
            {
                "command": " ".join(["python", *sys.argv]),
                "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
                "commit": commit.stdout.strip(),
                "products": len(measured),
                "configurations": sum(len(each.measured) for each in measured),
            },
        )
        arguments.out.write_text(json.dumps(to_json(table), indent=1) + "\n")
        print(f"{len(table.ranges)} ranges, {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
