"""Where the redundant instructions are, after a change to the kernels.

    cp -r jaxbw/kernels /tmp/before        # then change cuda/, build, and, before redundant.py:
    python -m tests.emulator.moved_mutants /tmp/before

REDUNDANT has an instruction by its occurrence in a role, which changes elsewhere move. Here each is
looked up by the lines around it, without numbers of registers and labels: in the longest stretch
that the kernel still has. It prints what is to be changed in the table.
"""

import argparse
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from jaxbw._src.selection import manifest

from . import mutation
from .mutants import Mutant, mutants
from .mutation_launches import NAMES

WIDTHS = (60, 30, 15, 8, 4)  # lines of a stretch on either side of the instruction
_NUMBERED = re.compile(r"(?<=%)([a-z]+)\d+|\$L__BB\d+_\d+")


def normalized(ptx: str) -> list[str]:
    """The lines, where those of one source are equal however it is compiled."""
    return [_NUMBERED.sub(r"\1", line.partition("//")[0]).strip() for line in ptx.split("\n")]


def follow(before: Sequence[str], after: Sequence[str], lines: Collection[int]) -> dict[int, int]:
    """Where lines of one text are in another; of equal stretches the first is the first."""
    found: dict[int, int] = {}
    for width in WIDTHS:
        wanted = {before[line] for line in lines if line not in found}
        old, new = (_stretches(text, wanted, width) for text in (before, after))
        for stretch, places in old.items():
            if len(places) == len(new[stretch]):
                pairs = zip(places, new[stretch], strict=True)
                found |= {a: b for a, b in pairs if a in lines and a not in found}
    return found


def _stretches(
    text: Sequence[str], wanted: Collection[str], width: int
) -> defaultdict[tuple[str, ...], list[int]]:
    found: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, line in enumerate(text):
        if line in wanted:
            found[(*text[max(0, place - width) : place + width + 1],)].append(place)
    return found


def moved(before: str, after: str, redundant: Callable[[Mutant], object]) -> Iterator[str]:
    """What a table of redundant instructions of the text before says wrongly of the one after."""
    known = [mutant for mutant in mutants(before) if redundant(mutant)]
    places = follow(normalized(before), normalized(after), {mutant.line for mutant in known})
    now = {(mutant.line, mutant.change): mutant for mutant in mutants(after)}
    for mutant in known:
        there = now.pop((places.get(mutant.line, -1), mutant.change), None)
        if there is None:
            yield f"{_said(mutant)} is gone"
        elif _said(there) != _said(mutant):
            yield f"{_said(mutant)} is {there.role} {there.occurrence}"
    for mutant in now.values():
        if redundant(mutant):
            yield f"{_said(mutant)} is another instruction now"


def _said(mutant: Mutant) -> str:
    return f"{mutant.role} {mutant.opcode} {mutant.occurrence}, {mutant.change},"


def main() -> None:
    """Prints what has moved in each kernel."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="the directory of kernels before the change")
    directory: Path = parser.parse_args().before
    for kernel in (each for each in manifest.kernels() if each.name in NAMES):
        before, after = manifest.ptx(kernel, directory), manifest.ptx(kernel)
        redundant = functools.partial(mutation.redundant, kernel.name)
        for line in moved(before, after, redundant):
            print(f"{kernel.name}: {line}", flush=True)


if __name__ == "__main__":
    main()
