"""Results as text: a line for each row, and a summary by group."""

import math
from collections.abc import Sequence

import jax.numpy as jnp

from jaxbw._src.lab.bench import statistics
from jaxbw._src.lab.bench.floors import Roof
from jaxbw._src.lab.bench.results import OURS, SHIPPED, Results, Row

L2_BYTES = 60e6  # of an H100 or H200
BEHIND = 0.97  # a row whose interval lies wholly below has lost


def line(row: Row) -> str:
    """A row in a line: microseconds of each arm, the fastest peer's marked, and our speed-up."""
    best = row.best_peer
    cells = [f"{row.case!s:44} {row.mode:9}"]
    for name, times in row.arms.items():
        mark = "*" if name == best else "" if times.correct else "!"
        cells.append(f"{name} {times.median:.1f}{mark}")
    speedup = row.against(best)
    if speedup is not None:
        tflops = row.case.flops / row.arms[OURS].median / 1e6
        cells.append(f"| {tflops:.0f} TFLOP/s, {speedup} of {best}")
    return "  ".join(cells)


def absences(row: Row) -> list[str]:
    """Who did not take part, or was wrong."""
    wrong = [
        f"{name} is wrong for {row.case}: relative error {times.relative_error:.1e}"
        for name, times in row.arms.items()
        if not times.correct
    ]
    return [f"{name} is absent: {why}" for name, why in row.absent.items()] + wrong


def table(results: Results) -> str:
    """Every row: times, TFLOP/s, spread, our speed-up over the best peer and over shipped XLA.

    Of GPUs that jaxbw knows also the floors of each matmul, and how near to the higher one we are.
    """
    if not results.rows:
        return "no rows"
    names = list(dict.fromkeys(name for row in results.rows for name in row.arms))
    header = ["matmul", "mode", *(f"{name} us" for name in names)]
    header += ["TFLOP/s", "spread %", "best peer", "of best", f"of {SHIPPED}"]
    body = [_cells(row, names) for row in results.rows]
    if roof := Roof.over(results):
        header += ["arithmetic us", "memory us", "of floor %"]
        body = [
            [*cells, *_floors(row, roof)] for cells, row in zip(body, results.rows, strict=True)
        ]
    return columns([header, *body])


def summary(results: Results) -> str:
    """Geometric means by group and mode, and the rows that lost."""
    lines = [["group", "mode", "rows", "of best peer", f"of {SHIPPED}", f"wholly under {BEHIND}"]]
    for mode in dict.fromkeys(row.mode for row in results.rows):
        rows = [row for row in results.rows if row.mode == mode and row.against(row.best_peer)]
        kinds = list(dict.fromkeys(_kind(row) for row in rows))
        for kind in (*kinds, "all"):
            members = [row for row in rows if kind in (_kind(row), "all")]
            if members and not (kind == "all" and len(kinds) == 1):
                lines.append([kind, mode, str(len(members)), *_means(members)])
    lost = [f"  {row.case} {row.mode}: {row.against(row.best_peer)}" for row in behind(results)]
    heading = [f"Rows whose interval lies wholly under {BEHIND}:"] if lost else []
    return "\n".join([columns(lines) if len(lines) > 1 else "no row of ours", *heading, *lost])


def behind(results: Results) -> list[Row]:
    """The rows whose interval against the best peer lies wholly under `BEHIND`."""
    return [
        row
        for row in results.rows
        if (speedup := row.against(row.best_peer)) is not None and speedup.high < BEHIND
    ]


def _kind(row: Row) -> str:
    """The group, and what sets the row apart from a plain matmul."""
    case = row.case
    group = case.group
    if group == "decode":  # two kinds of matmul: weights that an L2 holds, and such as none does
        weights = case.n * case.k * jnp.dtype(case.dtype).itemsize
        group += f", {'over' if weights > L2_BYTES else 'up to'} {L2_BYTES / 1e6:.0f} MB"
    apart = [each for each in (case.layout, case.epilogue) if each not in ("nn", "none")]
    return " ".join([group, *apart])


def _means(rows: Sequence[Row]) -> list[str]:
    best = [(row.arms[row.best_peer or ""].rounds, row.arms[OURS].rounds) for row in rows]
    shipped = [
        (row.arms[SHIPPED].rounds, row.arms[OURS].rounds) for row in rows if SHIPPED in row.peers
    ]
    lost = behind(Results(rows=list(rows)))
    return [
        str(statistics.geometric_mean(best)),
        str(statistics.geometric_mean(shipped)) if shipped else "-",
        str(len(lost)),
    ]


def _cells(row: Row, names: Sequence[str]) -> list[str]:
    times = [
        f"{row.arms[name].median:.2f}{'' if row.arms[name].correct else '!'}"
        if name in row.arms
        else "-"
        for name in names
    ]
    ours = row.arms.get(OURS)
    tflops = row.case.flops / ours.median / 1e6 if ours else math.nan
    spread = 100 * statistics.spread(ours.rounds) if ours else math.nan
    ratios = [row.against(row.best_peer), row.against(SHIPPED)]
    return [
        str(row.case),
        row.mode,
        *times,
        f"{tflops:.0f}",
        f"{spread:.1f}",
        row.best_peer or "-",
        *(str(each) if each else "-" for each in ratios),
    ]


def _floors(row: Row, roof: Roof) -> list[str]:
    floors = roof.floors(row.case)
    ours = row.arms.get(OURS)
    reached = f"{100 * max(floors) / ours.median:.0f}" if ours else "-"
    return [f"{floors.arithmetic:.1f}", f"{floors.memory:.1f}", reached]


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as text, the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
