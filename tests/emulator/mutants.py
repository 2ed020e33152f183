"""Mutants of a kernel: PTX with one synchronising instruction deleted or weakened.

An instruction is replaced in its own line, so that findings keep their line numbers.
"""

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

# Instructions that order something and have no result: a mutant is the kernel without one.
_DELETED = re.compile(
    r"(fence\.|tcgen05\.fence|tcgen05\.wait|tcgen05\.commit|tcgen05\.cp|wgmma\.(fence|commit_group|wait_group)"
    r"|cp\.async\.(bulk\.)?(wait_group|commit_group)|(cp\.async\.)?mbarrier\.arrive|bar\.(warp\.)?sync"
    r"|barrier\.(cta\.(sync|arrive)|cluster\.(arrive|wait)))"
)
_WAIT = re.compile(r"mbarrier\.try_wait\.parity(\S*) (%?\w+), (\[.*?\]), (%\w+);")
_EXPECT = re.compile(r"(mbarrier\.arrive)\.expect_tx(\S* _, \[.*?\]), (%\w+|\d+);")
_INIT = re.compile(r"(mbarrier\.init\S* \[.*?\]), (%\w+|\d+);")
_GROUPS = re.compile(r"((?:cp\.async|cp\.async\.bulk|wgmma)\.wait_group\S*)\s+(\d+);")
_MULTICAST = re.compile(r"^(\S*\.multicast::cluster\S* .*), (%rs\d+);")
_FLIP = re.compile(r"xor\.b32\s+(%\w+), \1, %\w+;")
# With scales: descriptor of the instruction, addresses of A's and of B's.
_SCALED = re.compile(r"(tcgen05\.mma\S*block_scale\S* .*), (%\w+), \[(%\w+)\], \[(%\w+)\], (\w+);")
_SCALE_IDS = {"A": 1 << 29, "B": 1 << 4}  # lowest bits in the descriptor: cuda/gemm/descriptors.h

# What tells the warp roles apart, by their nearest instruction of these kinds.
_ROLES = {
    "setup": re.compile(r"mbarrier\.init|tcgen05\.alloc"),
    "load": re.compile(r"cp\.async\.bulk\.tensor\.\dd\.shared|cp\.async\.cg"),
    "multiply": re.compile(r"tcgen05\.mma|wgmma\.mma_async|mma\.sync"),
    "schedule": re.compile(r"clusterlaunchcontrol\.try_cancel"),
    "epilogue": re.compile(r"tcgen05\.ld|cp\.async\.bulk\.tensor\.\dd\.global"),
}
MASK_BITS = 16  # ranks of the largest cluster
_CLUSTER_BARRIER = re.compile(r"barrier\.cluster\.arrive")


@dataclass(frozen=True)
class Mutant:
    """One change of one line (counted from 0); `lines` is 2 where the next one is deleted too."""

    line: int
    role: str  # of the warp that executes it
    instruction: str
    change: str
    replacement: str
    lines: int = 1
    occurrence: int = 0  # of the opcode in its role, counted from 1
    condition: str = ""  # statements that set the predicate q where the change makes a difference

    def apply(self, ptx: str) -> str:
        """Returns the mutated text."""
        text = ptx.split("\n")
        text[self.line : self.line + self.lines] = [self.replacement] + [""] * (self.lines - 1)
        return "\n".join(text)

    @property
    def place(self) -> tuple[int, str]:
        """Where it makes a difference: its line, and the condition there."""
        return self.line, self.condition

    @property
    def opcode(self) -> str:
        """The instruction without its operands."""
        return self.instruction.split()[0].rstrip(";")


def mutants(ptx: str) -> Iterator[Mutant]:
    """Every mutant of a kernel, in the order of its lines."""
    lines_of: dict[tuple[str, str], list[int]] = {}
    for mutant in _mutants(ptx):
        lines = lines_of.setdefault((mutant.role, mutant.opcode), [])
        if mutant.line not in lines:
            lines.append(mutant.line)
        yield replace(mutant, occurrence=len(lines))


def marked(ptx: str, flags: int) -> tuple[str, dict[tuple[int, str], int]]:
    """A kernel that notes which mutants' changes would make a difference in a launch.

    Args:
      ptx: the text.
      flags: address of 32-bit words, which it sets.
    Returns:
      The text, and the number of the word for each line and condition of a mutant.
    """
    lines = ptx.split("\n")
    places = dict.fromkeys(mutant.place for mutant in _mutants(ptx))
    numbers = {place: number for number, place in enumerate(places)}
    for (line, condition), number in numbers.items():
        guard = "@q " if condition else ""
        lines[line] = (
            f"{{ .reg .pred q; .reg .b64 flag; {condition} mov.u64 flag, {flags + 4 * number}; "
            f"{guard}red.global.or.b32 [flag], 1; }} {lines[line]}"
        )
    return "\n".join(lines), numbers


def _mutants(ptx: str) -> Iterator[Mutant]:
    lines = ptx.split("\n")
    waited = {match[4] for line in lines if (match := _WAIT.search(line))}
    role_of = _roles(lines)
    for number, line in enumerate(lines):
        statement = line.strip()
        for change, replacement in _changes(statement, waited):
            yield Mutant(number, role_of(number), statement, change, replacement)
        if match := _MULTICAST.match(statement):
            yield from _mask_mutants(number, role_of(number), statement, match[1], match[2])
        if match := _SCALED.match(statement):
            for change, replacement in _scale_mutants(*match.groups()):
                yield Mutant(number, role_of(number), statement, change, replacement)
        if _CLUSTER_BARRIER.match(statement) and "barrier.cluster.wait" in lines[number + 1]:
            yield Mutant(number, role_of(number), statement, "deleted, with its wait", "", 2)


def _mask_mutants(number: int, role: str, statement: str, head: str, mask: str) -> Iterator[Mutant]:
    for bit in range(MASK_BITS):
        dropped = f"{{ .reg .b16 m; and.b16 m, {mask}, {0xFFFF ^ 1 << bit}; {head}, m; }}"
        present = f".reg .b16 m; and.b16 m, {mask}, {1 << bit}; setp.ne.b16 q, m, 0;"
        change = f"mask without bit {bit}"
        yield Mutant(number, role, statement, change, dropped, condition=present)


def _scale_mutants(
    head: str, descriptor: str, a: str, b: str, accumulate: str
) -> Iterator[tuple[str, str]]:
    for side, bit in _SCALE_IDS.items():
        mutated = f"{{ .reg .b32 m; xor.b32 m, {descriptor}, {bit}; {head}, m, "
        yield f"another scale id of {side}", f"{mutated}[{a}], [{b}], {accumulate}; }}"
    for side, address in (("A", a), ("B", b)):
        shifted = f"{{ .reg .b32 m; add.s32 m, {address}, 4; {head}, {descriptor}, "
        addresses = f"[m], [{b}]" if side == "A" else f"[{a}], [m]"
        yield f"scales of {side} of the next rows", f"{shifted}{addresses}, {accumulate}; }}"


def _changes(statement: str, waited: set[str]) -> Iterator[tuple[str, str]]:
    if _DELETED.match(statement):
        yield "deleted", ""
    if match := _WAIT.match(statement):
        order, done, barrier, parity = match.groups()
        yield "always done", f"setp.eq.u32 {done}, 0, 0;"
        yield (
            "waits for the other parity",
            f"{{ .reg .b32 m; xor.b32 m, {parity}, 1; "
            f"mbarrier.try_wait.parity{order} {done}, {barrier}, m; }}",
        )
        if ".acquire" in order:
            relaxed = order.replace(".acquire.cta", ".relaxed.cta")
            relaxed = relaxed.replace(".acquire.cluster", ".relaxed.cluster")
            yield "relaxed", statement.replace(order, relaxed)
    if match := _EXPECT.match(statement):
        arrive, barrier, count = match.groups()
        yield "expects no bytes", f"{arrive}{barrier};"
        for sign, bytes_ in (("more", 16), ("less", -16)):
            yield (
                f"expects 16 bytes {sign}",
                f"{{ .reg .b32 m; add.s32 m, {count}, {bytes_}; {arrive}.expect_tx{barrier}, m; }}",
            )
    if match := _INIT.match(statement):
        for change, step in (("one arrival more", 1), ("one arrival less", -1)):
            yield change, f"{{ .reg .b32 m; add.s32 m, {match[2]}, {step}; {match[1]}, m; }}"
    if (match := _GROUPS.match(statement)) and match[2] != "0":
        yield "one group more in flight", f"{match[1]} {int(match[2]) + 1};"
    if (match := _FLIP.match(statement)) and match[1] in waited:
        yield "parity never flips", ""
        yield "parity flips every time", f"xor.b32 {match[1]}, {match[1]}, 1;"


def _roles(lines: list[str]) -> Callable[[int], str]:
    anchors = [
        (number, role)
        for number, line in enumerate(lines)
        for role, pattern in _ROLES.items()
        if pattern.search(line)
    ]
    barriers = [i for i, line in enumerate(lines) if _CLUSTER_BARRIER.search(line)]
    if barriers:
        anchors += [(barriers[0], "setup"), (barriers[-1], "exit")]

    @functools.cache  # few lines have a mutant, but these many
    def role_of(number: int) -> str:
        return min(anchors, key=lambda anchor: abs(anchor[0] - number))[1]

    return role_of
