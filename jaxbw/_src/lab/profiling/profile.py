"""A profile: one launch as a trace for Perfetto, and as a table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from statistics import median
from typing import Any

from jaxbw._src import perfetto
from jaxbw._src.emulator.report import Report
from jaxbw._src.perfetto import Group
from jaxbw._src.selection.choice import Choice
from jaxbw._src.selection.ragged import RaggedChoice

MOMENTS = (
    "first load issued",
    "first stage full",
    "first multiply issued",
    "last multiply done",
    "epilogue begins",
    "epilogue ends",
    "exit",
)
SHOWN = 200_000  # spans in a trace, unless CTAs are named: what Perfetto still shows at once


@dataclass(frozen=True)
class Profile:
    """What every warp of one launch did when. `print` shows a table, `write` writes the trace.

    Attributes:
      choice: kernel and configuration, as `jaxbw.explain` gives them; of a grouped matmul a
        dataclass with "problem", "kernel", "config", "device" and "reason".
      machine: the GPU that it ran on, or "emulator".
      unit: "us", or of the emulator "steps", which are order, not time.
      moments: by name the moment in each CTA, from the first stamp of the launch.
      shares: by role of the warps and by what they did, the part of their time; of a GPU only.
      lost: stamps that did not fit the memory that they have.
      normal_us, profiled_us: median time of the shipped kernel and of the one that stamps; of a GPU
        only.
      kernels: by name the median time of each kernel of a call: beside the one that is shown, what
        makes the table of a grouped matmul's tiles, say. They overlap: the one behind starts
        early, and waits for the one ahead. Of a GPU only.
      ghz, tick_ns: of the SMs' clocks, and of the one that they share: moments of different SMs
        compare to within a tick; of a GPU only.
      groups: the tracks of each CTA.
      report: what the emulator tells, with counts of instructions and a picture of its own,
        `report.timeline(png=...)`; of the emulator only.
    """

    choice: Choice | RaggedChoice
    machine: str
    unit: str
    moments: Mapping[str, Sequence[float]]
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    lost: int = 0
    normal_us: float | None = None
    profiled_us: float | None = None
    kernels: Mapping[str, float] = field(default_factory=dict)
    ghz: float | None = None
    tick_ns: int | None = None
    groups: Sequence[Group] = field(default=(), repr=False)
    report: Report | None = field(default=None, repr=False)

    @property
    def overhead(self) -> float | None:
        """What the stamps cost: by how much the profiled kernel is slower; None of the emulator."""
        if self.normal_us is None or self.profiled_us is None:
            return None
        return self.profiled_us / self.normal_us - 1

    def write(self, path: str | PathLike[str], ctas: Iterable[int] | None = None) -> None:
        """Writes a trace for https://ui.perfetto.dev (Chrome's JSON format).

        Args:
          path: the file.
          ctas: which to show; default the first ones, as many as Perfetto shows at once.

        Raises:
          ValueError: a CTA that was not launched.
        """
        wanted = None if ctas is None else set(ctas)
        missing = (wanted or set()) - {group.number for group in self.groups}
        if missing:
            raise ValueError(f"jaxbw.profile: no CTA {min(missing)}; {len(self.groups)} ran")
        shown: list[Group] = []
        spans = 0
        for group in self.groups:
            spans += sum(len(track.spans) for track in group.tracks)
            if group.number in wanted if wanted is not None else not shown or spans <= SHOWN:
                shown.append(group)
        perfetto.write(path, shown, **self._said(len(shown)))

    def to_json(self) -> dict[str, Any]:
        """All but the single stamps, for programs."""
        return {
            "matmul": self.choice.problem,
            "kernel": self.choice.kernel,
            "config": str(self.choice.config),
            "machine": self.machine,
            "unit": self.unit,
            "normal_us": self.normal_us,
            "profiled_us": self.profiled_us,
            "overhead": self.overhead,
            "kernels": self.kernels,
            "ghz": self.ghz,
            "tick_ns": self.tick_ns,
            "ctas": len(self.groups),
            "moments": {name: _edges(found) for name, found in self.moments.items()},
            "shares": self.shares,
            "lost": self.lost,
        }

    def _said(self, shown: int) -> dict[str, str]:
        """What the trace says of itself."""
        time = "microseconds" if self.unit == "us" else "emulated steps: order, not time"
        return {
            "matmul": self.choice.problem,
            "kernel": f"{self.choice.kernel}, {self.choice.config}",
            "machine": self.machine,
            "time": time,
            "CTAs": f"{shown} of {len(self.groups)}",
            **({} if self.overhead is None else {"stamps": f"{self._cost()}"}),
        }

    def _cost(self) -> str:
        return (
            f"{self.profiled_us:.2f} us with stamps, {self.normal_us:.2f} us without: "
            f"{self.overhead:+.1%}"
        )

    def __str__(self) -> str:
        unit = "us" if self.unit == "us" else "emulated steps (order, not time)"
        lines = [
            f"{self.choice.problem} on {self.machine}",
            f"  {self.choice.kernel}, {self.choice.config}",
        ]
        if self.overhead is not None:
            lines.append(f"  {self._cost()}; {self.ghz:.2f} GHz, SMs within {self.tick_ns} ns")
        if len(self.kernels) > 1:
            lines += [f"    {us:9.2f} us  {name}" for name, us in self.kernels.items()]
        lines.append(f"  {unit} from the start of the kernel, of {len(self.groups)} CTAs:")
        lines.append(f"    {'':24s}{'least':>12s}{'median':>12s}{'most':>12s}")
        digits = 2 if self.unit == "us" else 0
        for name, found in self.moments.items():
            cells = "".join(f"{value:12.{digits}f}" for value in _edges(found).values())
            lines.append(f"    {name:24s}{cells}")
        for role, parts in self.shares.items():
            told = ", ".join(f"{what} {part:.1%}" for what, part in parts.items() if part >= 0.005)
            lines.append(f"  {role}: {told}")
        if self.lost:
            lines.append(f"  {self.lost} stamps did not fit: profile a matmul with a smaller K")
        return "\n".join(lines)


def _edges(found: Sequence[float]) -> dict[str, float]:
    return {"least": min(found), "median": median(found), "most": max(found)}
