"""Mutation testing: breaks our kernels' synchronisation and shows that the emulator finds it.

    python -m tests.emulator.mutation --jobs 2 --out benchmarks/results/DATE_mutation.json

Every mutant runs under the first schedule in every launch that reaches the changed instruction,
then under one schedule after another in these launches in turn, until something is found. A run
that was interrupted, or stopped after --seconds, goes on where it was: outcomes are kept beside
--out, in a file of lines.
"""

import argparse
import functools
import hashlib
import itertools
import json
import multiprocessing
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import jaxbw
from jaxbw import emulator

from . import gemm_cases, gemm_launch
from .gemm_cases import Case
from .gemm_launch import Matmul
from .mutants import Mutant, marked, mutants
from .mutation_launches import launches

KERNELS = Path(jaxbw.__file__).parent / "kernels"
TILES = {"nn": "64x64", "nt": "64x128", "tn": "128x128", "tt": "64x32"}
SM90_NAMES = tuple(f"jaxbw_sm90_bf16_{layout}_{tile}" for layout, tile in TILES.items())
NAMES = ("jaxbw_sm100_16bit_1cta", "jaxbw_sm100_16bit_2cta", *SM90_NAMES)

# Mutants that no schedule can tell from the kernel, and what gives the order instead. By family or
# kernel, role, opcode, its occurrence in the role, and change.
_ALIGNED = "barrier.cluster.arrive.aligned behind it, which all lanes of a warp execute together"
_ALIGNED_EITHER = (
    "barrier.cluster.arrive.aligned, or barrier.cta.sync.aligned, behind it, which all lanes of a "
    "warp execute together"
)
_REGISTERS = "setmaxnreg.sync.aligned behind it, which all lanes of a warp execute together"
_UNUSED = "none: the slot is one that these launches' rings do not have, or do not come back to"
_ELECT = "elect.sync behind it, for which all lanes wait; it orders no accesses to memory"
_NEXT = "the next cluster barrier, to which these warps come instead; who has exited has arrived"
_SENT = "barrier.cta.sync behind it, by which every lane waits for all who lay down sums"
_ALL_BUFFERS = "bar.warp.sync before each chunk that is only cast, and one behind each other chunk"
_ONE_CHUNK = "that of the wait for all staging buffers, in each tile: a warp has one chunk of it"
_LATER = "the wait for the ring's next slot: what a warp tells comes in order in the emulator"
_WAIT_EMPTY = "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64"
_ACQUIRE = "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster"
_NN, _NT, _TN, _TT = SM90_NAMES
_ALONE, _PAIRS = NAMES[:2]
REDUNDANT = {
    ("sm100", "setup", "bar.warp.sync", 1, "deleted"): _ELECT,
    ("sm100", "setup", "bar.warp.sync", 2, "deleted"): _ALIGNED,
    (_ALONE, "load", "bar.warp.sync", 1, "deleted"): _ELECT,
    (_PAIRS, "load", "bar.warp.sync", 2, "deleted"): _ELECT,
    ("sm100", "exit", "bar.warp.sync", 2, "deleted"): _ALIGNED,
    # Of the warps that do not load, before the barriers are awaited.
    ("sm90", "exit", "bar.warp.sync", 1, "deleted"): _ALIGNED_EITHER,
    ("sm90", "setup", "bar.warp.sync", 1, "deleted"): _REGISTERS,
    ("sm90", "setup", "bar.warp.sync", 4, "deleted"): _ALL_BUFFERS,
    ("sm90", "setup", "bar.warp.sync", 6, "deleted"): _SENT,
    (_TN, "epilogue", "bar.warp.sync", 6, "deleted"): _ALL_BUFFERS,
    (_TN, "epilogue", "bar.warp.sync", 8, "deleted"): _SENT,
    # Of sums that are cast, before each chunk; and behind one that is not.
    (_TT, "setup", "bar.warp.sync", 13, "deleted"): _ONE_CHUNK,
    (_TT, "epilogue", "bar.warp.sync", 1, "deleted"): _ONE_CHUNK,
} | {
    (kernel, "multiply", "xor.b32", occurrence, "parity flips every time"): (
        "two MMA tiles of a tile take both accumulators: their places go round every time"
    )
    for kernel, occurrences in ((_ALONE, (4, 5, 7)), (_PAIRS, (4, 6, 8)))
    for occurrence in occurrences
}
# Before a CTA of sm100 exits, and peers may still tell it that they are done. (What the load role
# has in its copy for clusters is nearer to the set-up, and counts as that.)
_LAST = (
    "none in the emulator: the epilogue waits for a later commit and goes on for long, and no "
    "schedule holds an arrival back until it is done"
)
_FLIPS = ("parity never flips", "parity flips every time")
REDUNDANT |= {
    (_ALONE, "load", _WAIT_EMPTY, 9, "always done"): _LAST,
    (_PAIRS, "load", _WAIT_EMPTY, 5, "always done"): _LAST,
    ("sm100", "setup", _WAIT_EMPTY, 1, "always done"): _LAST,
    (_PAIRS, "multiply", _WAIT_EMPTY, 7, "always done"): _LAST,
    (_ALONE, "schedule", _WAIT_EMPTY, 2, "always done"): _LATER,
    (_PAIRS, "schedule", _WAIT_EMPTY, 3, "always done"): _LATER,
    (_PAIRS, "multiply", "xor.b32", 7, "parity never flips"): (
        "none: it is behind the last wait, as two MMA tiles begin with the first accumulator"
    ),
}
REDUNDANT |= {("sm100", "setup", "xor.b32", 2, f): _LAST for f in _FLIPS}
REDUNDANT |= {(_PAIRS, "multiply", "xor.b32", 10, f): _UNUSED for f in _FLIPS}
REDUNDANT |= {
    ("sm90", "load", "bar.warp.sync", occurrence, "deleted"): _ELECT for occurrence in range(1, 12)
}
# Slots that never hold a residual, which threads read: TMA brings none there (residual_stages).
REDUNDANT |= {
    ("sm90", "load", _ACQUIRE, 3, "deleted"): "none: both dimensions of the cluster share operands",
    ("sm90", "load", _ACQUIRE, 6, "deleted"): "none: CTAs share a tile along K",
} | {
    (kernel, role, "xor.b32", occurrence, f"parity {change}"): (
        "none: it is behind the last wait, as a residual's tile takes one stage"
    )
    for kernel, role, occurrence in (
        *((name, "multiply", 2) for name in (_NN, _NT, _TT)),
        (_TN, "epilogue", 3),
    )
    for change in ("never flips", "flips every time")
}
# The barriers of all slots that a ring may have are initialised, a full and an empty one in turn.
REDUNDANT |= {
    (family, "setup", "mbarrier.init.shared::cta.b64", occurrence, f"one arrival {change}"): _UNUSED
    for family in ("sm90", "sm100")
    for occurrence in range(11, 25)
    for change in ("more", "less")
}
# Where sums are sent: warps of sm90 that multiply nothing, and wait for all stages if they load.
REDUNDANT |= (
    {
        (
            "sm90",
            role,
            "barrier.cluster.arrive.relaxed.aligned",
            place,
            "deleted, with its wait",
        ): _NEXT
        for role, place in (("exit", 1), ("exit", 2), ("load", 2), ("load", 5), ("setup", 2))
    }
    | {(_NT, "load", "barrier.cluster.arrive.relaxed.aligned", 7, "deleted, with its wait"): _NEXT}
    | {
        (_TN, "setup", "mbarrier.init.shared::cta.b64", occurrence, "one arrival more"): (
            "none: a tile of 128 rows that a cluster shares is the first warpgroup's, barriers too"
        )
        for occurrence in (7, 8, 9, 10)
    }
)

# Changes of a barrier's initialisation, all found: counted apart, lest they flatter the others.
ARRIVALS = ("one arrival more", "one arrival less")

Schedule = tuple[str, int]
_SEEDS = [schedule for seed in range(1, 13) for schedule in (("random", seed), ("pct", seed))]
SCHEDULES: tuple[Schedule, ...] = (("latest", 0), *_SEEDS, ("eager", 0))


@dataclass
class Outcome:
    """What became of a mutant."""

    kernel: str
    line: int
    role: str
    instruction: str
    change: str
    reached: bool = True
    found: list[str] = field(default_factory=list)  # by the first run that found it; none: survived
    message: str = ""
    schedule: str = ""
    runs: int = 0
    redundant: str = ""  # what gives the order instead

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if not self.reached:
            return "no such bit" if self.change.startswith("mask") else "not reached"
        return self.found[0] if self.found else "redundant" if self.redundant else "survived"


@functools.cache
def _matmul(case: Case) -> Matmul:
    return case.matmul()


def _sm_count(case: Case) -> int:
    """For one cluster, so that it has many tiles; parts of a tile are added by several."""
    return case.config().clusters * (1 if case.split_k == 1 else 2)


def observe(
    module: emulator.Module, case: Case, schedule: Schedule, step_limit: int = 1 << 36
) -> tuple[list[str], str, int]:
    """What one run of a kernel shows: the checks that fail, a message, and the steps it took."""
    matmul = _matmul(case)
    try:
        outcome = gemm_launch.launch(
            module,
            case.config(),
            matmul,
            sm_count=_sm_count(case),
            schedule=schedule[0],
            seed=schedule[1],
            step_limit=step_limit,
        )
    except emulator.EmulatorError as error:
        message = str(error)
        kind = (
            "deadlock"
            if "deadlock" in message
            else "hang"
            if "exceeds its limit" in message
            else "misuse"
        )
        return [kind], message.split("\n")[0], 0
    except AssertionError as error:
        return ["wrong result"], str(error), 0
    findings = outcome.report.findings
    found = sorted({finding.kind for finding in findings})
    messages = [f"line {f.line}: {f.message}" for f in findings[:1]]
    try:
        gemm_cases.verify_results(case, matmul, [outcome.d, *outcome.saved])
    except AssertionError as error:
        found.insert(0, "wrong result")
        messages.append(str(error))
    return found, "; ".join(messages), outcome.report.steps


@functools.cache
def _text(name: str) -> str:
    return (KERNELS / f"{name}.ptx").read_text()


@functools.cache
def baseline(name: str, index: int) -> int:
    """Steps that a launch of the kernel itself takes; it must be free of findings."""
    module = emulator.Module(_text(name), name)
    found, message, steps = observe(module, launches(name)[index], ("latest", 0))
    if found:
        raise AssertionError(f"{name}, launch {index}: the kernel itself shows {found}: {message}")
    return steps


@functools.cache
def _marked(name: str) -> tuple[emulator.Module, dict[tuple[int, str], int], Any]:
    flags = emulator.empty(1 << 16, np.uint32)
    text, numbers = marked(_text(name), flags.ctypes.data)
    return emulator.Module(text, name), numbers, flags


@functools.cache
def reached(name: str, index: int) -> frozenset[tuple[int, str]]:
    """Lines, and conditions there, to which the kernel comes in a launch."""
    module, numbers, flags = _marked(name)
    case = launches(name)[index]
    flags[...] = 0
    gemm_launch.launch(
        module,
        case.config(),
        _matmul(case),
        sm_count=_sm_count(case),
        checks="off",
        more_buffers=[flags],
    )
    return frozenset(place for place, number in numbers.items() if flags[number])


def sites(name: str, mutant: Mutant) -> Iterator[tuple[str, str, str, int, str]]:
    """The keys under which REDUNDANT may have a mutant of a kernel."""
    for where in (name, name.split("_")[1]):
        yield where, mutant.role, mutant.opcode, mutant.occurrence, mutant.change


def examine(
    name: str,
    mutant: Mutant,
    reaching: Sequence[int],
    schedules: tuple[Schedule, ...] = SCHEDULES,
) -> Outcome:
    """Runs a mutant until it is found, in the launches that reach it, given by their numbers."""
    out = Outcome(name, mutant.line + 1, mutant.role, mutant.instruction, mutant.change)
    out.redundant = next(filter(None, map(REDUNDANT.get, sites(name, mutant))), "")
    out.reached = bool(reaching)
    module = emulator.Module(mutant.apply(_text(name)), name)
    first = [(schedules[0], index) for index in reaching]
    turns = zip(schedules[1:], itertools.cycle(reaching)) if reaching else ()
    for schedule, index in (*first, *turns):
        limit = 40 * baseline(name, index)
        out.found, out.message, _ = observe(module, launches(name)[index], schedule, limit)
        out.runs += 1
        if out.found:
            out.schedule = f"{schedule[0]} {schedule[1]}, launch {index}"
            break
    return out


def _work(job: tuple[str, Mutant, list[int]]) -> Outcome:
    return examine(*job)


@functools.cache
def _digest(name: str) -> str:
    return hashlib.sha256(_text(name).encode()).hexdigest()[:16]


def _journal(path: Path) -> dict[tuple[str, int, str, str], Outcome]:
    """Outcomes of an interrupted run, as far as the kernels are still the same."""
    done = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        digest = row.pop("ptx")
        outcome = Outcome(**row)
        done[outcome.kernel, outcome.line, outcome.change, digest] = outcome
    return done


def all_mutants(names: tuple[str, ...]) -> Iterator[tuple[str, Mutant]]:
    """Every mutant of the kernels."""
    for name in names:
        for mutant in mutants(_text(name)):
            yield name, mutant


def summary(outcomes: list[Outcome]) -> str:
    """The table as Markdown."""
    verdicts = [outcome.verdict for outcome in outcomes]
    columns = [verdict for verdict, _ in Counter(verdicts).most_common()]
    reached = [outcome for outcome in outcomes if outcome.reached]
    missed = sum(outcome.verdict in ("redundant", "survived") for outcome in reached)
    instructions = sum(outcome.change not in ARRIVALS for outcome in reached)
    lines = [
        "# Mutation testing of the kernels",
        "",
        "Written by `python -m tests.emulator.mutation`. A mutant is one of our kernels with one",
        "synchronising instruction deleted or weakened; it counts under the first check that finds",
        "it. No such bit: of a mask, and no cluster shape sets it. Not reached: code that none of",
        "the launches comes to. Redundant: another instruction gives the same order.",
        "",
        f"{len(reached)} mutants are reached; {len(reached) - missed} are found, {missed} are not "
        f"({100 * missed / max(1, len(reached)):.1f} %). Without the mutants of arrival counts,",
        f"{missed} of {instructions} are not ({100 * missed / max(1, instructions):.1f} %).",
        "",
    ]

    def table(title: str, key: Callable[[Outcome], str]) -> None:
        lines.append(f"| {title} | mutants | {' | '.join(columns)} |")
        lines.append("|---" * (len(columns) + 2) + "|")
        for row in dict.fromkeys(map(key, outcomes)):
            counts = Counter(o.verdict for o in outcomes if key(o) == row)
            cells = [str(counts[column] or "") for column in columns]
            lines.append(f"| {row} | {counts.total()} | {' | '.join(cells)} |")
        lines.append("")

    table("kernel", lambda outcome: f"`{outcome.kernel}`")
    table("change", lambda outcome: re.sub(r"bit \d+", "one bit", outcome.change))
    lines += ["## Not found", "", "| kernel | role | instruction | change | order given by |"]
    lines.append("|---" * 5 + "|")
    for o in reached:
        if not o.found:
            opcode = o.instruction.split()[0].rstrip(";")
            reason = o.redundant or "**nothing: a gap in the checks**"
            lines.append(
                f"| `{o.kernel}:{o.line}` | {o.role} | `{opcode}` | {o.change} | {reason} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kernels", nargs="*", default=NAMES)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--match", default="", help="only mutants of instructions with this in them"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after them")
    parser.add_argument("--out", type=Path, help="the table, as JSON; and as Markdown beside it")
    args = parser.parse_args()
    jobs = [job for job in all_mutants(tuple(args.kernels)) if args.match in job[1].instruction]
    start = time.monotonic()
    keys = [(name, mutant.line + 1, mutant.change, _digest(name)) for name, mutant in jobs]
    journal = args.out.with_suffix(".jsonl") if args.out else Path(os.devnull)
    done = _journal(journal) if args.out else {}
    todo = [job for job, key in zip(jobs, keys, strict=True) if key not in done]
    print(f"{len(jobs)} mutants, {len(jobs) - len(todo)} of them done before", flush=True)
    pairs = [(name, i) for name in args.kernels for i in range(len(launches(name)))]
    with multiprocessing.Pool(args.jobs) as pool, journal.open("a") as lines:
        places = dict(zip(pairs, pool.starmap(reached, pairs), strict=True))
        work = [
            (name, mutant, [i for n, i in pairs if n == name and mutant.place in places[n, i]])
            for name, mutant in todo
        ]
        for count, outcome in enumerate(pool.imap_unordered(_work, work), 1):
            digest = _digest(outcome.kernel)
            done[outcome.kernel, outcome.line, outcome.change, digest] = outcome
            print(json.dumps(asdict(outcome) | {"ptx": digest}), file=lines, flush=True)
            if outcome.verdict == "survived":
                print(
                    f"survives: {outcome.kernel}:{outcome.line} {outcome.role}: "
                    f"{outcome.instruction} {outcome.change} ({outcome.runs} runs)",
                    flush=True,
                )
            if outcome.found and outcome.redundant:
                print(f"found: {outcome.kernel}:{outcome.line}, in REDUNDANT", flush=True)
            if count % 50 == 0:
                seconds = time.monotonic() - start
                print(f"{count} of {len(todo)}, {seconds:.0f} s", file=sys.stderr, flush=True)
            if time.monotonic() - start > args.seconds:
                break
        pool.terminate()
    if left := sum(key not in done for key in keys):
        print(f"{left} mutants are left: the same command goes on")
        return
    outcomes = [done[key] for key in keys]
    print(Counter(outcome.verdict for outcome in outcomes))
    if args.out:
        rows = (json.dumps(asdict(outcome)) for outcome in outcomes)
        args.out.write_text("[\n" + ",\n".join(rows) + "\n]\n")
        args.out.with_suffix(".md").write_text(summary(outcomes))


if __name__ == "__main__":
    main()
