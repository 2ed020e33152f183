"""collective_matmul: matmuls with the collective that is beside them in tensor parallelism."""

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbw._src import compat
from jaxbw._src.api import arguments
from jaxbw._src.primitives import serve
from jaxbw._src.primitives.collective_dot_general import (
    collective_dot_general,
    collective_dot_general_p,
)
from jaxbw._src.primitives.overlap import overlaps
from jaxbw._src.primitives.ring import Array, AxisName, Ring
from jaxbw._src.problem import DimensionNumbers, describe, reduce_dot_general
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.implementations import Implementation

_CALL = "jaxbw.collective_matmul"


def collective_matmul(
    lhs: Any,
    rhs: Any,
    axis_name: AxisName,
    *,
    gather_lhs: int | None = None,
    gather_rhs: int | None = None,
    scatter: int | None = None,
    overlap: bool | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    implementation: Implementation = None,
    config: GemmConfig | None = None,
) -> jax.Array:
    """A matmul and the collective beside it; inside `jax.shard_map`.

    One of three arguments says which dimension of what is in chunks, one for each device of a mesh
    axis, and with that what is computed:

        gather_lhs=d: all_gather(lhs, axis_name, axis=d, tiled=True) @ rhs
        gather_rhs=d: lhs @ all_gather(rhs, axis_name, axis=d, tiled=True)
        scatter=d:    psum_scatter(lhs @ rhs, axis_name, scatter_dimension=d, tiled=True)

    and `overlap` says how: by that collective and one matmul, or, overlapped, by as many matmuls
    as the axis has devices, and one `ppermute` less, which travel in both directions of a ring
    while the matmuls run. Then nothing is gathered in memory. Derivatives of all orders and both
    modes are such matmuls again: the backward pass of one that gathers scatters, and the reverse.

    Where the devices' matmuls are added up, the collective does it in the dtype of the result, as
    XLA does with its own matmuls. On the ring they are added up and sent in float32 (64-bit
    results in their own dtype), by the epilogue of the kernel that computes the next one, and cast
    once.

    Args:
      lhs: `[..., m, k]` or `[k]`: what a device has.
      rhs: `[k, n]`, likewise. A batch of them is `jax.vmap`'s.
      axis_name: an axis of the mesh of a surrounding `jax.shard_map`, or a tuple of them.
      gather_lhs, gather_rhs: a dimension of that operand, negative ones from the end.
      scatter: a dimension of the result.
      overlap: True, the ring; False, the collective; None, whichever was measured to be faster: the
        ring for large matmuls that gather rows or columns of the result over two devices and are
        not differentiated, else the collective. Derivatives take the ring where this is True.
      precision, preferred_element_type: as of `matmul`.
      implementation, config: as of `matmul`, for each of the matmuls. Where these may run beside a
        collective, one that says neither tile nor scheduler gets `scheduler="dynamic"`.

    Returns:
      `[..., m, n]`: what a device has of the result, all of it or, scattered, its chunk.

    Raises:
      TypeError: operands that are no arrays; an overlap that is none of the three.
      ValueError: not one of the three is given; the axis is not one of a `jax.shard_map`; shapes
        that do not fit; a scattered dimension that the axis does not divide.
      NotImplementedError: as `matmul`.

    A layer whose activations are sharded along their rows, and its weights along their columns:

    >>> from jax.sharding import PartitionSpec as P
    >>> mesh = jax.sharding.Mesh(jax.devices(), ("model",))
    >>> rows, columns = P("model"), P(None, "model")
    >>> @jax.shard_map(mesh=mesh, in_specs=(rows, columns), out_specs=columns)
    ... def layer(x, w):
    ...     return jaxbw.collective_matmul(x, w, "model", gather_lhs=0)
    >>> layer(jnp.ones((8, 3)), jnp.ones((3, 16))).shape
    (8, 16)
    """
    if overlap is not None and not isinstance(overlap, bool):
        raise TypeError(f"{_CALL}: overlap is {overlap!r}; it is True, False or None")
    lhs, rhs = arguments.array(_CALL, "lhs", lhs), arguments.array(_CALL, "rhs", rhs)
    compat.register_float_check(collective_dot_general_p)
    ring = _ring(lhs, rhs, axis_name, {"lhs": gather_lhs, "rhs": gather_rhs, "out": scatter})
    dims = (((lhs.ndim - 1,), (0,)), ((), ()))
    if preferred_element_type is None:
        preferred_element_type = jnp.result_type(lhs, rhs)
    params = arguments.matmul_params(
        arguments.matmul(
            _CALL, dims, precision, preferred_element_type, None, implementation, config
        )
    )
    _check_shapes(ring, lhs, rhs)
    _check_kernel(ring, overlap, lhs, rhs, params)
    result: jax.Array = collective_dot_general(lhs, rhs, ring=ring, overlap=overlap, **params)
    return result


def _ring(lhs: Any, rhs: Any, axis_name: AxisName, given: dict[Array, int | None]) -> Ring:
    """What is in chunks, of the arguments that may say it."""
    chosen = [(array, dimension) for array, dimension in given.items() if dimension is not None]
    if len(chosen) != 1:
        raise ValueError(
            f"{_CALL}: {len(chosen)} of gather_lhs, gather_rhs and scatter are given; one of them "
            "says what is gathered or scattered"
        )
    if lhs.ndim < 1 or rhs.ndim != 2:
        raise ValueError(
            f"{_CALL}: {_shapes(lhs, rhs)}: lhs is [..., m, k] or [k], and rhs is [k, n]; "
            "use jax.vmap for a batch of them"
        )
    ((array, dimension),) = chosen
    rank = rhs.ndim if array == "rhs" else lhs.ndim
    argument = "scatter" if array == "out" else f"gather_{array}"
    try:
        dimension = operator.index(dimension)
    except TypeError:
        raise TypeError(
            f"{_CALL}: {argument} is {arguments.shown(dimension)}; it is a dimension, an integer"
        ) from None
    if not -rank <= dimension < rank:
        raise ValueError(
            f"{_CALL}: {_shapes(lhs, rhs)}: {argument} is {dimension}; "
            f"{'the result' if array == 'out' else array} has {rank} dimensions"
        )
    return Ring(axis_name, _axis_size(axis_name), array, dimension % rank)


def _axis_size(axis_name: AxisName) -> int:
    names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    manual = jax.sharding.get_abstract_mesh().manual_axes
    for name in names:
        if name not in manual:
            listed = ", ".join(map(repr, manual)) or "none"
            raise ValueError(
                f"{_CALL}: {name!r} is not an axis of a surrounding jax.shard_map, whose axes are "
                f"{listed}; call it inside jax.shard_map over that axis"
            )
    return int(lax.axis_size(axis_name))


def _check_shapes(ring: Ring, lhs: Any, rhs: Any) -> None:
    """Raises where the operands that a device has do not make a matmul."""
    where = f"{_CALL}: {_shapes(lhs, rhs)}, {ring.axis_name!r} of {ring.size} devices"
    k_of_lhs, k_of_rhs = lhs.shape[-1], rhs.shape[0]
    if ring.array == "lhs" and ring.dimension == lhs.ndim - 1:
        k_of_lhs *= ring.size
    if ring.array == "rhs" and ring.dimension == 0:
        k_of_rhs *= ring.size
    if k_of_lhs != k_of_rhs:
        raise ValueError(
            f"{where}: the last dimension of lhs, {k_of_lhs}{_gathered(k_of_lhs, lhs.shape[-1])}, "
            f"is not the first of rhs, {k_of_rhs}{_gathered(k_of_rhs, rhs.shape[0])}"
        )
    shape = (*lhs.shape[:-1], rhs.shape[1])
    if ring.array == "out" and shape[ring.dimension] % ring.size:
        raise ValueError(
            f"{where}: dimension {ring.dimension} of the result [{','.join(map(str, shape))}] is "
            f"scattered, and {ring.size} does not divide it; pad it"
        )


def _gathered(size: int, own: int) -> str:
    return "" if size == own else f" when gathered from {own}"


def _check_kernel(
    ring: Ring, overlap: bool | None, lhs: Any, rhs: Any, params: dict[str, Any]
) -> None:
    """Raises at trace time where a strict implementation does not take what a device multiplies."""
    if params["policy"].implementation is None:
        return
    dims: DimensionNumbers = params["dimension_numbers"]
    operands = {"lhs": lhs, "rhs": rhs}
    if overlaps(overlap, ring, lhs, rhs, dims):
        array, dimension = ring.partner((lhs.ndim, rhs.ndim), dims)
        if array != "out":
            size = operands[array].shape[dimension] // ring.size
            operands[array] = _resized(operands[array], dimension, size)
    elif ring.array != "out":
        size = operands[ring.array].shape[ring.dimension] * ring.size
        operands[ring.array] = _resized(operands[ring.array], ring.dimension, size)
    problem = reduce_dot_general(
        operands["lhs"],
        operands["rhs"],
        dims,
        np.dtype(params["preferred_element_type"]),
        precision=params["precision"],
    ).problem
    serve.check(problem, params["policy"], _CALL)


def _resized(x: Any, dimension: int, size: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((*x.shape[:dimension], size, *x.shape[dimension + 1 :]), x.dtype)


def _shapes(*operands: Any) -> str:
    names: Sequence[str] = ("lhs", "rhs")
    return ", ".join(
        f"{name} {describe(x.dtype, x.shape)}" for name, x in zip(names, operands, strict=True)
    )
