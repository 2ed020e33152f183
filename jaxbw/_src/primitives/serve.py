"""What serves a matmul when it is lowered: the selection put to the platform's question.

Kernels are served on CUDA, the emulator on the CPU, and XLA everywhere.

Shared by the primitives that stand for a matmul until then.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxbw._src import compat, log
from jaxbw._src.problem import GemmProblem, Reduction, describe
from jaxbw._src.selection import devices, manifest
from jaxbw._src.selection.choice import Choice, Refusal
from jaxbw._src.selection.implementations import EMULATED, FAMILIES
from jaxbw._src.selection.policy import Policy

if TYPE_CHECKING:
    from jaxbw._src.ragged import RaggedProblem

WAY_OUT = "Leave implementation=None to run on XLA."
SERVED = {"cuda": FAMILIES, "cpu": tuple(EMULATED)}  # beside "xla", by platform
_warned: set[str] = set()


def choose(
    problem: GemmProblem,
    policy: Policy,
    device: devices.Device | None,
    call: str,
    *,
    weighs_xla: bool = True,
) -> Choice:
    """The selection's choice, out of the installed kernels; `weighs_xla` is as of `select`.

    Raises:
      NotImplementedError: every one of the policy's implementations refuses.
    """
    # Loaded at the first choice: what XLA serves needs no cost model.
    from jaxbw._src.selection.select import select

    kernels = manifest.kernels()
    names = policy.implementation
    choice = select(
        *(problem, device, names, policy.config, kernels, policy.tuned), weighs_xla=weighs_xla
    )
    if not isinstance(choice, Choice):
        raise NotImplementedError(message(call, names, problem, choice))
    return choice


def device_for(implementation: tuple[str, ...] | None, target: str | None) -> devices.Device | None:
    """The device that a lowering for CUDA is for: see `devices.resolve`."""
    families = [name for name in implementation or () if name in FAMILIES]
    return devices.resolve(target, families[0] if families else None)


def check(
    problem: GemmProblem,
    policy: Policy,
    call: str,
) -> None:
    """Raises at trace time what no device could change.

    Raises:
      NotImplementedError: none of the strict implementations takes the problem.
    """
    names = policy.implementation
    if names is None:
        return
    from jaxbw._src.selection.select import problem_refusals

    # Each family is asked about a device that it runs on: this machine's is not known here.
    named = devices.TARGETS[policy.target] if policy.target is not None else None
    wanted = [
        None if name == "xla" else devices.for_family(named, EMULATED.get(name, name))
        for name in names
    ]
    refused = problem_refusals(problem, names, policy.config, wanted, manifest.kernels())
    if refused:
        raise NotImplementedError(message(call, names, problem, refused))


def register(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Makes a primitive run, eagerly and compiled, by a rule that is told the platform first."""
    compat.apply_eagerly(primitive)
    mlir.register_lowering(primitive, partial(rule, None))
    for platform in SERVED:
        mlir.register_lowering(primitive, partial(rule, platform), platform=platform)


def lower(
    ctx: Any,
    operands: Sequence[Any],
    reduction: Callable[[], Reduction],
    on_kernel: Callable[[Reduction, Choice], Callable[..., Any]],
    on_xla: Callable[..., Any],
    on_devices: Callable[..., Any],
    *,
    platform: str | None,
    policy: Policy,
) -> Any:
    """Lowers a matmul: to the kernel that is chosen, or to XLA's operations.

    Args:
      on_kernel, on_xla: give a sequence of results.
      on_devices: lowers a matmul that a kernel serves, in a program of several devices: of ctx,
        operands and platform.
      platform: "cuda", "cpu", or None for any other.
    """
    implementation = policy.implementation
    names = named_here(implementation, platform)
    if not has_kernels(names, platform) and implementation != ("xla",):
        reason = elsewhere(implementation or ())
        return _lower_to_xla(ctx, operands, reduction, on_xla, implementation, reason)
    is_one_device = compat.is_one_device(ctx)
    if not is_one_device and (refusal := _partition_refusal(ctx)) is not None:
        return _lower_to_xla(ctx, operands, reduction, on_xla, implementation, refusal)

    reduced = reduction()
    device = device_for(names, policy.target)
    # Of several devices each is asked again about its part: that may be XLA's, not the whole.
    here = replace(policy, implementation=names)
    choice = choose(reduced.problem, here, device, "jaxbw", weighs_xla=is_one_device)
    if not is_one_device and choice.implementation != "xla":
        return on_devices(ctx, operands, platform)
    log.once(choice.summary)
    if choice.implementation == "xla":
        if implementation is None and policy.target is None:
            _warn_once(device)
        return _xla_operations(ctx, operands, on_xla)
    return mlir.lower_fun(on_kernel(reduced, choice), multiple_results=True)(ctx, *operands)


def named_here(
    implementation: tuple[str, ...] | None, platform: str | None
) -> tuple[str, ...] | None:
    """Those of the implementations that the platform runs; None is free choice."""
    if implementation is None:
        return None
    return tuple(n for n in implementation if n == "xla" or n in SERVED.get(platform or "", ()))


def has_kernels(names: tuple[str, ...] | None, platform: str | None) -> bool:
    """Whether there is anything but XLA among what the platform runs."""
    return platform == "cuda" if names is None else not set(names) <= {"xla"}


def _partition_refusal(ctx: Any) -> str | None:
    """Why a matmul cannot be partitioned as `partitioning` does it; None where it can."""
    if not all(isinstance(extent, int) for x in ctx.avals_in for extent in x.shape):
        return "a dimension is symbolic, and the program is of several devices"
    return compat.partition_refusal(ctx)


def elsewhere(names: Sequence[str]) -> str:
    """Where the implementations would run that do not run on this platform; () is free choice."""
    places = []
    if not names or any(name in FAMILIES for name in names):
        places.append("the kernels run on CUDA")
    if any(name in EMULATED for name in names):
        places.append("the emulator runs on the CPU")
    return f"{' and '.join(places)}, not on this platform"


def _lower_to_xla(
    ctx: Any,
    operands: Sequence[Any],
    reduction: Callable[[], Reduction],
    on_xla: Callable[..., Any],
    implementation: tuple[str, ...] | None,
    reason: str,
) -> Any:
    if implementation is not None and "xla" not in implementation:
        names = implementation[0] if len(implementation) == 1 else implementation
        matmul = " @ ".join(describe(aval.dtype, aval.shape) for aval in ctx.avals_in[:2])
        raise NotImplementedError(
            f"jaxbw(implementation={names!r}): {matmul}: {reason}.\n{WAY_OUT}"
        )
    log.once(lambda: f"{reduction().problem}: xla: {reason}")
    return _xla_operations(ctx, operands, on_xla)


def _xla_operations(ctx: Any, operands: Sequence[Any], on_xla: Callable[..., Any]) -> Any:
    with compat.without_error_checks():
        return mlir.lower_fun(on_xla, multiple_results=True)(ctx, *operands)


def _warn_once(device: devices.Device | None) -> None:
    """Says that a GPU is there and no kernel can run on it, whatever the problem."""
    if device is None:
        return
    if device.problem is not None:
        reason = device.problem
    elif device.family is None:
        reason = "there are no kernels for it"
    elif not manifest.kernels():
        reason = "this installation of jaxbw was built without kernels"
    else:
        return
    message = f"jaxbw: {device}: {reason}. Matmuls run on XLA."
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, stacklevel=2)


def message(
    call: str,
    implementation: tuple[str, ...] | None,
    problem: "GemmProblem | RaggedProblem",
    refused: Sequence[Refusal],
) -> str:
    """What to say where every one of the implementations refuses."""
    names = implementation or ()
    given = names[0] if len(names) == 1 else names
    if len(refused) == 1:
        text = refused[0].reason if len(names) == 1 else str(refused[0])
    else:
        text = "\n  ".join(["every candidate refuses", *map(str, refused)])
    return f"{call}(implementation={given!r}): {problem}: {text}.\n{WAY_OUT}"
