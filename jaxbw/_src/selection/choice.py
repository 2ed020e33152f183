"""What the selection answers: a choice, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxbw._src.selection.config import GemmConfig

if TYPE_CHECKING:
    from jaxbw._src.selection.estimate import Estimate
    from jaxbw._src.selection.search import Cost, Ranked


@dataclass(frozen=True)
class Refusal:
    """A candidate that was not taken, and why."""

    candidate: str
    reason: str

    def __str__(self) -> str:
        return f"{self.candidate}: {self.reason}"


@dataclass(frozen=True)
class Choice:
    """What serves a matmul, and why.

    Attributes:
      implementation: "sm100", "sm90", "xla", "emulator" or "emulator-sm90".
      kernel: name of the kernel; None for XLA.
      config: its launch configuration, every field filled in; None for XLA.
      cost: its modelled time, term by term; None for XLA.
      wave: clusters that the device is taken to run at a time, where `split_tail` splits the last
        tiles % wave; else 0. None for XLA.
      repacked: which of "lhs" and "rhs" are copied first, within the call.
      candidates: the best configurations by the model, this one first, or those that XLA is
        quicker than; () where the configuration was given, and for XLA without such.
      reason: why this one.
      refused: implementations that were not taken, with reasons.
      problem: the matmul, reduced to one batched GEMM, in words.
      device: the GPU that the choice is for, or that is emulated; None where there is none.
      xla_us: XLA's time in microseconds, where it was weighed against the kernel's; else None.
      estimate: the time on a Blackwell GPU by the pipeline model (docs/blackwell-model.md), which
        `jaxbw.explain` adds; None elsewhere, and where that does not model the configuration.
    """

    implementation: str
    kernel: str | None
    config: GemmConfig | None
    cost: Cost | None
    wave: int | None
    repacked: tuple[str, ...]
    candidates: tuple[Ranked, ...]
    reason: str
    refused: tuple[Refusal, ...]
    problem: str
    device: str | None
    xla_us: float | None = None
    estimate: Estimate | None = None

    @property
    def waves(self) -> int | None:
        """How often the matmul fills the device with work items; None for XLA."""
        return None if self.cost is None else self.cost.waves

    def summary(self) -> str:
        """What serves the matmul, how and why, in a line."""
        text = f"{self.problem}: {self.implementation}"
        if self.kernel is not None:
            text += f" on {self.device}, {self.kernel}, {self.config}"
        text += f": {self.reason}"
        return "; ".join([text, *(f"refused {refusal}" for refusal in self.refused)])

    def __str__(self) -> str:
        lines = [
            self.problem,
            f"  device          {self.device or 'none'}",
            f"  implementation  {self.implementation}",
        ]
        if self.kernel is not None:
            lines += [
                f"  kernel          {self.kernel}",
                f"  config          {self.config}",
                f"  modelled        {self.cost}",
            ]
        if self.estimate is not None:
            lines.append(f"  pipeline model  {self.estimate}")
        if self.repacked:
            lines.append(f"  repacked        {', '.join(self.repacked)}")
        lines.append(f"  reason          {self.reason}")
        lines += [f"  refused         {refusal}" for refusal in self.refused]
        return "\n".join(lines)
