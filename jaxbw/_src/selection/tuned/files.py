"""What files of trees have in common: how they lie on the disk, how they are checked, and the sizes
that were measured.

A file is an archive of numpy (.npz) with the columns of the trees (`trees.COLUMNS`), each an array,
and everything else as JSON, in an array of bytes.
"""

import io
import json
import zipfile
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from jaxbw._src.selection.tuned.trees import COLUMNS

_HEADER = "header"


class _Readable(Protocol):
    def read_bytes(self) -> bytes: ...


SIZES = ("m", "n", "k", "mnk")  # that say whether a problem is between those that were measured


@dataclass(frozen=True)
class Sizes:
    """The least and the most of each of SIZES among the problems that were measured."""

    bounds: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, entry: Any) -> Self:
        """As they lie in a file.

        Raises:
          ValueError: a bound is none.
        """
        return cls({name: _bounds(entry[name]) for name in SIZES})

    def cover(self, m: int, n: int, k: int) -> bool:
        """Whether a problem is between them."""
        found = zip((m, n, k, m * n * k), SIZES, strict=True)
        return all(self.bounds[name][0] <= size <= self.bounds[name][1] for size, name in found)


def to_bytes(entry: Mapping[str, Any]) -> bytes:
    """A file: an entry whose "trees" are columns."""
    header = json.dumps({**entry, "trees": None}).encode()
    arrays: dict[str, Any] = {name: entry["trees"][name] for name in COLUMNS}
    file = io.BytesIO()
    np.savez_compressed(file, **arrays | {_HEADER: np.frombuffer(header, np.uint8)})
    return file.getvalue()


def read(path: _Readable) -> Any:
    """The entry that a file has.

    Raises:
      ValueError: it is none.
    """
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            trees = {name: arrays[name] for name in COLUMNS}
            return json.loads(arrays[_HEADER].tobytes()) | {"trees": trees}
    except (zipfile.BadZipFile, EOFError, KeyError, TypeError) as fault:
        raise ValueError(f"it cannot be read: {fault}") from fault


def check(entry: Any, keys: Set[str], version: int, features: Sequence[str]) -> None:
    """Lets an entry pass that has these keys, this version, and these features.

    Raises:
      ValueError: it has not.
    """
    if not isinstance(entry, dict) or entry.keys() != keys:
        raise ValueError(f"it has not the keys {', '.join(sorted(keys))}")
    if entry["version"] != version:
        raise ValueError(f"it has version {entry['version']}, not {version}")
    if entry["features"] != list(features):
        raise ValueError("its features are not those of this jaxbw")


def _bounds(given: Any) -> tuple[int, int]:
    low, high = given
    if not (isinstance(low, int) and isinstance(high, int) and 1 <= low <= high):
        raise ValueError(f"{given} is no range of sizes")
    return low, high
