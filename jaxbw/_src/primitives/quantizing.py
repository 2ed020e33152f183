"""What serves an array that is quantized: the kernel that an installation has for it, or XLA."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from jaxbw._src import compat, log
from jaxbw._src.primitives import serve
from jaxbw._src.problem import describe
from jaxbw._src.selection import manifest
from jaxbw._src.selection.implementations import EMULATED, FAMILIES

CALL = "jaxbw.quantize"
_INPUTS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}  # as the table has them

Names = tuple[str, ...] | None  # of implementations; None is free choice


@jax.custom_jvp
def undifferentiated(x: Any) -> Any:
    """x, of which a derivative is refused."""
    return x


@undifferentiated.defjvp
def _refuse(*_: Any) -> Any:
    raise TypeError(
        f"{CALL}: x is differentiated, and what is quantized has no useful derivative; take "
        "jax.lax.stop_gradient(x), or jaxbw.fp8_dot_general, whose gradients are scaled"
    )


def check(names: Names, role: str, x: Any, refusal: str | None) -> None:
    """Raises at trace time what no device could change; `refusal`: why no kernel takes x.

    Raises:
      NotImplementedError: none of the strict implementations takes such an array.
    """
    if names is not None and "xla" not in names:
        reason = refusal or _no_kernel(names, role, x.dtype)
        if reason is not None:
            raise NotImplementedError(message(names, x, reason))


def kernel(
    platform: str | None,
    ctx: Any,
    role: str,
    names: Names,
    target: str | None,
    refusal: Callable[[], str | None],
    *,
    of_shards: bool = False,
) -> Any:
    """The kernel of this role that serves an array, or why there is none.

    Args:
      of_shards: on several devices kernels serve what each of them has.
    """
    x = ctx.avals_in[0]
    served = serve.SERVED.get(platform or "", ())
    reason = serve.elsewhere(names or ())
    for name in names or (FAMILIES if platform == "cuda" else ()):
        if name == "xla":
            return "asked for" if names == ("xla",) else reason
        if name not in served:
            continue
        family = EMULATED.get(name, name)
        on_device = _device_refusal(family, names, target) if platform == "cuda" else None
        if not of_shards and not compat.is_one_device(ctx):
            reason = "the program is of several devices"
        elif (refused := on_device or refusal() or _partition_refusal(ctx)) is not None:
            reason = refused
        elif (found := _instance(family, role, x.dtype)) is None:
            reason = f"this installation has no {family} kernel that quantizes {x.dtype}"
        else:
            return found
    return reason


def _partition_refusal(ctx: Any) -> str | None:
    return None if compat.is_one_device(ctx) else compat.partition_refusal(ctx)


def lower(
    ctx: Any,
    operands: Sequence[Any],
    found: Any,
    names: Names,
    described: str,
    on_xla: Callable[..., Any],
    on_kernel: Callable[..., Any],
) -> Any:
    """Lowers to the kernel that was found, or to XLA's form, and logs which and why.

    Args:
      found: what `kernel` returned; its name is the first argument of `on_kernel`.
      described: what is quantized, for the log.

    Raises:
      NotImplementedError: there is none, and the strict implementations do not include XLA.
    """
    if isinstance(found, str):
        if names is not None and "xla" not in names:
            raise NotImplementedError(message(names, ctx.avals_in[0], found))
        log.once(lambda: f"{described}: xla: {found}")
        with compat.without_error_checks():
            return mlir.lower_fun(on_xla, multiple_results=True)(ctx, *operands)
    log.once(lambda: f"{described}: {found.name}")
    return mlir.lower_fun(partial(on_kernel, found.name), multiple_results=True)(ctx, *operands)


def array_refusal(dtype: Any, shape: Sequence[Any]) -> str | None:
    """Why no kernel takes an array of whatever format; None where one may."""
    if dtype.name not in _INPUTS:
        return f"the kernels quantize float32, bfloat16 and float16, not {dtype}"
    if not all(isinstance(extent, int) for extent in shape):
        return "a dimension is symbolic"
    if 0 in shape:
        return "a dimension is 0; there is nothing to launch"
    return None


def message(names: tuple[str, ...], x: Any, reason: str) -> str:
    """What to say where the strict implementations refuse."""
    given = names[0] if len(names) == 1 else names
    array = describe(x.dtype, x.shape)
    return f"{CALL}(implementation={given!r}): x {array}: {reason}.\n{serve.WAY_OUT}"


def _device_refusal(family: str, names: Names, target: str | None) -> str | None:
    device = serve.device_for(names, target)
    if device is None:
        return "there is no CUDA GPU, and no target is named"
    if device.family != family:
        return f"this is {device}"
    return device.problem


def _instance(family: str, role: str, dtype: Any) -> Any:
    wanted = (family, role, _INPUTS[np.dtype(dtype).name])
    found = (k for k in manifest.kernels() if (k.family, k.role, k.input) == wanted)
    return next(found, None)


def _no_kernel(names: tuple[str, ...], role: str, dtype: Any) -> str | None:
    if any(_instance(EMULATED.get(name, name), role, dtype) is not None for name in names):
        return None
    return f"this installation has no kernel that quantizes {dtype}"
