"""The memory that a profiled launch writes its stamps to: how much it takes, what it says then.

cuda/gemm/profile_layout.h says how it is laid out.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxbw import _native
from jaxbw._src.lab.tuning.launching import Chosen, Matmul, plan_of
from jaxbw._src.ragged import RaggedProblem

ACTIVITIES = tuple(_native.activities())
LONGEST = 2**15  # words of a slice: stamps behind that many are counted, not kept
_HEAD, _SLICE_HEAD = _native.PROFILE_HEAD_WORDS, _native.PROFILE_SLICE_HEAD
_PER_STAGE, _PER_ITEM, _PER_WARP = 3, 80, 16  # stamps, at most
_LOW = 2**32 - 1
_SPAN = 64  # elements of 16 bits that a stage has along K, at least

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Layout:
    """How the memory of a launch is divided: so many CTAs and warps, and words of a slice."""

    ctas: int
    warps: int
    slice_words: int

    @classmethod
    def of(cls, problem: Matmul, choice: Chosen, sm_count: int) -> "Layout":
        """Memory that is enough on a GPU of so many SMs, unless a CTA makes too many stamps."""
        depth = problem.k
        if isinstance(problem, RaggedProblem) and problem.ragged_contraction:
            depth = problem.expected_rows + _SPAN  # whoever has more rows, another has less
        plan = plan_of(problem, choice)
        resident = max(1, sm_count // plan.cluster_ctas)
        # Twice as many as there would be, for a GPU that runs fewer clusters at a time.
        each = 2 * math.ceil(plan.items / min(plan.items, resident))
        stages = math.ceil(depth / _SPAN)
        words = _SLICE_HEAD + _PER_WARP + each * (_PER_STAGE * stages + _PER_ITEM)
        ctas = plan.clusters_on(resident) * plan.cluster_ctas
        return cls(ctas, plan.threads // 32, min(words, LONGEST))

    @property
    def cta_words(self) -> int:
        """Words of a CTA."""
        return _HEAD + self.warps * self.slice_words

    @property
    def words(self) -> int:
        """Words of all."""
        return self.ctas * self.cta_words


@dataclass(frozen=True)
class Warp:
    """The stamps of a warp: from `times[i]` to `times[i + 1]` it did `activities[i]`.

    The last stamp is that of its end. `lost`: stamps that did not fit.
    """

    index: int
    times: npt.NDArray[np.float64]
    activities: npt.NDArray[Any]
    numbers: npt.NDArray[Any]
    lost: int

    def stays(self, *names: str) -> list[tuple[float, float]]:
        """Begin and end of each time that it did one of these."""
        wanted = [ACTIVITIES.index(name) for name in names]
        at = np.flatnonzero(np.isin(self.activities[:-1], wanted))
        return [(float(self.times[i]), float(self.times[i + 1])) for i in at]

    @property
    def role(self) -> str:
        """What it is there for, by what it did."""
        roles = ("load", "multiply", "epilogue")
        found = [name for name in roles if self.stays(name)]
        return " + ".join(found) or ("schedule" if self.stays("await response") else "other")


@dataclass(frozen=True)
class Cta:
    """The warps of a CTA and the SM that it ran on; times as of `read`."""

    index: int
    sm: int
    warps: tuple[Warp, ...]


@dataclass(frozen=True)
class Recorded:
    """All CTAs of a launch, `ghz` of the SMs' clocks, and nanoseconds that the shared one ticks."""

    ctas: tuple[Cta, ...]
    ghz: float
    tick_ns: int


def read(memory: Words, layout: Layout) -> Recorded:
    """What is in the memory, in nanoseconds from the first stamp.

    SMs have clocks of their own, which start anywhere. Each CTA has noted its clock beside the one
    that all share, at a tick of that; how fast the clocks go is taken from all of them together.

    Raises:
      ValueError: nothing was written, or the shared clock did not tick meanwhile.
    """
    blocks = memory[: layout.words].reshape(layout.ctas, layout.cta_words)
    heads, slices = blocks[:, :_HEAD], blocks[:, _HEAD:].reshape(layout.ctas, layout.warps, -1)
    ran = np.flatnonzero(slices[:, 0, 0])
    if not ran.size:
        raise ValueError("no CTA has left stamps")
    timers, clocks = heads[ran, 0:4:2].astype(np.int64), heads[ran, 1:4:2].astype(np.int64)
    if not np.any(timers[:, 1] > timers[:, 0]):
        raise ValueError("no CTA ran until the clock that SMs share ticked again")
    tick = int(np.gcd.reduce((timers - timers.min()).ravel()))
    # The first moment is a tick, the second one anywhere between two.
    passed = timers[:, 1] - timers[:, 0] + tick / 2
    ghz = float((clocks[:, 1] - clocks[:, 0]).sum() / passed.sum())
    # When the clock of the CTA's SM was 0.
    zeros = (timers[:, 0] - timers.min()) - clocks[:, 0] / ghz
    first = float((zeros + slices[ran, :, 1].min(axis=1).astype(np.int64) / ghz).min())
    ctas = [
        Cta(
            cta,
            int(heads[cta, 4]),
            tuple(_warp(i, words, zero - first, ghz) for i, words in enumerate(slices[cta])),
        )
        for cta, zero in zip(ran.tolist(), zeros.tolist(), strict=True)
    ]
    return Recorded(tuple(ctas), ghz, tick)


def _warp(index: int, words: Words, zero: float, ghz: float) -> Warp:
    """The warp whose slice this is, on an SM whose clock was 0 at `zero`."""
    count, start = int(words[0]), int(words[1])
    stamps = words[_SLICE_HEAD:][:count].astype(np.int64)
    # 32 bits of the clock; no warp makes a stamp so seldom that it goes round between two.
    low = np.append(start & _LOW, stamps & _LOW)
    cycles = start + np.append(0, np.cumsum(np.diff(low) & _LOW))
    what = np.append(0, stamps >> 32)
    lost = count - len(stamps)
    return Warp(index, zero + cycles / ghz, what >> 24, what & 0xFFFFFF, lost)
