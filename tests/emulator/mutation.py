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
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import jaxbw
from jaxbw import emulator

from . import gemm_launch
from .gemm_launch import BF16, SM90, SM100, Config
from .mutants import Mutant, mutants

F16, F32 = np.dtype(np.float16), np.dtype(np.float32)
KERNELS = Path(jaxbw.__file__).parent / "kernels"
SM90_NAMES = tuple(f"jaxbw_sm90_bf16_{layout}_128x64x64" for layout in ("nn", "nt", "tn", "tt"))
NAMES = ("jaxbw_sm100_16bit_1cta", "jaxbw_sm100_16bit_2cta", *SM90_NAMES)

# Mutants that no schedule can tell from the kernel, and what gives the order instead. By family,
# role, opcode, its occurrence in the role, and change.
_ALIGNED = "barrier.cluster.arrive.aligned behind it, which all lanes of a warp execute together"
REDUNDANT = {
    ("sm100", "setup", "bar.warp.sync", 1, "deleted"): _ALIGNED,
    ("sm100", "exit", "bar.warp.sync", 1, "deleted"): _ALIGNED,
    ("sm90", "setup", "bar.warp.sync", 1, "deleted"): _ALIGNED,
    ("sm100", "schedule", "bar.warp.sync", 1, "deleted"): (
        "the barrier's own arrival, which the phase waits for: bytes may come before expect_tx"
    ),
    ("sm100", "epilogue", "bar.warp.sync", 1, "deleted"): (
        "tcgen05.wait::ld.sync.aligned ahead of it, which all lanes execute together"
    ),
} | {
    ("sm90", "epilogue", "bar.warp.sync", occurrence, "deleted"): (
        "stmatrix.sync.aligned beside it, which all lanes execute together"
    )
    for occurrence in (5, 6, 7, 8)
}

Schedule = tuple[str, int]
_SEEDS = [schedule for seed in range(1, 13) for schedule in (("random", seed), ("pct", seed))]
SCHEDULES: tuple[Schedule, ...] = (("latest", 0), *_SEEDS, ("eager", 0))


@dataclass(frozen=True)
class Launch:
    """A small product that makes every ring of the kernel wrap around."""

    config: Config
    shape: tuple[int, int, int]
    bias: bool = False


def launches(name: str) -> tuple[Launch, ...]:
    """Launches that together reach all synchronisation of a kernel."""
    if "sm90" in name:
        layout = name.split("_")[3]
        majors = dict(lhs_major=int(layout[0] == "t"), rhs_major=int(layout[1] == "n"))

        def sm90(
            cluster: tuple[int, int], output: Any, shape: tuple[int, int, int], stages: int = 2
        ) -> Launch:
            config = Config(SM90, 128, 64, 1, cluster, stages, 1, output=output, **majors)
            return Launch(config, shape)

        return (
            sm90((1, 1), BF16, (200, 120, 320)),
            sm90((2, 1), F16, (400, 120, 328), stages=5),
            sm90((2, 2), F32, (400, 248, 200)),
            sm90((2, 2), F16, (400, 248, 200)),
            sm90((4, 2), BF16, (1000, 120, 136)),
        )
    group = 2 if "2cta" in name else 1

    def sm100(
        cluster: tuple[int, int],
        block_n: int,
        majors: tuple[int, int],
        tiles: tuple[int, int, int],
        output: Any = BF16,
        stages: int = 2,
    ) -> Launch:
        block_m = 128 * group
        config = Config(SM100, block_m, block_n, group, cluster, stages, 1, *majors, output=output)
        m, n, k = tiles
        return Launch(config, (cluster[0] * 128 * m - 8, cluster[1] * block_n * n - 8, 64 * k - 24))

    if group == 1:
        return (
            sm100((1, 1), 64, (0, 0), (2, 3, 5)),
            sm100((2, 1), 64, (0, 0), (1, 3, 5), stages=5),
            sm100((2, 2), 64, (0, 0), (2, 2, 3)),
            sm100((2, 2), 128, (1, 1), (2, 2, 3), F32),
            sm100((1, 1), 192, (1, 1), (2, 2, 3)),
            sm100((1, 1), 256, (1, 1), (2, 2, 3), F16),
            sm100((1, 2), 192, (1, 1), (2, 1, 3)),
            sm100((2, 1), 192, (1, 1), (2, 1, 3)),
            sm100((4, 2), 64, (0, 0), (1, 2, 3)),
            sm100((4, 2), 192, (1, 1), (1, 2, 2)),
            sm100((4, 2), 256, (1, 1), (1, 2, 2)),
        )
    return (
        sm100((2, 1), 64, (0, 0), (2, 3, 5)),
        sm100((4, 1), 64, (0, 0), (1, 3, 5), stages=5),
        sm100((2, 1), 128, (1, 1), (2, 2, 3), F32),
        sm100((2, 1), 256, (1, 1), (1, 3, 3), F16),
        sm100((2, 2), 64, (0, 0), (2, 2, 3)),
        sm100((4, 1), 128, (1, 1), (1, 3, 3)),
        sm100((4, 2), 64, (0, 0), (1, 2, 3)),
        sm100((4, 2), 128, (1, 1), (1, 2, 3)),
        sm100((4, 2), 256, (1, 1), (1, 2, 2)),
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
def _operands(shape: tuple[int, int, int]) -> tuple[np.ndarray[Any, Any], ...]:
    m, n, k = shape
    rng = np.random.default_rng(m * 7 + n * 5 + k)
    lhs, rhs = gemm_launch.integers(rng, 1, m, k), gemm_launch.integers(rng, 1, k, n)
    return lhs, rhs, lhs @ rhs


def observe(
    module: emulator.Module, launch: Launch, schedule: Schedule, step_limit: int = 1 << 36
) -> tuple[list[str], str, int]:
    """What one run of a kernel shows: the checks that fail, a message, and the steps it took."""
    lhs, rhs, product = _operands(launch.shape)
    config = launch.config
    clusters = config.cluster[0] * config.cluster[1]
    try:
        result, report = gemm_launch.run(
            module,
            config,
            lhs,
            rhs,
            BF16,
            sm_count=clusters,
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
    found = sorted({finding.kind for finding in report.findings})
    messages = [f"line {f.line}: {f.message}" for f in report.findings[:1]]
    expected = product.astype(config.output).astype(np.float32)
    wrong = int((result.astype(np.float32) != expected).sum())
    if wrong:
        found.insert(0, "wrong result")
        messages.append(f"{wrong} of {expected.size} elements are wrong")
    return found, "; ".join(messages), report.steps


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
def _reached(name: str, line: int, probe: str) -> tuple[int, ...]:
    """Numbers of the launches in which the kernel comes to a changed instruction."""
    module = emulator.Module(Mutant(line, "", "", "", probe).apply(_text(name)), name)
    return tuple(
        i
        for i, launch in enumerate(launches(name))
        if "executed a trap" in observe(module, launch, ("eager", 0))[1]
    )


def examine(name: str, mutant: Mutant, schedules: tuple[Schedule, ...] = SCHEDULES) -> Outcome:
    """Runs a mutant until it is found."""
    out = Outcome(name, mutant.line + 1, mutant.role, mutant.instruction, mutant.change)
    family = name.split("_")[1]
    site = (family, mutant.role, mutant.opcode, mutant.occurrence, mutant.change)
    out.redundant = REDUNDANT.get(site, "")
    reaching = _reached(name, mutant.line, mutant.probe().replacement)
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
    lines = [
        "# Mutation testing of the kernels",
        "",
        "Written by `python -m tests.emulator.mutation`. A mutant is one of our kernels with one",
        "synchronising instruction deleted or weakened; it counts under the first check that finds",
        "it. Not reached: a mask bit that no cluster shape sets, or code that no configuration",
        "comes to. Redundant: another instruction gives the same order.",
        "",
        f"{len(reached)} mutants are reached; {len(reached) - missed} are found, {missed} are not "
        f"({100 * missed / max(1, len(reached)):.1f} %).",
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
