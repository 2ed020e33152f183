"""The constants of a machine that the replay calculates with, checked as they are read."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from jaxbw._src.selection import machine as selection_machine
from jaxbw._src.selection.machine import Machine

CONFIDENCES = ("H", "M", "L")
# Of selection's constants, those that the replay uses too, and their units.
SHARED = {
    "sm_count": "1",
    "usable_sms": "1",
    "max_clock_ghz": "GHz",
    "throttle_clock_ghz": "GHz",
    "throttle_utilisation": "1",
    "throttle_exponent": "1",
    "mma_cycles_per_column": "cycles",
    "mma_interval_cycles": "cycles",
    "mma_latency_cycles": "cycles",
    "mma_pair_latency_cycles": "cycles",
    "mma_issue_cycles": "cycles",
    "smem_bytes_per_cycle": "B/cycle",
    "ingest_bytes_per_cycle": "B/cycle",
    "tma_latency_ns": "ns",
    "tma_latency_cycles": "cycles",
    "tma_issue_cycles": "cycles",
    "memory_latency_ns": "ns",
    "wake_cycles": "cycles",
    "remote_cycles": "cycles",
    "sync_cycles": "cycles",
    "l2_bytes": "B",
    "l2_bytes_per_ns": "B/ns",
    "dram_bytes_per_ns": "B/ns",
    "launch_ns": "ns",
    "setup_ns": "ns",
    "single_setup_ns": "ns",
    "first_load_ns": "ns",
    "relaunch_ns": "ns",
    "tmem_bytes_per_cycle": "B/cycle",
    "tmem_latency_cycles": "cycles",
    "stage_bytes_per_cycle": "B/cycle",
    "chunk_cycles": "cycles",
    "store_bytes_per_cycle": "B/cycle",
    "store_read_cycles": "cycles",
    "store_visible_cycles": "cycles",
}


class Constant(NamedTuple):
    """A number of a machine: H measured and published, M derived, L assumed."""

    name: str
    value: Any
    unit: str
    confidence: str
    source: str

    @property
    def fitted(self) -> bool:
        """Whether it was chosen so that the model meets a measurement, which the source names."""
        return self.source.startswith("fitted:")


@dataclass(frozen=True)
class Replayed:
    """A machine as the replay sees it: constants by name, and how clusters are placed.

    Attributes:
      name: of the table.
      shared: the constants that the selection has, too; it knows how many clusters fit.
      own: those of the replay alone, by name.
    """

    name: str
    shared: Machine
    own: Mapping[str, float]

    def __getitem__(self, name: str) -> float:
        if name in self.own:
            return self.own[name]
        if name not in SHARED:
            raise KeyError(f"{self.name} has no constant {name!r}")
        return float(getattr(self.shared, name))

    def scaled(self, name: str, factor: float) -> "Replayed":
        """The same machine with one constant changed: for sensitivities and what-ifs."""
        value = self[name] * factor
        if name in self.own:
            return replace(self, own={**self.own, name: value})
        changed: dict[str, Any] = {name: value}
        return replace(self, shared=replace(self.shared, **changed))


def constants(name: str) -> Iterator[Constant]:
    """Every constant of a machine that the replay uses, with unit, confidence and source.

    Raises:
      ValueError: there is no such machine, or its table is faulty; the message names the entry.

    >>> from jaxbw._src.lab.model.machine import constants
    >>> next(c for c in constants("B200") if c.name == "narrow_row_cycles").fitted
    True
    """
    if name not in _table():
        raise ValueError(f"no machine {name!r}; there are {', '.join(_table())}")
    for constant in selection_machine.constants(name):
        if constant.name in SHARED:
            yield Constant(
                constant.name,
                constant.value,
                SHARED[constant.name],
                constant.confidence,
                constant.source,
            )
    for key, entry in _entries(name).items():
        yield _checked(name, key, entry)


@cache
def replayed(name: str) -> Replayed:
    """The machine of a table.

    Raises:
      ValueError: as in `constants`.
    """
    own = {each.name: float(each.value) for each in constants(name) if each.name not in SHARED}
    return Replayed(name, selection_machine.machines()[name], own)


def names() -> tuple[str, ...]:
    """The machines that there are tables of."""
    return tuple(_table())


def _checked(machine: str, key: str, entry: Any) -> Constant:
    where = f"machines.toml: {machine}.{key}"
    if not isinstance(entry, dict) or set(entry) != {"value", "unit", "confidence", "source"}:
        raise ValueError(f"{where} has not exactly value, unit, confidence and source")
    if entry["confidence"] not in CONFIDENCES:
        raise ValueError(f"{where}: confidence is {entry['confidence']!r}, not H, M or L")
    if not isinstance(entry["value"], int | float) or not entry["value"] > 0:
        raise ValueError(f"{where}: the value {entry['value']!r} is not a positive number")
    if not entry["source"]:
        raise ValueError(f"{where} has no source")
    if key in SHARED:
        raise ValueError(f"{where} stands in selection's table, too")
    return Constant(key, entry["value"], entry["unit"], entry["confidence"], entry["source"])


def _entries(name: str) -> dict[str, Any]:
    entries = dict(_table()[name])
    like = entries.pop("like", None)
    return {**_entries(like), **entries} if like else entries


@cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads((resources.files("jaxbw._src.lab.model") / "machines.toml").read_text())
