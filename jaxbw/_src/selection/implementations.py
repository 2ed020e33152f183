"""The names that `implementation=` takes."""

import itertools
from collections.abc import Sequence

from jaxbw._src import families

FAMILIES = tuple(families.FAMILIES)  # hand-written kernels
# On the CPU: kernels of which family.
EMULATED = {family.emulator: family.name for family in families.FAMILIES.values()}
KERNEL = "kernel"  # those of whatever family the device runs
NAMES = (KERNEL, *FAMILIES, "xla", *EMULATED)

Implementation = str | Sequence[str] | None


def kernel_families(names: Sequence[str]) -> tuple[str, ...]:
    """The kernel families that serve these implementations; XLA has none."""
    return tuple(EMULATED.get(name, name) for name in names if name != "xla")


def check_type(name: object, call: str) -> None:
    """Raises TypeError where it is neither a name nor a sequence."""
    if not isinstance(name, (str, tuple, list)):
        raise TypeError(
            f"{call}: implementation is {name!r}; it is one of {', '.join(NAMES)}, a list or tuple "
            "of them that is tried in order, or None to choose"
        )


def canonical(name: str | Sequence[str], call: str) -> tuple[str, ...]:
    """A name or a sequence of names, checked, as a tuple without repetitions.

    "kernel" becomes the families.
    """
    check_type(name, call)
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
