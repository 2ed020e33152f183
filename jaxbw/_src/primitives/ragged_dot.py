"""ragged_dot_p: a grouped matmul in either of two forms, and what may serve it: a kernel or XLA.

    rows fall into groups:          out[b, r] = lhs[b, r] @ rhs[b, group of r]
    the contraction does:           out[b, g] = lhs[b, rows of g]^T @ rhs[b, rows of g]

Both are `problem.RaggedProblem`'s. Bilinear, and closed under transposition: the cotangents of the
first form are one of each form, and those of the second are two of the first. So JAX derives all of
every order. Which implementation serves it is settled when it is lowered.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from jaxbw._native import Major
from jaxbw._src import compat, log
from jaxbw._src.epilogue import IDENTITY, Epilogue
from jaxbw._src.primitives import ragged_xla, serve
from jaxbw._src.problem import asks_for_accurate_sums, mx_of, precisions
from jaxbw._src.ragged import RaggedProblem
from jaxbw._src.selection import devices
from jaxbw._src.selection.choice import Refusal
from jaxbw._src.selection.implementations import EMULATED
from jaxbw._src.selection.policy import FREE, Policy

ragged_dot_p = Primitive("jaxbw_ragged_dot")
OPERANDS = 4  # lhs, rhs, group_sizes, group_offset

_Preset = lax.DotAlgorithmPreset
# As kernels multiply, of 16 bits and of 8.
_OF_KERNELS = (_Preset.DEFAULT, _Preset.BF16_BF16_F32, _Preset.F16_F16_F32)
_OF_FLOAT8 = (_Preset.ANY_F8_ANY_F8_F32, _Preset.ANY_F8_ANY_F8_F32_FAST_ACCUM)


def ragged_dot(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    group_offset: Any,
    *,
    ragged_contraction: bool,
    groups: int,
    output: np.dtype[Any],
    transposed: bool = False,
    precision: Any = None,
    rows_per_group: int | None = None,
    policy: Policy = FREE,
) -> Any:
    """Binds the primitive. Every argument is canonical already.

    Args:
      lhs, rhs: as of `RaggedProblem`; either may have a batch of 1 for a larger one.
      group_sizes: int32 [batch, total groups].
      group_offset: int32 []: which of them is the first of rhs, or of the result.
      groups: of rhs, or of the result.
      output: dtype of the result.
      transposed: rhs is [.., groups, n, k].
      rows_per_group: what is expected, for the choice of a kernel.
    """
    compat.register_float_check(ragged_dot_p)
    result: Any = ragged_dot_p.bind(
        *compat.insert_reshard(lhs, rhs, group_sizes, group_offset),
        ragged_contraction=ragged_contraction,
        groups=groups,
        output=output,
        transposed=transposed,
        precision=precision,
        rows_per_group=rows_per_group,
        policy=policy,
    )
    return result


def output_shape(lhs: Any, rhs: Any, group_sizes: Any, params: Any) -> tuple[int, ...]:
    """That of the result."""
    batch = group_sizes.shape[0]
    if params["ragged_contraction"]:
        return (batch, params["groups"], lhs.shape[2], rhs.shape[2])
    return (batch, lhs.shape[1], rhs.shape[2 if params["transposed"] else 3])


def _abstract_eval(lhs: Any, rhs: Any, group_sizes: Any, _: Any, **params: Any) -> Any:
    shape = output_shape(lhs, rhs, group_sizes, params)
    # An update keeps what else the type says, as over which mesh axes of a shard_map it varies.
    return lhs.update(shape=shape, dtype=params["output"], weak_type=False)


# Differentiation


def _of_lhs_tangent(tangent: Any, _: Any, rhs: Any, *sizes: Any, **params: Any) -> Any:
    return ragged_dot(tangent, rhs, *sizes, **params)


def _of_rhs_tangent(tangent: Any, lhs: Any, _: Any, *sizes: Any, **params: Any) -> Any:
    return ragged_dot(lhs, tangent, *sizes, **params)


def _transpose(cotangent: Any, lhs: Any, rhs: Any, *sizes: Any, **params: Any) -> Any:
    if type(cotangent) is ad.Zero:
        return None, None, None, None
    of_rhs = ad.is_undefined_primal(rhs)
    x, other = (rhs.aval, lhs) if of_rhs else (lhs.aval, rhs)
    cotangent = _narrowed(cotangent, x.dtype, other.dtype, params["precision"])
    is_complex = np.iscomplexobj(cotangent) and not jnp.issubdtype(x.dtype, jnp.complexfloating)
    backward = {
        **params,
        "output": cotangent.dtype if is_complex else x.dtype,
        "policy": params["policy"].for_gradients,
        "transposed": False,
    }
    rows = {**backward, "ragged_contraction": False}
    contraction = {**backward, "ragged_contraction": True}
    if params["ragged_contraction"]:
        if of_rhs:  # out = lhs^T rhs: to the rows of lhs by its group's cotangent
            product = ragged_dot(lhs, cotangent, *sizes, **rows)
        else:
            product = ragged_dot(rhs, cotangent, *sizes, **{**rows, "transposed": True})
    elif not of_rhs:
        flipped = {**rows, "transposed": not params["transposed"]}
        product = ragged_dot(cotangent, rhs, *sizes, **flipped)
    elif params["transposed"]:
        product = ragged_dot(cotangent, lhs, *sizes, **contraction)
    else:
        product = ragged_dot(lhs, cotangent, *sizes, **contraction)
    if is_complex:
        product = lax.real(product)
    if x.shape[0] != product.shape[0]:  # one for the whole batch
        product = product.sum(0, keepdims=True)
    product = product.astype(x.dtype)
    return (None, product, None, None) if of_rhs else (product, None, None, None)


def _narrowed(cotangent: Any, dtype: np.dtype[Any], other: np.dtype[Any], precision: Any) -> Any:
    """The cotangent as the kernels multiply it.

    Of bfloat16 operands with a float32 result it is float32, and no kernel multiplies both. It is
    rounded as the operands were, unless more precision is asked for. (float16 has not the range.)
    """
    is_exact = lax.Precision.HIGHEST in precisions(precision) or isinstance(
        precision, lax.DotAlgorithmPreset
    )
    is_narrow = dtype == other == jnp.bfloat16 and cotangent.dtype == np.float32
    return cotangent.astype(dtype) if is_narrow and not is_exact else cotangent


# Batching


def _batch(operands: Any, dims: Any, **params: Any) -> Any:
    """The new dimension joins the batch. Arrays that have neither stay one for all of it."""
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    lhs, rhs, sizes, offset = (
        x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(operands, dims, strict=True)
    )
    batch = sizes.shape[-2]
    if dims[2] is None:
        sizes = jnp.broadcast_to(sizes, (size, *sizes.shape))
    if dims[3] is not None:
        # Each has a first group of its own: what is before it becomes one group.
        m = lhs.shape[-2]
        bounds = jax.vmap(partial(ragged_xla.group_bounds, groups=params["groups"], m=m))(
            sizes, offset
        )
        sizes = jnp.concatenate([bounds[..., :1], jnp.diff(bounds)], axis=-1)
        offset = np.int32(1)
    lhs, rhs = (
        _into_batch(x, is_batched=d is not None, size=size, batch=batch)
        for x, d in zip((lhs, rhs), dims[:2], strict=True)
    )
    sizes = sizes.reshape(size * batch, sizes.shape[-1])
    out = ragged_dot(lhs, rhs, sizes, offset, **params)
    return out.reshape(size, batch, *out.shape[1:]), 0


def _into_batch(x: Any, *, is_batched: bool, size: int, batch: int) -> Any:
    """An operand of `size` x `batch` problems, or of each of `batch` if not `is_batched`."""
    own = x.shape[1 if is_batched else 0]
    if not is_batched and own == 1:
        return x
    matrices = x.shape[2 if is_batched else 1 :]
    x = x.reshape(size if is_batched else 1, own, *matrices)
    return jnp.broadcast_to(x, (size, batch, *matrices)).reshape(size * batch, *matrices)


# Lowering


def _lower(platform: str | None, ctx: Any, *operands: Any, **params: Any) -> Any:
    problem = problem_of(ctx.avals_in, params)
    choice = choice_of(platform, ctx, problem, params)
    if isinstance(choice, Refusal):
        names = params["policy"].implementation
        if names is not None and "xla" not in names:
            raise NotImplementedError(serve.message("jaxbw", names, problem, [choice]))
        log.once(lambda: f"{problem}: xla: {choice.reason}")
        form = {k: v for k, v in params.items() if k not in ("policy", "rows_per_group")}
        on_xla = partial(ragged_xla.ragged_dot, counts_steps=platform != "cuda", **form)
        return compat.lower_unplaced(on_xla, ctx, operands)
    return lower_kernel(problem, choice, ctx, operands)


def lower_kernel(problem: RaggedProblem, choice: Any, ctx: Any, operands: Any) -> Any:
    """Lowers to the kernel that was chosen."""
    from jaxbw._src.primitives.ragged_gemm import ragged_gemm

    log.once(choice.summary)
    return compat.lower_unplaced(partial(ragged_gemm, problem, choice), ctx, operands)


def problem_of(
    operands: Any, params: Any, epilogue: Epilogue = IDENTITY, lhs_rows: Any = None
) -> RaggedProblem:
    """What the selection is asked, of the types of the operands; `lhs_rows`: of indices."""
    lhs, rhs, sizes, _ = operands
    batch, total = sizes.shape
    _, m, k = lhs.shape
    return RaggedProblem(
        ragged_contraction=params["ragged_contraction"],
        batch=batch,
        m=m if lhs_rows is None else lhs_rows.shape[0],
        k=k,
        n=rhs.shape[-2 if params["transposed"] else -1],
        groups=params["groups"],
        total_groups=total,
        lhs_batched=batch > 1 and lhs.shape[0] == batch,
        rhs_batched=batch > 1 and rhs.shape[0] == batch,
        rhs_major=Major.K if params["transposed"] else Major.MN,
        lhs_dtype=lhs.dtype,
        rhs_dtype=rhs.dtype,
        output=params["output"],
        promoted=_is_float8(lhs.dtype) and asks_for_accurate_sums(params["precision"]),
        rows_per_group=params["rows_per_group"],
        epilogue=epilogue,
        source_rows=None if lhs_rows is None else m,
    )


def check(call: str, operands: Any, params: Any) -> None:
    """Raises at trace time what no device could change, of the types of the operands.

    Raises:
      NotImplementedError: none of the strict implementations takes the matmul.
    """
    policy: Policy = params["policy"]
    names = policy.implementation
    if names is None or "xla" in names:
        return
    problem = problem_of(operands, params)
    named = None if policy.target is None else devices.TARGETS[policy.target]
    refused = []
    for name in names:
        # Each family is asked about a device that it runs on: this machine's is not known here.
        device = devices.for_family(named, EMULATED.get(name, name))
        choice = chosen(problem, operands, device, replace(policy, implementation=(name,)), params)
        if not isinstance(choice, Refusal):
            return
        refused.append(choice)
    raise NotImplementedError(serve.message(call, names, problem, refused))


def choice_of(platform: str | None, ctx: Any, problem: RaggedProblem, params: Any) -> Any:
    """The choice of a kernel on a platform, or why there is none."""
    policy: Policy = params["policy"]
    names = policy.implementation
    here = serve.named_here(names, platform)
    if names == ("xla",):
        return Refusal("kernels", "asked for")
    if not serve.has_kernels(here, platform):
        return Refusal("kernels", serve.elsewhere(names or ()))
    if not compat.is_one_device(ctx):
        reason = "the program is of several devices; kernels serve it in a shard_map over all axes"
        return Refusal("kernels", reason)
    device = serve.device_for(here, policy.target)
    return chosen(problem, ctx.avals_in, device, replace(policy, implementation=here), params)


def chosen(problem: RaggedProblem, operands: Any, device: Any, policy: Policy, params: Any) -> Any:
    """The same on a device; of the operands only the types count."""
    lhs, rhs, *_ = operands
    precision = params["precision"]
    are_float8 = _is_float8(lhs.dtype) and _is_float8(rhs.dtype)
    if lhs.dtype != rhs.dtype and not are_float8 and not mx_of(problem.epilogue):
        reason = f"rhs is {rhs.dtype}; kernels multiply operands of one dtype, or float8 ones"
        return Refusal("kernels", reason)
    known = _OF_FLOAT8 if are_float8 else _OF_KERNELS
    if isinstance(precision, lax.DotAlgorithm | _Preset) and precision not in known:
        return Refusal("kernels", f"precision is {precision}; kernels sum in float32")
    # Loaded at the first choice: what XLA serves needs no planner.
    from jaxbw._src.selection.ragged import choose

    return choose(problem, device, policy)


def _is_float8(dtype: np.dtype[Any]) -> bool:
    return dtype in (jnp.float8_e4m3fn, jnp.float8_e5m2)


ragged_dot_p.def_abstract_eval(_abstract_eval)
ad.defjvp(ragged_dot_p, _of_lhs_tangent, _of_rhs_tangent, None, None)
ad.primitive_transposes[ragged_dot_p] = _transpose
batching.primitive_batchers[ragged_dot_p] = _batch
serve.register(ragged_dot_p, _lower)
compat.register_remat_rule(ragged_dot_p)
