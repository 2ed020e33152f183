"""Probes: a kernel's PTX, changed to write down operands of some of its instructions as it runs.

What a probe reads is what the running kernel hands to the hardware: multicast masks, arrival
counts, coordinates.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxbw import emulator

# Instructions, with a group for each operand that is written down (registers or constants).
REG = r"(%\w+|\d+)"
INIT = rf"mbarrier\.init\S* \[{REG}\], {REG};"
EXPECT = rf"mbarrier\.arrive\.expect_tx\.shared::cta\S* _, \[{REG}\], {REG};"
MULTICAST = rf"cp\.async\.bulk\.tensor\.3d\.shared\S*multicast\S* \[{REG}\], \[{REG}, .*, {REG};"
LOAD = rf"cp\.async\.bulk\.tensor\.3d\.shared\S* \[{REG}\], \[{REG}, {{{REG}, {REG}, {REG}}}\].*;"
COMMIT = rf"tcgen05\.commit\S*multicast\S* \[{REG}\], {REG};"
MMA = rf"tcgen05\.mma\S* \[{REG}\], {REG}, {REG}, {REG}, .*;"
READ = r"ld\.global\S*\s.*;"
UPSTREAM = r"griddepcontrol\.wait;"

_WORDS = 8  # of an entry: line, warp, up to six values
_MOVES = {"%rs": "cvt.u32.u16", "%rd": "cvt.u32.u64"}  # to 32 bits, by kind of register


@dataclass(frozen=True)
class Seen:
    """One instruction that a thread has executed, and the name under which it is noted."""

    name: str
    cta: int  # in the grid
    warp: int
    values: tuple[int, ...]


class Probe:
    """A module whose kernel writes down what it does.

    Args:
      ptx: the text.
      sites: patterns of instructions, by the name under which they are noted.
      ctas: of the grid that will run, at least.
      capacity: entries of a CTA.
    """

    def __init__(self, ptx: str, sites: Mapping[str, str], ctas: int, capacity: int = 4096) -> None:
        self._log: npt.NDArray[np.uint32] = emulator.empty((ctas, capacity + 1, _WORDS), np.uint32)
        self._log[...] = 0
        self._sites: dict[int, tuple[str, int]] = {}  # name and number of values, by line
        lines = ptx.split("\n")
        for number, line in enumerate(lines):
            for name, pattern in sites.items():
                if match := re.fullmatch(pattern, line.strip()):
                    self._sites[number + 1] = name, len(match.groups())
                    lines[number] = self._note(number + 1, match.groups()) + line
        found = {name for name, _ in self._sites.values()}
        assert found == set(sites), "an instruction is not in the kernel"
        self.module = emulator.Module("\n".join(lines), "probed.ptx")

    @property
    def buffers(self) -> list[npt.NDArray[np.uint32]]:
        """What the kernel writes to."""
        return [self._log]

    def clear(self) -> None:
        """Forgets what was noted."""
        self._log[...] = 0

    def seen(self, name: str = "") -> Iterator[Seen]:
        """What was noted, under a name or all, in the order of each CTA."""
        for cta, log in enumerate(self._log):
            count = int(log[0, 0])
            assert count < len(log), "the log is full"
            for line, warp, *values in log[1 : count + 1].tolist():
                site, operands = self._sites[line]
                if name in ("", site):
                    yield Seen(site, cta, warp, tuple(values[:operands]))

    def _note(self, line: int, operands: tuple[Any, ...]) -> str:
        """Appends an entry to the log of the CTA."""
        words = [str(line), "warp", *operands]
        stores = ""
        for index, word in enumerate(words):
            move = _MOVES.get(word[:3], "mov.u32")
            stores += f"{move} value, {word}; @room st.global.u32 [at + {4 * index}], value; "
        row, log = 4 * _WORDS, self._log
        return (
            "{ .reg .pred room; .reg .b32 cta, entry, warp, value; .reg .b64 log, at; "
            f"mov.u32 cta, %ctaid.x; mov.u64 log, {log.ctypes.data}; "
            f"mad.wide.u32 log, cta, {log.strides[0]}, log; atom.global.add.u32 entry, [log], 1; "
            f"setp.lt.u32 room, entry, {log.shape[1] - 1}; "
            f"mad.wide.u32 at, entry, {row}, log; add.u64 at, at, {row}; "
            f"mov.u32 warp, %tid.x; shr.u32 warp, warp, 5; {stores}}}"
        )
