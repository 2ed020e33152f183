"""What files of trees have in common: how they are checked, and the sizes that were measured."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Self

SIZES = ("m", "n", "k", "mnk")  # that say whether a problem is between those that were measured


@dataclass(frozen=True)
class Sizes:
    """The least and the most of each of SIZES among the problems that were measured."""

    bounds: Mapping[str, tuple[int, int]]

    @classmethod
    def from_json(cls, entry: Any) -> Self:
        """As they lie in a file.

        Raises:
          ValueError: a bound is none.
        """
        return cls({name: _bounds(entry[name]) for name in SIZES})

    def cover(self, m: int, n: int, k: int) -> bool:
        """Whether a problem is between them."""
        found = zip((m, n, k, m * n * k), SIZES, strict=True)
        return all(self.bounds[name][0] <= size <= self.bounds[name][1] for size, name in found)


def check(entry: Any, keys: Set[str], version: int, features: Sequence[str]) -> None:
    """Lets a file's content pass that has these keys, this version, these features, and trees.

    Raises:
      ValueError: it has not.
    """
    if not isinstance(entry, dict) or entry.keys() != keys:
        raise ValueError(f"it has not the keys {', '.join(sorted(keys))}")
    if entry["version"] != version:
        raise ValueError(f"it has version {entry['version']}, not {version}")
    if entry["features"] != list(features):
        raise ValueError("its features are not those of this jaxbw")
    if not entry["trees"]:
        raise ValueError("it has no trees")


def _bounds(given: Any) -> tuple[int, int]:
    low, high = given
    if not (isinstance(low, int) and isinstance(high, int) and 1 <= low <= high):
        raise ValueError(f"{given} is no range of sizes")
    return low, high
