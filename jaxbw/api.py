"""What users call: arguments, defaults and errors. The operations themselves are below."""

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbw import compat, fused
from jaxbw.matmul_plan import plan_matmul
from jaxbw.primitives import dot_general as plain
from jaxbw.primitives import serve
from jaxbw.primitives.fused_dot_general import ACTIVATIONS
from jaxbw.problem import DimensionNumbers, GemmProblem, describe, reduce_dot_general
from jaxbw.selection import config as configs
from jaxbw.selection import devices, implementations
from jaxbw.selection.config import GemmConfig
from jaxbw.selection.implementations import FAMILIES, Implementation
from jaxbw.selection.select import Choice


def matmul(
    lhs: Any,
    rhs: Any,
    *,
    bias: Any = None,
    activation: str | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    implementation: Implementation = None,
    config: GemmConfig | None = None,
) -> jax.Array:
    """Matrix product with `jnp.matmul`'s semantics, on a hand-written kernel where one fits.

    With `bias` or `activation` it computes `activation(lhs @ rhs + bias)`, in one kernel where one
    fits, and in float32 (for 64-bit results in float64) up to the cast to the result's dtype. That
    form has a gradient but no forward-mode derivative.

    Kernels take bfloat16 and float16 operands whose rows are multiples of 16 bytes. They multiply
    exactly and sum in float32, which is as exact as any `jax.lax.Precision` asks for. The rest is
    XLA's: see `explain`.

    Args:
      lhs: `[..., m, k]` or `[k]`, of any dtype that `jnp.matmul` takes.
      rhs: `[..., k, n]` or `[k]`. Batch dimensions broadcast.
      bias: `[n]`, a real floating dtype; default none. Needs an rhs with a dimension n.
      activation: None, "relu", "gelu" (tanh approximation, `jax.nn.gelu`'s default) or "silu".
      precision: as of `jnp.matmul`; default None.
      preferred_element_type: dtype of the result; default as of `jnp.matmul`.
      out_sharding: as of `jnp.matmul`; default None.
      implementation: None: a kernel where one fits, else XLA. Strict: "sm100", "sm90" or "xla";
        "emulator" or "emulator-sm90", which run the code of the sm100 or sm90 kernel on the CPU; or
        a sequence that is tried in order. In the backward pass, products that a strict kernel does
        not take are XLA's.
      config: the kernel's configuration; default None, chosen. It is not for the backward pass.

    Returns:
      `[..., m, n]`, without m or n where an operand has one dimension.

    Raises:
      TypeError: operands that are no arrays; a bias or activation on a dtype that is not real
        floating.
      ValueError: shapes that do not fit; an unknown name; a configuration that no kernel takes.
      NotImplementedError: a strict implementation that cannot run the product: at trace time where
        the product is the reason, when it is lowered where the platform is.

    >>> jaxbw.matmul(jnp.ones((2, 3)), jnp.ones((3, 4))).shape
    (2, 4)
    >>> jaxbw.matmul(jnp.ones((2, 3)), -jnp.ones((3, 4)), bias=jnp.ones(4), activation="relu").sum()
    Array(0., dtype=float32)
    """
    lhs, rhs = compat.ensure_arraylike("jaxbw.matmul", lhs, rhs)
    plan = plan_matmul("jaxbw.matmul", lhs, rhs)
    weak_type = False
    if preferred_element_type is None:
        preferred_element_type = jnp.result_type(lhs, rhs)
        weak_type = jax.typeof(lhs).weak_type and jax.typeof(rhs).weak_type
    lhs, rhs = plan.operands(lhs, rhs)
    product = _product(
        "jaxbw.matmul",
        lhs,
        rhs,
        plan.dimension_numbers,
        bias=bias,
        activation=activation,
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
        implementation=implementation,
        config=config,
    )
    result: jax.Array = compat.convert_element_type(plan.result(product), product.dtype, weak_type)
    return result


def dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out_sharding: Any = None,
    implementation: Implementation = None,
    config: GemmConfig | None = None,
) -> jax.Array:
    """`jax.lax.dot_general`, on a hand-written kernel where one fits.

    A drop-in for Flax's `dot_general=` and for `jnp.einsum(_dot_general=)`. Operands whose
    contracting dimensions lie together, before or after the other ones, are read in place.

    Args:
      lhs, rhs: arrays of any rank and of any dtype that `lax.dot_general` takes.
      dimension_numbers: `((lhs contracting, rhs contracting), (lhs batch, rhs batch))`.
      precision: as of `lax.dot_general`; default None.
      preferred_element_type: dtype of the result; default as of `lax.dot_general`.
      out_sharding: as of `lax.dot_general`; default None.
      implementation, config: as of `matmul`.

    Returns:
      Batch dimensions, then the other ones of lhs, then those of rhs.

    Raises:
      TypeError: dimension numbers that do not fit the operands, or dtypes that have no product.
      ValueError, NotImplementedError: as `matmul`.

    >>> x, w = jnp.ones((8, 2, 3)), jnp.ones((2, 3, 4))
    >>> jaxbw.dot_general(x, w, (((1, 2), (0, 1)), ((), ()))).shape
    (8, 4)
    """
    product: jax.Array = _product(
        "jaxbw.dot_general",
        lhs,
        rhs,
        _canonical_dims(dimension_numbers),
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
        implementation=implementation,
        config=config,
    )
    return product


def explain(
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: Any = None,
    bias: Any = None,
    activation: str | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    implementation: Implementation = None,
    config: GemmConfig | None = None,
) -> Choice:
    """Which kernel serves a product, in which configuration, and why. Nothing is computed.

    It answers for the device of the innermost `target` block; else for this machine's GPU where
    JAX's default backend is one; else there is none, and XLA serves. For a strict implementation
    without a GPU it answers for B200 (sm100) or H200 (sm90), and so it does for the emulator
    wherever no `target` of that family is named.

    Args:
      lhs, rhs, bias: arrays or `jax.ShapeDtypeStruct`s.
      dimension_numbers: of a `dot_general`; default None, a `matmul`.
      activation, precision, preferred_element_type, implementation, config: as of `matmul`.

    Returns:
      A frozen dataclass with `implementation`, `kernel`, `config`, `waves`, `reason`, `refused`,
      `problem` and `device`; `print` shows it as text.

    Raises:
      TypeError, ValueError, NotImplementedError: as the call that is asked about.

    >>> x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    >>> with jaxbw.target("H200"):
    ...     choice = jaxbw.explain(x, x)
    >>> choice.kernel, choice.config.cluster, choice.waves
    ('jaxbw_sm90_bf16_nn_128x256x64', (2, 1), 4)
    """
    call = "jaxbw.explain"
    lhs, rhs = _typed(lhs), _typed(rhs)
    if dimension_numbers is None:
        plan = plan_matmul(call, lhs, rhs)
        dims = plan.dimension_numbers
        if preferred_element_type is None:
            preferred_element_type = jnp.result_type(lhs.dtype, rhs.dtype)
        lhs, rhs = (compat.abstract_type(x) for x in jax.eval_shape(plan.operands, lhs, rhs))
    else:
        dims = _canonical_dims(dimension_numbers)
    params = _canonical_params(
        call, dims, precision, preferred_element_type, None, implementation, config
    )
    bias = None if bias is None else _typed(bias)
    problem = _problem(call, lhs, rhs, bias, activation, params)
    names, target = params["implementation"], params["target"]
    if names is None and target is None and jax.default_backend() != "gpu":
        device = None
    else:
        device = serve.device_for(names, target)
    return serve.choose(problem, names, config, device, call)


def _product(
    call: str,
    lhs: Any,
    rhs: Any,
    dims: DimensionNumbers,
    *,
    bias: Any = None,
    activation: str | None = None,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: Any,
    implementation: Implementation,
    config: GemmConfig | None,
) -> Any:
    """A dot_general with an epilogue: checked, and bound to the primitive that it needs."""
    params = _canonical_params(
        call, dims, precision, preferred_element_type, out_sharding, implementation, config
    )
    # Here, so that the operands of a fused product vary over the same mesh axes as its cotangents.
    if bias is None:
        lhs, rhs = compat.insert_reshard(lhs, rhs)
    else:
        (bias,) = compat.ensure_arraylike(call, bias)
        lhs, rhs, bias = compat.insert_reshard(lhs, rhs, bias)
    is_fused = bias is not None or activation is not None
    if is_fused or params["implementation"] is not None:
        problem = _problem(call, jax.typeof(lhs), jax.typeof(rhs), bias, activation, params)
        serve.check(problem, params["implementation"], config, params["target"], call)
    if is_fused:
        return fused.matmul(lhs, rhs, bias, activation, params)
    return plain.dot_general(lhs, rhs, **params)


def _problem(
    call: str, lhs: Any, rhs: Any, bias: Any, activation: str | None, params: dict[str, Any]
) -> GemmProblem:
    """What the selection is asked, from the operands' types; the epilogue is checked."""
    dims = params["dimension_numbers"]
    output, _ = compat.dot_general_type(lhs, rhs, plain.lax_params(params))
    _check_epilogue(call, rhs, dims, output, bias, activation)
    return reduce_dot_general(
        lhs,
        rhs,
        dims,
        output.dtype,
        precision=params["precision"],
        bias=None if bias is None else np.dtype(bias.dtype),
        activation=activation,
    ).problem


def _canonical_params(
    call: str,
    dims: DimensionNumbers,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: Any,
    implementation: Implementation,
    config: GemmConfig | None,
) -> dict[str, Any]:
    """The parameters of `primitives.dot_general.dot_general`, with what the contexts say."""
    if preferred_element_type is not None:
        preferred_element_type = compat.canonicalize_dtype(preferred_element_type, call)
    names = implementations.resolve(implementation, call)
    _check_config(call, names, config)
    return {
        "dimension_numbers": dims,
        "precision": compat.canonicalize_precision(precision),
        "preferred_element_type": preferred_element_type,
        "out_sharding": compat.canonicalize_sharding(out_sharding, call),
        "implementation": names,
        "config": config,
        "target": devices.current_target(),
    }


def _canonical_dims(dimension_numbers: Any) -> DimensionNumbers:
    def integers(dims: Sequence[Any]) -> tuple[int, ...]:
        return tuple(operator.index(dim) for dim in dims)

    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
    return (
        (integers(lhs_contract), integers(rhs_contract)),
        (integers(lhs_batch), integers(rhs_batch)),
    )


def _check_config(call: str, names: tuple[str, ...] | None, config: GemmConfig | None) -> None:
    """A configuration that no kernel could ever run is an error even where XLA would serve."""
    if config is None:
        return
    if not isinstance(config, GemmConfig):
        raise TypeError(f"{call}: config is {config!r}; it is a jaxbw.GemmConfig or None")
    families = implementations.families(names or FAMILIES)
    reasons = {family: configs.refusal(config, family) for family in families}
    if reasons and all(reasons.values()):
        listed = "; ".join(f"{family}: {reason}" for family, reason in reasons.items())
        raise ValueError(
            f"{call}: config {config}: {listed}. Leave config=None to have one chosen."
        )


def _check_epilogue(
    call: str, rhs: Any, dims: DimensionNumbers, output: Any, bias: Any, activation: str | None
) -> None:
    if activation not in ACTIVATIONS:
        names = ", ".join(repr(name) for name in ACTIVATIONS)
        raise ValueError(f"{call}: activation is {activation!r}; it is one of {names}")
    if bias is None and activation is None:
        return
    if not jnp.issubdtype(output.dtype, jnp.floating):
        raise TypeError(
            f"{call}: bias and activation need a real floating result, and this one is "
            f"{output.dtype}; apply them to the product, or set preferred_element_type"
        )
    if bias is None:
        return
    (_, rhs_contract), (_, rhs_batch) = dims
    if len(rhs_contract) + len(rhs_batch) == rhs.ndim:
        raise ValueError(
            f"{call}: rhs {describe(rhs.dtype, rhs.shape)} has no dimension n for the bias; "
            "add it to the product"
        )
    if bias.shape != output.shape[-1:]:
        raise ValueError(
            f"{call}: bias {describe(bias.dtype, bias.shape)} is not "
            f"[{output.shape[-1]}], the last dimension of the result; "
            "add a bias of another shape to the product"
        )
    if not jnp.issubdtype(bias.dtype, jnp.floating):
        raise TypeError(f"{call}: bias is {bias.dtype}; cast it to a real floating dtype")


def _typed(x: Any) -> Any:
    """The type of an array, or of what describes one."""
    if not isinstance(x, jax.ShapeDtypeStruct):
        (x,) = compat.ensure_arraylike("jaxbw.explain", x)
    return compat.abstract_type(x)
