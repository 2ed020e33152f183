"""quantize_p: an array as float8 with scales, by a kernel or by XLA, which give the same bits.

Which of them is settled when it is lowered. `quantize_call_p` is a call of the kernel.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from jaxbw import _native
from jaxbw._src import compat, fp8, log
from jaxbw._src.primitives import serve
from jaxbw._src.problem import DATA_TYPES, describe
from jaxbw._src.selection import manifest
from jaxbw._src.selection.implementations import EMULATED, FAMILIES

TARGET = "jaxbw_quantize_v1"
_CALL = "jaxbw.quantize"
_MANY = 2**23  # elements: with fewer, launches are the longer part, of which XLA has more
_INPUTS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}  # as the table has them

quantize_p = Primitive("jaxbw_quantize")
quantize_p.multiple_results = True
quantize_call_p = Primitive("jaxbw_quantize_call")
quantize_call_p.multiple_results = True


def quantize(
    x: Any,
    format: str,
    axis: tuple[int, ...],
    *,
    both: bool,
    implementation: tuple[str, ...] | None,
    target: str | None,
) -> Any:
    """Binds the primitive: data, scale with size 1 along `axis`, and of both the transposed data.

    Raises:
      NotImplementedError: none of the strict implementations takes such an array.
    """
    if implementation is not None and "xla" not in implementation:
        reason = _refusal(x.dtype, x.shape, axis) or _no_kernel(implementation, x.dtype)
        if reason is not None:
            raise NotImplementedError(_message(implementation, x, reason))
    params = {"format": format, "axis": axis, "both": both}
    return quantize_p.bind(x, **params, implementation=implementation, target=target)


@jax.custom_jvp
def undifferentiated(x: Any) -> Any:
    """x, of which a derivative is refused."""
    return x


@undifferentiated.defjvp
def _refuse(*_: Any) -> Any:
    raise TypeError(
        f"{_CALL}: x is differentiated, and what is quantized has no useful derivative; take "
        "jax.lax.stop_gradient(x), or jaxbw.fp8_dot_general, whose gradients are scaled"
    )


def on_xla(x: Any, *, format: str, axis: tuple[int, ...], both: bool) -> tuple[Any, ...]:
    """The same in XLA's operations."""
    form = fp8.FORMATS[format]
    wide = fp8.as_float32(x)
    scale = fp8.scale_of(fp8.finite_amax(wide, axis), form)
    data = fp8.scaled_down(wide, scale, form)
    return (data, scale, jnp.matrix_transpose(data)) if both else (data, scale)


def _abstract_eval(x: Any, *, format: str, axis: tuple[int, ...], both: bool, **_: Any) -> Any:
    dtype = fp8.FORMATS[format].dtype
    shape = tuple(1 if i in axis else n for i, n in enumerate(x.shape))
    # An update keeps what else the type says, as over which mesh axes of a shard_map it varies.
    of_scale: Any = {"shape": shape, "dtype": np.dtype(np.float32), "weak_type": False}
    if compat.is_explicit(x):
        of_scale["sharding"] = compat.unsharded(x, axis)
    types = [x.update(dtype=dtype, weak_type=False), x.update(**of_scale)]
    if both:
        order = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
        of_turned: Any = {"shape": tuple(x.shape[i] for i in order), "dtype": dtype}
        if compat.is_explicit(x):
            of_turned["sharding"] = compat.permuted_sharding(x, order)
        types.append(x.update(**of_turned, weak_type=False))
    return types


def _batch(operands: Any, batched: Any, *, axis: tuple[int, ...], **params: Any) -> Any:
    """A scale for each. The new dimension comes first, so that the groups stay in one piece."""
    x = jnp.moveaxis(operands[0], batched[0], 0)
    results = quantize_p.bind(x, axis=tuple(i + 1 for i in axis), **params)
    return results, (0,) * len(results)


# Lowering


def _lower(platform: str | None, ctx: Any, x: Any, **params: Any) -> Any:
    names, target = params.pop("implementation"), params.pop("target")
    (aval,) = ctx.avals_in
    kernel = _kernel(platform, ctx, names, target, params["axis"])
    if names is None and not isinstance(kernel, str):
        kernel = _quicker_by_xla(aval, params["axis"], both=params["both"]) or kernel
    if isinstance(kernel, str):
        if names is not None and "xla" not in names:
            raise NotImplementedError(_message(names, aval, kernel))
        log.once(lambda: f"quantize {describe(aval.dtype, aval.shape)}: xla: {kernel}")
        with compat.without_error_checks():
            return mlir.lower_fun(partial(on_xla, **params), multiple_results=True)(ctx, x)
    name = kernel.name
    log.once(lambda: f"quantize {describe(aval.dtype, aval.shape)}: {name}")
    return mlir.lower_fun(partial(_on_kernel, name, **params), multiple_results=True)(ctx, x)


def _kernel(
    platform: str | None,
    ctx: Any,
    names: tuple[str, ...] | None,
    target: str | None,
    axis: tuple[int, ...],
) -> Any:
    """The kernel that serves an array, or why there is none."""
    (x,) = ctx.avals_in
    served = serve.SERVED.get(platform or "", ())
    reason = serve.elsewhere(names or ())
    for name in names or (FAMILIES if platform == "cuda" else ()):
        if name == "xla":
            return "asked for" if names == ("xla",) else reason
        if name not in served:
            continue
        family = EMULATED.get(name, name)
        on_device = _device_refusal(family, names, target) if platform == "cuda" else None
        if not compat.is_one_device(ctx):
            reason = "the program is of several devices"
        elif (refusal := on_device or _refusal(x.dtype, x.shape, axis)) is not None:
            reason = refusal
        elif (kernel := _instance(family, x.dtype)) is None:
            reason = f"this installation has no {family} kernel that quantizes {x.dtype}"
        else:
            return kernel
    return reason


def _quicker_by_xla(x: Any, axis: tuple[int, ...], *, both: bool) -> str | None:
    """Why XLA serves an array that a kernel takes; None where the kernel does.

    The two cases where XLA was quicker (benchmarks/results/2026-11-25_h100_quantize.json): a scale
    of whole matrices takes two launches, which read the array twice, as XLA's do.
    """
    of_matrices = x.ndim >= 2 and {x.ndim - 2, x.ndim - 1} <= set(axis)
    if not of_matrices or x.size < _MANY:
        return None
    if both and any(extent % 16 for extent in x.shape[-2:]):
        return "XLA is quicker where rows are not aligned: on an H100 70 us for 95 at 4095x4097"
    if not both and x.dtype == np.float32:
        return "XLA is quicker with one scale: on an H100 221 us for 256 at 8192x8192"
    return None


def _device_refusal(family: str, names: tuple[str, ...] | None, target: str | None) -> str | None:
    device = serve.device_for(names, target)
    if device is None:
        return "there is no CUDA GPU, and no target is named"
    if device.family != family:
        return f"this is {device}"
    return device.problem


def _instance(family: str, dtype: Any) -> Any:
    wanted = (family, "quantize", _INPUTS[dtype.name])
    found = (k for k in manifest.kernels() if (k.family, k.role, k.input) == wanted)
    return next(found, None)


def _no_kernel(names: tuple[str, ...], dtype: Any) -> str | None:
    if any(_instance(EMULATED.get(name, name), dtype) is not None for name in names):
        return None
    return f"this installation has no kernel that quantizes {dtype}"


def _refusal(dtype: Any, shape: Sequence[Any], axis: tuple[int, ...]) -> str | None:
    """Why no kernel takes an array; None where one does."""
    if dtype.name not in _INPUTS:
        return f"the kernels quantize float32, bfloat16 and float16, not {dtype}"
    if not all(isinstance(extent, int) for extent in shape):
        return "a dimension is symbolic"
    if 0 in shape:
        return "a dimension is 0; there is nothing to launch"
    apart = [i for i, extent in enumerate(shape) if extent > 1 and i not in axis]
    shared = [i for i, extent in enumerate(shape) if extent > 1 and i in axis]
    if apart and shared and apart[-1] > shared[0]:
        return "the kernels' scales are shared along the last dimensions"
    return None


# The call


def _on_kernel(
    kernel: str, x: Any, *, format: str, axis: tuple[int, ...], both: bool
) -> tuple[Any, ...]:
    """An array that no kernel refuses, as its groups lie one behind the other."""
    scales = tuple(1 if i in axis else n for i, n in enumerate(x.shape))
    groups = math.prod(scales)
    # Where a scale is of parts of a matrix, XLA transposes the data.
    turned = both and scales[-2:] == (1, 1)
    rest = (-1, *x.shape[-2:]) if turned else (-1,)
    grouped = x.reshape(groups, *rest)
    data, scale, *transposed = quantize_call_p.bind(grouped, format=format, kernel=kernel)[
        : 2 + turned
    ]
    data = data.reshape(x.shape)
    results = (data, scale.reshape(scales))
    if not both:
        return results
    last = transposed[0].reshape(*x.shape[:-2], x.shape[-1], x.shape[-2]) if turned else None
    return *results, jnp.matrix_transpose(data) if last is None else last


def _call_abstract_eval(x: Any, *, format: str, kernel: str) -> Any:
    del kernel
    dtype = fp8.FORMATS[format].dtype
    workspace = _native.quantize_workspace_bytes(
        list(x.shape), DATA_TYPES[x.dtype.name], DATA_TYPES[dtype.name]
    )
    results = [
        x.update(dtype=dtype, weak_type=False),
        x.update(shape=x.shape[:1], dtype=np.dtype(np.float32), weak_type=False),
    ]
    if x.ndim == 4:
        groups, matrices, rows, columns = x.shape
        turned = (groups, matrices, columns, rows)
        results.append(x.update(shape=turned, dtype=dtype, weak_type=False))
    if workspace:
        results.append(x.update(shape=(workspace,), dtype=np.dtype(np.uint8), weak_type=False))
    return results


def _call_lower(ctx: Any, x: Any, *, format: str, kernel: str) -> Any:
    del format  # implied by the results
    return jax.ffi.ffi_lowering(TARGET)(ctx, x, kernel=kernel)


def _message(names: tuple[str, ...], x: Any, reason: str) -> str:
    given = names[0] if len(names) == 1 else names
    array = describe(x.dtype, x.shape)
    return f"{_CALL}(implementation={given!r}): x {array}: {reason}.\n{serve.WAY_OUT}"


quantize_p.def_abstract_eval(_abstract_eval)
batching.primitive_batchers[quantize_p] = _batch
serve.register(quantize_p, _lower)
quantize_call_p.def_abstract_eval(_call_abstract_eval)
for _platform in serve.SERVED:
    mlir.register_lowering(quantize_call_p, _call_lower, platform=_platform)
