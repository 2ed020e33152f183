"""quantize_p: an array as float8 with scales, by a kernel or by XLA, which give the same bits.

Which of them is settled when it is lowered. `quantize_call_p` is a call of the kernel.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from jaxbw import _native
from jaxbw._src import compat, fp8
from jaxbw._src.primitives import quantizing, serve
from jaxbw._src.problem import DATA_TYPES, describe

TARGET = "jaxbw_quantize_v1"
_ROLE = "quantize"  # of the kernels
_MANY = 2**23  # elements: with fewer, launches are the longer part, of which XLA has more

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
    quantizing.check(implementation, _ROLE, x, _refusal(x.dtype, x.shape, axis))
    params = {"format": format, "axis": axis, "both": both}
    return quantize_p.bind(x, **params, implementation=implementation, target=target)


def on_xla(
    x: Any,
    *,
    format: str,
    axis: tuple[int, ...],
    both: bool,
    scale_of: Callable[[Any, fp8.Format], Any] = fp8.scale_of,
) -> tuple[Any, ...]:
    """The same in XLA's operations; `scale_of`: of amax."""
    form = fp8.FORMATS[format]
    wide = fp8.as_float32(x)
    scale = scale_of(fp8.finite_amax(wide, axis), form)
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
    refusal = partial(_refusal, aval.dtype, aval.shape, params["axis"])
    kernel = quantizing.kernel(platform, ctx, _ROLE, names, target, refusal)
    if names is None and not isinstance(kernel, str):
        kernel = _quicker_by_xla(aval, params["axis"], both=params["both"]) or kernel
    described = f"quantize {describe(aval.dtype, aval.shape)}"
    forms = (partial(form, **params) for form in (on_xla, _on_kernel))
    return quantizing.lower(ctx, (x,), kernel, names, described, *forms)


def _quicker_by_xla(x: Any, axis: tuple[int, ...], *, both: bool) -> str | None:
    """Why XLA serves an array that a kernel takes; None where the kernel does.

    The case where XLA was quicker: a scale of whole matrices takes two launches, which read the
    array twice, as XLA's do (benchmarks/results/2026-11-25_h100_quantize.json), and a third one to
    transpose unaligned data (2026-11-28_h200_quantize_unaligned.json).
    """
    of_matrices = x.ndim >= 2 and {x.ndim - 2, x.ndim - 1} <= set(axis)
    if not of_matrices or x.size < _MANY:
        return None
    if x.dtype == np.float32 and not (both and _is_aligned(x)):
        return "XLA is quicker with one scale: on an H100 221 us for 256 at 8192x8192"
    return None


def _is_aligned(x: Any) -> bool:
    """Whether the kernels transpose the matrices of an array."""
    return all(extent % 4 == 0 for extent in x.shape[-2:])


def _refusal(dtype: Any, shape: Sequence[Any], axis: tuple[int, ...]) -> str | None:
    """Why no kernel takes an array; None where one does."""
    if (refusal := quantizing.array_refusal(dtype, shape)) is not None:
        return refusal
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
    # Where a scale is of parts of a matrix, or rows are not aligned, XLA transposes the data.
    turned = both and scales[-2:] == (1, 1) and _is_aligned(x)
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


quantize_p.def_abstract_eval(_abstract_eval)
batching.primitive_batchers[quantize_p] = _batch
serve.register(quantize_p, _lower)
quantize_call_p.def_abstract_eval(_call_abstract_eval)
for _platform in serve.SERVED:
    mlir.register_lowering(quantize_call_p, _call_lower, platform=_platform)
