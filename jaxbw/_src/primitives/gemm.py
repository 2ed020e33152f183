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
    Major,
    Plan,
    emulator_ffi_targets,
    ffi_targets,
    ffi_types,
    set_kernel_directory,
)
from jaxbw._src import compat
from jaxbw._src.epilogue import saved_dtype
from jaxbw._src.problem import GemmProblem, Operands, Reduction
from jaxbw._src.selection import manifest
from jaxbw._src.selection.choice import Choice
from jaxbw._src.selection.config import CANONICAL_M
from jaxbw._src.selection.implementations import EMULATED

# The number counts changes of attributes, operands or results: a program that was compiled or
# exported for another number is not run in their stead.
TARGET = "jaxbw_gemm_v10"

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


def gemm(
    reduction: Reduction, choice: Choice, operands: Operands, batch: tuple[int, ...] = ()
) -> tuple[Any, ...]:
    """The kernel that was chosen, on the operands of a dot_general; the results have its shape.

    `batch`: of the dot_general, the shape of an amax.
    """
    problem = reduction.problem.on(_family(choice))
    if problem is not reduction.problem:
        operands = _with_tiles(operands, reduction.problem)
    lhs, rhs, rhs_up, c, bias, residual, *_ = operands
    factors: list[Any] = []
    if problem.epilogue.factors_in_memory:
        factors = [jnp.asarray(x, jnp.float32) for x in operands.factors(problem.epilogue)]
    reduced = Operands(
        _read(reduction, lhs, of_rhs=False),
        _read(reduction, rhs, of_rhs=True),
        None if rhs_up is None else _read(reduction, rhs_up, of_rhs=True),
        None if c is None else jax.lax.reshape(c, problem.output_shape),
        None if bias is None else _repeated(bias, problem),
        None if residual is None else jax.lax.reshape(residual, problem.output_shape),
        alpha=factors[0] if factors else None,
        beta=factors[1] if factors and c is not None else None,
        lhs_scale=_vectors(operands.lhs_scale, problem, of_lhs=True),
        rhs_scale=_vectors(operands.rhs_scale, problem, of_lhs=False),
        rhs_up_scale=_vectors(operands.rhs_up_scale, problem, of_lhs=False),
        lhs_tiles=_tiles(operands.lhs_tiles, problem, of_lhs=True),
        rhs_tiles=_tiles(operands.rhs_tiles, problem, of_lhs=False),
        rhs_up_tiles=_tiles(operands.rhs_up_tiles, problem, of_lhs=False),
    )
    out_scale = [] if operands.out_scale is None else [operands.out_scale]  # behind all others
    # The workspace does not depend on an m that is symbolic.
    plan = plan_of(problem.sized(CANONICAL_M), choice)
    results = gemm_p.bind(
        *reduced.given(),
        *out_scale,
        shape=problem.output_shape,
        dtype=problem.output,
        workspace=plan.workspace_bytes,
        in_place=problem.epilogue.c == problem.output,
        **plan.attributes,
    )
    e = problem.epilogue
    if e.out_format is not None:
        from jaxbw._src import block_formats  # wanted by few

        shapes = block_formats.shapes(reduction.result.shape)
        return tuple(map(jax.lax.reshape, map(compat.computed_once, results[:2]), shapes))
    found = [compat.computed_once(reduction.result(x)) for x in results[: 1 + e.saves]]
    if e.out_scale:
        found.append(_amax(results[1 + e.saves], batch))
    return tuple(found)


def _amax(of_matrices: Any, batch: tuple[int, ...]) -> Any:
    """That of each batch index of a dot_general; without, the GEMM's batch is a stack."""
    return jax.lax.reshape(of_matrices, batch) if batch else jnp.max(of_matrices)


def plan_of(problem: GemmProblem, choice: Choice, resident: int | None = None) -> Plan:
    """What the launch that was chosen for a problem will do; the call has its attributes.

    `resident`: clusters that run at a time; default the choice's `wave`, or 1.
    """
    from jaxbw._src.selection import planner  # which `import jaxbw` does without

    assert choice.config is not None
    family = _family(choice)
    plan = planner.plan(problem.on(family), family, choice.config, resident or choice.wave or 1)
    assert isinstance(plan, Plan), str(plan)
    return plan


def _family(choice: Choice) -> str:
    return EMULATED.get(choice.implementation, choice.implementation)


def _read(reduction: Reduction, x: Any, *, of_rhs: bool) -> Any:
    """An operand as the GEMM's: [batch, outer, contiguous], in pieces where it is split."""
    x = (reduction.rhs if of_rhs else reduction.lhs)(x)
    problem = reduction.problem
    if problem.pieces is None:
        return x
    major = problem.rhs_major if of_rhs else problem.lhs_major
    return problem.pieces.operand(x, of_rhs=of_rhs, axis=2 if major == Major.K else 1)


def _repeated(bias: Any, problem: GemmProblem) -> Any:
    """A bias as a vector for all of m or n, which several dimensions of an operand may make up."""
    extent = problem.m if problem.epilogue.bias_axis == "m" else problem.n
    if bias.size != extent:
        bias = jnp.broadcast_to(bias, (extent // bias.size, *bias.shape))
    return jax.lax.reshape(bias, (extent,))


def _tiles(tiles: Any, problem: GemmProblem, *, of_lhs: bool) -> Any:
    """The tiles of scales of each of an operand's matrices."""
    if tiles is None:
        return None
    from jaxbw._src import scale_tiles  # wanted by few

    batched = problem.lhs_batched if of_lhs else problem.rhs_batched
    rows = problem.m if of_lhs else problem.n
    row_tiles = -(-rows // scale_tiles.ROWS)
    shape = (problem.batch if batched else 1, row_tiles, *tiles.shape[-2:])
    return jax.lax.reshape(tiles, shape)


def _with_tiles(operands: Operands, problem: GemmProblem) -> Operands:
    """The same with scales of blocks of 128, in float8_e8m0fnu, in tiles of blocks of 32."""
    from jaxbw._src import scale_tiles  # wanted by few

    found: dict[str, Any] = {}
    for of in ("lhs", "rhs", "rhs_up"):
        of_lhs = of == "lhs"
        if (scale := getattr(operands, f"{of}_scale")) is not None:
            rows = problem.m if of_lhs else problem.n
            scale = _of_matrices(scale, problem, of_lhs=of_lhs)
            tiles = scale_tiles.of_blocks_of_128(scale, rows)
            found |= {f"{of}_scale": None, f"{of}_tiles": tiles}
    return operands._replace(**found)


def _vectors(scales: Any, problem: GemmProblem, *, of_lhs: bool) -> Any:
    """The scales of an operand, if it has some, as kernels read them beside tiles."""
    if scales is None:
        return None
    return _of_matrices(scales.astype(np.float32), problem, of_lhs=of_lhs)


def _of_matrices(scales: Any, problem: GemmProblem, *, of_lhs: bool) -> Any:
    """Vectors along m or n, as many as an operand has matrices.

    Those of blocks have blocks of k behind, of lhs for each row.
    """
    e = problem.epilogue
    batched = problem.lhs_batched if of_lhs else problem.rhs_batched
    shape: tuple[Any, ...] = (problem.batch if batched else 1, problem.m if of_lhs else problem.n)
    if e.has_blocks:
        from jaxbw._src import blocks  # wanted by few

    if of_lhs and e.lhs_blocks:
        shape = (*shape, blocks.count(problem.k))
    elif not of_lhs and e.rhs_blocks:
        columns = problem.n if e.rhs_blocks == 1 else blocks.count(problem.n)
        shape = (shape[0], columns, blocks.count(problem.k))
    return jax.lax.reshape(scales, shape)


def _abstract_eval(
    lhs: Any,
    *_: Any,
    shape: Any,
    dtype: Any,
    workspace: int,
    gated: int,
    save: int,
    has_out_scale: int,
    out_mx: int,
    **__: Any,
) -> Any:
    # An update keeps what else the type says, as over which mesh axes of a shard_map it varies.
    described = [(shape, dtype), *[(shape, saved_dtype(dtype))] * (save * (1 + gated))]
    if out_mx:
        from jaxbw._src import block_formats  # wanted by few

        described = [*zip(block_formats.shapes(shape), (dtype, block_formats.E8M0), strict=True)]
    results = [lhs.update(shape=s, dtype=each, weak_type=False) for s, each in described]
    if has_out_scale:
        results.append(lhs.update(shape=shape[:1], dtype=np.dtype(np.float32), weak_type=False))
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
