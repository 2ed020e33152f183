"""Tuned matmuls: for single matmuls on a device, what was measured fastest.

A user's own table, which `jaxbw.autotune` and `python -m jaxbw tune` write. It names the matmuls,
where the tables of `selection.tuned` correct the model for all of them. An entry counts for
the device, the matmul (shape, dtypes, layouts, epilogue) and the version of jaxbw that it was
measured with, and for no other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.devices import Device

if TYPE_CHECKING:
    from jaxbw._src.problem import GemmProblem
    from jaxbw._src.ragged import RaggedProblem

FORMAT = "jaxbw tuned products"
VERSION = 2
SWITCH = "JAXBW_TUNED"  # environment variable; "off" leaves all tables out
_KEYS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("device", "matmul", "jaxbw", "date"), str),
    **dict.fromkeys(("us", "untuned_us"), (int, float)),
    "xla_us": (int, float, type(None)),
    "configurations": int,
    "config": dict,
}


def device_key(device: Device) -> str:
    """What an entry's device is compared by: model and SMs, as "H200, 132 SMs".

    A device that is named by `jaxbw.target` has the entries of a real one.
    """
    return f"{device.machine.name}, {device.sm_count} SMs"


@dataclass(frozen=True)
class Entry:
    """A matmul on a device, and how it was computed fastest.

    Attributes:
      device, matmul: by `device_key`, and `key` of the problem.
      jaxbw: the version that it was measured with.
      config: the fastest configuration, every field filled in.
      us: its time in microseconds, `untuned_us` that of what would have been chosen without it,
        `xla_us` that of XLA's form; None of a grouped matmul, where XLA is no candidate.
      configurations: how many were measured.
      date: of the measurement, ISO 8601.
    """

    device: str
    matmul: str
    jaxbw: str
    config: GemmConfig
    us: float
    untuned_us: float
    xla_us: float | None
    configurations: int
    date: str

    @property
    def is_for_xla(self) -> bool:
        """Whether XLA is quicker than every configuration."""
        return self.xla_us is not None and self.xla_us < self.us

    @property
    def key(self) -> tuple[str, str, str]:
        """No two entries of a table have the same."""
        return self.device, self.matmul, self.jaxbw

    def to_json(self) -> dict[str, Any]:
        """As it lies in a file: of the configuration, what differs from the default."""
        return {**vars(self), "config": config_to_json(self.config)}

    @classmethod
    def from_json(cls, row: Any) -> Self:
        """The inverse of `to_json`.

        Raises:
          ValueError: it is no entry.
        """
        if not isinstance(row, dict) or row.keys() != _KEYS.keys():
            raise ValueError(f"an entry has not the keys {', '.join(sorted(_KEYS))}: {row!r:.100}")
        for name, kind in _KEYS.items():
            if not isinstance(row[name], kind):
                raise ValueError(f"an entry's {name} is {row[name]!r:.100}")
        try:
            return cls(**row | {"config": config_from_json(row["config"])})
        except TypeError as error:
            raise ValueError(f"an entry's config is none: {error}") from error


def config_to_json(config: GemmConfig) -> dict[str, Any]:
    """A configuration as what differs from the default."""
    defaults = GemmConfig()
    return {
        each.name: getattr(config, each.name)
        for each in dataclasses.fields(GemmConfig)
        if getattr(config, each.name) != getattr(defaults, each.name)
    }


def config_from_json(fields: Mapping[str, Any]) -> GemmConfig:
    """The inverse of `config_to_json`.

    Raises:
      TypeError: a field that there is not, or of another type.
    """
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return GemmConfig(**values)


@dataclass(frozen=True)
class TunedMatmuls:
    """A table. Two are equal, as parts of a program's key, where their entries are.

    Attributes:
      source: the file that it was read from.
      digest: of the entries.
      entries: by `Entry.key`.
    """

    digest: str
    source: str = field(compare=False)
    entries: Mapping[tuple[str, str, str], Entry] = field(compare=False, repr=False)

    @classmethod
    def of(cls, entries: Mapping[tuple[str, str, str], Entry], source: str) -> Self:
        """A table of entries."""
        text = json.dumps([entries[key].to_json() for key in sorted(entries)])
        return cls(hashlib.sha256(text.encode()).hexdigest()[:16], source, dict(entries))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a file.

        Raises:
          ValueError: it is not there, or no table that this jaxbw reads.
        """
        try:
            stored = json.loads(Path(path).read_text())
            return cls.of(_entries(stored), str(path))
        except FileNotFoundError:
            fault = "it is not there"
        except (OSError, ValueError) as error:
            fault = str(error)
        raise ValueError(
            f"{path} is no tuned table of this jaxbw: {fault}. `python -m jaxbw tune` writes one"
        )

    def find(self, problem: GemmProblem | RaggedProblem, device: Device) -> Entry | None:
        """The entry of a matmul on a device, of this version of jaxbw; None without one."""
        return self.entries.get((device_key(device), problem.key, _jaxbw_version))

    def count(self, device: Device) -> int:
        """How many entries are for a device, of this version of jaxbw."""
        mine = (device_key(device), _jaxbw_version)
        return sum((each.device, each.jaxbw) == mine for each in self.entries.values())


def _entries(stored: Any) -> dict[tuple[str, str, str], Entry]:
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise ValueError(f"it does not say that its format is {FORMAT!r}")
    if stored.get("version") != VERSION:
        raise ValueError(f"it has version {stored.get('version')}, not {VERSION}")
    if not isinstance(stored.get("products"), list):
        raise ValueError("it has no list of matmuls")
    found: dict[tuple[str, str, str], Entry] = {}
    for row in stored["products"]:
        entry = Entry.from_json(row)
        if entry.key in found:
            raise ValueError(f"it has {entry.matmul} on {entry.device} twice")
        found[entry.key] = entry
    return found


def add(path: str | os.PathLike[str], entry: Entry) -> TunedMatmuls:
    """Adds an entry to a file, in the place of one of the same key; the table that lies there now.

    Whoever is killed meanwhile leaves the file as it was, and several processes may add at once:
    the file is replaced as a whole, under a lock.

    Raises:
      ValueError: the file is there and no tuned table.
    """
    path = Path(path)
    with _locked(path):
        old = TunedMatmuls.load(path).entries if path.exists() else {}
        table = TunedMatmuls.of({**old, entry.key: entry}, str(path))
        rows = ",\n".join(json.dumps(each.to_json()) for each in table.entries.values())
        head = f'{{"format": "{FORMAT}", "version": {VERSION}, "products": [\n'
        unfinished = path.with_name(path.name + ".tmp")
        unfinished.write_text(f"{head}{rows}\n]}}\n")
        os.replace(unfinished, path)
    return table


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps others from writing a file."""
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def new_entry(
    problem: GemmProblem | RaggedProblem, device: Device, config: GemmConfig, **measured: Any
) -> Entry:
    """An entry by this version of jaxbw; `measured` are its other attributes."""
    return Entry(device_key(device), problem.key, _jaxbw_version, config, **measured)


_jaxbw_version = metadata.version("jaxbw")
