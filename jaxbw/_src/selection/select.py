"""The choice of implementation, kernel and configuration: a pure function of problem and device."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from jaxbw._native import Plan, Violation
from jaxbw._src.families import FAMILIES
from jaxbw._src.problem import GemmProblem
from jaxbw._src.selection import eligibility, planner
from jaxbw._src.selection.choice import Choice, Refusal
from jaxbw._src.selection.config import ANY, CANONICAL_M, GemmConfig
from jaxbw._src.selection.devices import Device, for_family
from jaxbw._src.selection.implementations import EMULATED
from jaxbw._src.selection.kernel_table import Kernel
from jaxbw._src.selection.search import KEPT, Instances, Ranked, available, price, search
from jaxbw._src.selection.tuned import Table, table_for
from jaxbw._src.selection.tuned_matmuls import TunedMatmuls
from jaxbw._src.selection.workload import Workload, workload
from jaxbw._src.selection.xla import XlaTime, xla_time

# Families that implementation=None may take: sm90 has run on a GPU; of sm100, which has not, the
# emulator's sweep over all instances is green (benchmarks/results/2026-11-25_sweep.json).
VERIFIED_FAMILIES = frozenset({"sm90", "sm100"})


def select(
    problem: GemmProblem,
    device: Device | None,
    implementations: Sequence[str] | None,
    config: GemmConfig | None,
    kernels: Sequence[Kernel],
    tuned: TunedMatmuls | None = None,
    *,
    weighs_xla: bool = True,
) -> Choice | tuple[Refusal, ...]:
    """Chooses what serves a problem.

    Args:
      problem: the matmul.
      device: the GPU it is for; None where there is none. The emulator stands in for it where it
        is a target that runs the emulated kernels, else for their family's default target.
      implementations: what may serve it, in order; None for the family of the device if it is
        verified, else XLA.
      config: the configuration to use; None to choose one. Without a tile it says of what kind.
      kernels: what is installed.
      tuned: the user's table of measured matmuls, if one is in use.
      weighs_xla: whether XLA serves what it is quicker at; only with neither `implementations` nor
        a config.

    Returns:
      The choice; or, where all of `implementations` refuse, why each does.
    """
    refused: list[Refusal] = []
    for name in implementations if implementations is not None else _free_choice(device):
        if name == "xla":
            reason = _reason_for_xla(device, implementations is None, bool(refused))
            return _on_xla(problem, device, reason, refused)
        family = EMULATED.get(name, name)
        on = for_family(device, family) if name in EMULATED else device
        seen = problem.on(family)
        for_every_m = config is not None and config.is_for_every_m
        reason_against = _family_refusal(seen, on, family, kernels, for_every_m=for_every_m)
        if reason_against is None and implementations is None:
            reason_against = _reason_to_leave(seen, name, config)
        if reason_against is not None:
            refused.append(Refusal(name, reason_against))
            continue
        assert on is not None
        sized = seen.sized(CANONICAL_M)
        is_free = implementations is None and config is None and sized == seen and weighs_xla
        if config is None or config.leaves_tile_open:
            wanted = config or ANY
            chosen: Choice | Refusal | None = None
            if tuned is not None and not wanted.batch_invariant:
                chosen = _measured(sized, on, family, kernels, tuned, wanted, weighs_xla=is_free)
            if isinstance(chosen, Refusal):
                refused.append(chosen)
            if not isinstance(chosen, Choice):
                chosen = _chosen(sized, on, family, kernels, wanted, weighs_xla=is_free)
        else:
            chosen = _given(sized, on, family, config, kernels)
        if sized != seen and isinstance(chosen, Choice):
            reason = f"{chosen.reason}; priced for {sized.batch} x {sized.m} rows"
            chosen = replace(chosen, problem=str(seen), reason=reason)
        if isinstance(chosen, Refusal):
            refused.append(chosen)
        elif name in EMULATED:
            on_cpu = f"{on.name}, emulated on the CPU"
            return replace(chosen, implementation=name, device=on_cpu, refused=tuple(refused))
        else:
            return replace(chosen, refused=tuple(refused))
    return tuple(refused)


def _reason_to_leave(problem: GemmProblem, name: str, config: GemmConfig | None) -> str | None:
    """Why a family is passed over where no implementation is asked for."""
    if name not in VERIFIED_FAMILIES:
        return "kernel not yet verified"
    if config is None and problem.lhs_dtype in FAMILIES[name].on_request:
        return (
            f"the operands are {problem.lhs_dtype}, at which XLA is as quick or quicker; "
            f"implementation={name!r} asks for the kernel"
        )
    return None


def _free_choice(device: Device | None) -> tuple[str, ...]:
    family = device.family if device is not None else None
    return (family, "xla") if family is not None else ("xla",)


def _on_xla(
    problem: GemmProblem, device: Device | None, reason: str, refused: Sequence[Refusal]
) -> Choice:
    return Choice(
        implementation="xla",
        kernel=None,
        config=None,
        cost=None,
        wave=None,
        repacked=(),
        candidates=(),
        reason=reason,
        refused=tuple(refused),
        problem=str(problem),
        device=device.name if device is not None else None,
    )


def _reason_for_xla(device: Device | None, is_free: bool, any_refused: bool) -> str:
    if any_refused:
        return "no kernel serves this matmul, see refused"
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
    wanted = config or ANY
    for name, device in zip(implementations, devices, strict=True):
        if name == "xla":
            return ()
        family = EMULATED.get(name, name)
        seen = problem.on(family)
        reason = _family_refusal(seen, device, family, kernels, for_every_m=wanted.is_for_every_m)
        sized = seen.sized(CANONICAL_M)
        against: Refusal | None
        if reason is not None:
            against = Refusal(name, reason)
        elif wanted.leaves_tile_open:
            against = _no_candidate(sized, family, kernels, wanted)
        else:
            against = _refusal_of(sized, family, wanted, kernels)
        if against is None:
            return ()
        refused.append(against)
    return tuple(refused)


def _no_candidate(
    problem: GemmProblem, family: str, kernels: Sequence[Kernel], wanted: GemmConfig
) -> Refusal | None:
    """Why no configuration of a kind can be chosen; None where one can."""
    if (fault := planner.config_refusal(wanted, family)) is not None:
        return Refusal(family, fault)
    whole = wanted.batch_invariant
    for swapped in (False,) if whole else (False, True):
        work = workload(problem, family, swapped=swapped)
        if len(available(family, work, _installed(kernels), whole=whole)) > 0:
            return None
    return Refusal(family, "this installation has no kernel for the matmul's dtype and layout")


def _family_refusal(
    problem: GemmProblem,
    device: Device | None,
    family: str,
    kernels: Sequence[Kernel],
    *,
    for_every_m: bool,
) -> str | None:
    reason = eligibility.refusal(problem, family, for_every_m=for_every_m)
    if reason is not None:
        return reason
    if not any(kernel.family == family for kernel in kernels):
        return f"this installation has no {family} kernels: it was built without them"
    if device is None:
        return "there is no CUDA GPU, and no target is named"
    if device.family != family:
        return f"this is {device}; the kernels need compute capability {FAMILIES[family].gpus}"
    return f"{device.name}: {device.problem}" if device.problem is not None else None


def ranking(
    problem: GemmProblem,
    device: Device,
    family: str,
    kernels: Sequence[Kernel],
    *,
    tuned: Table | None,
    wanted: GemmConfig = ANY,
    kept: int = KEPT,
) -> tuple[int, tuple[Ranked, ...]]:
    """How many candidates of a family there are for a problem, and the best of them.

    Args:
      problem, device, kernels: as in `select`; the device has the family.
      family: "sm90" or "sm100".
      tuned: corrects the model.
      wanted: of what kind they are: it has no tile.
      kept: how many at most.
    """
    installed = _installed(kernels)
    may_swap = not (wanted.batch_invariant or problem.promoted_by_blocks)
    straight, swapped_side = (
        (workload(problem, family, swapped=swapped), installed) for swapped in (False, True)
    )
    return search(
        family,
        device.machine,
        straight,
        swapped_side if may_swap else None,
        wanted=wanted,
        tuned=tuned,
        kept=kept,
    )


def _chosen(
    problem: GemmProblem,
    device: Device,
    family: str,
    kernels: Sequence[Kernel],
    wanted: GemmConfig,
    *,
    weighs_xla: bool,
) -> Choice | Refusal:
    """The best candidate of a family by the model, or XLA."""
    if (refusal := _no_candidate(problem, family, kernels, wanted)) is not None:
        return refusal
    straight = workload(problem, family, swapped=False)
    tuned = table_for(device.machine.name, straight.itemsize)
    count, ranked = ranking(problem, device, family, kernels, tuned=tuned, wanted=wanted)
    reason = f"the least modelled time of {count} candidates"
    if device.machine.corners:
        reason += ", weighed over uncertain constants"
    if tuned is not None and tuned.covers(straight):
        reason += f", corrected by measurements of {tuned}"
    if wanted.batch_invariant:  # ranked for the canonical problem; what is told is this one's
        ranked = tuple(_price(device, family, straight, r.config) for r in ranked)
        reason += ", for every m and batch"
    best, xla = ranked[0], xla_time(problem, device) if weighs_xla else None
    if xla is not None:
        if xla.is_quicker_than(best.cost.total):
            return _on_quicker_xla(problem, device, xla, ranked)
        reason += f"; {best.cost.total:.2f} us, XLA {xla}"
    chosen = _choice(problem, device, family, best, reason, ranked)
    return chosen if xla is None else replace(chosen, xla_us=xla.us)


def _on_quicker_xla(
    problem: GemmProblem, device: Device, xla: XlaTime, ranked: tuple[Ranked, ...]
) -> Choice:
    """XLA in the place of kernels, of which these are the best."""
    reason = f"modelled {xla}, the best kernel {ranked[0].cost.total:.2f} us"
    return replace(_on_xla(problem, device, reason, ()), xla_us=xla.us, candidates=ranked)


def _measured(
    problem: GemmProblem,
    device: Device,
    family: str,
    kernels: Sequence[Kernel],
    tuned: TunedMatmuls,
    wanted: GemmConfig,
    *,
    weighs_xla: bool,
) -> Choice | Refusal | None:
    """What the user's table has for a matmul, if it can be launched; None where it has nothing."""
    entry = tuned.find(problem, device)
    if entry is None:
        return None
    of_entry, of_wanted = (
        planner.scheduler_on(config.scheduler, family) for config in (entry.config, wanted)
    )
    if of_entry != of_wanted:
        return None
    if weighs_xla and entry.is_for_xla:
        reason = (
            f"measured {entry.xla_us:.2f} us, the fastest of {entry.configurations} configurations "
            f"{entry.us:.2f} us, by {tuned.source}"
        )
        return replace(_on_xla(problem, device, reason, ()), xla_us=entry.xla_us)
    chosen = _given(problem, device, family, entry.config, kernels)
    if isinstance(chosen, Refusal):
        return Refusal(f"{family} as {tuned.source} has it", chosen.reason)
    xla = "" if entry.xla_us is None else f"XLA {entry.xla_us:.2f} us, "
    reason = (
        f"measured the fastest of {entry.configurations} configurations, {entry.us:.2f} us, "
        f"{xla}by {tuned.source}"
    )
    return replace(chosen, reason=reason, xla_us=entry.xla_us)


def _price(device: Device, family: str, work: Workload, config: GemmConfig) -> Ranked:
    machine = device.machine
    return price(family, machine, work, config, table_for(machine.name, work.itemsize))


def _given(
    problem: GemmProblem,
    device: Device,
    family: str,
    config: GemmConfig,
    kernels: Sequence[Kernel],
) -> Choice | Refusal:
    """The configuration that the user gives, if it can be launched."""
    if (refusal := _refusal_of(problem, family, config, kernels)) is not None:
        return refusal
    priced = _price(device, family, workload(problem, family, swapped=config.swap_ab), config)
    return _choice(problem, device, family, priced, "the given configuration", ())


def _refusal_of(
    problem: GemmProblem, family: str, config: GemmConfig, kernels: Sequence[Kernel]
) -> Refusal | None:
    """Why a configuration with a tile cannot be launched; None where it can."""
    label = f"{family} with the given configuration"
    if (reason := planner.config_refusal(config, family)) is not None:
        return Refusal(label, reason)
    plan = planner.plan(problem, family, config)
    if isinstance(plan, Violation):
        return Refusal(label, planner.message(plan, family, config))
    if plan.kernel not in _installed(kernels):
        return Refusal(label, "this installation has no kernel for this tile, dtype and layout")
    return None


def _choice(
    problem: GemmProblem,
    device: Device,
    family: str,
    best: Ranked,
    reason: str,
    ranked: tuple[Ranked, ...],
) -> Choice:
    plan = planner.plan(problem, family, best.config, best.wave or 1)
    assert isinstance(plan, Plan), str(plan)
    return Choice(
        implementation=family,
        kernel=plan.kernel,
        config=best.config,
        cost=best.cost,
        wave=best.wave,
        repacked=plan.repacked,
        candidates=ranked,
        reason=reason,
        refused=(),
        problem=str(problem),
        device=device.name,
    )


@cache
def _installed(kernels: Sequence[Kernel]) -> Instances:
    """The names of the kernels of matmuls without groups."""
    return frozenset(kernel.name for kernel in kernels if kernel.is_dense)
