"""XLA's time: a small model of what `jax.jit` takes for a matmul as shipped, from measurements.

A rough formula (`features.rough`), which two forests of regression trees correct: one for the time
to be expected, the other for a time that is not exceeded with some confidence. What XLA takes is
not known before it has compiled: it times kernels of its own, of cuBLAS and of Triton, and some of
its choices take twice as long as others of nearly the same sizes. So the second is what decides.

`benchmarks/model_xla.py` makes the tables from what `benchmarks/measure_xla.py` measured. Where
nothing like a problem was measured, the model says nothing.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, Self

import numpy as np

from jaxbw.problem import GemmProblem
from jaxbw.selection import eligibility
from jaxbw.selection.devices import Device
from jaxbw.selection.tuned import SWITCH
from jaxbw.selection.tuned.trees import Forest
from jaxbw.selection.xla.features import FEATURES, Rates, features, rough

VERSION = 1
ADVANTAGE = 1.03  # XLA is taken where the kernel takes so many times as long, or longer
SIZES = ("m", "n", "k", "mnk")  # that say whether a problem is between those that were measured
_FILES = {"H200": "h200.json"}  # by machine: times of one GPU say nothing of another one's memory
_FORESTS = ("expected", "cautious")
_KEYS = {"version", "made", "sizes", "layouts", "kinds", "rates", "features", *_FORESTS}


class XlaTime(NamedTuple):
    """Microseconds: what is expected, and what is not exceeded with confidence."""

    us: float
    at_most: float

    def is_quicker_than(self, us: float) -> bool:
        """Whether XLA takes the place of a kernel of this time."""
        return us > ADVANTAGE * self.at_most

    def __str__(self) -> str:
        return f"{self.us:.2f} us, most likely not over {self.at_most:.2f}"


@dataclass(frozen=True, eq=False)
class XlaModel:
    """The forests of a machine, and how they came about. Compared by identity.

    Attributes:
      sizes: the least and the most of each of SIZES among the problems that were measured.
      layouts, kinds: of those; see `kind`.
      rates: of the formula.
      expected, cautious: forests for the logarithm of the time over the formula's.
    """

    made: Mapping[str, Any]
    sizes: Mapping[str, tuple[int, int]]
    layouts: frozenset[str]
    kinds: frozenset[str]
    rates: Rates
    expected: Forest
    cautious: Forest

    @classmethod
    def from_json(cls, entry: Any) -> Self:
        """A model as it lies in its file.

        Raises:
          ValueError: it is not one, or of another version.
        """
        if not isinstance(entry, dict) or entry.keys() != _KEYS:
            raise ValueError(f"it has not the keys {', '.join(sorted(_KEYS))}")
        if entry["version"] != VERSION:
            raise ValueError(f"it has version {entry['version']}, not {VERSION}")
        if entry["features"] != list(FEATURES):
            raise ValueError("its features are not those of this jaxbw")
        if not all(entry[name] for name in _FORESTS):
            raise ValueError("it has no trees")
        return cls(
            entry["made"],
            {name: (entry["sizes"][name][0], entry["sizes"][name][1]) for name in SIZES},
            frozenset(entry["layouts"]),
            frozenset(entry["kinds"]),
            Rates(**entry["rates"]),
            *(Forest.from_json(entry[name], len(FEATURES)) for name in _FORESTS),
        )

    def covers(self, problem: GemmProblem) -> bool:
        """Whether a problem is of a kind that was measured, and between their sizes."""
        p = problem
        if p.layout not in self.layouts or kind(p) not in self.kinds:
            return False
        found = zip((p.m, p.n, p.k, p.m * p.n * p.k), SIZES, strict=True)
        return all(self.sizes[name][0] <= size <= self.sizes[name][1] for size, name in found)

    def time(self, problem: GemmProblem) -> XlaTime:
        """The time of a problem that the model covers."""
        row = features(problem, self.rates)[np.newaxis]
        logarithms = [float(forest.total(row)[0]) for forest in (self.expected, self.cautious)]
        us = rough(problem, self.rates).us
        return XlaTime(*(us * math.exp(each) for each in logarithms))


def kind(problem: GemmProblem) -> str | None:
    """What of a problem must have been measured beside its sizes; None where nothing like it was.

    That is its dtype and its epilogue; there are no times of stacks, of other dtypes of the result,
    of what is saved for a gradient, nor of a precision that is asked for.
    """
    p, e = problem, problem.epilogue
    alike = p.lhs_dtype == p.rhs_dtype == p.output and eligibility.asks_for_default(p.precision)
    if not p.is_sized or p.batch != 1 or not alike or e.save:
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
    path = resources.files("jaxbw.selection.xla") / name
    if not path.is_file():
        return None
    try:
        return XlaModel.from_json(json.loads(path.read_text()))
    except (ValueError, TypeError, KeyError) as fault:
        raise ImportError(
            f"{path} is no model of XLA's time that this jaxbw reads: {fault}: reinstall it"
        ) from fault
