"""The emulator's trace of a few tiles as agents of the replay: its structure, our times.

What the warps of a cluster waited for, issued and arrived at is read from the events of a launch
with `trace=True`: nothing is supposed about the kernel but that it is one of TMA, and of tcgen05 or
wgmma. The emulator says in which order, and who released whom; it says nothing of time.

A wgmma is issued by four warps, each of which has a tensor core of its own: every one of them gets
the step. That they wait for it (wgmma.wait_group) is no event: matmuls are complete when the stage
that they read is given back, which one of the four warps may do for all.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxbw._native import emulator as _core
from jaxbw._src.lab.model.costs import L2, MEMORY, PORT, SHARED, STORE, TENSOR, TMEM, Costs
from jaxbw._src.lab.model.replay import Action, Agent, Arrive, Drain, Settle, Start, Wait, Work
from jaxbw._src.selection.cost_model.stage import FULL_ROWS

SCHEMA = 3  # of `Trace`; counted up where its meaning changes

_WARPGROUP = 4  # warps

Signal = tuple[int, int, int]  # CTA, offset of the mbarrier, phase


@dataclass(frozen=True)
class Step:
    """What a warp did.

    Attributes:
      kind: "wait", "load", "mma", "wgmma", "commit", "tmem", "store", "settle", "arrive", "launch";
        "given back" where another warp of the warpgroup arrives.
      signals: mbarrier phases that it waits for, or arrives at when it is done.
      bytes: moved; of "settle" the number of stores that may go on.
      shape: of an MMA: M, N.
      pair: whether it is one of a pair of CTAs.
    """

    kind: str
    signals: tuple[Signal, ...] = ()
    bytes: int = 0
    shape: tuple[int, int] = (0, 0)
    pair: bool = False


@dataclass(frozen=True)
class Trace:
    """The steps of every warp, by CTA and index, and the arrivals of an mbarrier's phases."""

    schema: int
    warps: dict[tuple[int, int], tuple[Step, ...]]
    arrivals: dict[tuple[int, int], int]

    def total(self, kind: str) -> tuple[int, int]:
        """How many steps of a kind there are, and their bytes."""
        found = [step for steps in self.warps.values() for step in steps if step.kind == kind]
        return len(found), sum(step.bytes for step in found)


def read(events: Iterable[Any]) -> Trace:
    """Reads the events of a report (`jaxbw.emulator.Report.events`), of one cluster's launch.

    Further clusters of the grid must be handed to it by cluster launch control.

    Raises:
      ValueError: there are none: the launch was not traced.
    """
    kinds = _core.EventKind
    steps: dict[tuple[int, int], list[tuple[int, Step]]] = defaultdict(list)
    signals: dict[int, dict[Signal, None]] = defaultdict(dict)
    arrivals: Counter[Signal] = Counter()
    operations = []
    told: dict[tuple[int, int, int, int], int] = {}  # when a warp first arrived for a phase
    passed: set[tuple[int, int, Signal]] = set()
    for event in events:
        at = (event.cta, event.mbarrier, event.phase)
        if event.kind == kinds.operation:
            operations.append(event)
        elif event.kind == getattr(kinds, "pass"):
            step = _passed(event, at)
            # Lanes that are apart for a while pass one after the other.
            if step.kind == "wait" and (event.cta, event.warp, at) in passed:
                continue
            passed.add((event.cta, event.warp, at))
            steps[event.cta, event.warp].append((event.end, step))
        elif event.kind == kinds.signal and event.operation:
            if at not in signals[event.operation]:
                signals[event.operation][at] = None
                arrivals[at] += 1
        elif event.kind == kinds.signal:
            # Of the one cluster that runs, a rank is the CTA's index in the grid.
            # What it sends to other CTAs comes later, and not in its order.
            step = Step("arrive", (at,))
            issuer = _issuer(event), event.warp
            time = told.setdefault((*issuer, event.mbarrier, event.phase), event.end)
            steps[issuer].append((time, step))
            arrivals[at] += 1
    for event in operations:
        found = tuple(signals.get(event.operation, ()))
        steps[event.cta, event.warp].append((event.begin, _operation(event, found)))
    if not steps:
        raise ValueError("there are no events: launch with trace=True")
    most: dict[tuple[int, int], int] = {}
    for (cta, offset, _), count in arrivals.items():
        most[cta, offset] = max(count, most.get((cta, offset), 0))
    ordered = {warp: sorted(found, key=lambda each: each[0]) for warp, found in steps.items()}
    ordered = _with_warpgroups(ordered)
    warps = {warp: tuple(step for _, step in found) for warp, found in sorted(ordered.items())}
    return Trace(SCHEMA, warps, most)


def _with_warpgroups(
    ordered: dict[tuple[int, int], list[tuple[int, Step]]],
) -> dict[tuple[int, int], list[tuple[int, Step]]]:
    """Gives each wgmma, which was recorded for the last of its four warps, to all of them.

    They run the same program: a matmul stands behind as many waits in each of them, and a stage is
    given back behind as many, whichever of them says so.
    """
    matmuls: dict[tuple[int, int], list[list[Step]]] = defaultdict(list)
    given_back: dict[tuple[int, int], dict[int, list[Step]]] = defaultdict(dict)
    rest = {}
    for (cta, warp), found in ordered.items():
        group = cta, warp // _WARPGROUP
        behind = matmuls[group]
        waits = 0
        arrivals: dict[int, list[Step]] = defaultdict(list)
        for _, step in found:
            waits += step.kind == "wait"
            behind += [[] for _ in range(waits + 1 - len(behind))]
            if step.kind == "wgmma":
                behind[waits].append(step)
            elif step.kind == "arrive":
                arrivals[waits].append(replace(step, kind="given back"))
        given_back[group] = {**arrivals, **given_back[group]}
        rest[cta, warp] = [each for each in found if each[1].kind != "wgmma"]
    for (cta, warp), found in rest.items():
        group = cta, warp // _WARPGROUP
        if not any(matmuls[group]):
            continue
        waits = 0
        arrives = any(step.kind == "arrive" for _, step in found)
        both: list[tuple[int, Step]] = []
        for time, step in found:
            both.append((time, step))
            if step.kind == "wait":
                waits += 1
                both += [(time, matmul) for matmul in matmuls[group][waits]]
                if not arrives:
                    both += [(time, each) for each in given_back[group].get(waits, [])]
        rest[cta, warp] = both
    return rest


def _issuer(event: Any) -> int:
    rank: int = event.shape[0]
    return rank


def _passed(event: Any, at: Signal) -> Step:
    if event.name.startswith("mbarrier"):
        return Step("wait", (at,))
    if event.name.startswith("cp.async.bulk"):
        return Step("settle", bytes=event.bytes)
    return Step("tmem wait")


def _operation(event: Any, signals: tuple[Signal, ...]) -> Step:
    name: str = event.name
    pair = "cta_group::2" in name
    if name.startswith("tcgen05.mma"):
        return Step("mma", shape=(event.shape[0], event.shape[1]), bytes=event.bytes, pair=pair)
    if name.startswith("wgmma"):
        m, n = re.findall(r"m(\d+)n(\d+)k", name)[0]
        return Step("wgmma", shape=(int(m), int(n)))
    if name.startswith("tcgen05.commit"):
        return Step("commit", signals, pair=pair)
    if name.startswith("tcgen05.ld"):
        return Step("tmem", bytes=event.bytes)
    if name.startswith("clusterlaunchcontrol"):
        return Step("launch", signals)
    if name.startswith("cp.async.bulk"):
        return Step("load" if signals else "store", signals, event.bytes, pair=pair)
    raise ValueError(f"the replay knows no {name}")


def agents(trace: Trace, costs: Costs) -> tuple[dict[str, Agent], dict[str, int]]:
    """The agents of a traced cluster, and the arrivals of its barriers, for `replay.replay`.

    All tiles get the traffic of the first wave.
    """
    found = {
        f"CTA {cta} warp {warp}": _agent(cta, warp, steps, costs)
        for (cta, warp), steps in trace.warps.items()
    }
    counts = {_ring(cta, offset): count for (cta, offset), count in trace.arrivals.items()}
    return found, counts


def extrapolated(times: Mapping[tuple[int, int], float], items: int, blocks: int) -> float:
    """The time of more tiles, of more stages each, from replayed traces of few.

    Once full, a pipeline repeats itself: every tile takes as long as the last, and every stage.

    Args:
      times: by (tiles, stages of a tile): of (i, b), (i - 1, b) and (i, b') for some i, b and b',
        all with more stages than the ring, and more tiles than accumulators.
      items, blocks: what is asked for.

    Raises:
      ValueError: `times` has not these three.
    """
    most = max((item for item, _ in times), default=0)
    lengths = sorted(b for item, b in times if item == most)
    if len(times) != 3 or len(lengths) != 2 or (most - 1, lengths[1]) not in times:
        raise ValueError("three traces are wanted: of (i, b), (i - 1, b) and (i, b')")
    short, long = lengths
    stage = (times[most, long] - times[most, short]) / (most * (long - short))
    tile = times[most, long] - times[most - 1, long] + stage * (blocks - long)
    return times[most, long] + stage * most * (blocks - long) + tile * (items - most)


def _ring(cta: int, offset: int) -> str:
    return f"{cta}:{offset:#x}"


def _key(signal: Signal) -> tuple[str, int]:
    return _ring(signal[0], signal[1]), signal[2]


def _agent(cta: int, warp: int, steps: tuple[Step, ...], costs: Costs) -> Iterator[Action]:
    machine = costs.machine
    hop = costs.cycles(machine["remote_cycles"])
    group = f"stores of {cta}, {warp}"
    if any(step.kind == "load" for step in steps):
        yield Work("set-up", costs.setup)
    first = costs.first_load
    released = _Released(steps, f"matmuls of {cta}, {warp}")
    before = ""
    for step in steps:
        yield from released.before(step)
        if step.kind == "wait":
            yield Wait(_key(step.signals[0]), costs.wake)
        elif step.kind == "arrive":
            yield Arrive(_key(step.signals[0]), 0.0 if step.signals[0][0] == cta else hop)
        elif step.kind == "wgmma":
            issue = costs.cycles(machine["mma_issue_cycles"])
            engine = f"{TENSOR} {cta}, {warp % _WARPGROUP}"
            services = ((engine, _mma(step, costs)),)
            yield Start("MMA", issue, services, 0.0, group=released.group, read=costs.mma_latency)
        elif step.kind == "load":
            yield _load(cta, step, costs, first)
            first = 0.0
        elif step.kind == "mma":
            if before != "mma":
                yield Work("issue", costs.stage_issue)
            issue = costs.cycles(machine["mma_issue_cycles"])
            yield Start("MMA", issue, ((f"{TENSOR} {cta}", _mma(step, costs)),), 0.0)
        elif step.kind == "commit":
            for signal in step.signals:
                delay = costs.mma_latency + (0.0 if signal[0] == cta else hop)
                yield Drain(f"{TENSOR} {cta}", delay, (_key(signal),))
        elif step.kind == "tmem":
            time = costs.cycles(step.bytes / machine["tmem_bytes_per_cycle"])
            yield Work("TMEM load", time, f"{TMEM} {cta}", costs.drain_latency)
        elif step.kind == "store":
            staging = costs.cycles(step.bytes / machine["stage_bytes_per_cycle"])
            yield Work("stage", staging, f"{SHARED} {cta}", costs.cycles(machine["chunk_cycles"]))
            yield _store(cta, group, step, costs)
        elif step.kind == "settle":
            yield Settle(group, step.bytes)
        elif step.kind == "launch":
            # Published nowhere; it is asked for a tile or two ahead.
            yield Start("launch", 0.0, (), machine["tma_latency_ns"], (), _keys(step))
        before = step.kind


class _Released:
    """When matmuls of wgmma have to be complete, which is no event of the trace."""

    def __init__(self, steps: tuple[Step, ...], group: str) -> None:
        self.group = group
        kinds = Counter(step.kind for step in steps)
        self._each = kinds["wgmma"] // max(kinds["wait"], 1)  # of a stage
        self._read = 0  # stages
        self._given_back: dict[Signal, None] = {}

    def before(self, step: Step) -> Iterator[Action]:
        """What the warp waits for in front of a step."""
        if not self._each:
            return
        if step.kind == "wait":
            self._read += 1
        elif step.kind in ("arrive", "given back"):
            signal = (0, *step.signals[0][1:])  # to every CTA that loads for this one
            if signal not in self._given_back:
                self._given_back[signal] = None
                yield Settle(self.group, self._each * (self._read - len(self._given_back)))


def _keys(step: Step) -> tuple[tuple[str, int], ...]:
    return tuple(_key(signal) for signal in step.signals)


def _shares(costs: Costs, bytes_asked: float) -> tuple[tuple[str, float], ...]:
    missed = bytes_asked * costs.traffic[0].missed
    clusters = costs.plan.active(0)
    return (
        (L2, bytes_asked * clusters / costs.machine["l2_bytes_per_ns"]),
        (MEMORY, missed * clusters / costs.machine["dram_bytes_per_ns"]),
    )


def _load(cta: int, step: Step, costs: Costs, first: float) -> Start:
    # A pair's bytes are counted by its leader; the box goes to the CTA of the same parity.
    to = {signal[0] + (cta % 2 if step.pair else 0) for signal in step.signals}
    time = costs.cycles(step.bytes / costs.machine["ingest_bytes_per_cycle"])
    ports = tuple((f"{PORT} {each}", time) for each in sorted(to))
    issue = costs.cycles(costs.machine["tma_issue_cycles"])
    shares = _shares(costs, step.bytes)
    return Start("load", issue, ports, costs.load_latency(0) + first, shares, _keys(step))


def _store(cta: int, group: str, step: Step, costs: Costs) -> Start:
    machine = costs.machine
    size = costs.leaving(step.bytes)
    clusters = costs.plan.active(0)
    shares = (
        (L2, step.bytes * clusters / machine["l2_bytes_per_ns"]),
        (MEMORY, step.bytes * clusters / machine["dram_bytes_per_ns"]),
    )
    issue = costs.cycles(machine["tma_issue_cycles"])
    visible = costs.cycles(machine["store_visible_cycles"])
    read_time = costs.cycles(machine["store_read_cycles"])
    return Start("store", issue, ((f"{STORE} {cta}", size),), visible, shares, (), group, read_time)


def _mma(step: Step, costs: Costs) -> float:
    m, n = step.shape
    ctas = 2 if step.pair else 1
    return costs.mma(min(m // ctas, FULL_ROWS), n // ctas, n)
