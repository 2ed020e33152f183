"""A profile from the emulator: the kernel that ships, and what the emulator saw of it.

It needs no GPU and no compiler. It counts steps: who waited for whom, not how long.
"""

import math
from typing import Any

import numpy as np

from jaxbw import _native
from jaxbw._native import emulator as _core
from jaxbw._src.emulator import tensor_map, timeline
from jaxbw._src.emulator.report import Report, engine, make_report
from jaxbw._src.lab import group_sizes
from jaxbw._src.lab.profiling.profile import MOMENTS, Profile
from jaxbw._src.lab.tuning import arrays
from jaxbw._src.lab.tuning.launching import Chosen, Matmul, plan_of
from jaxbw._src.problem import DATA_TYPES

LARGEST = 2**31  # multiply-adds: a minute or two

_Kind = _core.EventKind


def profile(
    problem: Matmul,
    choice: Chosen,
    sm_count: int | None,
    sizes: str | group_sizes.Sizes = group_sizes.DEFAULT,
) -> Profile:
    """Runs the matmul on so many SMs, by default two clusters at a time.

    `sizes`: as of `group_sizes.of_problem`.

    Raises:
      ValueError: the matmul is too large, or there are fewer SMs than a cluster has CTAs.
      RuntimeError: the emulator found something wrong.
    """
    config = choice.config
    assert config is not None
    size = config.cluster[0] * config.cluster[1] * config.cluster_k
    if sm_count is not None and sm_count < size:
        raise ValueError(f"jaxbw.profile: sm_count is {sm_count}; a cluster has {size} CTAs")
    work = problem.batch * problem.m * problem.n * problem.k
    if work > LARGEST:
        raise ValueError(
            f"jaxbw.profile: {choice.problem} takes {work / 1e9:.1f} G multiply-adds, more than "
            f"the {LARGEST / 1e9:.1f} G that are emulated; profile a smaller matmul"
        )
    report = launch(problem, choice, sm_count or 2 * size, sizes=sizes)
    if report.findings:
        raise RuntimeError(f"jaxbw.profile: the emulator has found {report.findings}")
    return Profile(
        choice=choice,
        machine=str(choice.device),
        unit="steps",
        moments=_moments(report),
        groups=timeline.groups(report, None, None),
        report=report,
    )


def launch(
    problem: Matmul,
    choice: Chosen,
    sm_count: int,
    profiling: tuple[str, int, int, int] | None = None,
    sizes: str | group_sizes.Sizes = group_sizes.DEFAULT,
) -> Report:
    """The traced launch, on zeros, with these sizes of groups.

    With `profiling`, as of `_native.trace_gemm`, it is one of the profiling build, and leaves its
    stamps there.
    """
    plan = plan_of(problem, choice)
    read, written, size = (arrays.operands(problem), problem.results, plan.workspace_bytes)
    kept: list[Any] = []

    def place(x: Any) -> int:
        """The address of a copy."""
        kept.append(tensor_map.empty(x.shape, x.dtype))
        kept[-1][...] = x
        return int(kept[-1].ctypes.data)

    given, found = (
        [(place(np.zeros(shape, dtype)), shape, DATA_TYPES[dtype.name]) for shape, dtype in some]
        for some in (read, written)
    )
    if arrays.adds_in_place(problem):
        given.insert(2, found[0])
    indices = arrays.indices(problem, sizes)
    traced = _native.trace_gemm(
        [*given, *((place(x), x.shape, _native.Untyped.INT32) for x in indices)],
        [*found, *[(place(np.zeros(size, "uint8")), (size,), _native.Untyped.BYTES)][: size > 0]],
        plan.attributes,
        sm_count=sm_count,
        profiling=profiling,
    )
    return make_report(traced)


def _moments(report: Report) -> dict[str, list[float]]:
    """The moments of `MOMENTS` in each CTA that has them."""
    first = min(event.begin for event in report.events if event.kind == _Kind.run)
    found: dict[str, dict[int, float]] = {name: {} for name in MOMENTS}

    def note(name: str, cta: int, time: int, last: bool) -> None:
        known = found[name].get(cta, -math.inf if last else math.inf)
        found[name][cta] = (max if last else min)(known, float(time - first))

    for event in report.events:
        if event.kind == _Kind.run:
            note("exit", event.cta, event.end, last=True)
        elif event.kind == _Kind.phase and event.by_engine and engine(event.name) == "TMA load":
            note("first stage full", event.cta, event.end, last=False)
        elif event.kind == _Kind.operation:
            doer = engine(event.name)
            if doer == "TMA load":
                note("first load issued", event.cta, event.begin, last=False)
            elif doer == "tensor core" and ".mma" in event.name:
                note("first multiply issued", event.cta, event.begin, last=False)
                note("last multiply done", event.cta, event.end, last=True)
            elif doer in ("TMEM load", "TMA store"):
                note("epilogue begins", event.cta, event.begin, last=False)
                note("epilogue ends", event.cta, event.end, last=True)
    return {name: [times[cta] for cta in sorted(times)] for name, times in found.items() if times}
