"""A profile from the emulator: the kernel that ships, and what the emulator saw of it.

It needs no GPU and no compiler. It counts steps: who waited for whom, not how long.
"""

import math

from jaxbw import _native
from jaxbw._native import emulator as _core
from jaxbw._src.emulator import tensor_map, timeline
from jaxbw._src.emulator.report import Report, engine, make_report
from jaxbw._src.lab.profiling.profile import MOMENTS, Profile
from jaxbw._src.lab.tuning.arrays import operands
from jaxbw._src.primitives.gemm import plan_of
from jaxbw._src.problem import DATA_TYPES, GemmProblem
from jaxbw._src.selection.choice import Choice

LARGEST = 2**31  # multiply-adds: a minute or two

_Kind = _core.EventKind


def profile(problem: GemmProblem, choice: Choice, sm_count: int | None) -> Profile:
    """Runs the matmul on so many SMs, by default two clusters at a time.

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
    report = launch(problem, choice, sm_count or 2 * size)
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
    problem: GemmProblem,
    choice: Choice,
    sm_count: int,
    profiling: tuple[str, int, int, int] | None = None,
) -> Report:
    """The traced launch, on zeros.

    With `profiling`, as of `_native.trace_gemm`, it is one of the profiling build, and leaves its
    stamps there.
    """
    plan = plan_of(problem, choice)
    read, written = operands(problem), problem.results
    arrays = [tensor_map.empty(shape, dtype) for shape, dtype in (*read, *written)]
    for array in arrays:
        array[...] = 0
    given = [(x.ctypes.data, x.shape, DATA_TYPES[x.dtype.name]) for x in arrays]
    size = plan.workspace_bytes
    workspace = tensor_map.empty(size, "uint8")
    scratch = [(workspace.ctypes.data, (size,), _native.Untyped.BYTES)]
    traced = _native.trace_gemm(
        given[: len(read)],
        [*given[len(read) :], *scratch[: size > 0]],
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
