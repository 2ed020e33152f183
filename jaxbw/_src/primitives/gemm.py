"""gemm_p: one call of the runtime, operands exactly as the custom call takes them (_native.pyi).

It is bound only inside the lowering rules of the primitives above it, hence needs no
differentiation, batching or sharding rules of its own. On CUDA the custom call launches the
kernels, on the CPU it runs their PTX in the emulator.
"""

from typing import Any, Never

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxbw._native import (
    Activation,
    DataType,
    emulator_ffi_targets,
    ffi_targets,
    ffi_types,
    set_kernel_directory,
    workspace_bytes,
)
from jaxbw._src import compat
from jaxbw._src.problem import GemmProblem, Operands, Reduction
from jaxbw._src.selection import manifest
from jaxbw._src.selection.choice import Choice
from jaxbw._src.selection.config import CANONICAL_M

# The number counts changes of attributes, operands or results: a program that was compiled or
# exported for another number is not run in their stead.
TARGET = "jaxbw_gemm_v3"

ACTIVATIONS = {
    None: Activation.NONE,
    "relu": Activation.RELU,
    "silu": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_exact": Activation.GELU_EXACT,
}
DATA_TYPES = {"float16": DataType.F16, "bfloat16": DataType.BF16, "float32": DataType.F32}
RASTERS = ("m", "n")
SCHEDULERS = ("static", "clc", "none")

gemm_p = Primitive("jaxbw_gemm")
gemm_p.multiple_results = True


def register() -> None:
    """Makes the custom calls known to XLA, and the kernels to the runtime."""
    set_kernel_directory(str(manifest.directory()))
    for name, type_ in ffi_types().items():
        jax.ffi.register_ffi_type(name, type_, platform="CUDA")
    for platform, targets in (("CUDA", ffi_targets()), ("cpu", emulator_ffi_targets())):
        for name, stages in targets.items():
            jax.ffi.register_ffi_target(name, stages, platform=platform)


def gemm(reduction: Reduction, choice: Choice, operands: Operands) -> tuple[Any, ...]:
    """The kernel that was chosen, on the operands of a dot_general; the results have its shape."""
    problem = reduction.problem
    lhs, rhs, rhs_up, c, bias, residual = operands
    reduced = Operands(
        reduction.lhs(lhs),
        reduction.rhs(rhs),
        None if rhs_up is None else reduction.rhs(rhs_up),
        None if c is None else jax.lax.reshape(c, problem.output_shape),
        None if bias is None else _repeated(bias, problem),
        None if residual is None else jax.lax.reshape(residual, problem.output_shape),
    )
    attributes = call_attributes(problem, choice)
    sized = problem.sized(CANONICAL_M)  # the workspace does not depend on an m that is symbolic
    results = gemm_p.bind(
        *reduced.given(),
        shape=problem.output_shape,
        dtype=problem.output,
        workspace=workspace_bytes(
            sized.lhs_shape, sized.rhs_shape, DATA_TYPES[problem.lhs_dtype.name], attributes
        ),
        in_place=problem.epilogue.c == problem.output,
        **attributes,
    )
    wanted = results[: problem.epilogue.results]
    return tuple(compat.computed_once(reduction.result(x)) for x in wanted)


def call_attributes(problem: GemmProblem, choice: Choice) -> dict[str, str | int | float]:
    """The attributes of the custom call, as `_native.pyi` names them."""
    epilogue, config = problem.epilogue, choice.config
    assert config is not None
    assert choice.kernel is not None
    block_m, block_n = config.tile
    return {
        "kernel": choice.kernel,
        "alpha": epilogue.alpha,
        "beta": epilogue.beta,
        "has_c": int(epilogue.c is not None),
        "has_bias": int(epilogue.bias is not None),
        "bias_along_m": int(epilogue.bias_axis == "m"),
        "has_residual": int(epilogue.residual is not None),
        "gated": int(epilogue.gated),
        "save": int(epilogue.save),
        "activation": ACTIVATIONS[epilogue.activation].value,
        "lhs_major": problem.lhs_major.value,
        "rhs_major": problem.rhs_major.value,
        "block_m": block_m,
        "block_n": block_n,
        "pingpong": int(config.pingpong),
        "k_spans": config.k_spans(problem.lhs_dtype.itemsize),
        "cluster_m": config.cluster[0],
        "cluster_n": config.cluster[1],
        "cluster_k": config.cluster_k,
        "cta_group": config.cta_group,
        "stages": config.stages or 0,
        "swizzle": config.swizzle,
        "raster": RASTERS.index(config.raster),
        "split_k": config.split_k,
        "split_tail": int(config.split_tail),
        "wave": choice.wave or 0,
        "swap_ab": int(config.swap_ab),
        "accumulators": config.accumulators or 0,
        "scheduler": SCHEDULERS.index(config.scheduler or "static"),
    }


def _repeated(bias: Any, problem: GemmProblem) -> Any:
    """A bias as a vector for all of m or n, which several dimensions of an operand may make up."""
    extent = problem.m if problem.epilogue.bias_axis == "m" else problem.n
    if bias.size != extent:
        bias = jnp.broadcast_to(bias, (extent // bias.size, *bias.shape))
    return jax.lax.reshape(bias, (extent,))


def _abstract_eval(
    lhs: Any, *_: Any, shape: Any, dtype: Any, workspace: int, gated: int, save: int, **__: Any
) -> Any:
    # An update keeps what else the type says, as over which mesh axes of a shard_map it varies.
    results = [lhs.update(shape=shape, dtype=dtype, weak_type=False)] * (1 + save * (1 + gated))
    if workspace:
        results.append(lhs.update(shape=(workspace,), dtype=np.dtype(np.uint8), weak_type=False))
    return results


def _lower(
    ctx: mlir.LoweringRuleContext,
    *operands: Any,
    shape: Any,
    dtype: Any,
    workspace: int,
    in_place: bool,
    kernel: str,
    alpha: float,
    beta: float,
    **integers: int,
) -> Any:
    del shape, dtype, workspace  # implied by the results
    call = jax.ffi.ffi_lowering(
        TARGET, operand_output_aliases={2 + integers["gated"]: 0} if in_place else None
    )
    # Custom calls' numbers are 64 bits wide unless they are NumPy's; the handler takes 32 only.
    return call(
        ctx,
        *operands,
        kernel=kernel,
        alpha=np.float32(alpha),
        beta=np.float32(beta),
        **{name: np.int32(value) for name, value in integers.items()},
    )


def _refuse(*_: Any, kernel: str, **__: Any) -> Never:
    raise NotImplementedError(
        f"jaxbw: kernel {kernel} runs on CUDA and in the emulator, not on this platform.\n"
        "Leave implementation=None to run on XLA."
    )


gemm_p.def_abstract_eval(_abstract_eval)
mlir.register_lowering(gemm_p, _refuse)
mlir.register_lowering(gemm_p, _lower, platform="cuda")
mlir.register_lowering(gemm_p, _lower, platform="cpu")
