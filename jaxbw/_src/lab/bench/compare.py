"""Two results files against each other: what became faster or slower, and how surely.

A ratio's interval comes from the rounds of both sessions, drawn apart. What differs from session to
session alone (another GPU of the kind, its temperature) is not in it.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxbw._src.lab.bench import report, statistics
from jaxbw._src.lab.bench.case import Case
from jaxbw._src.lab.bench.results import ArmTimes, Results
from jaxbw._src.lab.bench.statistics import Estimate

# Of an environment: what says nothing about the times; and what may differ in a fair comparison.
_IGNORED = ("date", "command", "note")
_FREE = (
    "commit",
    "gpu.index",
    "platform",
    "python",
    "rounds",
    "seed",
    "versions.jaxbw",
    "versions.numpy",
)
_OF_ONE_ARM = {"versions.torch": "torch", "versions.triton": "triton"}


@dataclass(frozen=True)
class Difference:
    """What two files' environments do not agree in; `fatal` if times cannot be compared then."""

    key: str
    first: str
    second: str
    fatal: bool

    def __str__(self) -> str:
        return f"{self.key}: {self.first} | {self.second}"


@dataclass(frozen=True)
class Comparison:
    """An arm's times for a case, in both files. `ratio` is first over second: above 1, the second
    is faster.
    """

    case: Case
    mode: str
    arm: str
    first: ArmTimes
    second: ArmTimes
    ratio: Estimate

    @property
    def verdict(self) -> str:
        """ "faster" or "slower" where the interval excludes 1, else ""."""
        if self.ratio.low > 1:
            return "faster"
        return "slower" if self.ratio.high < 1 else ""


def compare(first: Results, second: Results, arms: Collection[str] | None) -> list[Comparison]:
    """What both files have measured, and rightly.

    Args:
      first, second: the files.
      arms: by name; None for all.

    Raises:
      ValueError: they have nothing in common.
    """
    found = []
    for row in first.rows:
        other = second.find(row.case, row.mode)
        if other is None:
            continue
        for name, times in row.arms.items():
            if (arms is not None and name not in arms) or name not in other.arms:
                continue
            if times.correct and other.arms[name].correct:
                against = other.arms[name]
                ratio = statistics.ratio(times.rounds, against.rounds, paired=False)
                found.append(Comparison(row.case, row.mode, name, times, against, ratio))
    if not found:
        raise ValueError(
            f"the files have no right result of the same matmul, mode and arm: the first has "
            f"{_contents(first)}; the second {_contents(second)}"
        )
    return found


def differences(first: Results, second: Results, arms: Collection[str]) -> list[Difference]:
    """What the environments of two files do not agree in, what is fatal first."""
    known = [_environment(results) for results in (first, second)]
    found = []
    for key in dict.fromkeys([*known[0], *known[1]]):
        one, two = (", ".join(sorted(each.get(key, {"nothing"}))) for each in known)
        concerned = key not in _OF_ONE_ARM or _OF_ONE_ARM[key] in arms
        if one != two and concerned:
            found.append(Difference(key, one, two, key not in _FREE))
    return sorted(found, key=lambda each: not each.fatal)


def text(comparisons: Sequence[Comparison], found: Sequence[Difference]) -> str:
    """A row for each matmul, the means, and how the environments differ."""
    header = ["matmul", "mode", "arm", "first us", "second us", "first / second", "second is"]
    rows = [
        [
            str(each.case),
            each.mode,
            each.arm,
            f"{each.first.median:.2f}",
            f"{each.second.median:.2f}",
            str(each.ratio),
            each.verdict or "-",
        ]
        for each in comparisons
    ]
    lines = [report.columns([header, *rows]), "", *_means(comparisons), ""]
    lines += [f"Differs: {each}" for each in found] or ["The environments agree."]
    lines += [
        "",
        "faster or slower where the 95 % interval excludes 1. It is of the rounds; sessions may "
        "differ by more.",
    ]
    return "\n".join(lines)


def to_json(comparisons: Sequence[Comparison], found: Sequence[Difference]) -> dict[str, Any]:
    """The same, for programs."""
    rows = [
        {
            "matmul": str(each.case),
            "mode": each.mode,
            "arm": each.arm,
            "first_us": each.first.median,
            "second_us": each.second.median,
            "ratio": vars(each.ratio),
            "verdict": each.verdict,
        }
        for each in comparisons
    ]
    return {"comparisons": rows, "differences": [vars(each) for each in found]}


def draw(comparisons: Sequence[Comparison], names: tuple[str, str], path: Path) -> None:
    """Writes a picture of the ratios with their intervals.

    Raises:
      ValueError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError('--png needs matplotlib; pip install "jaxbw[bench]"') from error
    figure = Figure(figsize=(9, 1.6 + 0.25 * len(comparisons)), layout="constrained")
    axes = figure.subplots()
    for verdict, colour in (("faster", "C2"), ("slower", "C3"), ("", "0.6")):
        mine = [(i, each.ratio) for i, each in enumerate(comparisons) if each.verdict == verdict]
        values = [ratio.value for _, ratio in mine]
        below = [max(0.0, ratio.value - ratio.low) for _, ratio in mine]
        above = [max(0.0, ratio.high - ratio.value) for _, ratio in mine]
        label = f"{verdict or 'no difference shown'} ({len(mine)})"
        places = [i for i, _ in mine]
        axes.errorbar(values, places, xerr=[below, above], fmt="o", color=colour, label=label)
    axes.axvline(1, color="black", linewidth=1)
    labels = [f"{each.case} {each.mode}, {each.arm}" for each in comparisons]
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(f"time of {names[0]} over that of {names[1]}, 95 % interval of the rounds")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper right", ncols=3, frameon=False)
    figure.savefig(path, dpi=120)


def _means(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """The geometric mean of each arm and mode."""
    for arm, mode in dict.fromkeys((each.arm, each.mode) for each in comparisons):
        mine = [each for each in comparisons if (each.arm, each.mode) == (arm, mode)]
        pairs = [(each.first.rounds, each.second.rounds) for each in mine]
        mean = statistics.geometric_mean(pairs, paired=False)
        counts = [sum(each.verdict == v for each in mine) for v in ("faster", "slower")]
        yield (
            f"{arm}, {mode}: {mean} in the geometric mean of {len(mine)}; "
            f"{counts[0]} faster, {counts[1]} slower"
        )


def _environment(results: Results) -> dict[str, set[str]]:
    """Every value that a part of the environments has in a file's sessions."""
    used = {row.session for row in results.rows}
    found: dict[str, set[str]] = {}
    for session, described in results.sessions.items():
        if session in used:
            for key, value in _flat(described):
                found.setdefault(key, set()).add(str(value))
    return found


def _flat(described: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in described.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif prefix or key not in _IGNORED:
            yield prefix + key, value


def _contents(results: Results) -> str:
    """Some of what a file has measured."""
    names = [f"{row.case} {row.mode} ({', '.join(row.arms)})" for row in results.rows]
    return "; ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
