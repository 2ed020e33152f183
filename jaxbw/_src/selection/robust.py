"""The order of priced candidates: by price, or where constants are uncertain by the worst case.

The best by the point estimate may owe its place to a constant that nobody could measure. So the
candidates near it are priced again at each corner of the machine (machines.toml). The one comes
first that is least behind: at the point, times at the corner where it is furthest behind. Behind
means the best there, since a corner at which all take longer says nothing by that.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxbw._src.selection.candidates import Candidates, Integers
from jaxbw._src.selection.cost_model import Costs, evaluate
from jaxbw._src.selection.cost_model.grid import Floats, Grid
from jaxbw._src.selection.machine import Machine
from jaxbw._src.selection.workload import Workload

MOST = 64  # candidates that are priced again
_NEARLY = 1.25  # times as long as the best by the point estimate: nothing further behind is taken


@dataclass(frozen=True)
class Side:
    """Candidates of a problem, straight or swapped, with their prices; `handicap`: a factor."""

    work: Workload
    table: Candidates
    cut: Grid
    costs: Costs
    handicap: Floats


Place = tuple[Side, int]  # a candidate: its side, and its row


def by_price(sides: Sequence[Side]) -> Iterator[Place]:
    """The fastest first; of equals the straight one, then the first row."""
    straight = len(sides[0].table)
    for number in np.argsort(_totals(sides), kind="stable").tolist():
        yield (sides[0], number) if number < straight else (sides[1], number - straight)


def by_worst_case(sides: Sequence[Side], machine: Machine) -> Iterator[Place]:
    """The candidates that are near the fastest, priced anew: the least behind first."""
    rough = _totals(sides)
    order = np.argsort(rough, kind="stable")[:MOST]
    near = order[rough[order] <= _NEARLY * rough[order[:1]]]
    first, places, times = 0, [], []
    for side in sides:
        rows = near[(near >= first) & (near < first + len(side.table))] - first
        first += len(side.table)
        if len(rows) > 0:
            again = _priced_again(side, rows, machine)
            places += [(again, row) for row in range(len(rows))]
            times.append(_totals([again]).reshape(-1, len(rows)))
    behind = np.concatenate(times, axis=1)
    behind = behind / behind.min(axis=1, keepdims=True)
    score = np.round(behind[0] * behind.max(axis=0), 4)
    for number in np.lexsort((behind[0], score)).tolist():
        yield places[number]


def _totals(sides: Sequence[Side]) -> Floats:
    """What candidates take, numbered through the sides.

    To a tenth of a nanosecond, so that equals stay equal wherever it is computed.
    """
    return np.round(np.concatenate([side.costs.total * side.handicap for side in sides]), 1)


def _priced_again(side: Side, rows: Integers, machine: Machine) -> Side:
    """Some candidates at the point, and behind them the same at each corner."""
    cases: tuple[Mapping[str, Any], ...] = ({}, *machine.corners)
    values: dict[str, Any] = {
        name: np.repeat([case.get(name, getattr(machine, name)) for case in cases], len(rows))
        for name in sorted({name for case in cases for name in case})
    }
    again = np.tile(rows, len(cases))
    table, cut = side.table.take(again), side.cut.take(again)
    order = side.costs.band_along_n[again], side.costs.swizzle[again]
    costs = evaluate(side.work, replace(machine, **values), table, order, cut=cut)
    return Side(side.work, table, cut, costs, side.handicap[again])
