"""The names that `implementation=` takes, and the context manager that sets it."""

import contextlib
import itertools
from collections.abc import Sequence

import jax

FAMILIES = ("sm100", "sm90")  # hand-written kernels
EMULATED = {"emulator": "sm100", "emulator-sm90": "sm90"}  # on the CPU: kernels of which family
KERNEL = "kernel"  # those of whatever family the device runs
NAMES = (KERNEL, *FAMILIES, "xla", *EMULATED)

Implementation = str | Sequence[str] | None

_context = jax.make_user_context(None)


def implementation(name: str | Sequence[str]) -> contextlib.AbstractContextManager[None]:
    """Sets what calls in this block use that do not say `implementation=` themselves.

    Functions under `jax.jit` are traced again for each value.

    Args:
      name: "kernel" (of either family), "sm100", "sm90", "xla", "emulator" or "emulator-sm90", or
        a sequence of them that is tried in order.

    Raises:
      ValueError: another name.

    >>> with jaxbw.implementation("xla"):
    ...     jaxbw.explain(jnp.ones((2, 3)), jnp.ones((3, 4))).reason
    'asked for'
    """
    context: contextlib.AbstractContextManager[None] = _context(
        canonical(name, "jaxbw.implementation")
    )
    return context


def resolve(name: Implementation, call: str) -> tuple[str, ...] | None:
    """The implementations to try for a call, in order; None to choose freely.

    Raises:
      ValueError: as `implementation`.
    """
    if name is None:
        value: tuple[str, ...] | None = _context.value
        return value
    return canonical(name, call)


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
