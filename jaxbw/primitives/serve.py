"""What serves a product when it is lowered: the selection put to the platform's question.

Shared by the primitives that stand for a product until then.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from jax.interpreters import mlir

from jaxbw import compat
from jaxbw.problem import GemmProblem, Reduction, describe
from jaxbw.selection import devices, manifest
from jaxbw.selection.config import GemmConfig
from jaxbw.selection.select import Choice, Refusal, problem_refusals, select

WAY_OUT = "Leave implementation=None to run on XLA."
_warned: set[str] = set()


def choose(
    problem: GemmProblem,
    implementation: tuple[str, ...] | None,
    config: GemmConfig | None,
    device: devices.Device | None,
    call: str,
) -> Choice:
    """The selection's choice, out of the installed kernels.

    Raises:
      NotImplementedError: every one of `implementation` refuses.
    """
    choice = select(problem, device, implementation, config, manifest.kernels())
    if not isinstance(choice, Choice):
        raise NotImplementedError(_message(call, implementation, problem, choice))
    return choice


def device_for(implementation: tuple[str, ...] | None, target: str | None) -> devices.Device | None:
    """The device that a lowering for CUDA is for: see `devices.resolve`."""
    families = [name for name in implementation or () if name != "xla"]
    return devices.resolve(target, families[0] if families else None)


def check(
    problem: GemmProblem,
    implementation: tuple[str, ...] | None,
    config: GemmConfig | None,
    target: str | None,
    call: str,
) -> None:
    """Raises at trace time what no device could change.

    Raises:
      NotImplementedError: none of the strict implementations takes the problem.
    """
    if implementation is None:
        return
    # Each family is asked about a device that it runs on: this machine's is not known here.
    wanted = []
    for name in implementation:
        named = devices.TARGETS[target] if target is not None else None
        fits = named is not None and (named.family == name or name == "xla")
        default = devices.TARGETS[devices.DEFAULT_TARGETS.get(name, "B200")]
        wanted.append(named if fits and named is not None else default)
    refused = problem_refusals(problem, implementation, config, wanted, manifest.kernels())
    if refused:
        raise NotImplementedError(_message(call, implementation, problem, refused))


def lower(
    ctx: Any,
    operands: Sequence[Any],
    reduction: Callable[[], Reduction],
    on_kernel: Callable[[Reduction, Choice], Callable[..., Any]],
    on_xla: Callable[..., Any],
    *,
    implementation: tuple[str, ...] | None,
    config: GemmConfig | None,
    target: str | None,
) -> Any:
    """Lowers a product for CUDA: to the kernel that is chosen, or to XLA's operations."""
    if not all(isinstance(d, int) for aval in ctx.avals_in for d in aval.shape):
        reason = "a dimension is symbolic; kernels are chosen for known sizes"
        return _lower_to_xla(ctx, operands, on_xla, implementation, reason)
    if not compat.is_one_device(ctx):
        reason = (
            "the program is partitioned over several devices, and a kernel would gather its "
            "operands; call it inside jax.shard_map over every mesh axis"
        )
        return _lower_to_xla(ctx, operands, on_xla, implementation, reason)

    reduced = reduction()
    device = device_for(implementation, target)
    choice = choose(reduced.problem, implementation, config, device, "jaxbw")
    if choice.implementation == "xla":
        if implementation is None and target is None:
            _warn_once(device)
        return mlir.lower_fun(on_xla, multiple_results=False)(ctx, *operands)
    return mlir.lower_fun(on_kernel(reduced, choice), multiple_results=False)(ctx, *operands)


def lower_elsewhere(
    ctx: Any,
    operands: Sequence[Any],
    on_xla: Callable[..., Any],
    implementation: tuple[str, ...] | None,
) -> Any:
    """Lowers a product for a platform without kernels."""
    reason = "the kernels run on CUDA, not on this platform"
    return _lower_to_xla(ctx, operands, on_xla, implementation, reason)


def _lower_to_xla(
    ctx: Any,
    operands: Sequence[Any],
    on_xla: Callable[..., Any],
    implementation: tuple[str, ...] | None,
    reason: str,
) -> Any:
    if implementation is not None and "xla" not in implementation:
        names = implementation[0] if len(implementation) == 1 else implementation
        product = " @ ".join(describe(aval.dtype, aval.shape) for aval in ctx.avals_in[:2])
        raise NotImplementedError(
            f"jaxbw(implementation={names!r}): {product}: {reason}.\n{WAY_OUT}"
        )
    return mlir.lower_fun(on_xla, multiple_results=False)(ctx, *operands)


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
    message = f"jaxbw: {device}: {reason}. Matrix products run on XLA."
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, stacklevel=2)


def _message(
    call: str,
    implementation: tuple[str, ...] | None,
    problem: GemmProblem,
    refused: Sequence[Refusal],
) -> str:
    names = implementation or ()
    given = names[0] if len(names) == 1 else names
    if len(refused) == 1:
        text = refused[0].reason if len(names) == 1 else str(refused[0])
    else:
        text = "\n  ".join(["every candidate refuses", *map(str, refused)])
    return f"{call}(implementation={given!r}): {problem}: {text}.\n{WAY_OUT}"
