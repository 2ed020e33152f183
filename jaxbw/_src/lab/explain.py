"""`jaxbw.explain`: what the selection would choose for a call, and why. Nothing is computed."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from jaxbw._src import compat
from jaxbw._src.api import arguments, scales
from jaxbw._src.api.arguments import WithScales
from jaxbw._src.api.matmul import (
    factors,
    in_format,
    operands_of,
    problem_of,
    scaled,
    with_formats,
)
from jaxbw._src.api.matmul_plan import plan_matmul
from jaxbw._src.lab.model.report import estimate_of
from jaxbw._src.primitives import originals, serve
from jaxbw._src.primitives.originals import Transposed
from jaxbw._src.problem import GemmProblem, Operands
from jaxbw._src.selection import devices
from jaxbw._src.selection.choice import Choice
from jaxbw._src.selection.config import CANONICAL_M, GemmConfig
from jaxbw._src.selection.devices import Device
from jaxbw._src.selection.implementations import Implementation
from jaxbw._src.selection.policy import Policy
from jaxbw._src.selection.workload import workload


def explain(
    lhs: Any,
    rhs: Any,
    rhs_up: Any = None,
    *,
    dimension_numbers: Any = None,
    bias: Any = None,
    bias_axis: int = -1,
    activation: str | None = None,
    residual: Any = None,
    c: Any = None,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    lhs_scale: Any = None,
    rhs_scale: Any = None,
    rhs_up_scale: Any = None,
    out_scale: Any = None,
    out_format: str | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    implementation: Implementation = None,
    config: GemmConfig | None = None,
    device: str | None = None,
) -> Choice:
    """Which kernel serves a matmul, in which configuration, and why. Nothing is computed.

    It answers for `device`; else for that of the innermost `target` block; else for this machine's
    GPU where JAX's default backend is one; else there is none, and XLA serves. For a strict
    implementation without a GPU it answers for B200 (sm100) or H200 (sm90), and so it does for the
    emulator wherever no device of that family is named.

    Args:
      lhs, rhs, bias, residual, c: arrays or `jax.ShapeDtypeStruct` objects; likewise an alpha or
        beta that is no number. lhs, rhs and rhs_up may be what `quantize` returns.
      rhs_up: likewise, for a `gated_matmul` of lhs, rhs and rhs_up; default None.
      rhs_up_scale: likewise, of the columns of rhs_up; default None.
      dimension_numbers: of a `dot_general`; default None, a `matmul`.
      bias_axis, activation, alpha, beta, lhs_scale, rhs_scale, out_scale, out_format: as of
        `matmul`.
      precision, preferred_element_type, implementation, config: likewise.
      device: a name that `target` takes; default None.

    Returns:
      A frozen dataclass with `implementation`, `kernel`, `config`, `cost` (modelled, see
      docs/selection.md), `xla_us` (XLA's time, where it was weighed), `waves`, `candidates`,
      `reason`, `refused`, `problem`, `device` and `estimate` (the same model's time with its
      interval, docs/blackwell-model.md; for Blackwell only); `print` shows it as text.

    Raises:
      TypeError, ValueError, NotImplementedError: as the call that is asked about.

    >>> x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    >>> choice = jaxbw.explain(x, x, device="H200")
    >>> choice.kernel, choice.waves
    ('jaxbw_sm90_plain_bf16_nn_64x256', 4)
    """
    choice, problem, on = examined(
        "jaxbw.explain",
        lhs,
        rhs,
        rhs_up,
        dimension_numbers=dimension_numbers,
        bias=bias,
        bias_axis=bias_axis,
        activation=activation,
        residual=residual,
        c=c,
        alpha=alpha,
        beta=beta,
        lhs_scale=lhs_scale,
        rhs_scale=rhs_scale,
        rhs_up_scale=rhs_up_scale,
        out_scale=out_scale,
        out_format=out_format,
        precision=precision,
        preferred_element_type=preferred_element_type,
        implementation=implementation,
        config=config,
        device=device,
    )
    return estimated(choice, problem, on)


def examined(
    call: str,
    lhs: Any,
    rhs: Any,
    rhs_up: Any = None,
    *,
    dimension_numbers: Any = None,
    bias: Any = None,
    bias_axis: int = -1,
    activation: str | None = None,
    residual: Any = None,
    c: Any = None,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    lhs_scale: Any = None,
    rhs_scale: Any = None,
    rhs_up_scale: Any = None,
    out_scale: Any = None,
    out_format: str | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    implementation: Implementation = None,
    config: GemmConfig | None = None,
    device: str | None = None,
    weighs_xla: bool = True,
) -> tuple[Choice, GemmProblem, Device | None]:
    """What `explain` is asked, for a call of this name: choice, problem, and for which device.

    `weighs_xla` is as of `select`: False where only kernels are asked about.
    """
    blocks_of: Any = None
    given = (lhs, rhs) if rhs_up is None else (lhs, rhs, rhs_up)
    if any(isinstance(x, WithScales) for x in (lhs, rhs, rhs_up)):
        count, contracting = 2 if rhs_up is None else 3, None
        if dimension_numbers is not None:
            contracting = arguments.dimension_numbers(
                call, dimension_numbers, (len(lhs.shape), len(rhs.shape))
            )[0]
        operands_given, scales_given, preferred_element_type, blocks_of = scales.unquantized(
            call,
            (lhs, rhs, rhs_up)[:count],
            (lhs_scale, rhs_scale, rhs_up_scale)[:count],
            preferred_element_type,
            contracting,
        )
        lhs, rhs, rhs_up = (*operands_given, None)[:3]
        lhs_scale, rhs_scale, rhs_up_scale = (*scales_given, None)[:3]
    terms = arguments.terms(call, alpha, beta, bias_axis, activation)
    terms, tiles = with_formats(terms, blocks_of)
    if out_format is not None:
        terms, preferred_element_type, _ = in_format(
            call, terms, out_format, given, out_scale, preferred_element_type
        )
    last = factors(terms, alpha, beta, lhs_scale, rhs_scale, rhs_up_scale, out_scale, *tiles)
    arrays = (lhs, rhs, rhs_up, c, bias, residual, *last)
    operands, stored = (
        Operands(*(of(call, name, x) for name, x in zip(Operands._fields, arrays, strict=False)))
        for of in (_typed, _stored)
    )
    blocks, plan = (0, 0), None
    if dimension_numbers is None:
        plan = plan_matmul(call, operands.lhs, operands.rhs)
        dims = plan.dimension_numbers
        if preferred_element_type is None:
            preferred_element_type = jnp.result_type(operands.lhs.dtype, operands.rhs.dtype)
        arguments.check_gated(call, operands)
    else:
        ranks = (operands.lhs.ndim, operands.rhs.ndim)
        dims = arguments.dimension_numbers(call, dimension_numbers, ranks)

    def of_call(*arrays: Any) -> Operands:
        nonlocal blocks, dims
        in_order_of = dims if plan is None else None
        operands, blocks = scaled(call, originals.transposed(arrays), terms, in_order_of)
        operands = operands if plan is None else operands_of(call, plan, operands)
        operands, dims = originals.read_in_place(operands, dims, None)
        return operands

    types = jax.eval_shape(of_call, *stored)
    operands = Operands(*(None if x is None else compat.abstract_type(x) for x in types))
    epilogue = arguments.epilogue(call, operands, terms, blocks)
    params = arguments.matmul_params(
        arguments.matmul(
            call, dims, precision, preferred_element_type, None, implementation, config
        )
    )
    problem = problem_of(call, operands, epilogue, params)
    policy: Policy = params["policy"]
    if device is not None:
        policy = replace(policy, target=devices.known(device, f"{call}(device="))
    if policy.implementation is None and policy.target is None and jax.default_backend() != "gpu":
        on = None
    else:
        on = serve.device_for(policy.implementation, policy.target)
    choice = serve.choose(problem, policy, on, call, weighs_xla=weighs_xla)
    return choice, problem, on


def estimated(choice: Choice, problem: GemmProblem, on: Device | None) -> Choice:
    """A choice of a kernel for Blackwell, with what the pipeline model says of it."""
    if choice.implementation != "sm100" or choice.config is None or on is None:
        return choice
    work = workload(
        problem.sized(CANONICAL_M), choice.implementation, swapped=choice.config.swap_ab
    )
    return replace(choice, estimate=estimate_of(on.machine, work, choice.config))


def _stored(call: str, name: str, x: Any) -> Any:
    """The same, but of a transposition: that of what lies in memory."""
    return x if isinstance(x, Transposed) else _typed(call, name, x)


def _typed(call: str, name: str, x: Any) -> Any:
    """The type of an array, or of what describes one; None stays None where it may."""
    if x is None and name not in ("lhs", "rhs"):
        return None
    x = x.type if isinstance(x, Transposed) else x
    described = isinstance(x, jax.ShapeDtypeStruct)
    return compat.abstract_type(x if described else arguments.array(call, name, x))
