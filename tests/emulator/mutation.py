"""Mutation testing: breaks our kernels' synchronisation and shows that the emulator finds it.

    python -m tests.emulator.mutation --jobs 2 --out benchmarks/results/DATE_mutation.json

Every mutant runs under the first schedule in every launch that reaches the changed instruction,
then under one schedule after another in the quickest of them in turn, until something is found.
Those in REDUNDANT do the latter only, under the first KNOWN. A run that was interrupted, or stopped
after --seconds, goes on where it was: outcomes are kept beside --out, in a file of lines.
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
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jaxbw import emulator

from . import installed
from .gemm_launch import MAX_STAGES
from .mutants import Mutant, marked, mutants
from .mutation_launches import GROUPED_NAMES, NAMES, Launch, launches
from .redundant import REDUNDANT
from .run_case import run, stages

# Changes of a barrier's initialisation, all found: counted apart, lest they flatter the others.
ARRIVALS = ("one arrival more", "one arrival less")

Schedule = tuple[str, int]
_SEEDS = [(kind, seed) for seed in range(1, 101) for kind in ("random", "pct", "hold")]
SCHEDULES: tuple[Schedule, ...] = (("latest", 0), ("eager", 0), *_SEEDS)
KNOWN = 12  # schedules for those in REDUNDANT
# Launches for all but the first schedule: rare orders are the schedule's. No multiple of three, the
# number of kinds of schedules, so that each kind meets each launch.
QUICK = 11


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


def observe(
    module: emulator.Module, case: Launch, schedule: Schedule, step_limit: int = 1 << 36
) -> tuple[list[str], str, int]:
    """What one run of a kernel shows: the checks that fail, a message, and the steps it took."""
    try:
        ran = run(module, case, schedule=schedule[0], seed=schedule[1], step_limit=step_limit)
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
    findings = ran.findings
    found = sorted({finding.kind for finding in findings})
    messages = [f"line {f.line}: {f.message}" for f in findings[:1]]
    try:
        ran.verify()
    except AssertionError as error:
        found.insert(0, "wrong result")
        messages.append(str(error))
    return found, "; ".join(messages), ran.steps


@functools.cache
def baseline(name: str, index: int) -> int:
    """Steps that a launch of the kernel itself takes; it must be free of findings."""
    module = emulator.Module(installed.text(name), name)
    found, message, steps = observe(module, launches(name)[index], ("latest", 0))
    if found:
        raise AssertionError(f"{name}, launch {index}: the kernel itself shows {found}: {message}")
    return steps


@functools.cache
def _marked(name: str) -> tuple[emulator.Module, dict[tuple[int, str], int], Any]:
    flags = emulator.empty(1 << 16, np.uint32)
    text, numbers = marked(installed.text(name), flags.ctypes.data)
    return emulator.Module(text, name), numbers, flags


@functools.cache
def reached(name: str, index: int) -> frozenset[tuple[int, str]]:
    """Lines, and conditions there, to which the kernel comes in a launch."""
    module, numbers, flags = _marked(name)
    flags[...] = 0
    run(module, launches(name)[index], checks="off", more_buffers=[flags])
    return frozenset(place for place, number in numbers.items() if flags[number])


def reaches(case: Launch, places: Collection[tuple[int, str]], mutant: Mutant) -> bool:
    """Whether a mutant makes a difference in a launch, in which the kernel comes to `places`."""
    if mutant.place not in places:
        return False
    # All slots that a ring of stages may have are initialised first, a full and an empty barrier in
    # turn, however many the launch has.
    of_ring = mutant.opcode.startswith("mbarrier.init") and mutant.occurrence <= 2 * MAX_STAGES
    return not of_ring or mutant.occurrence <= 2 * stages(case)


def sites(name: str, mutant: Mutant) -> Iterator[tuple[str, str, str, int, str]]:
    """The keys under which REDUNDANT may have a mutant of a kernel."""
    family = name.split("_")[1]
    for where in (name, f"{family}_grouped" if name in GROUPED_NAMES else family):
        yield where, mutant.role, mutant.opcode, mutant.occurrence, mutant.change


def redundant(name: str, mutant: Mutant) -> str:
    """What gives the order instead, if that is known."""
    return next(filter(None, map(REDUNDANT.get, sites(name, mutant))), "")


def examine(
    name: str,
    mutant: Mutant,
    reaching: Iterable[int],
    schedules: tuple[Schedule, ...] = SCHEDULES,
) -> Outcome:
    """Runs a mutant until it is found, in the launches that reach it, given by their numbers.

    They may be an iterator: of many mutants the first of them finds it.
    """
    out = Outcome(name, mutant.line + 1, mutant.role, mutant.instruction, mutant.change)
    out.redundant = redundant(name, mutant)
    out.reached = False
    module = emulator.Module(mutant.apply(installed.text(name)), name)

    def turns() -> Iterator[tuple[Schedule, int]]:
        every, others = [], schedules[:KNOWN] if out.redundant else schedules[1:]
        for index in reaching:
            out.reached = True
            every.append(index)
            if not out.redundant:
                yield schedules[0], index
        quick = sorted(every, key=functools.partial(baseline, name))[:QUICK]
        yield from zip(others, itertools.cycle(quick))

    for schedule, index in turns():
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
    return hashlib.sha256(installed.text(name).encode()).hexdigest()[:16]


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
        for mutant in mutants(installed.text(name)):
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
    parser.add_argument(
        "--again", action="store_true", help="examine anew what nothing has found, or reached"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after them")
    parser.add_argument("--out", type=Path, help="the table, as JSON; and as Markdown beside it")
    args = parser.parse_args()
    jobs = [job for job in all_mutants(tuple(args.kernels)) if args.match in job[1].instruction]
    start = time.monotonic()
    keys = [(name, mutant.line + 1, mutant.change, _digest(name)) for name, mutant in jobs]
    journal = args.out.with_suffix(".jsonl") if args.out else Path(os.devnull)
    done = _journal(journal) if args.out else {}
    if args.again:
        done = {key: outcome for key, outcome in done.items() if outcome.found}
    todo = [job for job, key in zip(jobs, keys, strict=True) if key not in done]
    print(f"{len(jobs)} mutants, {len(jobs) - len(todo)} of them done before", flush=True)
    names = dict.fromkeys(name for name, _ in todo)
    pairs = [(name, i) for name in names for i in range(len(launches(name)))]
    with multiprocessing.Pool(args.jobs) as pool, journal.open("a") as lines:
        places = dict(zip(pairs, pool.starmap(reached, pairs), strict=True))
        work = [
            (
                name,
                mutant,
                [
                    i
                    for i, case in enumerate(launches(name))
                    if reaches(case, places[name, i], mutant)
                ],
            )
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
    for outcome, job in zip(outcomes, jobs, strict=True):
        outcome.redundant = redundant(*job)
    print(Counter(outcome.verdict for outcome in outcomes))
    if args.out:
        rows = (json.dumps(asdict(outcome)) for outcome in outcomes)
        args.out.write_text("[\n" + ",\n".join(rows) + "\n]\n")
        args.out.with_suffix(".md").write_text(summary(outcomes))


if __name__ == "__main__":
    main()
