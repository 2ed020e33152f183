"""Machine: the constants that the cost model calculates with, read from machines.toml.

The table gives each its source and its confidence; `constants` shows them.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Machine:
    """One GPU model. Rates are per SM, but for those of L2 and memory, which all SMs share.

    machines.toml says where each number comes from, and what it is.
    """

    name: str
    family: str
    sm_count: int
    usable_sms: tuple[int, ...]  # by clusters of 1, 2, 4, 8, 16 CTAs
    max_clock_ghz: float
    throttle_clock_ghz: float
    throttle_utilisation: float
    throttle_exponent: float
    mma_cycles_per_column: float
    mma_interval_cycles: float
    mma_latency_cycles: float
    mma_pair_latency_cycles: float
    mma_issue_cycles: float
    stage_issue_cycles: float
    smem_bytes_per_cycle: float
    ingest_bytes_per_cycle: float
    empty_row_slowdown: float
    narrow_row_cycles: float
    tma_latency_ns: float
    tma_latency_cycles: float
    tma_issue_cycles: float
    memory_latency_ns: float
    wake_cycles: float
    remote_cycles: float
    sync_cycles: float
    l2_bytes: float
    l2_bytes_per_ns: float
    dram_bytes_per_ns: float
    dram_bytes_per_ns_sm: float
    straddle_slowdown: float
    overlap_exponent: float
    launch_ns: float
    setup_ns: float
    single_setup_ns: float
    first_load_ns: float
    skinny_first_load_ns: float
    relaunch_ns: float
    tmem_bytes_per_cycle: float
    tmem_latency_cycles: float
    stage_bytes_per_cycle: float
    chunk_cycles: float
    store_bytes_per_cycle: float
    store_read_cycles: float
    store_visible_cycles: float
    epilogue_elements_per_cycle: float
    epilogue_bytes_per_cycle: float
    activation_cycles: float
    general_cycles: float
    columns_slowdown: float
    rows_slowdown: float
    cluster_sum_ns: float
    cluster_sum_bytes_per_cycle: float
    split_ns: float
    reduce_ns: float
    reduce_bytes_per_ns: float
    margin: float

    def resident_clusters(self, cluster_size: int) -> int:
        """Clusters that run at a time, one CTA to an SM; at least 1.

        A size between two powers of two is placed like the larger one.
        """
        step = min((cluster_size - 1).bit_length(), len(self.usable_sms) - 1)
        return max(1, self.usable_sms[step] // cluster_size)

    def throttled_ghz(self, utilisation: NDArray[np.float64]) -> NDArray[np.float64]:
        """The clock at which power lets tensor cores multiply for such a part of the time.

        f = min(max_clock, throttle_clock * (throttle_utilisation / utilisation) ** exponent)
        """
        ratio = self.throttle_utilisation / np.maximum(utilisation, 1e-3)
        ghz = self.throttle_clock_ghz * ratio**self.throttle_exponent
        return np.asarray(np.minimum(self.max_clock_ghz, ghz))

    @property
    def corners(self) -> tuple[Mapping[str, Any], ...]:
        """Other values that constants may as well have, for all that anybody could measure."""
        return _corners(self.name)

    @cached_property
    def resident_by_size(self) -> list[int]:
        """`resident_clusters` by the size, from 0."""
        most = 2 ** (len(self.usable_sms) - 1)
        return [self.resident_clusters(max(1, size)) for size in range(most + 1)]


class Constant(NamedTuple):
    """A number of a machine: H measured, M derived, L assumed."""

    name: str
    value: Any
    confidence: str
    source: str


@cache
def machines() -> dict[str, Machine]:
    """Every machine of the table, by name."""
    return {name: _machine(name) for name in _table()}


def machine_for(device_name: str, family: str, sm_count: int) -> Machine:
    """The machine of a device: by a name that is part of the device's, else its family's first.

    With another number of SMs than the table has, those that clusters can use are scaled.
    """
    of_family = [machine for machine in machines().values() if machine.family == family]
    return _with_sms(named_in(device_name, of_family) or of_family[0], sm_count)


def named_in(device_name: str, candidates: Iterable[Machine]) -> Machine | None:
    """The machine whose name is part of a device's, the longest such name; None where none is."""
    found = [machine for machine in candidates if machine.name in device_name]
    return max(found, key=lambda machine: len(machine.name), default=None)


def constants(name: str) -> Iterator[Constant]:
    """The constants of a machine, each with confidence and source."""
    for key, entry in _entries(name).items():
        if isinstance(entry, dict):
            yield Constant(key, entry["value"], entry["confidence"], entry["source"])


@cache
def _corners(name: str) -> tuple[Mapping[str, Any], ...]:
    return tuple(_entries(name).get("corners", ())) if name in _table() else ()


@cache
def _with_sms(machine: Machine, sm_count: int) -> Machine:
    if sm_count == machine.sm_count:
        return machine
    usable = tuple(count * sm_count // machine.sm_count for count in machine.usable_sms)
    values = {field.name: getattr(machine, field.name) for field in fields(Machine)}
    return Machine(**(values | {"sm_count": sm_count, "usable_sms": usable}))


@cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads((resources.files("jaxbw._src.selection") / "machines.toml").read_text())


def _entries(name: str) -> dict[str, Any]:
    entries = _table()[name]
    return {**_entries(entries["like"]), **entries} if "like" in entries else entries


def _machine(name: str) -> Machine:
    values = {
        key: entry["value"] if isinstance(entry, dict) else entry
        for key, entry in _entries(name).items()
        if key not in ("like", "corners")
    }
    return Machine(name=name, **(values | {"usable_sms": tuple(values["usable_sms"])}))
