"""The GPU that a kernel is chosen for: the one of this machine, or one that the user names."""

from dataclasses import dataclass

import jax

from jaxbw import _native
from jaxbw._src.compat import Block
from jaxbw._src.families import FAMILIES
from jaxbw._src.selection.machine import Machine, machine_for, machines


@dataclass(frozen=True)
class Device:
    """What the choice of a kernel depends on.

    `problem` says why no kernel can be loaded on it, in words; None where one can.
    """

    name: str
    compute_capability: tuple[int, int]
    sm_count: int
    memory_bytes: int
    problem: str | None = None

    @property
    def family(self) -> str | None:
        """The kernels it runs, "sm90" or "sm100"; None where there are none for it."""
        for family in FAMILIES.values():
            if self.compute_capability in family.capabilities:
                return family.name
        return None

    @property
    def machine(self) -> Machine:
        """What the cost model knows of it; it has a family."""
        assert self.family is not None
        return machine_for(self.name, self.family, self.sm_count)

    def __str__(self) -> str:
        major, minor = self.compute_capability
        return f"{self.name}, compute capability {major}.{minor}"


# Devices that programs can be compiled for without having one.
TARGETS = {
    device.name: device
    for device in (
        Device("B200", (10, 0), machines()["B200"].sm_count, 180 * 2**30),
        Device("GB200", (10, 0), machines()["GB200"].sm_count, 186 * 2**30),
        Device("B300", (10, 3), machines()["B300"].sm_count, 270 * 2**30),
        Device("H200", (9, 0), machines()["H200"].sm_count, 141 * 2**30),
        Device("H100", (9, 0), machines()["H100"].sm_count, 80 * 2**30),
    )
}

_target = jax.make_user_context(None)


def target(name: str) -> Block:
    """Names the GPU that programs lowered for CUDA in this block are for.

    It decides which kernel and configuration are chosen, in place of the GPU of this machine. Also
    a decorator, for the calls of a function. Functions under `jax.jit` are traced again for each
    target.

    Args:
      name: "B200", "GB200", "B300", "H200" or "H100".

    Raises:
      ValueError: another name.

    >>> x = jax.ShapeDtypeStruct((4096, 4096), "bfloat16")
    >>> with jaxbw.target("H200"):
    ...     jaxbw.explain(x, x).implementation
    'sm90'
    """
    return Block(_target, known(name, "jaxbw.target("))


def known(name: str, call: str) -> str:
    """The name of a target, checked; `call` is what stands before it, for the message."""
    if not isinstance(name, str) or name not in TARGETS:
        raise ValueError(f"{call}{name!r}): the targets are {', '.join(TARGETS)}")
    return name


def current_target() -> str | None:
    """The name given to the innermost `target` block."""
    name: str | None = _target.value
    return name


def running_device() -> Device | None:
    """The first CUDA device of this process; None where there is none."""
    devices = _native.devices()
    if not devices:
        return None
    info = devices[0]
    return Device(
        info.name, info.compute_capability, info.sm_count, info.memory_bytes, _driver_problem()
    )


def resolve(target_name: str | None, family: str | None = None) -> Device | None:
    """The device to choose a kernel for: the target, else this machine's, else a family's default.

    None where there is neither of the first two, and no family is asked for.
    """
    if target_name is not None:
        return TARGETS[target_name]
    if (device := running_device()) is not None:
        return device
    return TARGETS[FAMILIES[family].default_target] if family is not None else None


def for_family(device: Device | None, family: str) -> Device:
    """A device, if it is one of the targets and runs the family's kernels; else the default one.

    This machine's own GPU does not count: the answer is the same everywhere.
    """
    if device is not None and device.family == family and device in TARGETS.values():
        return device
    return TARGETS[FAMILIES[family].default_target]


def _driver_problem() -> str | None:
    """The kernels are loaded by drivers of their CUDA major version, or later ones."""
    version = _native.driver_version()
    if version is None or version // 1000 < _native.CUDA_VERSION // 1000:
        needed, found = _native.CUDA_VERSION // 1000, "none" if version is None else version // 1000
        return f"its driver supports CUDA {found}; the kernels need a driver for CUDA {needed}"
    return None
