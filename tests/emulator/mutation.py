"""Mutation testing: breaks our kernels' synchronisation and shows that the emulator finds it.

    python -m tests.emulator.mutation --jobs 2 --out benchmarks/results/DATE_mutation.json

Every mutant runs under the first schedule in every launch that reaches the changed instruction,
then under one schedule after another in these launches in turn, until something is found.
"""

import argparse
import functools
import itertools
import json
import multiprocessing
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import jaxbw
from jaxbw import emulator

from . import gemm_cases, gemm_launch
from .gemm_cases import Case
from .gemm_launch import Product
from .mutants import Mutant, marked, mutants

KERNELS = Path(jaxbw.__file__).parent / "kernels"
SM90_NAMES = tuple(f"jaxbw_sm90_bf16_{layout}_128x64x64" for layout in ("nn", "nt", "tn", "tt"))
NAMES = ("jaxbw_sm100_16bit_1cta", "jaxbw_sm100_16bit_2cta", *SM90_NAMES)

# Mutants that no schedule can tell from the kernel, and what gives the order instead. By family,
# role, opcode, its occurrence in the role (0: any), and change.
_ALIGNED = "barrier.cluster.arrive.aligned behind it, which all lanes of a warp execute together"
_ELECT = "elect.sync or an .aligned instruction beside it, for which all lanes of a warp wait"
REDUNDANT = {
    (family, role, "bar.warp.sync", 0, "deleted"): _ALIGNED if role in ("setup", "exit") else _ELECT
    for family, roles in {
        "sm90": ("load", "multiply", "epilogue"),
        "sm100": ("setup", "load", "multiply", "schedule", "epilogue", "exit"),
    }.items()
    for role in roles
} | {
    ("sm100", "multiply", "xor.b32", occurrence, "parity flips every time"): (
        "two MMA tiles of a tile take both accumulators: their places go round every time"
    )
    for occurrence in (6, 7)
}

# Changes of a barrier's initialisation, all found: counted apart, lest they flatter the others.
ARRIVALS = ("one arrival more", "one arrival less")

Schedule = tuple[str, int]
_SEEDS = [schedule for seed in range(1, 13) for schedule in (("random", seed), ("pct", seed))]
SCHEDULES: tuple[Schedule, ...] = (("latest", 0), *_SEEDS, ("eager", 0))


def launches(name: str) -> tuple[Case, ...]:
    """Small products that together reach all synchronisation of a kernel, and wrap its rings."""
    if "sm90" in name:
        base = Case(200, 120, 320, family="sm90", layout=name.split("_")[3], block_n=64, stages=2)
        return (
            replace(base, output="bf16"),
            replace(base, m=400, k=328, output="f16", cluster=(2, 1), stages=5),
            replace(base, m=400, n=248, k=200, cluster=(2, 2)),
            replace(base, m=400, n=248, k=200, output="f16", cluster=(2, 2), save=True),
            replace(base, m=1000, k=136, output="bf16", cluster=(4, 2)),
            replace(base, n=117, k=136, output="bf16", split_k=2, activation="relu"),
            replace(base, n=117, k=136, bias="f32", store_buffers=1),
        )
    group = 2 if "2cta" in name else 1

    def tiles(
        cluster: tuple[int, int],
        block_n: int,
        layout: str,
        counts: tuple[int, int, int],
        **more: Any,
    ) -> Case:
        """So many cluster tiles along M and N, and steps along K, but for an edge."""
        m, n, k = counts
        case = Case(
            cluster[0] * 128 * m - 8,
            cluster[1] * block_n * n - 8,
            64 * k - 24,
            layout=layout,
            block_m=128 * group,
            block_n=block_n,
            cta_group=group,
            cluster=cluster,
            stages=2,
            output="bf16",
        )
        return replace(case, **more)

    # A launch with everything that the epilogue may read, in each width that it handles at a time.
    stores: tuple[dict[str, Any], ...] = (
        *(dict(output=output) for output in ("bf16", "f16", "f32")),
        dict(n=37),
        dict(swap_ab=True),
    )
    full: dict[str, Any] = dict(bias="f32", residual="bf16", c="f16", save=True, activation="relu")
    widths = [
        tiles((group, 1), block_n, "nt", (2, 2, 2), **full, **store)
        for block_n in ((32, 16, 8) if group == 1 else (32, 16))
        for store in stores
    ]
    widths = [replace(case, block_m=64) if case.block_n == 8 else case for case in widths]
    both = (
        *widths,
        tiles((group, 1), 64, "nt", (2, 2, 5), split_k=2, bias="f32"),
        tiles((group, 1), 64, "nt", (2, 2, 5), split_k=2, scheduler="static"),
        tiles((group, 1), 128, "nn", (2, 2, 3), gated=True, save=True),
        tiles((group, 1), 192, "nt", (3, 2, 2), block_m=256 * group, output="f16"),
        tiles((group, 1), 128, "nn", (2, 2, 3), output="f32", store="rows", store_buffers=1),
        tiles((group, 1), 128, "nn", (2, 2, 3), accumulators=1, k_spans=2),
        tiles((4, 4), 32 * group, "nt", (1, 2, 2)),
    )
    if group == 1:
        return (
            tiles((1, 1), 64, "nt", (2, 3, 5)),
            tiles((2, 1), 64, "nt", (1, 3, 5), stages=5),
            tiles((2, 2), 64, "nt", (2, 2, 3)),
            tiles((2, 2), 128, "tn", (2, 2, 3), output="f32"),
            tiles((1, 1), 192, "tn", (2, 2, 3)),
            tiles((1, 2), 192, "tn", (2, 1, 3)),
            tiles((4, 2), 64, "nt", (1, 2, 3)),
            tiles((4, 2), 256, "tn", (1, 2, 2)),
            *both,
        )
    return (
        tiles((2, 1), 64, "nt", (2, 3, 5)),
        tiles((4, 1), 64, "nt", (1, 3, 5), stages=5),
        tiles((2, 1), 128, "tn", (2, 2, 3), output="f32"),
        tiles((2, 1), 256, "tn", (1, 3, 3), output="f16"),
        tiles((2, 2), 64, "nt", (2, 2, 3)),
        tiles((4, 1), 128, "tn", (1, 3, 3)),
        tiles((4, 2), 64, "nt", (1, 2, 3)),
        tiles((4, 2), 256, "tn", (1, 2, 2)),
        *both,
    )


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
            return "not reached"
        return self.found[0] if self.found else "redundant" if self.redundant else "survived"


@functools.cache
def _product(case: Case) -> Product:
    return case.product()


def observe(
    module: emulator.Module, case: Case, schedule: Schedule, step_limit: int = 1 << 36
) -> tuple[list[str], str, int]:
    """What one run of a kernel shows: the checks that fail, a message, and the steps it took."""
    product = _product(case)
    try:
        outcome = gemm_launch.launch(
            module,
            case.config(),
            product,
            sm_count=case.config().clusters,
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
        gemm_cases.verify_results(case, product, outcome)
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
def _reached(name: str, index: int) -> frozenset[tuple[int, str]]:
    """Lines, and conditions there, to which the kernel comes in a launch."""
    case, flags = launches(name)[index], emulator.empty(1 << 16, np.uint32)
    flags[...] = 0
    text, numbers = marked(_text(name), flags.ctypes.data)
    gemm_launch.launch(
        emulator.Module(text, name),
        case.config(),
        _product(case),
        sm_count=case.config().clusters,
        checks="off",
        more_buffers=[flags],
    )
    return frozenset(place for place, number in numbers.items() if flags[number])


def examine(
    name: str,
    mutant: Mutant,
    schedules: tuple[Schedule, ...] = SCHEDULES,
    among: Sequence[int] | None = None,
) -> Outcome:
    """Runs a mutant until it is found, in all launches or `among` those of these numbers."""
    out = Outcome(name, mutant.line + 1, mutant.role, mutant.instruction, mutant.change)
    family = name.split("_")[1]
    site = (family, mutant.role, mutant.opcode, mutant.occurrence, mutant.change)
    out.redundant = REDUNDANT.get(site) or REDUNDANT.get((*site[:3], 0, mutant.change), "")
    place = (mutant.line, mutant.condition)
    numbers = range(len(launches(name))) if among is None else among
    reaching = [i for i in numbers if place in _reached(name, i)]
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


def _work(job: tuple[str, Mutant]) -> Outcome:
    return examine(*job)


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
        "it. Not reached: a mask bit that no cluster shape sets, or code that no configuration",
        "comes to. Redundant: another instruction gives the same order.",
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
    table("change", lambda outcome: re.sub(r"bit \d", "one bit", outcome.change))
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
    parser.add_argument("--out", type=Path, help="the table, as JSON; and as Markdown beside it")
    args = parser.parse_args()
    jobs = [job for job in all_mutants(tuple(args.kernels)) if args.match in job[1].instruction]
    outcomes, start = [], time.monotonic()
    with multiprocessing.Pool(args.jobs) as pool:
        for outcome in pool.imap(_work, jobs, chunksize=8):
            outcomes.append(outcome)
            if outcome.verdict == "survived":
                print(
                    f"survives: {outcome.kernel}:{outcome.line} {outcome.role}: "
                    f"{outcome.instruction} {outcome.change} ({outcome.runs} runs)",
                    flush=True,
                )
            if len(outcomes) % 50 == 0:
                print(
                    f"{len(outcomes)} of {len(jobs)}, {time.monotonic() - start:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
    print(Counter(outcome.verdict for outcome in outcomes))
    if args.out:
        rows = (json.dumps(asdict(outcome)) for outcome in outcomes)
        args.out.write_text("[\n" + ",\n".join(rows) + "\n]\n")
        args.out.with_suffix(".md").write_text(summary(outcomes))


if __name__ == "__main__":
    main()
