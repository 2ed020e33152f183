"""The names that `implementation=` takes."""

import itertools
from collections.abc import Sequence

FAMILIES = ("sm100", "sm90")  # hand-written kernels
EMULATED = {"emulator": "sm100", "emulator-sm90": "sm90"}  # on the CPU: kernels of which family
KERNEL = "kernel"  # those of whatever family the device runs
NAMES = (KERNEL, *FAMILIES, "xla", *EMULATED)

Implementation = str | Sequence[str] | None


def families(names: Sequence[str]) -> tuple[str, ...]:
    """The kernel families that serve these implementations; XLA has none."""
    return tuple(EMULATED.get(name, name) for name in names if name != "xla")


def canonical(name: str | Sequence[str], call: str) -> tuple[str, ...]:
    """A name or a sequence of names, checked, as a tuple without repetitions.

    "kernel" becomes the families.
    """
    names = (name,) if isinstance(name, str) else tuple(name)
    if not names:
        raise ValueError(f"{call}: implementation is empty; give one of {', '.join(NAMES)}")
    for item in names:
        if item not in NAMES:
            raise ValueError(
                f"{call}: implementation is {item!r}; it is one of {', '.join(NAMES)}, "
                "or None to choose"
            )
    named = (FAMILIES if item == KERNEL else (item,) for item in names)
    return tuple(dict.fromkeys(itertools.chain.from_iterable(named)))
