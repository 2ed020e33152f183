"""Measured models as a table, and as a picture of where the time of a step goes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxbw._src.lab.bench import statistics
from jaxbw._src.lab.bench.models.form import PLAIN
from jaxbw._src.lab.bench.models.program import KINDS, OTHER
from jaxbw._src.lab.bench.models.session import Results, Row
from jaxbw._src.lab.bench.plots import require_matplotlib

_HEADER = (
    *("model", "layers", "form", "step ms", "of plain", "kernels ms"),
    *("ours ms", "xla matmul ms", "copy ms", "transpose ms"),
    *("launched", "kernels of matmuls in the jaxpr", "temp MB", "result"),
)


def table(results: Results) -> str:
    """A Markdown table with a line for each form of each row, and the geometric means."""
    lines = [_line(_HEADER), _line(["---"] * len(_HEADER))]
    for row in results.rows:
        lines += [_line(_cells(row, name)) for name in row.forms]
    return "\n".join([*lines, "", *_means(results.rows)])


def summary(row: Row) -> str:
    """One line of a row."""
    ratios = (f"{name} {row.of_plain(name)}" for name in row.forms if name != PLAIN.name)
    plain = statistics.median(row.forms[PLAIN.name].rounds)
    return f"{row.model}, {row.stacking}: plain {plain:.2f} ms; of plain: {', '.join(ratios)}"


def _cells(row: Row, name: str) -> list[str]:
    form = row.forms[name]
    ms, counts = form.launches.milliseconds, form.launches.counts
    of = form.matmuls
    matmuls = f"{of['kernels']} of {of['jaxbw']}, and {of['xla']} of lax"
    return [
        *(row.model, row.stacking, name),
        f"{statistics.median(form.rounds):.2f}",
        "" if name == PLAIN.name else str(row.of_plain(name)),
        f"{sum(ms.values()):.2f}",
        f"{ms.get('jaxbw', 0) + ms.get('repack, reduce', 0):.2f}",
        *(f"{ms.get(kind, 0):.2f}" for kind in ("xla matmul", "copy", "transpose")),
        f"{counts.get('jaxbw', 0)}",
        matmuls,
        f"{form.temporary_bytes / 2**20:.0f}",
        f"{form.result:.6g}",
    ]


def _means(rows: Sequence[Row]) -> list[str]:
    """Of each stacking and form, the geometric mean over the models."""
    found = []
    for stacking in dict.fromkeys(row.stacking for row in rows):
        of_stacking = [row for row in rows if row.stacking == stacking]
        for name in dict.fromkeys(name for row in of_stacking for name in row.forms):
            if name != PLAIN.name:
                pairs = [
                    (row.forms[PLAIN.name].rounds, row.forms[name].rounds) for row in of_stacking
                ]
                mean = statistics.geometric_mean(pairs)
                found.append(f"{stacking}, {name}: {mean} of plain, {len(pairs)} models")
    return found


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def draw(results: Results, path: Path) -> None:
    """Writes a picture: each form's kernel time by kind.

    Raises:
      ValueError: matplotlib is not installed.
    """
    require_matplotlib("--png")
    from matplotlib import pyplot

    bars = [(row, name) for row in results.rows for name in row.forms]
    figure, axes = pyplot.subplots(figsize=(10, 1 + 0.22 * len(bars)), layout="constrained")
    left = [0.0] * len(bars)
    plain = [_kernel_ms(row, PLAIN.name) for row, _ in bars]
    for kind in (*KINDS, OTHER):
        widths = [
            row.forms[name].launches.milliseconds.get(kind, 0) / whole
            for (row, name), whole in zip(bars, plain, strict=True)
        ]
        axes.barh(range(len(bars)), widths, left=left, label=kind)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    labels = [f"{row.model}, {row.stacking}, {name}" for row, name in bars]
    axes.set_yticks(range(len(bars)), labels, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=1)
    axes.set(xlabel="kernel time of a step, of plain XLA's")
    axes.margins(y=0.01)
    figure.legend(loc="outside upper center", ncols=len(KINDS) + 1, fontsize=7)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _kernel_ms(row: Row, name: str) -> Any:
    return sum(row.forms[name].launches.milliseconds.values())
