"""What users call. Operations and checks are below.

What is done to arrays is compiled, as in `jax.numpy`: a call on its own runs one program, and where
a call is traced, its operations are inlined.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbw._src import compat
from jaxbw._src.api import arguments
from jaxbw._src.api.arguments import EpilogueArguments, MatmulArguments, Quantized, WithScales
from jaxbw._src.api.matmul_plan import MatmulPlan, plan_matmul
from jaxbw._src.epilogue import Epilogue
from jaxbw._src.primitives import dot_general as plain
from jaxbw._src.primitives import experimental, fused, originals, serve
from jaxbw._src.problem import DimensionNumbers, GemmProblem, Operands, describe, reduce_dot_general
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.implementations import Implementation


def matmul(
    lhs: Any = None,
    rhs: Any = None,
    *,
    a: Any = None,
    b: Any = None,
    bias: Any = None,
    bias_axis: int = -1,
    activation: str | None = None,
    residual: Any = None,
    c: Any = None,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    lhs_scale: Any = None,
    rhs_scale: Any = None,
    out_scale: Any = None,
    out_format: str | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    implementation: Implementation = None,
    config: GemmConfig | None = None,
) -> Any:
    """Matmul with `jnp.matmul`'s semantics, on a hand-written kernel where one fits.

    With any of the arguments of an epilogue it computes

        activation(alpha * lhs_scale * rhs_scale * (lhs @ rhs) + beta * c + bias) + residual

    in one kernel where one fits, and in float32 (for 64-bit results in float64) up to the cast to
    the result's dtype. All derivatives work, in both modes.

    Kernels take bfloat16 and float16 operands, which they multiply exactly and sum in float32: as
    exact as any `jax.lax.Precision` asks for; and float32 operands, as TF32, where `precision`
    leaves XLA as free (on sm90 only if `implementation` names it), or by bfloat16 pieces, where it
    is `BF16_BF16_F32` or that with `_X3`, `_X6` or `_X9`. The rest is XLA's: see `explain`.

    Args:
      lhs: `[..., m, k]` or `[k]`, of any dtype that `jnp.matmul` takes; either operand may be what
        `quantize` returns, whose scales multiply the matmul. A `BlockScaled` beside an operand that
        is none is dequantized.
      rhs: `[..., k, n]` or `[k]`. Batch dimensions broadcast.
      a, b: `jnp.matmul`'s names of lhs and rhs, as keywords.
      bias: `[n]`, or `[m]` with `bias_axis=-2`, a real floating dtype; default none.
      bias_axis: the dimension of the result along which the bias lies, -1 or -2.
      activation: None, "relu", "silu", "gelu" (tanh approximation, `jax.nn.gelu`'s default) or
        "gelu_exact" (with erf).
      residual: shaped as the result, a real floating dtype; default none.
      c: likewise. A kernel writes the result in its place where it has the result's dtype and is
        not used again.
      alpha, beta: Python or NumPy numbers, which the program is compiled for; or scalar arrays,
        real, which it is given, and which have derivatives.
      lhs_scale: of each row of lhs, shaped as lhs without its last dimension, where sizes of 1
        broadcast; or a scalar, of all; real floating arrays, used in float32. It multiplies the
        sums, and has a derivative. Default none. Of blocks it is shaped as lhs, with 1 for 128
        elements of the last dimension and perhaps of others, as of `quantize` with `block=128`.
        Such scales of both operands in float8_e8m0fnu stay that, and have no derivative.
      rhs_scale: of each column of rhs, shaped as rhs without its next to last dimension; likewise.
      out_scale: of a result in float8, which is divided by it and saturates, as of `quantize`: a
        number or a scalar array, used in float32, known before the call. Default none.
      out_format: "mxfp8": the result is a `BlockScaled` with blocks along its last dimension, bit
        by bit `quantize` of the float32 result. rhs has two dimensions. Of operands of MX formats
        a Blackwell kernel does it, and writes nothing else. Default None.
      precision: as of `jnp.matmul`; default None.
      preferred_element_type: dtype of the result, of a `BlockScaled` that of the array it stands
        for; default as of `jnp.matmul`.
      out_sharding: as of `jnp.matmul`; default None.
      implementation: None: a kernel where one fits, or XLA where that is expected to be quicker
        (docs/selection.md), or none fits. Strict: "kernel", of whatever family the device runs,
        "sm100", "sm90" or "xla"; "emulator" or "emulator-sm90", which run the code of the sm100 or
        sm90 kernel on the CPU; or a sequence that is tried in order. In the backward pass, matmuls
        that a strict kernel does not take are XLA's.
      config: the kernel's configuration; default None, chosen. It is not for the backward pass.

    Returns:
      `[..., m, n]`, without m or n where an operand has one dimension. With an `out_scale` a
      `Quantized` of that, `out_scale` and amax: it takes the place of lhs in the next matmul, and
      amax gives the next step's scale. With an `out_format` a `BlockScaled`. Neither has a
      derivative.

    Raises:
      TypeError: operands that are no arrays; an epilogue on a dtype that is not real floating; a
        scale of a `Quantized`; an `out_scale` of what is not float8, or is differentiated, as is an
        `out_format`, or both of these.
      ValueError: shapes that do not fit; an unknown name; a configuration that no kernel takes.
      NotImplementedError: a strict implementation that cannot run the matmul: at trace time where
        the matmul is the reason, when it is lowered where the platform is.

    >>> jaxbw.matmul(jnp.ones((2, 3)), jnp.ones((3, 4))).shape
    (2, 4)
    >>> jaxbw.matmul(jnp.ones((2, 3)), -jnp.ones((3, 4)), bias=jnp.ones(4), activation="relu").sum()
    Array(0., dtype=float32)
    >>> jaxbw.matmul(jnp.ones((2, 3)), jnp.ones((3, 2)), c=jnp.ones((2, 2)), alpha=2, beta=-1)[0]
    Array([5., 5.], dtype=float32)
    """
    call = "jaxbw.matmul"
    if a is not None or b is not None:
        lhs, rhs = (
            arguments.renamed(call, "lhs", lhs, "a", a),
            arguments.renamed(call, "rhs", rhs, "b", b),
        )
    both, blocks = (lhs, rhs), None
    if isinstance(lhs, WithScales) or isinstance(rhs, WithScales):
        from jaxbw._src.api import scales

        (lhs, rhs), (lhs_scale, rhs_scale), preferred_element_type, blocks = scales.unquantized(
            call, both, (lhs_scale, rhs_scale), preferred_element_type
        )
    terms = arguments.terms(call, alpha, beta, bias_axis, activation)
    terms, tiles = with_formats(terms, blocks)
    dtype = preferred_element_type
    if out_format is not None:
        terms, preferred_element_type, dtype = in_format(
            call, terms, out_format, both, out_scale, dtype
        )
    last = factors(terms, alpha, beta, lhs_scale, rhs_scale, None, out_scale, *tiles)
    operands = _arguments(call, (lhs, rhs), None, c, bias, residual, *last)
    given = arguments.matmul(
        call, None, precision, preferred_element_type, out_sharding, implementation, config
    )
    result = _matmul(given, terms, False, *operands)
    if out_format is not None:
        return _block_scaled(result, out_format, both, dtype)
    return result if out_scale is None else _quantized(result, both)


def gated_matmul(
    lhs: Any,
    rhs_gate: Any,
    rhs_up: Any,
    *,
    activation: str | None = "silu",
    lhs_scale: Any = None,
    rhs_gate_scale: Any = None,
    rhs_up_scale: Any = None,
    out_scale: Any = None,
    out_format: str | None = None,
    recompute: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    implementation: Implementation = None,
    config: GemmConfig | None = None,
) -> Any:
    """`activation(lhs @ rhs_gate) * (lhs @ rhs_up)`, in one kernel where one fits.

    The first half of a gated feed-forward layer: SwiGLU with "silu", GEGLU with "gelu". Both right
    operands are read where they are. Sums, activation and gate are float32 (for 64-bit results
    float64) up to the cast to the result's dtype.

    Args:
      lhs: `[..., m, k]` or `[k]`; or of `quantize`, as of `matmul`, as may be both of the others.
      rhs_gate, rhs_up: `[..., k, n]`, of one shape and one dtype.
      activation: as of `matmul`; default "silu".
      lhs_scale, rhs_gate_scale, rhs_up_scale: scales of rows of lhs, and of columns of the right
        operands, as of `matmul`; default none.
      out_scale, out_format: as of `matmul`; default none.
      recompute: False: the forward pass keeps both matmuls, in the result's dtype, for the
        backward pass. True: it keeps the operands only, and the backward pass computes them again:
        `jax.checkpoint` around this call. Inside of a `jax.checkpoint`, the outer policy decides.
      precision, preferred_element_type, out_sharding, implementation, config: as of `matmul`.

    Returns:
      `[..., m, n]`, as of `matmul`.

    Raises:
      TypeError, ValueError, NotImplementedError: as `matmul`.

    >>> x, w = jnp.ones((2, 3)), jnp.ones((3, 4))
    >>> jaxbw.gated_matmul(x, w, -w, activation="relu")[0]
    Array([-9., -9., -9., -9.], dtype=float32)
    """
    call = "jaxbw.gated_matmul"
    all_three, blocks = (lhs, rhs_gate, rhs_up), None
    if any(isinstance(x, WithScales) for x in all_three):
        from jaxbw._src.api import scales

        of_operands: Any = (lhs_scale, rhs_gate_scale, rhs_up_scale)
        (lhs, rhs_gate, rhs_up), of_operands, preferred_element_type, blocks = scales.unquantized(
            call, all_three, of_operands, preferred_element_type
        )
        lhs_scale, rhs_gate_scale, rhs_up_scale = of_operands
    terms = arguments.terms(call, 1.0, 1.0, -1, activation)
    terms, tiles = with_formats(terms, blocks)
    dtype = preferred_element_type
    if out_format is not None:
        terms, preferred_element_type, dtype = in_format(
            call, terms, out_format, all_three, out_scale, dtype
        )
    last = factors(terms, 1.0, 1.0, lhs_scale, rhs_gate_scale, rhs_up_scale, out_scale, *tiles)
    operands = _arguments(
        call, (lhs, rhs_gate, rhs_up), *((None, None, None, *last) if last else ())
    )
    given = arguments.matmul(
        call, None, precision, preferred_element_type, out_sharding, implementation, config
    )
    if not isinstance(recompute, bool):
        raise TypeError(f"{call}: recompute is {arguments.shown(recompute)}; it is True or False")
    result = _matmul(given, terms, recompute, *operands)
    if out_format is not None:
        return _block_scaled(result, out_format, all_three, dtype)
    return result if out_scale is None else _quantized(result, all_three)


def dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out_sharding: Any = None,
    bias: Any = None,
    bias_axis: int = -1,
    activation: str | None = None,
    residual: Any = None,
    c: Any = None,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    lhs_scale: Any = None,
    rhs_scale: Any = None,
    out_scale: Any = None,
    implementation: Implementation = None,
    config: GemmConfig | None = None,
) -> Any:
    """`jax.lax.dot_general`, on a hand-written kernel where one fits.

    A drop-in for Flax's `dot_general=` and for `jnp.einsum(_dot_general=)`. Operands whose
    contracting dimensions lie together, before or after the other ones, are read in place; so are
    transpositions of such, under `jit`. The epilogue is that of `matmul`.

    Args:
      lhs, rhs: arrays of any rank and of any dtype that `lax.dot_general` takes, or of `quantize`,
        with scales that are shared along the contraction, or in blocks along it.
      dimension_numbers: `((lhs contracting, rhs contracting), (lhs batch, rhs batch))`; None as of
        `lax.dot_general`, for operands of one or two dimensions.
      precision: as of `lax.dot_general`; default None.
      preferred_element_type: dtype of the result; default as of `lax.dot_general`.
      out_sharding: as of `lax.dot_general`; default None.
      bias: shaped as the last of rhs's dimensions that are in the result, one of them or more, or
        as those of lhs with `bias_axis=-2`; a real floating dtype; default none.
      residual, c: shaped as the result, a real floating dtype; default none.
      lhs_scale, rhs_scale: shaped as the operand without its contracting dimensions, else as of
        `matmul`; default none.
      bias_axis, activation, alpha, beta, out_scale, implementation, config: as of `matmul`.

    Returns:
      Batch dimensions, then the other ones of lhs, then those of rhs. With an `out_scale` a
      `Quantized`, as of `matmul`.

    Raises:
      TypeError: dimension numbers that do not fit the operands, or dtypes that have no matmul.
      ValueError, NotImplementedError: as `matmul`.

    >>> x, w = jnp.ones((8, 2, 3)), jnp.ones((2, 3, 4))
    >>> jaxbw.dot_general(x, w, (((1, 2), (0, 1)), ((), ()))).shape
    (8, 4)
    >>> heads = jaxbw.dot_general(x, w, (((1,), (0,)), ((), ())), bias=jnp.ones((3, 4)))
    >>> heads.shape
    (8, 3, 3, 4)
    """
    call = "jaxbw.dot_general"
    both, dims, blocks = (lhs, rhs), dimension_numbers, None
    if isinstance(lhs, WithScales) or isinstance(rhs, WithScales):
        from jaxbw._src.api import scales

        dims = arguments.dimension_numbers(call, dims, (np.ndim(lhs), np.ndim(rhs)))
        (lhs, rhs), (lhs_scale, rhs_scale), preferred_element_type, blocks = scales.unquantized(
            call, both, (lhs_scale, rhs_scale), preferred_element_type, dims[0]
        )
    terms = arguments.terms(call, alpha, beta, bias_axis, activation)
    terms, tiles = with_formats(terms, blocks)
    last = factors(terms, alpha, beta, lhs_scale, rhs_scale, None, out_scale, *tiles)
    operands = _arguments(call, (lhs, rhs), None, c, bias, residual, *last)
    ranks = (np.ndim(both[0]), np.ndim(both[1]))
    dims = arguments.dimension_numbers(call, dims, ranks)
    given = arguments.matmul(
        call, dims, precision, preferred_element_type, out_sharding, implementation, config
    )
    result = _dot_general(given, terms, *operands)
    return result if out_scale is None else _quantized(result, both)


def with_formats(
    terms: EpilogueArguments, blocks: Any
) -> tuple[EpilogueArguments, tuple[Any, ...]]:
    """The same with the formats of block-scaled operands, and their tiles."""
    if blocks is None:
        return terms, ()
    return terms._replace(formats=blocks.formats), blocks.tiles


def in_format(
    call: str,
    terms: EpilogueArguments,
    format: str,
    operands: tuple[Any, ...],
    out_scale: Any,
    dtype: Any,
) -> tuple[EpilogueArguments, str, Any]:
    """The same with the format of the result, the dtype of its data, and that of the array."""
    from jaxbw._src.api import block_scaled

    dtype = block_scaled.result_dtype(call, format, operands, out_scale, dtype)
    return terms._replace(out_format=format), "float8_e4m3fn", dtype


def _block_scaled(results: Any, format: str, operands: tuple[Any, ...], dtype: Any) -> Any:
    from jaxbw._src.api import block_scaled

    return block_scaled.of_result(results, format, operands[1].shape[-1], dtype)


def _quantized(results: Any, operands: tuple[Any, ...]) -> Quantized:
    from jaxbw._src.api import scales

    return scales.quantized(results, operands)


@partial(jax.jit, static_argnums=(0, 1, 2), inline=compat.INLINED)
def _matmul(
    given: MatmulArguments, terms: EpilogueArguments, recompute: bool, *operands_given: Any
) -> Any:
    """`jnp.matmul` with an epilogue, of `_arguments`; with an `out_scale` also that, and amax."""
    operands = originals.transposed(operands_given)
    call, lhs, rhs = given.call, operands.lhs, operands.rhs
    arguments.check_activation(call, terms.activation)
    plan = plan_matmul(call, lhs, rhs)
    arguments.check_gated(call, operands)
    operands, blocks = scaled(call, operands, terms)
    epilogue = arguments.epilogue(call, operands, terms, blocks)
    given = given._replace(dimension_numbers=plan.dimension_numbers)
    weak_type = False
    if given.preferred_element_type is None:
        dtype, weak_type = compat.result_type(lhs, rhs)
        given = given._replace(preferred_element_type=dtype)
    params = arguments.matmul_params(given)
    planned = operands_of(call, plan, operands)
    found = _with_epilogue(call, planned, epilogue, params, recompute=recompute)
    if epilogue.out_format is not None:  # rhs has no batch dimension: the result is as it should be
        return found
    if epilogue.out_scale:
        return _with_scale(plan.result(found[0]), operands.out_scale, found[1])
    matmul = plan.result(found)
    return compat.convert_element_type(matmul, matmul.dtype, weak_type)


def _with_scale(d: Any, out_scale: Any, amax: Any) -> tuple[Any, Any, Any]:
    """The same with the amax of all batch indices."""
    return d, out_scale, jnp.max(amax, initial=np.float32(0)) if amax.ndim else amax


@partial(jax.jit, static_argnums=(0, 1), inline=compat.INLINED)
def _dot_general(given: MatmulArguments, terms: EpilogueArguments, *operands_given: Any) -> Any:
    """`lax.dot_general` with an epilogue, of `_arguments`; else as `_matmul`."""
    operands = originals.transposed(operands_given)
    params = arguments.matmul_params(given)
    _check_dimensions(given.call, operands, params)
    operands, blocks = scaled(given.call, operands, terms, params["dimension_numbers"])
    epilogue = arguments.epilogue(given.call, operands, terms, blocks)
    found = _with_epilogue(given.call, operands, epilogue, params)
    return _with_scale(found[0], operands.out_scale, found[1]) if epilogue.out_scale else found


def _check_dimensions(call: str, operands: Operands, params: dict[str, Any]) -> None:
    """Raises what `lax.dot_general` would, and says where."""
    # Of shapes and dtypes alone: over which mesh axes they vary is not settled yet.
    left, right = (jax.core.ShapedArray(x.shape, x.dtype) for x in operands[:2])
    try:
        compat.dot_general_type(left, right, plain.lax_params({**params, "out_sharding": None}))
    except TypeError as error:
        lhs, rhs = (describe(x.dtype, x.shape) for x in (left, right))
        dims = params["dimension_numbers"]
        raise TypeError(
            f"{call}: lhs {lhs}, rhs {rhs}, dimension_numbers {dims}: {error}"
        ) from None


def scaled(
    call: str, operands: Operands, terms: EpilogueArguments, dims: DimensionNumbers | None = None
) -> tuple[Operands, tuple[int, int]]:
    """Operands with the scales that they have: of a dot_general, or else of a matmul.

    And which of these are of blocks: `lhs_blocks` and `rhs_blocks` of an `Epilogue`.
    """
    scales_given = (operands.lhs_scale, operands.rhs_scale, operands.rhs_up_scale)
    if operands.out_scale is None and all(x is None for x in scales_given):
        return operands, (0, 0)
    from jaxbw._src.api import scales  # which most calls do without

    if dims is not None:
        operands, blocks = scales.checked(call, operands, terms.alpha, dims[0])
        return scales.in_order(operands, dims), blocks
    contracting = (operands.lhs.ndim - 1,), (max(operands.rhs.ndim - 2, 0),)
    return scales.checked(call, operands, terms.alpha, contracting)


def operands_of(call: str, plan: MatmulPlan, operands: Operands) -> Operands:
    """The operands of the plan's dot_general."""
    lhs, rhs, rhs_up, c, bias, residual, alpha, beta, *_ = operands
    if bias is not None and bias.ndim != 1:
        raise ValueError(
            f"{call}: bias {describe(bias.dtype, bias.shape)} is not a vector; add it to the "
            "matmul, or pass it as c"
        )
    lhs, rhs = plan.operands(lhs, rhs)
    if rhs_up is not None:
        _, rhs_up = plan.operands(operands.lhs, rhs_up)
    c, residual = (
        None if x is None else plan.like_matmul(call, name, x)
        for name, x in (("c", c), ("residual", residual))
    )
    out_scale = operands.out_scale
    planned = Operands(lhs, rhs, rhs_up, c, bias, residual, alpha, beta, out_scale=out_scale)
    if any(x is not None for x in operands[-3:]):  # tiles: batch dimensions are squeezed alike
        left, *rights = operands[-3:]
        planned = planned._replace(
            lhs_tiles=None if left is None else plan.operands(left, operands.rhs)[0],
            rhs_tiles=None if rights[0] is None else plan.operands(operands.lhs, rights[0])[1],
            rhs_up_tiles=None if rights[1] is None else plan.operands(operands.lhs, rights[1])[1],
        )
    of_lhs, *of_rhs = operands.lhs_scale, operands.rhs_scale, operands.rhs_up_scale
    if of_lhs is of_rhs[0] is of_rhs[1] is None:
        return planned
    from jaxbw._src.api import scales

    # They have the batch dimensions of their operands, which are squeezed alike.
    left = None if of_lhs is None else plan.operands(of_lhs, operands.rhs)[0]
    rights = [None if x is None else plan.operands(operands.lhs, x)[1] for x in of_rhs]
    planned = planned._replace(lhs_scale=left, rhs_scale=rights[0], rhs_up_scale=rights[1])
    return scales.in_order(planned, plan.dimension_numbers)


def _with_epilogue(
    call: str,
    operands: Operands,
    epilogue: Epilogue,
    params: dict[str, Any],
    *,
    recompute: bool = False,
) -> Any:
    """A dot_general with an epilogue: checked, and bound to the primitive that it needs.

    With an `out_scale`, d and amax. With `recompute` nothing but the operands is kept for the
    backward pass.
    """
    # Blocks lie along k whatever the order of dimensions: a configuration is for what lies there.
    config = None if epilogue.formats else params["policy"].config
    operands, dims = originals.read_in_place(operands, params["dimension_numbers"], config)
    params = {**params, "dimension_numbers": dims}
    # Here, so that the operands of a fused matmul vary over the same mesh axes as its cotangents.
    operands = Operands.of(epilogue, compat.insert_reshard(*operands.given()))
    if not epilogue.is_identity or params["policy"].implementation is not None:
        types = Operands(*(None if x is None else jax.typeof(x) for x in operands))
        problem = problem_of(call, types, epilogue, params)
        serve.check(problem, params["policy"], call)

    def matmul(operands: Operands) -> Any:
        return fused.matmul(operands, epilogue, params)

    return (jax.checkpoint(matmul) if recompute else matmul)(operands)


def problem_of(
    call: str, operands: Operands, epilogue: Epilogue, params: dict[str, Any]
) -> GemmProblem:
    """What the selection is asked, from the operands' types; the epilogue is checked."""
    dims: DimensionNumbers = params["dimension_numbers"]
    output, _ = compat.dot_general_type(operands.lhs, operands.rhs, plain.lax_params(params))
    arguments.check_epilogue(call, operands, epilogue, dims, output)
    return reduce_dot_general(
        operands.lhs,
        operands.rhs,
        dims,
        output.dtype,
        precision=params["precision"],
        epilogue=epilogue,
    ).problem


def factors(terms: EpilogueArguments, alpha: Any, beta: Any, *scales: Any) -> tuple[Any, ...]:
    """Alpha, beta and scales as operands, if one of them is an array."""
    if not any(scale is not None for scale in scales):
        scales = ()
        if terms.alpha is not None and terms.beta is not None:
            return ()
    return alpha if terms.alpha is None else None, beta if terms.beta is None else None, *scales


def _arguments(call: str, factors: tuple[Any, ...], *others: Any) -> tuple[Any, ...]:
    """Operands as a compiled function takes them, in their order: arrays; None stays None.

    An eager call of arrays is through here quickly; `jit` takes a tuple slower than its members.
    """
    if compat.is_eager() and all(map(compat.is_concrete, factors)):
        for x in others:
            if x is not None and not compat.is_concrete(x):
                break
        else:
            return *factors, *others
    experimental.register()
    names = ("lhs", "rhs") if len(factors) == 2 else ("lhs", "rhs_gate", "rhs_up")
    arrays = [
        x if isinstance(x, originals.Transposed) else arguments.array(call, name, x)
        for name, x in zip(names, factors, strict=True)
    ]
    arrays += [
        None if x is None else arguments.array(call, name, x)
        for name, x in zip(Operands._fields[len(factors) :], others, strict=False)
    ]
    return originals.untransposed(Operands(*arrays))
