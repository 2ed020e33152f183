"""gemm_p: one kernel launch, operands exactly as the custom call takes them (see _native.pyi).

It is bound only inside the lowering rules of the primitives above it, hence needs no
differentiation, batching or sharding rules of its own. On CUDA the custom call launches the kernel,
on the CPU it runs the kernel's PTX in the emulator.
"""

from typing import Any, Never

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxbw._native import (
    Activation,
    Major,
    emulator_ffi_targets,
    ffi_targets,
    set_kernel_directory,
)
from jaxbw.problem import Operands, Reduction
from jaxbw.selection import manifest
from jaxbw.selection.select import Choice

TARGET = "jaxbw_gemm_v1"

ACTIVATIONS = {
    None: Activation.NONE,
    "relu": Activation.RELU,
    "gelu": Activation.GELU,
    "silu": Activation.SILU,
}

gemm_p = Primitive("jaxbw_gemm")


def register() -> None:
    """Makes the custom calls known to XLA, and the kernels to the runtime."""
    set_kernel_directory(str(manifest.directory()))
    for platform, targets in (("CUDA", ffi_targets()), ("cpu", emulator_ffi_targets())):
        for name, stages in targets.items():
            jax.ffi.register_ffi_target(name, stages, platform=platform)


def gemm(reduction: Reduction, choice: Choice, operands: Operands) -> tuple[Any, ...]:
    """The kernel that was chosen, on the operands of the reduced product.

    `bias` is [n], n being the reduced problem's. The result has the shape of the unreduced one.
    """
    problem, config = reduction.problem, choice.config
    assert config is not None
    lhs, rhs, _, _, bias, _ = operands
    given = [reduction.lhs(lhs), reduction.rhs(rhs)]
    if bias is not None:
        n = reduction.problem.n
        bias = jax.lax.reshape(
            jax.numpy.broadcast_to(bias, (n // bias.shape[0], *bias.shape)), (n,)
        )
        given.append(bias)
    result = gemm_p.bind(
        *given,
        output_dtype=problem.output,
        kernel=choice.kernel,
        lhs_major=problem.lhs_major.value,
        rhs_major=problem.rhs_major.value,
        activation=ACTIVATIONS[problem.epilogue.activation].value,
        block_m=config.block_m,
        block_n=config.block_n,
        cluster_m=config.cluster[0],
        cluster_n=config.cluster[1],
        cta_group=config.cta_group,
        stages=config.stages,
        swizzle=config.swizzle,
    )
    return (jax.lax.reshape(result, reduction.output_shape),)


def _abstract_eval(
    lhs: Any, rhs: Any, *_: Any, output_dtype: Any, lhs_major: int, rhs_major: int, **__: Any
) -> Any:
    m = lhs.shape[1 if lhs_major == Major.K.value else 2]
    n = rhs.shape[1 if rhs_major == Major.K.value else 2]
    batch = max(lhs.shape[0], rhs.shape[0])
    # An update keeps what else the type says, as over which mesh axes of a shard_map it varies.
    return lhs.update(shape=(batch, m, n), dtype=output_dtype, weak_type=False)


def _lower(
    ctx: mlir.LoweringRuleContext,
    *operands: Any,
    output_dtype: Any,
    kernel: str,
    **attributes: int,
) -> Any:
    del output_dtype  # implied by the result
    # Custom calls' integers are int64 unless they are NumPy's; the handler takes int32 only.
    int32 = {name: np.int32(value) for name, value in attributes.items()}
    return jax.ffi.ffi_lowering(TARGET)(ctx, *operands, kernel=kernel, **int32)


def _refuse(*_: Any, kernel: str, **__: Any) -> Never:
    raise NotImplementedError(
        f"jaxbw: kernel {kernel} runs on CUDA and in the emulator, not on this platform.\n"
        "Leave implementation=None to run on XLA."
    )


gemm_p.def_abstract_eval(_abstract_eval)
mlir.register_lowering(gemm_p, _refuse)
mlir.register_lowering(gemm_p, _lower, platform="cuda")
mlir.register_lowering(gemm_p, _lower, platform="cpu")
