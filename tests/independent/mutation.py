"""Mutation testing of other compilers' kernels: `hardware` finds whatever makes a result wrong.

    python -m tests.independent.mutation --out benchmarks/results/DATE_independent_mutation.md

A mutant is a kernel with one synchronising instruction deleted, moved or weakened. Those whose
result is wrong in some schedule, unchecked, must be found at level `hardware`; the table tells in
how many schedules.
"""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from jaxbw import emulator

from . import launching
from .launching import Kernel, Problem

SCHEDULES = [
    ("eager", 0),
    ("latest", 0),
    *((kind, seed) for seed in range(1, 5) for kind in ("random", "pct", "hold")),
]

_GUARD = re.compile(r"^\s*(@!?%?\w+\s+)?")
_DELETED = re.compile(
    r"fence\.|membar|tcgen05\.(fence|wait|commit|dealloc)|cp\.async\.(bulk\.)?(wait|commit)_group"
    r"|cp\.async\.mbarrier|mbarrier\.arrive|bar(rier)?\.(cta\.)?(sync|warp\.sync)|barrier\.cluster"
)
_WAIT = re.compile(r"(mbarrier\.try_wait\.parity\S*)\s+(%?\w+),\s*(\[.*?\]),\s*([^,;]+)(,[^;]*)?;")
_EXPECT = re.compile(r"(mbarrier\.arrive)\.expect_tx(\S*\s+_,\s*\[.*?\]),\s*(%?\w+);")
_INIT = re.compile(r"(mbarrier\.init\S*\s+\[.*?\]),\s*(%?\w+);")
_GROUPS = re.compile(r"(cp\.async\.(?:bulk\.)?wait_group\S*)\s+(\d+);")
_MOVED = re.compile(r"tcgen05\.(commit|dealloc|wait|relinquish)|mbarrier\.arrive|fence\.proxy")
_BLOCK_ENDS = re.compile(r"\$?\w+:|\s*(bra|ret|@\S+\s+bra)|\s*[{}]")


@dataclass(frozen=True)
class Mutant:
    """One change of one line (counted from 1)."""

    line: int
    instruction: str
    change: str
    ptx: str


@dataclass(frozen=True)
class Outcome:
    """In how many of the schedules a mutant goes wrong, and how."""

    kernel: str
    mutant: Mutant
    wrong: int  # unchecked: another result
    errors: int  # unchecked: a deadlock, or what no level lets pass
    found: int  # at level hardware: of the schedules, those with a finding or an error
    kinds: tuple[str, ...]  # of the findings


def _changes(statement: str) -> Iterator[tuple[str, str]]:
    if _DELETED.match(statement):
        yield "deleted", ""
    if match := _WAIT.match(statement):
        wait, done, barrier, parity, hint = match.groups()
        yield "always done", f"setp.eq.u32 {done}, 0, 0;"
        other = (
            f"{{ .reg .b32 m; xor.b32 m, {parity}, 1; {wait} {done}, {barrier}, m{hint or ''}; }}"
        )
        yield "waits for the other parity", other
    if match := _EXPECT.match(statement):
        arrive, barrier, count = match.groups()
        yield "expects no bytes", f"{arrive}{barrier};"
        less = f"{{ .reg .b32 m; add.s32 m, {count}, -16; {arrive}.expect_tx{barrier}, m; }}"
        yield "expects 16 bytes less", less
    if match := _INIT.match(statement):
        less = f"{{ .reg .b32 m; add.s32 m, {match[2]}, -1; {match[1]}, m; }}"
        yield "one arrival less", less
    if match := _GROUPS.match(statement):
        yield "one group more in flight", f"{match[1]} {int(match[2]) + 1};"


def mutants(ptx: str) -> Iterator[Mutant]:
    lines = ptx.split("\n")

    def with_lines(changed: dict[int, str]) -> str:
        return "\n".join(changed.get(number, line) for number, line in enumerate(lines))

    for number, line in enumerate(lines):
        guard = (_GUARD.match(line) or [""])[0]
        statement = line[len(guard) :].split("//")[0].strip()
        for change, replacement in _changes(statement):
            # A predicate cannot stand before a block.
            if guard.strip() and replacement.startswith("{"):
                continue
            text = with_lines({number: guard + replacement if replacement else ""})
            yield Mutant(number + 1, statement, change, text)
        if _MOVED.match(statement):
            above = number - 1
            while not lines[above].strip() or re.match(r"\s*(//|\.loc)", lines[above]):
                above -= 1
            if not _BLOCK_ENDS.match(lines[above]):
                moved = with_lines({above: line, number: lines[above]})
                yield Mutant(number + 1, statement, "moved up", moved)


def examine(name: str, kernel: Kernel, problem: Problem, mutant: Mutant) -> Outcome:
    changed = replace(kernel, ptx=mutant.ptx)
    wrong = errors = found = 0
    kinds: set[str] = set()
    limit = 20_000_000  # instructions: a mutant may poll for ever
    for checks in ("off", "hardware"):
        for schedule, seed in SCHEDULES:
            try:
                report = launching.run(
                    changed, problem, schedule=schedule, seed=seed, checks=checks, step_limit=limit
                )
            except launching.WrongResult as error:
                wrong += checks == "off"
                findings = error.report.findings
            except emulator.EmulatorError as error:
                errors += checks == "off"
                findings = [*error.report.findings, "error"]
            else:
                findings = report.findings
            if checks == "hardware":
                found += bool(findings)
                kinds |= {getattr(each, "kind", "error") for each in findings}
        if not wrong and not errors:
            break  # makes no difference
    return Outcome(name, mutant, wrong, errors, found, tuple(sorted(kinds)))


def kernels() -> Iterator[tuple[str, Kernel, Problem]]:
    from . import cute_kernels as cute
    from . import gluon_kernels as gluon
    from . import triton_kernels as triton

    problem = Problem(200, 140, 200)
    yield "Triton, pointers", triton.pointers(problem, (128, 128, 64)), problem
    problem = Problem(200, 136, 200)
    yield "Triton, TMA", triton.descriptors(problem, (128, 128, 64)), problem
    problem = Problem(264, 264, 328, launching.F16)
    yield (
        "Triton, specialized warps",
        triton.descriptors(problem, (128, 64, 64), specialize=True),
        problem,
    )
    problem = Problem(136, 136, 200, launching.F16)
    yield "Gluon, tile", gluon.compiled(gluon.matmul_tile, problem, (64, 64, 64), 1), problem
    yield (
        "Gluon, launch control",
        gluon.compiled(gluon.matmul_persistent, problem, (64, 64, 64), 1),
        problem,
    )
    problem = Problem(328, 296, 328, launching.F16)
    yield (
        "Gluon, pair, launch control",
        gluon.compiled(gluon.matmul_persistent, problem, (256, 128, 64), 2),
        problem,
    )
    problem = Problem(256, 512, 192, launching.F16)
    made = cute.compiled(problem, (128, 128), columns=2, tma_store=True)
    yield "CuTe DSL, persistent, TMA stores", made, problem
    problem = Problem(512, 256, 320)
    made = cute.compiled(problem, (256, 128), cluster=(2, 1), pair=True, stages=4)
    yield "CuTe DSL, pair", made, problem


def table(outcomes: list[Outcome]) -> str:
    """The table of all mutants that make a difference."""
    lines: list[str] = []
    names = list(dict.fromkeys(outcome.kernel for outcome in outcomes))
    lines += ["| Kernel | Mutants | other results | of these found | only errors | no difference |"]
    lines += ["|---|---|---|---|---|---|"]
    for name in [*names, "all"]:
        mine = [each for each in outcomes if name in (each.kernel, "all")]
        changed = [each for each in mine if each.wrong]
        found = sum(each.found > 0 for each in changed)
        errors = sum(each.errors > 0 and not each.wrong for each in mine)
        idle = len(mine) - len(changed) - errors
        lines.append(f"| {name} | {len(mine)} | {len(changed)} | {found} | {errors} | {idle} |")
    lines += ["", f"Mutants with other results, of {len(SCHEDULES)} schedules:", ""]
    lines += [
        "| Kernel | Line | Instruction | Change | wrong | found | as |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in outcomes:
        if each.wrong:
            opcode = each.mutant.instruction.split()[0].rstrip(";")
            what = f"`{opcode}` | {each.mutant.change}"
            numbers = f"{each.wrong} | {each.found} | {', '.join(each.kinds)}"
            lines.append(f"| {each.kernel} | {each.mutant.line} | {what} | {numbers} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--kernels", default="", help="those whose name contains this")
    arguments = parser.parse_args()
    outcomes = []
    for name, kernel, problem in kernels():
        if arguments.kernels in name:
            for mutant in mutants(kernel.ptx):
                outcomes.append(examine(name, kernel, problem, mutant))
            print(f"{name}: {sum(o.kernel == name for o in outcomes)} mutants", flush=True)
    text = table(outcomes)
    if arguments.out:
        arguments.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
