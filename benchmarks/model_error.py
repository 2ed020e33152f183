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
import math
import pathlib
import random
import re
from collections.abc import Sequence

import numpy as np
import scipy.optimize

from jaxbw._src.selection.machine import Machine, machines
from measuring.measurements import Floats, Measurements, geometric_mean, read

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
