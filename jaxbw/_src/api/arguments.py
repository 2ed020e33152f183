"""The arguments of the public functions: canonical forms, and what is wrong with them.

It is long because `matmul` needs all of it, and every module that it loads costs an import.
"""

import numbers
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbw._src import compat
from jaxbw._src.epilogue import ACTIVATIONS, Epilogue
from jaxbw._src.problem import DimensionNumbers, Operands, describe
from jaxbw._src.selection import implementations
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.implementations import FAMILIES, Implementation
from jaxbw._src.selection.policy import policy_of

_BIAS_AXES = {-1: "n", -2: "m"}
_E8M0 = np.dtype(jnp.float8_e8m0fnu)  # fp8.E8M0 without fp8, which few want


class WithScales:
    """An operand that has scales: a `Quantized`, or a `BlockScaled`, whose module few need."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["data", "scale", "transposed", "amax"],
    meta_fields=["dtype"],
)
@dataclass(frozen=True)
class Quantized(WithScales):
    """An array as float8 and scales: `data * scale`. A pytree; `quantize` makes it.

    A matmul with an `out_scale` makes it, too.

    Attributes:
      data: float8, shaped as the array.
      scale: float32, or of blocks perhaps float8_e8m0fnu: a scalar, or shaped as the array with
        size 1 where it is shared, or one element for each block of 128.
      transposed: data with its last two dimensions swapped, where both were asked for; else None.
      dtype: that of the array, which decides the dtype of a matmul's result.
      amax: of a matmul with an `out_scale`: float32, the largest finite magnitude of the array;
        else None.
    """

    data: Any
    scale: Any
    transposed: Any
    dtype: Any
    amax: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the array."""
        shape: tuple[int, ...] = self.data.shape
        return shape

    @property
    def ndim(self) -> int:
        """Its dimensions."""
        return len(self.shape)

    @property
    def mT(self) -> "Quantized":
        """The same with the last two dimensions swapped."""
        data = jnp.matrix_transpose(self.data) if self.transposed is None else self.transposed
        scale = self.scale if jnp.ndim(self.scale) == 0 else jnp.matrix_transpose(self.scale)
        transposed = None if self.transposed is None else self.data
        return replace(self, data=data, scale=scale, transposed=transposed)

    def dequantized(self) -> jax.Array:
        """`data * scale`, computed in float32, in the array's dtype."""
        from jaxbw._src.blocks import spread

        scale = self.scale if jnp.ndim(self.scale) == 0 else spread(self.scale, self.shape)
        data, scale = (lax.convert_element_type(x, jnp.float32) for x in (self.data, scale))
        wide: jax.Array = data * scale
        return wide.astype(self.dtype)


# The arguments beside arrays, as they were given but hashable: `jit` keys its programs with them.
# A named tuple is hashed and compared without running any Python, which would cost each eager call.


class MatmulArguments(NamedTuple):
    """Those of a matmul. `dimension_numbers` is None where the operands' shapes say them."""

    call: str
    dimension_numbers: DimensionNumbers | None
    precision: Any
    preferred_element_type: Any
    out_sharding: Any
    implementation: Implementation
    config: GemmConfig | None


class EpilogueArguments(NamedTuple):
    """Those of an epilogue."""

    alpha: float | None = 1.0
    beta: float | None = 1.0
    bias_axis: int = -1
    activation: str | None = None
    formats: tuple[str | None, str | None] = (None, None)  # block-scaled, of lhs and rhs
    out_format: str | None = None


def matmul(
    call: str,
    dims: DimensionNumbers | None,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: Any,
    implementation: Implementation,
    config: GemmConfig | None,
) -> MatmulArguments:
    """The arguments of a matmul; of these two only the types are looked at."""
    if implementation is not None:
        implementations.check_type(implementation, call)
    if config is not None and not isinstance(config, GemmConfig):
        raise TypeError(f"{call}: config is {config!r}; it is a jaxbw.GemmConfig or None")
    return MatmulArguments(
        call,
        dims,
        hashable(call, "precision", precision),
        hashable(call, "preferred_element_type", preferred_element_type),
        hashable(call, "out_sharding", out_sharding),
        hashable(call, "implementation", implementation),
        config,
    )


def array(call: str, name: str, x: Any) -> Any:
    """An operand as `jax.numpy`'s functions take it, which refuse lists and convert NumPy's arrays.

    Raises:
      TypeError: x is no array, or one of a dtype that JAX has not.
      ValueError: a masked array.
    """
    if isinstance(x, np.ma.MaskedArray):
        remedy = f"JAX has no masks; pass {name}.filled(0)"
        raise ValueError(f"{call}: {name} is a masked array, and {remedy}")
    try:
        return compat.ensure_arraylike(call, x)[0]
    except TypeError:
        if isinstance(x, jax.Array) or hasattr(x, "__jax_array__"):
            raise
        raise TypeError(f"{call}: {name} is {_no_array(name, x)}") from None


def _no_array(name: str, x: Any) -> str:
    if isinstance(x, np.ndarray) and not x.dtype.isnative:
        return f'a NumPy array in the other byte order; cast it: {name}.astype("{x.dtype.name}")'
    if isinstance(x, np.ndarray):
        return f"a NumPy array of dtype {x.dtype}, which JAX has not; cast it"
    if isinstance(x, list | tuple):
        return f"a {type(x).__name__}; make it an array: jnp.asarray({name})"
    return f"{x!r}; pass an array" if x is None else f"a {type(x).__name__}; pass an array"


def renamed(call: str, name: str, x: Any, other_name: str, other: Any) -> Any:
    """An argument that may be given by another name."""
    if x is not None and other is not None:
        raise TypeError(f"{call}: {name} and {other_name} are one argument, given twice")
    return x if other is None else other


def terms(
    call: str, alpha: Any, beta: Any, bias_axis: int, activation: str | None
) -> EpilogueArguments:
    """The arguments of an epilogue; whether there is such an activation is asked later."""
    if activation is not None:
        _check_name(call, activation)
    if bias_axis != -1 or type(bias_axis) is not int:
        bias_axis = _bias_axis(call, bias_axis)
    return EpilogueArguments(
        _number(call, "alpha", alpha), _number(call, "beta", beta), bias_axis, activation
    )


def matmul_params(given: MatmulArguments) -> dict[str, Any]:
    """The parameters of `primitives.dot_general.dot_general`, with what the contexts say."""
    call = given.call
    policy = policy_of(given.implementation, given.config, call)
    _check_config(call, policy.implementation, given.config)

    def dtype(named: Any, call: str) -> Any:
        return None if named is None else compat.canonicalize_dtype(named, call)

    canonical: dict[str, Callable[[Any, str], Any]] = {
        "precision": lambda named, _: compat.canonicalize_precision(named),
        "preferred_element_type": dtype,
        "out_sharding": compat.canonicalize_sharding,
    }
    params = {"dimension_numbers": given.dimension_numbers, "policy": policy}
    for name, convert in canonical.items():
        value = getattr(given, name)
        try:
            params[name] = convert(value, call)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(_expected(call, name, value)) from None
    return params


def dimension_numbers(call: str, given: Any, ranks: tuple[int, int]) -> DimensionNumbers:
    """A `dimension_numbers` argument as tuples of integers; one dimension may stand for itself.

    Args:
      given: None for the matmul of matrices and vectors.
      ranks: of the operands.
    """
    if given is None and {*ranks} <= {1, 2}:
        return ((ranks[0] - 1,), (0,)), ((), ())

    def integers(dims: Any) -> tuple[int, ...]:
        given = dims if np.iterable(dims) else (dims,)
        return tuple(operator.index(dim) for dim in given)

    try:
        (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = given
        return (
            (integers(lhs_contract), integers(rhs_contract)),
            (integers(lhs_batch), integers(rhs_batch)),
        )
    except (TypeError, ValueError):
        raise TypeError(
            f"{call}: dimension_numbers is {given!r}; it is ((lhs contracting, rhs contracting), "
            "(lhs batch, rhs batch)), of matrices (((1,), (0,)), ((), ()))"
        ) from None


def epilogue(
    call: str, operands: Operands, given: EpilogueArguments, blocks: tuple[int, int] = (0, 0)
) -> Epilogue:
    """The epilogue of a call, by its arguments alone; `check_epilogue` knows the matmul.

    `blocks`: `lhs_blocks` and `rhs_blocks`.
    """
    alpha, beta, bias_axis, activation, formats, out_format = given
    if operands.alpha is not None:  # of a scale that all elements share
        alpha = None
    check_activation(call, activation)
    if operands.c is None and beta != 1:
        given_beta = "an array" if beta is None else f"{beta:g}"
        raise ValueError(f"{call}: beta is {given_beta} and there is no c, which it scales")

    def dtype(x: Any) -> np.dtype[Any] | None:
        return None if x is None else np.dtype(x.dtype)

    return Epilogue(
        alpha=alpha,
        beta=beta,
        c=dtype(operands.c),
        bias=dtype(operands.bias),
        bias_axis="n" if operands.bias is None else _BIAS_AXES[bias_axis],
        bias_rank=1 if operands.bias is None else operands.bias.ndim,
        activation=activation,
        residual=dtype(operands.residual),
        gated=operands.rhs_up is not None,
        lhs_scale=operands.lhs_scale is not None and not blocks[0],
        rhs_scale=operands.rhs_scale is not None and not blocks[1],
        lhs_blocks=blocks[0],
        rhs_blocks=blocks[1],
        e8m0_blocks=all(blocks) and dtype(operands.lhs_scale) == _E8M0,
        lhs_format=formats[0],
        rhs_format=formats[1],
        out_scale=operands.out_scale is not None,
        out_format=out_format,
    )


def check_activation(call: str, activation: str | None) -> None:
    """Raises where there is no such activation."""
    if activation is not None:
        _check_name(call, activation)
    if activation not in ACTIVATIONS:
        raise ValueError(_expected(call, "activation", activation))


def _check_name(call: str, activation: Any) -> None:
    if not isinstance(activation, str):
        raise TypeError(_expected(call, "activation", activation))


def _bias_axis(call: str, given: Any) -> int:
    if isinstance(given, int | np.integer) and given in _BIAS_AXES:
        return int(given)
    raise ValueError(_expected(call, "bias_axis", given))


_EXPECTED = {
    "activation": f"one of {', '.join(map(repr, ACTIVATIONS))}",
    "bias_axis": "-1, along the columns of the result, or -2, along its rows",
    "implementation": f"one of {', '.join(implementations.NAMES)}, a sequence of them, or None",
    "out_sharding": "a NamedSharding, None, or under jax.set_mesh a PartitionSpec",
    "precision": "a jax.lax.Precision or a name of one, a pair of these, a dot algorithm, or None",
    "preferred_element_type": "a dtype that JAX has, or None",
}


def _expected(call: str, name: str, given: Any) -> str:
    """What is said of an argument that is not what it should be."""
    return f"{call}: {name} is {shown(given)}; it is {_EXPECTED[name]}"


def shown(given: Any) -> str:
    """What a user gave, for messages: of an array the type."""
    array = isinstance(given, jax.Array | np.ndarray)
    return describe(given.dtype, given.shape) if array else repr(given)


def check_gated(call: str, operands: Operands) -> None:
    """Raises where the right operands of a gated matmul differ."""
    rhs, up = operands.rhs, operands.rhs_up
    if up is not None and (up.shape, up.dtype) != (rhs.shape, rhs.dtype):
        raise ValueError(
            f"{call}: the right operands are {describe(rhs.dtype, rhs.shape)} and "
            f"{describe(up.dtype, up.shape)}; they have one shape and one dtype"
        )


def check_epilogue(
    call: str, operands: Operands, epilogue: Epilogue, dims: DimensionNumbers, output: Any
) -> None:
    """Raises what is wrong with an epilogue of a dot_general that gives the type `output`."""
    if epilogue.is_identity:
        return
    if not jnp.issubdtype(output.dtype, jnp.floating):
        raise TypeError(
            f"{call}: an epilogue needs a real floating result, and this one is {output.dtype}; "
            "apply it to the matmul, or set preferred_element_type"
        )
    if epilogue.out_scale:
        from jaxbw._src import fp8  # wanted by few

        if fp8.format_of(output.dtype) is None:
            names = " or ".join(format.dtype.name for format in fp8.FORMATS.values())
            raise TypeError(
                f"{call}: out_scale is for results of 8 bits, and this one is {output.dtype}: set "
                f"preferred_element_type to {names}, or multiply alpha by it"
            )
    for name in ("alpha", "beta"):
        x = getattr(operands, name)
        if x is not None and x.shape:
            raise ValueError(
                f"{call}: {name} {describe(x.dtype, x.shape)} is no scalar; reshape it to (), or "
                "multiply an operand or the matmul by it"
            )
        if x is not None and jnp.issubdtype(x.dtype, jnp.complexfloating):
            raise TypeError(f"{call}: {name} is {x.dtype}; take its real part")
    for name in ("c", "bias", "residual"):
        x = getattr(operands, name)
        if x is not None and not jnp.issubdtype(x.dtype, jnp.floating):
            raise TypeError(f"{call}: {name} is {x.dtype}; cast it to a real floating dtype")
        if x is not None and name != "bias" and x.shape != output.shape:
            raise ValueError(
                f"{call}: {name} {describe(x.dtype, x.shape)} is not shaped as the result, "
                f"{describe(output.dtype, output.shape)}; broadcast it"
            )
    if operands.bias is not None:
        _check_bias(call, operands, epilogue.bias_axis, dims)


def _check_bias(call: str, operands: Operands, axis: str, dims: DimensionNumbers) -> None:
    side = int(axis == "n")
    name, x = (("lhs", operands.lhs), ("rhs", operands.rhs))[side]
    taken = (*dims[0][side], *dims[1][side])
    kept = tuple(size for i, size in enumerate(x.shape) if i not in taken)
    bias = operands.bias
    if not kept:
        raise ValueError(
            f"{call}: {name} {describe(x.dtype, x.shape)} has no dimension {axis} for the bias; "
            "add it to the matmul"
        )
    if not bias.shape or bias.shape != kept[-bias.ndim :]:
        ends = [kept[i:] for i in reversed(range(len(kept)))]
        shapes = " or ".join(f"[{','.join(map(str, end))}]" for end in ends)
        raise ValueError(
            f"{call}: bias {describe(bias.dtype, bias.shape)} is not {shapes}, the "
            f"{'columns' if side else 'rows'} of the result; add a bias of another shape to the "
            "matmul, or pass it as c"
        )


def hashable(call: str, name: str, given: Any) -> Any:
    """An argument that may be a list, as `jit` keys with it."""
    if given is None:
        return None
    given = tuple(given) if isinstance(given, list) else given
    try:
        hash(given)
    except TypeError:
        raise TypeError(_expected(call, name, given)) from None
    return given


def _number(call: str, name: str, value: Any) -> float | None:
    """A factor that is known when the program is compiled; None for an array."""
    if type(value) is float:  # before what takes longer
        return value
    is_array = hasattr(value, "dtype") or hasattr(value, "__jax_array__")
    if is_array and not isinstance(value, np.generic):
        return None
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{call}: {name} is {value!r}; it is a real number, or a scalar array")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{call}: {name} is beyond the range of a float") from None


def _check_config(call: str, names: tuple[str, ...] | None, config: GemmConfig | None) -> None:
    """A configuration that no kernel could ever run is an error even where XLA would serve."""
    if config is None:
        return
    from jaxbw._src.selection import planner  # with the first configuration

    families = implementations.kernel_families(names or FAMILIES)
    reasons = {family: planner.config_refusal(config, family) for family in families}
    if reasons and all(reasons.values()):
        listed = "; ".join(f"{family}: {reason}" for family, reason in reasons.items())
        raise ValueError(
            f"{call}: config {config}: {listed}. Leave config=None to have one chosen."
        )
