"""The choice of implementation, kernel and configuration: a pure function of problem and device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jaxbw import _native
from jaxbw.problem import GemmProblem
from jaxbw.selection import config as configs
from jaxbw.selection import cost_model, eligibility
from jaxbw.selection.config import GemmConfig
from jaxbw.selection.devices import Device, for_family
from jaxbw.selection.implementations import EMULATED
from jaxbw.selection.kernel_table import Kernel

# Families that implementation=None may take: sm90 has run on a GPU; of sm100, which has not, the
# emulator's sweep over all instances is green (benchmarks/results/2026-11-21_sweep.json).
VERIFIED_FAMILIES = frozenset({"sm90", "sm100"})


@dataclass(frozen=True)
class Refusal:
    """A candidate that was not taken, and why."""

    candidate: str
    reason: str

    def __str__(self) -> str:
        return f"{self.candidate}: {self.reason}"


@dataclass(frozen=True)
class Choice:
    """What serves a matrix product, and why.

    Attributes:
      implementation: "sm100", "sm90", "xla", "emulator" or "emulator-sm90".
      kernel: name of the kernel; None for XLA.
      config: its launch configuration, every field filled in; None for XLA.
      waves: how often the product fills the device with tiles; None for XLA.
      reason: why this one.
      refused: what was not taken, with reasons.
      problem: the product, reduced to one batched GEMM, in words.
      device: the GPU that the choice is for, or that is emulated; None where there is none.
    """

    implementation: str
    kernel: str | None
    config: GemmConfig | None
    waves: int | None
    reason: str
    refused: tuple[Refusal, ...]
    problem: str
    device: str | None

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
                f"  waves           {self.waves}",
            ]
        lines.append(f"  reason          {self.reason}")
        lines += [f"  refused         {refusal}" for refusal in self.refused]
        return "\n".join(lines)


def select(
    problem: GemmProblem,
    device: Device | None,
    implementations: Sequence[str] | None,
    config: GemmConfig | None,
    kernels: Sequence[Kernel],
) -> Choice | tuple[Refusal, ...]:
    """Chooses what serves a problem.

    Args:
      problem: the product.
      device: the GPU it is for; None where there is none. The emulator stands in for it where it
        is a target that runs the emulated kernels, else for their family's default target.
      implementations: what may serve it, in order; None for the family of the device if it is
        verified, else XLA.
      config: the configuration to use; None to choose one.
      kernels: what is installed.

    Returns:
      The choice; or, where all of `implementations` refuse, why each does.
    """
    refused: list[Refusal] = []
    for name in implementations if implementations is not None else _free_choice(device):
        if name == "xla":
            reason = _reason_for_xla(device, implementations is None, bool(refused))
            device_name = device.name if device is not None else None
            return Choice(
                "xla", None, None, None, reason, tuple(refused), str(problem), device_name
            )
        family = EMULATED.get(name, name)
        on = for_family(device, family) if name in EMULATED else device
        reason_against = _family_refusal(problem, on, family, kernels)
        if reason_against is None and implementations is None and name not in VERIFIED_FAMILIES:
            reason_against = "kernel not yet verified"
        if reason_against is not None:
            refused.append(Refusal(name, reason_against))
            continue
        assert on is not None
        chosen = _best(problem, on, family, config, kernels, refused)
        if chosen is not None and name in EMULATED:
            return replace(chosen, implementation=name, device=f"{on.name}, emulated on the CPU")
        if chosen is not None:
            return chosen
    return tuple(refused)


def _free_choice(device: Device | None) -> tuple[str, ...]:
    family = device.family if device is not None else None
    return (family, "xla") if family is not None else ("xla",)


def _reason_for_xla(device: Device | None, is_free: bool, any_refused: bool) -> str:
    if any_refused:
        return "no kernel serves this product, see refused"
    if not is_free:
        return "asked for"
    if device is None:
        return "there is no CUDA GPU, and no target is named"
    return f"there are no kernels for {device}"


def problem_refusals(
    problem: GemmProblem,
    implementations: Sequence[str],
    config: GemmConfig | None,
    devices: Sequence[Device | None],
    kernels: Sequence[Kernel],
) -> tuple[Refusal, ...]:
    """Why none of the implementations could serve a problem on its own kind of device; else ().

    What is asked when a call is traced: whether this machine has such a device is a question of
    the platform, which is asked when it is lowered.

    Args:
      devices: a device for each of the implementations; None for "xla".
    """
    refused: list[Refusal] = []
    for name, device in zip(implementations, devices, strict=True):
        outcome = select(problem, device, (name,), config, kernels)
        if isinstance(outcome, Choice):
            return ()
        refused.extend(outcome)
    return tuple(refused)


def _family_refusal(
    problem: GemmProblem, device: Device | None, family: str, kernels: Sequence[Kernel]
) -> str | None:
    if (reason := eligibility.refusal(problem)) is not None:
        return reason
    if not any(kernel.family == family for kernel in kernels):
        return f"this installation has no {family} kernels: it was built without them"
    if device is None:
        return "there is no CUDA GPU, and no target is named"
    if device.family != family:
        needed = "9.0 (H100, H200)" if family == "sm90" else "10.0 or 10.3 (B200, GB200, B300)"
        return f"this is {device}; the kernels need compute capability {needed}"
    return f"{device.name}: {device.problem}" if device.problem is not None else None


def _best(
    problem: GemmProblem,
    device: Device,
    family: str,
    config: GemmConfig | None,
    kernels: Sequence[Kernel],
    refused: list[Refusal],
) -> Choice | None:
    """The cheapest candidate of a family; ties go to the larger tile, then the smaller cluster."""
    ranked = []
    for kernel in kernels:
        if kernel.family != family or not _matches(kernel, problem):
            continue
        given = config is not None
        for candidate in (config,) if config is not None else _candidates(problem, device, kernel):
            label = f"{kernel.name} {candidate.block_m}x{candidate.block_n} {candidate.cluster}"
            reason = _candidate_refusal(candidate, kernel, problem)
            if reason is not None:
                refused.append(Refusal(label, reason))
                continue
            filled = _filled(candidate, problem, device, family, choose_swizzle=not given)
            cost = cost_model.cost(problem, device, family, filled)
            area = filled.block_m * filled.block_n
            ranked.append((cost.cycles, -area, filled.cluster, kernel.name, filled, cost.waves))
    if not ranked:
        return None
    _, _, _, name, chosen, waves = min(ranked, key=lambda entry: entry[:4])
    others = [
        Refusal(
            f"{other} {candidate.block_m}x{candidate.block_n} {candidate.cluster}",
            f"{cycles:.0f} predicted cycles",
        )
        for cycles, _, _, other, candidate, _ in sorted(ranked, key=lambda entry: entry[:4])[1:]
    ]
    reason = (
        "the given configuration"
        if config is not None
        else f"the fewest predicted cycles of {len(ranked)} candidates"
    )
    return Choice(
        family,
        name,
        chosen,
        waves,
        reason,
        (*refused, *others),
        str(problem),
        device.name,
    )


def _matches(kernel: Kernel, problem: GemmProblem) -> bool:
    return kernel.input in ("16bit", eligibility.INPUTS[problem.lhs_dtype]) and kernel.layout in (
        "any",
        problem.layout,
    )


def _candidate_refusal(candidate: GemmConfig, kernel: Kernel, problem: GemmProblem) -> str | None:
    if kernel.cta_group != candidate.cta_group or kernel.block_n not in (None, candidate.block_n):
        return "the kernel has another tile than the given configuration"
    return configs.refusal(candidate, kernel.family) or configs.layout_refusal(
        candidate, problem.lhs_major, problem.rhs_major
    )


def _candidates(problem: GemmProblem, device: Device, kernel: Kernel) -> Iterator[GemmConfig]:
    """Every tile of a kernel, alone and where it pays in a cluster of two.

    Two CTAs above each other share the tile of B. That needs two tiles along M, and saves nothing
    when every tile runs at once: the loads of a single wave are not what it waits for.
    """
    widths = range(32, 257, 32) if kernel.block_n is None else (kernel.block_n,)
    for width in widths:
        alone = GemmConfig(
            kernel.block_m, width, cluster=(kernel.cta_group, 1), cta_group=kernel.cta_group
        )
        yield alone
        if kernel.cta_group == 1:
            tiles_m, _ = cost_model.grid(problem, alone)
            waves = cost_model.cost(problem, device, kernel.family, alone).waves
            if tiles_m >= 2 and waves > 1:
                yield replace(alone, cluster=(2, 1))


def _filled(
    config: GemmConfig, problem: GemmProblem, device: Device, family: str, *, choose_swizzle: bool
) -> GemmConfig:
    if config.stages is None:
        deepest = _native.max_stages(family, config.block_m, config.block_n, config.cta_group)
        config = replace(config, stages=deepest)
    if choose_swizzle:
        config = replace(config, swizzle=cost_model.rasterisation(problem, device, config))
    return config
