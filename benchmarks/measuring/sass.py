"""Machine code as nvdisasm prints it: its control flow, its loops, and the instructions on a path.

Serves static_report.py. A path is chosen by what is issued on it: "once round this loop with two
UTMALDG and no multicast" names the branches of one configuration of a kernel that decides at run
time, without an address in it, so that it survives recompilation. What such a choice leaves open is
reported as a range, from the shortest of the paths to the longest.

A wait on an mbarrier is counted as one that succeeds at the first try_wait: the edges that a failed
try takes are removed before loops are looked for, and with them the spinning. What one elected
thread issues, its warp issues: the edge round it is removed too. BRA.DIV, which is taken only by a
warp that has diverged, is never taken.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

_LINE = re.compile(
    r"/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@(?P<guard>!?U?P\w+)\s+)?(?P<opcode>[A-Z]\S*)"
    r"(?:\s+(?P<operands>[^;]*?))?\s*;"
)
_LABEL = re.compile(r"^(?P<name>[.$\w]+):\s*$")
_TARGET = re.compile(r"`\(([.$\w]+)\)")
_TABLE = re.compile(r"BRANCH_TARGETS ([^\"]*)\"")
_PREDICATE = re.compile(r"!?U?P\w+")
# What an instruction path goes on with when the predicate that these set is true: a wait that is
# over, and the code of the one thread that a warp elects.
_GOES_ON = re.compile(r"SYNCS\.PHASECHK\..*TRYWAIT|ELECT")
_ENDS = ("EXIT", "RET", "BPT")


@dataclass(frozen=True)
class Instruction:
    """One instruction; `guard` is the predicate that it is issued under, or empty."""

    address: int
    guard: str
    opcode: str
    operands: str

    def __str__(self) -> str:
        guard = f"@{self.guard} " if self.guard else ""
        return f"{guard}{self.opcode} {self.operands}".strip()

    @property
    def is_branch(self) -> bool:
        """Whether control may go elsewhere (but for the end of the kernel)."""
        return self.opcode.split(".")[0] in ("BRA", "BRX", "BRXU")

    @property
    def condition(self) -> str:
        """The predicate that a branch is taken on; empty when it always is."""
        first = self.operands.split(",")[0].strip()
        return self.guard or (first if _PREDICATE.fullmatch(first) else "")

    def defines(self, predicate: str) -> bool:
        """Whether it writes the predicate: destinations come first, and are never negated."""
        return predicate in [operand.strip() for operand in self.operands.split(",")[:2]]


@dataclass(frozen=True)
class Block:
    """Instructions of which all are issued when the first is."""

    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class Loop:
    """A natural loop: blocks by index, entered at `header` only."""

    header: int
    blocks: frozenset[int]


@dataclass(frozen=True)
class Path:
    """Instructions from a loop's header round to it again."""

    instructions: tuple[Instruction, ...]

    def __len__(self) -> int:
        return len(self.instructions)


class Code:
    """The control flow of one kernel."""

    def __init__(self, listing: str) -> None:
        """`listing`: what `nvdisasm -c` prints; of several functions the first is the kernel."""
        instructions, labels = _parse(listing)
        targets = {
            labels[name]
            for i in instructions
            if i.is_branch and not i.opcode.startswith("BRA.DIV")
            for name in _targets(i)
        }
        ends = {i + 1 for i, instruction in enumerate(instructions) if _leaves(instruction)}
        starts = sorted({0} | targets | ends - {len(instructions)})
        self.blocks = [
            Block(tuple(instructions[first:last]))
            for first, last in zip(starts, [*starts[1:], len(instructions)], strict=True)
        ]
        block_at = {start: index for index, start in enumerate(starts)}
        edges = [
            self._edges(index, [block_at[labels[name]] for name in self._names(index)])
            for index in range(len(self.blocks))
        ]
        self._predecessors = _reverse(edges)
        self.successors = _reachable([self._pruned(i, e) for i, e in enumerate(edges)])

    def _names(self, index: int) -> list[str]:
        last = self.blocks[index].instructions[-1]
        return _targets(last) if last.is_branch and "DIV" not in last.opcode else []

    def _edges(self, index: int, targets: list[int]) -> tuple[int, ...]:
        """Successors of a block; of a conditional branch the taken one first."""
        last = self.blocks[index].instructions[-1]
        ends = last.opcode.split(".")[0] in _ENDS and not last.guard
        falls = [index + 1] if index + 1 < len(self.blocks) and not ends else []
        if last.is_branch and "DIV" not in last.opcode:
            return (*targets, *(falls if last.condition else []))
        return tuple(falls)

    def _pruned(self, index: int, edges: tuple[int, ...]) -> tuple[int, ...]:
        """Without the edge that a failed try_wait takes, or a thread that was not elected."""
        last = self.blocks[index].instructions[-1]
        if not (last.is_branch and last.condition) or len(edges) != 2:
            return edges
        setter = self._setter(index, last.condition.lstrip("!"))
        if setter is None or not _GOES_ON.match(setter.opcode):
            return edges
        return edges[1:] if last.condition.startswith("!") else edges[:1]

    def _setter(self, index: int, predicate: str) -> Instruction | None:
        """What set the predicate at the end of a block, as far as one way leads back."""
        seen: set[int] = set()
        while index not in seen:
            seen.add(index)
            for instruction in reversed(self.blocks[index].instructions):
                if not instruction.is_branch and instruction.defines(predicate):
                    return instruction
            before = self._predecessors[index]
            if len(before) != 1:
                return None
            [index] = before
        return None

    @cached_property
    def loops(self) -> list[Loop]:
        """Natural loops, the small ones first: of two nested loops the inner."""
        dominators = _dominators(self.successors)
        predecessors = _reverse(self.successors)
        bodies: dict[int, set[int]] = {}
        for tail, heads in enumerate(self.successors):
            for head in heads:
                if head in dominators.get(tail, ()):
                    body = bodies.setdefault(head, {head})
                    todo = [tail]
                    while todo:
                        block = todo.pop()
                        if block not in body:
                            body.add(block)
                            todo += predecessors[block]
        loops = [Loop(head, frozenset(body)) for head, body in bodies.items()]
        return sorted(loops, key=lambda loop: len(loop.blocks))

    def opcodes(self, loop: Loop) -> Counter[str]:
        """The instructions of a loop, on whatever path."""
        return Counter(i.opcode for b in loop.blocks for i in self.blocks[b].instructions)

    def has(self, loop: Loop, *patterns: str) -> bool:
        """Whether a loop has an instruction for each of the patterns, two for one given twice."""
        opcodes = self.opcodes(loop)
        return all(
            sum(n for o, n in opcodes.items() if re.fullmatch(p, o)) >= wanted
            for p, wanted in Counter(patterns).items()
        )

    def loop_with(self, *patterns: str) -> Loop:
        """The innermost loop that has an instruction for each of the patterns."""
        for loop in self.loops:
            if self.has(loop, *patterns):
                return loop
        raise ValueError(f"no loop has all of {', '.join(patterns)}")

    def round(self, patterns: Sequence[str], issued: Mapping[str, int]) -> tuple[Path, Path]:
        """`rounds` of the innermost loop that has the patterns, and any way that issues so much."""
        candidates = [loop for loop in self.loops if self.has(loop, *patterns)]
        for loop in candidates:
            with suppress(ValueError):
                return self.rounds(loop, issued)
        raise ValueError(
            f"{len(candidates)} loops have all of {', '.join(patterns)}, none issues {dict(issued)}"
        )

    def rounds(self, loop: Loop, issued: Mapping[str, int]) -> tuple[Path, Path]:
        """The shortest and the longest way once round a loop on which so many of each are issued.

        `issued`: patterns of opcodes, and how many instructions match each. Instructions that a
        predicate switches off are issued too. With 0, blocks that have a match are not on the way,
        nor are inner loops around them that have nothing to count. Of an inner loop that has, every
        round issues something.

        Raises:
          ValueError: there is no such way, or no longest one: how often an inner loop is passed is
            only known if one of its instructions is counted.
        """

        def count(block: int, pattern: str) -> int:
            return sum(
                bool(re.fullmatch(pattern, i.opcode)) for i in self.blocks[block].instructions
            )

        never = [pattern for pattern, wanted in issued.items() if not wanted]
        some = {pattern: wanted for pattern, wanted in issued.items() if wanted}
        ruled_out = {b for b in loop.blocks if any(count(b, pattern) for pattern in never)}
        for inner in self.loops:
            counted = any(count(b, pattern) for b in inner.blocks for pattern in some)
            if inner.blocks < loop.blocks and inner.blocks & ruled_out and not counted:
                ruled_out |= inner.blocks
        blocks = loop.blocks - ruled_out
        gains = {b: tuple(count(b, pattern) for pattern in some) for b in blocks}
        wanted = tuple(some.values())
        if loop.header not in blocks:
            raise ValueError(f"every round of the loop issues what {dict(issued)} rules out")

        inners = [
            inner
            for inner in self.loops
            if inner.blocks < loop.blocks and any(any(gains.get(b, ())) for b in inner.blocks)
        ]

        def begun(block: int, now: tuple[int, ...], state: _State) -> tuple[_Begun, ...]:
            """What had been issued when the rounds of inner loops began that go on in a block."""
            before = dict(state[2])
            return tuple(
                (inner.header, now if block == inner.header else before[inner.header])
                for inner in inners
                if block in inner.blocks
            )

        def ends_idle(block: int, successor: int, state: _State) -> bool:
            """Whether a round of an inner loop ends here in which nothing was issued."""
            return any(
                block in self._predecessors[inner.header]
                and state[1] == dict(state[2])[inner.header]
                and not (successor in inner.blocks and successor != inner.header)
                for inner in inners
                if block in inner.blocks
            )

        # A state is a block, what has been issued at its end, and what had been when the rounds of
        # the inner loops began that it is in. Ways lead from `start` to `end`.
        start: _State = (loop.header, gains[loop.header], ())
        end: _State = (-1, wanted, ())
        before: dict[_State, list[_State]] = {start: []}
        todo = [start]
        while todo:
            state = (block, now, _) = todo.pop()
            for successor in self.successors[block]:
                if ends_idle(block, successor, state):
                    continue
                if successor == loop.header:
                    after: _State = (-1, now, ())
                elif successor in blocks:
                    issued_then = zip(now, gains[successor], strict=True)
                    then = tuple(count + gain for count, gain in issued_then)
                    after = (successor, then, begun(successor, now, state))
                else:
                    continue
                if any(count > want for count, want in zip(after[1], wanted, strict=True)):
                    continue
                if after not in before:
                    before[after] = []
                    todo += [after] if after[0] >= 0 else []
                before[after].append(state)
        if end not in before:
            raise ValueError(f"no way round the loop issues {dict(issued)}")
        useful = _backwards(end, before)
        sizes = {block: len(self.blocks[block].instructions) for block in blocks} | {-1: 0}
        try:
            order = list(TopologicalSorter({s: before[s] for s in useful}).static_order())
        except CycleError as error:
            where = hex(min(self.blocks[b].instructions[0].address for b, *_ in error.args[1]))
            raise ValueError(
                f"an inner loop (at {where}) issues nothing of {dict(issued)}"
            ) from None
        ways = []
        for better in (min, max):
            length, came_from = {start: sizes[loop.header]}, dict[_State, _State]()
            for state in order:
                if state != start:
                    came_from[state] = better(before[state], key=length.__getitem__)
                    length[state] = length[came_from[state]] + sizes[state[0]]
            way, state = [], end
            while state != start:
                state = came_from[state]
                way.append(state[0])
            ways.append(self._path(reversed(way)))
        return ways[0], ways[1]

    def _path(self, blocks: Iterable[int]) -> Path:
        return Path(tuple(i for b in blocks for i in self.blocks[b].instructions))


_Begun = tuple[int, tuple[int, ...]]  # the header of a loop, and what had been issued
_State = tuple[int, tuple[int, ...], tuple[_Begun, ...]]


def _backwards(end: _State, before: Mapping[_State, Sequence[_State]]) -> set[_State]:
    """The states from which the end is reached."""
    found, todo = {end}, [end]
    while todo:
        for state in before[todo.pop()]:
            if state not in found:
                found.add(state)
                todo.append(state)
    return found


def _parse(listing: str) -> tuple[list[Instruction], dict[str, int]]:
    """The kernel's instructions, and the index of the one that each label stands before."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in listing.splitlines():
        if match := _LABEL.match(line.strip()):
            labels[match["name"]] = len(instructions)
        elif match := _LINE.search(line):
            instructions.append(
                Instruction(
                    int(match["address"], 16),
                    match["guard"] or "",
                    match["opcode"],
                    " ".join((match["operands"] or "").split()),
                )
            )
    if not instructions:
        raise ValueError("a listing without instructions")
    return instructions, labels


def _targets(instruction: Instruction) -> list[str]:
    """The labels that a branch names; nvdisasm appends those of an indirect one as a comment."""
    if match := _TABLE.search(instruction.operands):
        return match[1].split(",")
    return _TARGET.findall(instruction.operands)


def _leaves(instruction: Instruction) -> bool:
    return instruction.is_branch or instruction.opcode.split(".")[0] in _ENDS


def _reverse(edges: Sequence[Sequence[int]]) -> list[list[int]]:
    back: list[list[int]] = [[] for _ in edges]
    for source, targets in enumerate(edges):
        for target in targets:
            back[target].append(source)
    return back


def _reachable(edges: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The edges of blocks that the first one leads to."""
    seen, todo = {0}, [0]
    while todo:
        for target in edges[todo.pop()]:
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return [targets if block in seen else () for block, targets in enumerate(edges)]


def _dominators(edges: Sequence[Sequence[int]]) -> dict[int, set[int]]:
    """For each block that is reached, the blocks on every way to it."""
    predecessors = _reverse(edges)
    reached = {0} | {target for targets in edges for target in targets}
    dominators = {block: set(reached) for block in reached} | {0: {0}}
    changed = True
    while changed:
        changed = False
        for block in sorted(reached - {0}):
            ways = [dominators[p] for p in predecessors[block] if p in reached]
            new = set.intersection(*ways) | {block}
            if new != dominators[block]:
                dominators[block], changed = new, True
    return dominators
