"""XLA's time: a small model of what `jax.jit` takes for a matmul as shipped, from measurements.

A rough formula (`features.rough`), which a forest of regression trees corrects, and margins: what
XLA takes is not known before it has compiled. It times kernels of its own, of cuBLAS and of Triton,
and some of its choices take twice as long as others of nearly the same sizes. So a kernel gives way
only where it is slower than the time with its margin, which differs by the number of rows: that is
how far the models of both were wrong on matmuls that they had not seen.

`benchmarks/model_xla.py` makes the table from what `benchmarks/measure_xla.py` measured. Where
nothing like a problem was measured, the model says nothing.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, Self

import numpy as np

from jaxbw._src.problem import GemmProblem
from jaxbw._src.selection import eligibility
from jaxbw._src.selection.devices import Device
from jaxbw._src.selection.tuned.files import Sizes, check, read
from jaxbw._src.selection.tuned.trees import Forest
from jaxbw._src.selection.tuned_matmuls import SWITCH
from jaxbw._src.selection.xla.features import FEATURES, Rates, features, is_aligned, rough

VERSION = 5
ADVANTAGE = 1.03  # XLA is taken where the kernel takes so many times as long, or longer
UNALIGNED_ROWS = 64  # the most where rows of an array are not multiples of 16 bytes
# By machine: the trees are of the same times, all else is its own.
_FILES = {"H200": "h200.npz", "H100": "h100.npz"}
_KEYS = {
    *("version", "made", "sizes", "layouts", "kinds", "rates", "features", "trees"),
    *("margins", "unaligned"),
}


class XlaTime(NamedTuple):
    """Microseconds: what is expected, and with the margin to be compared with a kernel's."""

    us: float
    with_margin: float

    def is_quicker_than(self, us: float) -> bool:
        """Whether XLA takes the place of a kernel of this time."""
        return us > ADVANTAGE * self.with_margin

    def __str__(self) -> str:
        return f"{self.us:.2f} us, with its margin {self.with_margin:.2f}"


@dataclass(frozen=True, eq=False)
class XlaModel:
    """The trees of a machine, and how they came about. Compared by identity.

    Attributes:
      sizes: the least and the most of each of SIZES among the problems that were measured.
      layouts, kinds: of those; see `kind`.
      rates: of the formula.
      trees: for the logarithm of the time over the formula's.
      margins: factors of the time, each with the most rows that it is for, in ascending order.
      unaligned: the factor where TMA cannot load or store all rows.
    """

    made: Mapping[str, Any]
    sizes: Sizes
    layouts: frozenset[str]
    kinds: frozenset[str]
    rates: Rates
    trees: Forest
    margins: tuple[tuple[int, float], ...]
    unaligned: float

    @classmethod
    def of(cls, entry: Any) -> Self:
        """A model as it lies in its file (`tuned.files.read`).

        Raises:
          ValueError: it is not one, or of another version.
        """
        check(entry, _KEYS, VERSION, FEATURES)
        return cls(
            entry["made"],
            Sizes.of(entry["sizes"]),
            frozenset(entry["layouts"]),
            frozenset(entry["kinds"]),
            Rates(**entry["rates"]),
            Forest.of(entry["trees"], len(FEATURES)),
            tuple((rows, factor) for rows, factor in entry["margins"]),
            float(entry["unaligned"]),
        )

    def covers(self, problem: GemmProblem) -> bool:
        """Whether a problem is of a kind that was measured, and between their sizes."""
        p = problem
        if p.layout not in self.layouts or kind(p) not in self.kinds:
            return False
        return self.sizes.cover(p.m, p.n, p.k)

    def time(self, problem: GemmProblem) -> XlaTime:
        """The time of a problem that the model covers."""
        row = features(problem, self.rates)[np.newaxis]
        us = rough(problem, self.rates).us * math.exp(float(self.trees.total(row)[0]))
        return XlaTime(us, us * self.margin(problem))

    def margin(self, problem: GemmProblem) -> float:
        """The factor of a problem's time."""
        if not is_aligned(problem):
            return self.unaligned
        return next(factor for rows, factor in self.margins if problem.m <= rows)


def kind(problem: GemmProblem) -> str | None:
    """What of a problem must have been measured beside its sizes; None where nothing like it was.

    That is its dtype and its epilogue. There are no times of stacks, of other dtypes of the result,
    of what is saved for a gradient, nor of a precision that is asked for. Where TMA cannot load
    all rows, XLA takes from a third to three times as long as kernels, as it pads some arrays: its
    model is right often enough only where few rows have little to multiply.
    """
    p, e = problem, problem.epilogue
    alike = p.lhs_dtype == p.rhs_dtype == p.output and eligibility.asks_for_default(p.precision)
    if not p.is_sized or p.batch != 1 or not alike or e.save or p.pieces is not None:
        return None
    if p.m > UNALIGNED_ROWS and not is_aligned(p):
        return None
    return e.describe(f"{p.lhs_dtype} matmul")


def xla_time(problem: GemmProblem, device: Device) -> XlaTime | None:
    """XLA's modelled time; None where there is no model of the device, or of such a problem.

    The environment variable JAXBW_TUNED, read at each call, leaves it out by "off", as it does all
    that was measured.

    Raises:
      ImportError: the file is no model that this jaxbw reads.
    """
    if os.environ.get(SWITCH) == "off":
        return None
    model = model_for(device)
    return None if model is None or not model.covers(problem) else model.time(problem)


def model_for(device: Device) -> XlaModel | None:
    """The model of a device, which has as many SMs as the one that was measured; else None."""
    if device.family is None or (name := _FILES.get(device.machine.name)) is None:
        return None
    model = _load(name)
    has_all_sms = model is not None and model.rates.sm_count == device.sm_count
    return model if has_all_sms else None


@cache
def _load(name: str) -> XlaModel | None:
    path = resources.files("jaxbw._src.selection.xla") / name
    if not path.is_file():
        return None
    try:
        return XlaModel.of(read(path))
    except (ValueError, TypeError, KeyError) as fault:
        raise ImportError(
            f"{path} is no model of XLA's time that this jaxbw reads: {fault}: reinstall it"
        ) from fault
