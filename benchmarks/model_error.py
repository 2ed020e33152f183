"""The cost model against measured times, and its constants fitted to them.

    python benchmarks/model_error.py calibration.jsonl
    python benchmarks/model_error.py calibration.jsonl --fit l2_bytes_per_ns chunk_cycles
    python benchmarks/model_error.py calibration.jsonl --fit all --unseen 0.5 --write

Reads what measure_configs.py wrote, or a record of the suite (`python -m jaxbw bench`). `all` are
the constants that the micro-benchmarks do not give (FITTED). With --unseen the fit does not see
that part of the matmuls, drawn at random, and either part is told of.

Fitting changes the named constants of the machine, within a factor of four, for the least squares
of the logarithms' differences, in which slow configurations weigh less: they need only be known to
be slow. It prints the constants; with --write it puts them into
jaxbw/_src/selection/machines.toml. What a choice by the model would lose is told, too: the time of
the configuration that it rates best, among those that were measured, over the least time.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import pathlib
import random
import re
from collections.abc import Iterator, Sequence

import measure_configs
import numpy as np
import scipy.optimize
from measuring.matmuls import Matmul
from numpy.typing import NDArray

from jaxbw._src.lab.tuning.measure import Measured
from jaxbw._src.selection.candidates import Candidates
from jaxbw._src.selection.cost_model import Costs, evaluate, memset_us
from jaxbw._src.selection.machine import Machine, machines
from jaxbw._src.selection.workload import Workload, workload

Floats = NDArray[np.float64]
# What the table of the H200 is fitted to: rates under load, the clock, and ways out of the kernel.
FITTED = (
    *("throttle_clock_ghz", "overlap_exponent", "l2_bytes_per_ns", "ingest_bytes_per_cycle"),
    *("empty_row_slowdown", "straddle_slowdown", "launch_ns", "chunk_cycles"),
    *("epilogue_bytes_per_cycle", "rows_slowdown", "columns_slowdown"),
    *("cluster_sum_ns", "cluster_sum_bytes_per_cycle", "split_ns"),
)
TABLE = pathlib.Path(__file__).parents[1] / "jaxbw/_src/selection/machines.toml"
BOUND = 4.0  # factor by which a constant may change
TOLERANCE = 0.1  # errors beyond it count less than their squares


@dataclasses.dataclass(frozen=True)
class Group:
    """Configurations of one matmul, all with its operands exchanged or none."""

    work: Workload
    table: Candidates
    rasterisation: tuple[NDArray[np.int64], NDArray[np.int64]]
    rows: NDArray[np.int64]  # in the matmul's list


@dataclasses.dataclass(frozen=True)
class Measurements:
    """A matmul with its configurations, ready to be priced together."""

    matmul: Matmul
    measured: Sequence[Measured]
    groups: tuple[Group, ...]
    microseconds: Floats
    slower: Floats  # than the fastest, by which factor

    @classmethod
    def of(cls, matmul: Matmul, measured: Sequence[Measured], machine: Machine) -> Measurements:
        """Groups what was measured, and adds the memset, which CUPTI leaves out."""
        groups = []
        for swapped in (False, True):
            rows = [i for i, each in enumerate(measured) if each.config.swap_ab == swapped]
            if not rows:
                continue
            configs = [measured[i].config for i in rows]
            work = workload(matmul.problem, swapped=swapped)
            raster = np.array([config.raster == "n" for config in configs], np.int64)
            swizzle = np.array([config.swizzle for config in configs], np.int64)
            table = Candidates.of(configs, machine.family, work.itemsize)
            groups.append(Group(work, table, (raster, swizzle), np.array(rows)))
        times = np.array([each.microseconds + memset_us(machine, each.config) for each in measured])
        return cls(matmul, measured, tuple(groups), times, times / times.min())

    def priced(self, machine: Machine) -> Iterator[tuple[Group, Costs]]:
        """Each group with what the model says of it."""
        for group in self.groups:
            yield group, evaluate(group.work, machine, group.table, group.rasterisation)

    def modelled(self, machine: Machine) -> Floats:
        """Microseconds."""
        totals = np.empty(len(self.measured))
        for group, costs in self.priced(machine):
            totals[group.rows] = costs.total / 1000
        return totals

    def in_order(self, machine: Machine) -> NDArray[np.bool_]:
        """Which configurations were measured in the tile order that selection would give them.

        All of one wave count as such, and those that were measured in other orders only.
        """
        counts = np.empty(len(self.measured), np.bool_)
        for group in self.groups:
            chosen = evaluate(group.work, machine, group.table)
            along_n, swizzle = group.rasterisation
            same = (chosen.band_along_n == along_n) & (chosen.swizzle == swizzle)
            same |= chosen.waves <= 1
            configs = [self.measured[i].config for i in group.rows]
            launches = [dataclasses.replace(each, raster="m", swizzle=1) for each in configs]
            found = set(itertools.compress(launches, same))
            counts[group.rows] = same | np.array([launch not in found for launch in launches])
        return counts

    def lost_by(self, machine: Machine, rated: Floats) -> float:
        """The time of what is rated best, of what selection could choose, over the least."""
        return float(self.slower[np.where(self.in_order(machine), rated, np.inf).argmin()])

    def regret(self, machine: Machine) -> float:
        """The time of what the model rates best over the least."""
        return self.lost_by(machine, self.modelled(machine))


def read(path: pathlib.Path, machine: Machine) -> list[Measurements]:
    """The matmuls of a results file."""
    return [
        Measurements.of(matmul, measured, machine)
        for matmul, measured in measure_configs.read(path).items()
    ]


def errors(machine: Machine, matmuls: Sequence[Measurements]) -> Floats:
    """The logarithms of modelled over measured times, weighted."""
    return np.concatenate(
        [np.log(each.modelled(machine) / each.microseconds) / each.slower for each in matmuls]
    )


def fit(machine: Machine, matmuls: Sequence[Measurements], names: Sequence[str]) -> Machine:
    """The machine with the named constants changed for the least error."""

    def changed(logarithms: Floats) -> Machine:
        factors = dict(zip(names, np.exp(logarithms), strict=True))
        values = {name: getattr(machine, name) * float(f) for name, f in factors.items()}
        return dataclasses.replace(machine, **values)

    found = scipy.optimize.least_squares(
        lambda logarithms: errors(changed(logarithms), matmuls),
        np.zeros(len(names)),
        bounds=(-math.log(BOUND), math.log(BOUND)),
        loss="soft_l1",
        f_scale=TOLERANCE,
        diff_step=1e-3,
        max_nfev=60,
    )
    return changed(found.x)


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def divided(
    matmuls: Sequence[Measurements], part: float
) -> tuple[Sequence[Measurements], Sequence[Measurements]]:
    """A part of the matmuls at random, always the same, and the others."""
    shuffled = sorted(matmuls, key=lambda each: each.matmul)
    random.Random(1).shuffle(shuffled)
    count = round(part * len(shuffled))
    return shuffled[:count], shuffled[count:]


def written(table: str, fitted: Machine, names: Sequence[str], source: str) -> str:
    """The text of machines.toml with the fitted constants in it.

    Raises:
      ValueError: the machine's own entries lack one.
    """
    begin = table.index(f"[{fitted.name}]")
    end = table.index("\n[", begin) if "\n[" in table[begin:] else len(table)
    head, entries, tail = table[:begin], table[begin:end], table[end:]
    for name in names:
        entry = f'{{ value = {getattr(fitted, name):.4g}, confidence = "M", source = "{source}" }}'
        entries, count = re.subn(rf"(?m)^{name} = .*$", f"{name} = {entry}", entries)
        if count != 1:
            raise ValueError(f"{fitted.name} has no constant {name} of its own")
    return head + entries + tail


def median_error(machine: Machine, matmuls: Sequence[Measurements]) -> float:
    """Of modelled times, of all configurations."""
    each = [np.abs(p.modelled(machine) / p.microseconds - 1) for p in matmuls]
    return float(np.median(np.concatenate(each)))


def summary(machine: Machine, matmuls: Sequence[Measurements]) -> str:
    """How far the model is off, and what its choices lose."""
    regrets = [each.regret(machine) for each in matmuls]
    return (
        f"{len(matmuls)} matmuls, median error {median_error(machine, matmuls):.3f}, choices "
        f"{geometric_mean(regrets):.3f} of the best, at most {max(regrets):.3f}"
    )


def main() -> None:
    """Prints modelled and measured times, and the fitted constants."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--machine", choices=machines(), default="H200")
    parser.add_argument("--fit", nargs="+", metavar="CONSTANT", default=[])
    parser.add_argument(
        "--unseen", type=float, default=0.0, help="part of the matmuls that the fit does not see"
    )
    parser.add_argument("--write", action="store_true", help="put what was fitted into the table")
    arguments = parser.parse_args()
    machine = machines()[arguments.machine]
    matmuls = read(arguments.results, machine)
    if not matmuls:
        parser.error(f"{arguments.results} has no matmuls; measure_configs.py writes them")
    names = FITTED if arguments.fit == ["all"] else arguments.fit
    unseen, seen = divided(matmuls, arguments.unseen)
    fitted = fit(machine, seen, names) if names else machine
    for each in sorted(matmuls, key=lambda each: each.regret(fitted)):
        ratio = each.modelled(fitted) / each.microseconds
        best = each.microseconds.argmin()
        print(
            f"{each.matmul!s:24} {each.microseconds[best]:9.2f} us, modelled {ratio[best]:5.2f} "
            f"of it, {np.exp(np.std(np.log(ratio))):5.2f} spread; "
            f"the model's choice {each.regret(fitted):5.3f}"
        )
    for title, part in (("seen by the fit", seen), ("not seen", unseen)):
        if unseen and part:
            print(f"{title}: {summary(fitted, part)}")
    rms = math.sqrt(float(np.mean(errors(fitted, matmuls) ** 2)))
    regrets = [each.regret(fitted) for each in matmuls]
    print(f"median error: {median_error(fitted, matmuls):.3f}")
    print(f"root mean square of the logarithms' differences: {rms:.3f}")
    lost = f"{geometric_mean(regrets):.3f} of the best, at most {max(regrets):.3f}"
    print(f"the model's choices: {lost}")
    for name in names:
        print(f"{name} = {getattr(fitted, name):.4g}  (was {getattr(machine, name):.4g})")
    if arguments.write:
        source = f"fitted: {len(seen)} matmuls of {arguments.results.name}"
        TABLE.write_text(written(TABLE.read_text(), fitted, names, source))


if __name__ == "__main__":
    main()
