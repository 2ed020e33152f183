"""What a launch tells about itself: counts for each role of the warps, findings, a timeline."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from jaxbw._native import emulator as _core

Finding = _core.Finding

_LINES_SHOWN = 4  # of a group of findings


def engine(opcode: str) -> str:
    """Returns what carries out an asynchronous instruction."""
    parts = opcode.split(".")
    if parts[0] == "cp" and "bulk" in parts:
        spaces = [part for part in parts if part.startswith(("shared", "global"))]
        return "TMA store" if spaces[:1] == ["global"] else "TMA load"
    if parts[0] == "tcgen05" and parts[1] in ("ld", "st"):
        return "TMEM load" if parts[1] == "ld" else "TMEM store"
    if parts[0] == "tcgen05" and parts[1] == "alloc":
        return "TMEM allocator"
    if parts[0] in ("tcgen05", "wgmma"):
        return "tensor core"
    return "launch control" if parts[0] == "clusterlaunchcontrol" else parts[0]


_ROLE_OF_ENGINE = {
    "TMA load": "load",
    "tensor core": "multiply",
    "launch control": "schedule",
    "TMEM allocator": "allocate",
    "TMEM load": "epilogue",
    "TMA store": "epilogue",
}


def role(opcodes: Iterable[str]) -> str:
    """Returns the role of a warp that issues these: load, multiply, schedule, allocate, epilogue.

    A warp that multiplies and stores is "multiply + epilogue"; one that issues nothing, "other".
    """
    engines = {engine(opcode) for opcode in opcodes}
    found = [name for key, name in _ROLE_OF_ENGINE.items() if key in engines]
    return " + ".join(dict.fromkeys(found)) or "other"


@dataclass(frozen=True)
class Role:
    """The warps of a CTA that do the same job, and what they did in all CTAs together.

    Attributes:
      name: see `role`; `warps`: their indices in the CTA.
      instructions: of warps, executed.
      operations: asynchronous ones that they issued, by opcode.
      waits: times that they parked, by what for ("mbarrier", "named barrier", "bulk group", ...).
    """

    name: str
    warps: tuple[int, ...]
    instructions: int
    operations: dict[str, int]
    waits: dict[str, int]


def _describe_group(group: list[Any]) -> str:
    count = sum(finding.count for finding in group)
    lines = [str(line) for line in sorted({finding.line for finding in group})]
    shown = ", ".join(lines[:_LINES_SHOWN] + ["..."] * (len(lines) > _LINES_SHOWN))
    how_often = "once" if count == 1 else f"{count} times"
    where = "at line" if len(lines) == 1 else f"at {len(lines)} lines:"
    return f"{group[0].kind}, {how_often} {where} {shown}: {group[0].message}"


@dataclass(frozen=True)
class Report:
    """What happened in a launch.

    Attributes:
      findings: what the kernel did wrong.
      roles: counts by role of the warps.
      instructions: executed by warps, by index of the warp in its CTA.
      bytes, operations: moved and started, by engine. Of the bytes, "global load" is what is read
        from global memory, by TMA or by ordinary loads, "global store" what is written there
        likewise; "tma load" what thereof reaches shared
        memory, in every CTA of a multicast; "mma operands" what tcgen05.mma reads there.
      steps: executed instructions of warps.
      output: what the kernel's printf wrote, in the order of the emulated steps.
      clusters_started, clusters_cancelled: how the clusters of the grid began: as a launch, or by
        being handed to a running cluster that asked (cluster launch control).
      events: what took how long, if the launch was traced.
    """

    findings: list[Any]
    roles: tuple[Role, ...]
    instructions: dict[int, int]
    bytes: dict[str, int]
    operations: dict[str, int]
    steps: int
    output: str
    clusters_started: int
    clusters_cancelled: int
    events: list[Any] = field(repr=False)

    @property
    def waits(self) -> dict[str, int]:
        """Times that a warp parked, by what for."""
        return dict(sum((Counter(role.waits) for role in self.roles), Counter()))

    def summary(self) -> str:
        """Findings that say the same but for numbers, a line for each group, with their counts."""
        groups: dict[tuple[str, str], list[Any]] = {}
        for finding in self.findings:
            pattern = re.sub(r"0x[0-9a-f]+|\d+", "#", finding.message)
            groups.setdefault((finding.kind, pattern), []).append(finding)
        return "\n".join(map(_describe_group, groups.values())) or "no findings"

    def timeline(
        self,
        path: str | PathLike[str] | None = None,
        *,
        png: str | PathLike[str] | None = None,
        ctas: Iterable[int] | None = None,
        window: tuple[int, int] | None = None,
    ) -> None:
        """Writes what warps, barriers and engines did, in the order of the emulated steps.

        Steps are not time: they show who waited for whom in this schedule, not how long it takes.

        Args:
          path: a trace for https://ui.perfetto.dev (Chrome's JSON format).
          png: a picture; takes matplotlib.
          ctas: indices in the grid of the CTAs to show; by default all, in a picture the first two.
          window: first and last step to show.
        Raises:
          ValueError: the launch was not traced.
          ModuleNotFoundError: a picture is asked for, and there is no matplotlib.
        """
        from jaxbw._src.emulator import timeline

        if not self.events:
            raise ValueError("nothing was traced: launch(..., trace=True)")
        shown = None if ctas is None else list(ctas)
        if path is not None:
            timeline.write_trace(self, path, shown, window)
        if png is not None:
            timeline.draw(self, png, shown, window)


def make_report(core: Any) -> Report:
    """Returns the report that the machine's own one tells, warps joined to roles."""
    by_role: dict[str, list[int]] = {}
    for warp in core.instructions:
        by_role.setdefault(role(core.warp_operations.get(warp, {})), []).append(warp)

    def total(counts: dict[int, dict[str, int]], warps: list[int]) -> dict[str, int]:
        return dict(sum((Counter(counts.get(warp, {})) for warp in warps), Counter()))

    return Report(
        findings=core.findings,
        roles=tuple(
            Role(
                name,
                tuple(warps),
                sum(core.instructions[warp] for warp in warps),
                total(core.warp_operations, warps),
                total(core.warp_waits, warps),
            )
            for name, warps in by_role.items()
        ),
        instructions=core.instructions,
        bytes=core.bytes,
        operations=core.operations,
        steps=core.steps,
        output=core.output.decode(errors="replace"),
        clusters_started=core.clusters_started,
        clusters_cancelled=core.clusters_cancelled,
        events=core.events,
    )
