"""What the pictures of the pages show: read in running kernels and results files, not restated.

Each function returns plain data. The picture carries it, and a test compares both.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxbw import emulator
from jaxbw._native import emulator as _core
from jaxbw._src.emulator.report import engine

from ..emulator import gemm_launch, probe, protocol
from ..emulator.gemm_cases import Case
from ..emulator.installed import load, text
from ..emulator.protocol import Protocol

datapath: Any = _core.datapath
CHUNK, SPAN = 16, 128  # bytes: what the swizzle moves, and what it moves it in
# The upper word of a descriptor, of K-major operands in the 128-byte swizzle; probes see the lower.
DESCRIPTOR = 0x4000_4040 << 32
MMAS_PER_BLOCK = 4


def _mmas(case: Case) -> Iterator[tuple[Any, ...]]:
    """CTA 0's MMAs: column of D, and the instruction, decoded."""
    probed = probe.Probe(text(case.kernel), {"mma": probe.MMA}, ctas=32)
    protocol.run(case, probed.module, more_buffers=probed.buffers)
    for seen in probed.seen("mma"):
        if seen.cta == 0:
            d, a, b, instruction = seen.values
            words = DESCRIPTOR | a, DESCRIPTOR | b
            kind = datapath.UmmaKind.F16
            yield d, datapath.Umma(kind, instruction, *words, d, cta_group=case.cta_group)


def swizzle() -> dict[str, Any]:
    """Of the first 8 rows of a tile of A: the K-chunk at each place, and which MMA reads it."""
    case = Case(256, 256, 64, layout="nt", output="bf16", block_m=128, block_n=128)
    reads = [op.shared_chunks() for _, op in _mmas(case)][:MMAS_PER_BLOCK]
    first = min(reads[0])
    chunks = SPAN // CHUNK
    holds = [[-1] * chunks for _ in range(8)]
    reader = [[-1] * chunks for _ in range(8)]
    for row in range(8):
        for chunk in range(chunks):
            linear = first + row * SPAN + chunk * CHUNK
            at = datapath.swizzle_address(datapath.Swizzle.B128, linear) - first
            holds[at // SPAN][at % SPAN // CHUNK] = chunk
    for number, addresses in enumerate(reads):
        for at in (address - first for address in addresses):
            if at < 8 * SPAN:
                reader[at // SPAN][at % SPAN // CHUNK] = number
    return {"holds": holds, "reader": reader}


# Cluster, cta_group, block_m, block_n.
CLUSTERS = [((2, 2), 2, 256, 256), ((4, 4), 1, 128, 128), ((4, 4), 2, 256, 256)]


def masks() -> list[dict[str, Any]]:
    """Of CTA 0 in some clusters: to whom it multicasts A and B, and commits a freed stage."""
    shown = []
    for shape in CLUSTERS:
        (rows, columns), group, *_ = shape
        said = Protocol(shape)
        a, b = (next(iter(mask), 1) for mask in said.load_masks(0))  # itself, where none shares
        [(arrivals, [sources])] = [(n, m) for n, m in said.commits(0).items() if n > 1]
        cluster = {"rows": rows, "columns": columns, "cta_group": group}
        shown.append(cluster | {"a": a, "b": b, "commit": sources, "arrivals": arrivals})
    return shown


TILES = [
    Case(2048, 512, 64, layout="nt", output="bf16", block_m=128, block_n=256),
    Case(2048, 384, 64, layout="nt", output="bf16", block_m=256, block_n=192, cta_group=2),
    Case(1024, 256, 64, layout="nt", output="bf16", block_m=64, block_n=128),
    Case(1024, 512, 64, layout="nt", output="bf16", block_m=256, block_n=256),
]


def tensor_memory() -> list[dict[str, Any]]:
    """Which lanes and columns of CTA 0's Tensor Memory its first work items fill."""
    shown = []
    for case in TILES:
        case = replace(case, cluster=(case.cta_group, 1))
        per_item = gemm_launch.mma_tiles(case.config())
        accumulators: dict[int, list[list[int]]] = {}
        for d, op in _mmas(case):
            region = [[r.lane, r.lanes, r.column, r.columns] for r in op.d_regions()]
            accumulators.setdefault(d & 0xFFFF, region)
        shown.append(
            {
                "tile": [case.block_m, case.block_n],
                "cta_group": case.cta_group,
                "tiles_of_an_item": per_item,
                "regions": [accumulators[column] for column in sorted(accumulators)],
            }
        )
    return shown


PIPELINE = Case(
    512,
    512,
    192,
    layout="nn",
    output="bf16",
    block_m=256,
    block_n=128,
    cta_group=2,
    cluster=(2, 1),
    stages=3,
)
ENGINES = ["launch control", "TMA load", "tensor core", "TMEM load", "TMA store"]


def pipeline() -> dict[str, Any]:
    """The work items of a pair's leader: when each engine had which, first issue to last end.

    Under the schedule "latest", where what is asynchronous goes on only when no warp can.
    """
    case = PIPELINE
    kernel = load(case.kernel)
    launched = gemm_launch.launch(
        kernel, case.config(), case.matmul(), sm_count=4, trace=True, schedule="latest"
    )
    report = launched.report
    operations: dict[str, list[Any]] = {name: [] for name in ENGINES}
    for event in _operations(report):
        if not event.name.startswith("tcgen05.commit") and engine(event.name) in operations:
            operations[engine(event.name)].append(event)
    items = len(operations["tensor core"]) // (MMAS_PER_BLOCK * case.k // 64)
    bars = {}
    for name, events in operations.items():
        # Launch control is asked for an item at a time, and for one more, in vain.
        parts = _in_order(events, len(events) if name == "launch control" else items, name)
        bars[name] = [[min(e.begin for e in part), max(e.end for e in part)] for part in parts]
    return {"items": items, "steps": report.steps, "bars": bars}


def _operations(report: emulator.Report) -> list[Any]:
    """Those of CTA 0."""
    return [e for e in report.events if e.kind == _core.EventKind.operation and e.cta == 0]


def _in_order(events: list[Any], parts: int, name: str) -> list[list[Any]]:
    """The same number for each part, in the order of their issue, warp by warp."""
    found: list[list[Any]] = [[] for _ in range(parts)]
    for warp in {event.warp for event in events}:
        mine = sorted((e for e in events if e.warp == warp), key=lambda e: e.begin)
        assert len(mine) % parts == 0, f"{name}: {len(mine)} operations of {parts} items"
        each = len(mine) // parts
        for part in range(parts):
            found[part] += mine[part * each : (part + 1) * each]
    return found


PROFILES = Path(__file__).parents[2] / "benchmarks/results/2026-11-22_h200_profile.json"
# By role, what is told apart in a picture; a name of ours, and the activities that it stands for.
SHOWN = {
    "load": {
        "load": ("load",),
        "await empty stage": ("await empty stage",),
        "await other CTAs": ("await cluster", "await exit"),
    },
    "multiply + epilogue": {
        "multiply": ("multiply",),
        "await tensor core": ("await tensor core",),
        "await full stage": ("await full stage",),
        "await turn": ("await turn",),
        "epilogue": ("epilogue", "await staging", "store"),
        "await other CTAs": ("await cluster", "await sums", "await exit"),
    },
}


def profile() -> dict[str, dict[str, dict[str, float]]]:
    """Of each role and matmul, what the time of the warps went into; what is left is not shown."""
    measured = json.loads(PROFILES.read_text())["profiles"]
    return {
        role: {
            matmul: {
                name: round(sum(found["shares"][role].get(each, 0) for each in parts), 4)
                for name, parts in shown.items()
            }
            for matmul, found in measured.items()
        }
        for role, shown in SHOWN.items()
    }


DATA = {
    "swizzle": swizzle,
    "multicast-masks": masks,
    "tensor-memory": tensor_memory,
    "pipeline": pipeline,
    "profile": profile,
}
