"""Measured configurations of a matmul, ready to be priced together by the cost model."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from jaxbw._src.lab.tuning.measure import Measured
from jaxbw._src.selection.candidates import Candidates
from jaxbw._src.selection.cost_model import Costs, evaluate
from jaxbw._src.selection.machine import Machine
from jaxbw._src.selection.workload import Workload, workload
from measuring import configurations
from measuring.matmuls import Matmul

Floats = NDArray[np.float64]


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
        """Groups what was measured."""
        groups = []
        for swapped in (False, True):
            rows = [i for i, each in enumerate(measured) if each.config.swap_ab == swapped]
            if not rows:
                continue
            configs = [measured[i].config for i in rows]
            work = workload(matmul.problem, machine.family, swapped=swapped)
            raster = np.array([config.raster == "n" for config in configs], np.int64)
            swizzle = np.array([config.swizzle for config in configs], np.int64)
            table = Candidates.of(configs, machine.family, work.itemsize)
            groups.append(Group(work, table, (raster, swizzle), np.array(rows)))
        times = np.array([each.microseconds for each in measured])
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
        for matmul, measured in configurations.read(path).items()
    ]


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))
