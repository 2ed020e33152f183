"""Mutation testing of other compilers' kernels: `hardware` finds whatever makes a result wrong.

    python -m tests.independent.mutation --jobs 2 \\
        --out benchmarks/results/DATE_independent_mutation.md

A mutant is a kernel with one synchronising instruction deleted, moved or weakened. Those whose
result is wrong in some schedule, unchecked, must be found at level `hardware`; the table tells in
how many schedules. `--part 1/4` examines the first of every four mutants.
"""

import argparse
import importlib.metadata
import itertools
import multiprocessing
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxbw import emulator

from . import launching
from .launching import BF16, Array, Kernel, Layer, Problem

Launch = Callable[..., emulator.Report]  # with options of Module.launch; raises WrongResult
SCHEDULES = [
    ("eager", 0),
    ("latest", 0),
    *((kind, seed) for seed in range(1, 5) for kind in ("random", "pct", "hold")),
]

_GUARD = re.compile(r"^\s*(@!?%?\w+\s+)?")
_DELETED = re.compile(
    r"fence\.|membar|tcgen05\.(fence|wait|commit|alloc|dealloc|relinquish)|cp\.async\.(bulk\.)?(wait|commit)_group"
    r"|cp\.async\.mbarrier|mbarrier\.arrive|bar(rier)?\.(cta\.)?(sync|warp\.sync)|barrier\.cluster"
)
_WAIT = re.compile(r"(mbarrier\.try_wait\.parity\S*)\s+(%?\w+),\s*(\[.*?\]),\s*([^,;]+)(,[^;]*)?;")
_EXPECT = re.compile(r"(mbarrier\.arrive)\.expect_tx(\S*\s+_,\s*\[.*?\]),\s*(%?\w+);")
_INIT = re.compile(r"(mbarrier\.init\S*\s+\[.*?\]),\s*(%?\w+);")
_GROUPS = re.compile(r"(cp\.async\.(?:bulk\.)?wait_group\S*)\s+(\d+);")
_COLUMNS = re.compile(r"(tcgen05\.(?:de)?alloc\S*\s+\S+),\s*(%?\w+);")
_MOVED = re.compile(
    r"tcgen05\.(commit|alloc|dealloc|wait|relinquish)|mbarrier\.arrive|fence\.proxy"
    r"|bar(rier)?\.(cta\.)?(sync|warp\.sync)|cp\.async\.(bulk\.)?(wait|commit)_group"
)
_BETWEEN = re.compile(r"\s*(//.*|\.loc.*)?$")
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

    @property
    def missed(self) -> bool:
        """Another result, and nothing found."""
        return bool(self.wrong) and not self.found


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
    if (match := _COLUMNS.match(statement)) and match[2] != "32":
        less = f"{{ .reg .b32 m; shr.u32 m, {match[2]}, 1; {match[1]}, m; }}"
        yield "half of the columns", less
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
            for change, towards in (("moved up", -1), ("moved down", 1)):
                other = number + towards
                while _BETWEEN.match(lines[other]):
                    other += towards
                if not _BLOCK_ENDS.match(lines[other]):
                    text = with_lines({other: line, number: lines[other]})
                    yield Mutant(number + 1, statement, change, text)


@dataclass(frozen=True)
class Subject:
    """A kernel to make mutants of, and how to launch one."""

    name: str
    ptx: str
    launcher: Callable[[str], Launch]  # of a mutant's text


def of_gemm(name: str, kernel: Kernel, problem: Problem) -> Subject:
    return Subject(
        name, kernel.ptx, lambda ptx: launching.launcher(replace(kernel, ptx=ptx), problem)
    )


def of_layer(name: str, layer: Layer, arguments: list[Any], outputs: list[Array]) -> Subject:
    """Right is what the layer does; test_layers compares that with NumPy, in every schedule."""

    def outcome(module: emulator.Module, **options: Any) -> tuple[emulator.Report, list[bytes]]:
        for output in outputs:
            output.view(np.uint8)[...] = 0xA5
        report = layer.launch(module, *arguments, **options)
        return report, [output.tobytes() for output in outputs]

    _, right = outcome(emulator.Module(layer.ptx), checks="hardware")

    def launcher(ptx: str) -> Launch:
        module = emulator.Module(ptx)

        def launch(**options: Any) -> emulator.Report:
            report, found = outcome(module, **options)
            if found != right:
                raise launching.WrongResult(report, options)
            return report

        return launch

    return Subject(name, layer.ptx, launcher)


def examine(subject: Subject, mutant: Mutant) -> Outcome:
    launch = subject.launcher(mutant.ptx)
    wrong = errors = found = 0
    kinds: set[str] = set()
    limit = 20_000_000  # instructions: a mutant may poll for ever
    for checks in ("off", "hardware"):
        for schedule, seed in SCHEDULES:
            try:
                report = launch(schedule=schedule, seed=seed, checks=checks, step_limit=limit)
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
    return Outcome(subject.name, mutant, wrong, errors, found, tuple(sorted(kinds)))


def gemms(given: Problem | None = None) -> Iterator[tuple[str, Kernel, Problem]]:
    """Each compiler's GEMMs, for a problem, or each for one with edges."""
    from . import cute_kernels as cute
    from . import gluon_kernels as gluon
    from . import triton_kernels as triton

    problem = given or Problem(200, 140, 200)
    yield "Triton, pointers", triton.pointers(problem, (128, 128, 64)), problem
    problem = given or Problem(200, 136, 200)
    yield "Triton, TMA", triton.descriptors(problem, (128, 128, 64)), problem
    problem = given or Problem(264, 264, 328, launching.F16)
    made = triton.descriptors(problem, (128, 64, 64), specialize=True)
    yield "Triton, specialized warps", made, problem
    problem = given or Problem(136, 136, 200, launching.F16)
    yield "Gluon, tile", gluon.compiled(gluon.matmul_tile, problem, (64, 64, 64), 1), problem
    made = gluon.compiled(gluon.matmul_persistent, problem, (64, 64, 64), 1)
    yield "Gluon, launch control", made, problem
    problem = given or Problem(328, 296, 328, launching.F16)
    made = gluon.compiled(gluon.matmul_persistent, problem, (256, 128, 64), 2)
    yield "Gluon, pair, launch control", made, problem
    problem = given or Problem(256, 512, 192, launching.F16)
    made = cute.compiled(problem, (128, 128), columns=2, tma_store=True)
    yield "CuTe DSL, persistent, TMA stores", made, problem
    problem = given or Problem(512, 256, 320)
    made = cute.compiled(problem, (256, 128), cluster=(2, 1), pair=True, stages=4)
    yield "CuTe DSL, pair", made, problem


def layers() -> Iterator[Subject]:
    """Kernels beside the GEMM."""
    from . import cute_launch_control, triton_layers

    rng = np.random.default_rng(0)

    def noise(*shape: int, dtype: Any = BF16) -> Array:
        array = emulator.empty(shape, dtype)
        array[...] = rng.normal(size=shape)
        return array

    x, out = noise(7, 200), emulator.empty((7, 200), BF16)
    yield of_layer("Triton, softmax", triton_layers.softmax(200), [x, out, 7, 200], [out])
    x, out = noise(4, 700), emulator.empty((4, 700), BF16)
    arguments = [x, noise(700, dtype=np.float32), noise(700, dtype=np.float32), out, 700]
    yield of_layer("Triton, layer norm", triton_layers.layer_norm(4), arguments, [out])
    for length, width, causal, block in [
        (200, 64, False, (128, 64)),
        (256, 128, True, (128, 128)),
        (100, 32, True, (64, 32)),
        (48, 32, False, (16, 16)),
    ]:
        arrays = [noise(1, length, width) for _ in range(4)]
        how = "by tcgen05" if block[0] >= 64 else "by mma.sync"
        name = f"Triton, attention {how}, {block[0]}x{block[1]}{', causal' if causal else ''}"
        layer = triton_layers.attention(length, 1, width, causal, block)
        yield of_layer(name, layer, [*arrays, length], arrays[3:])
    x, scales = noise(3, 900), emulator.empty(3, np.float32)
    out = emulator.empty((3, 900), np.uint8)
    layer = triton_layers.cast(3, 900)
    yield of_layer("Triton, cast to fp8", layer, [x, out, scales, 900], [out, scales])
    layer, descriptors = triton_layers.gather(64, 32, 2)
    x, out, rows = noise(50, 64), emulator.empty((60, 64), BF16), emulator.empty(64, np.int32)
    rows[...] = rng.integers(0, 70, 64)
    yield of_layer("Triton, gather and scatter", layer, [*descriptors(x, out), rows], [out])
    x, out = noise(50, 104), emulator.empty((50, 104), BF16)
    layer = triton_layers.double(50, 104, (32, 64))
    yield of_layer("Triton, tensor maps made", layer, [x, out, 50, 104], [out])
    x, out = emulator.empty((11, 128), np.int32), emulator.empty((11, 128), np.int32)
    x[...] = np.arange(11 * 128).reshape(11, 128)
    layer = cute_launch_control.add_row_numbers(11)
    yield of_layer("CuTe DSL, rows, launch control", layer, [x, out], [out])


def subjects() -> Iterator[Subject]:
    yield from layers()
    for name, kernel, problem in gemms():
        yield of_gemm(name, kernel, problem)


def _versions() -> Iterator[str]:
    for name, package in (("Triton", "triton"), ("the CuTe DSL", "nvidia-cutlass-dsl")):
        yield f"{name} {importlib.metadata.version(package)}"


def table(outcomes: list[Outcome]) -> str:
    """The table of all mutants that make a difference."""
    wrong = sum(outcome.wrong > 0 for outcome in outcomes)
    missed = sum(outcome.missed for outcome in outcomes)
    lines = ["# Mutants of other compilers' kernels", ""]
    lines += [
        f"{len(outcomes)} mutants of kernels of {', '.join(_versions())}",
        "(`tests/independent`), made by `python -m tests.independent.mutation --out FILE`: one",
        "synchronizing instruction deleted, moved by one place, or weakened. Unchecked, the result",
        f"of {wrong} is wrong in at least one of {len(SCHEDULES)} schedules; level `hardware`",
        f"finds {wrong - missed} of them. Of those with errors only, some schedule ends in one,",
        "mostly a deadlock, which every level reports.",
        "",
    ]
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


# Of the parent, which compiles; its children examine. (A subject cannot be pickled.)
_SUBJECTS: list[Subject] = []


def _work(job: tuple[int, Mutant]) -> Outcome:
    return examine(_SUBJECTS[job[0]], job[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--part", default="1/1", metavar="I/N")
    parser.add_argument("--kernels", default="", help="those whose name contains this")
    arguments = parser.parse_args()
    _SUBJECTS[:] = [each for each in subjects() if arguments.kernels in each.name]
    first, step = map(int, arguments.part.split("/"))
    jobs = [(i, mutant) for i, each in enumerate(_SUBJECTS) for mutant in mutants(each.ptx)]
    outcomes = []
    with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
        todo = itertools.islice(jobs, first - 1, None, step)
        for outcome in pool.imap(_work, todo):
            outcomes.append(outcome)
            if outcome.missed:
                print(f"not found: {outcome}"[:400], file=sys.stderr, flush=True)
            if len(outcomes) % 50 == 0:
                print(f"{len(outcomes)} of {len(jobs) // step}", file=sys.stderr, flush=True)
    text = table(outcomes)
    if arguments.out:
        arguments.out.write_text(text)
    print(text)
    return int(any(outcome.missed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
