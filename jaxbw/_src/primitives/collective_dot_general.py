"""collective_dot_general_p: a dot_general of which one array is in chunks on a ring of devices.

Gathering one operand and scattering the result are each other's transposes: in the derivative of
either, some array is in chunks along the same dimension. So the primitive is bilinear and closed
under transposition, and a backward pass overlaps as the forward pass does. It is lowered to the
algorithm of ring.py or to that of plain_collective.py; overlap.py says to which.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxbw._src import compat
from jaxbw._src.primitives.dot_general import batched_dimension_numbers, lax_params
from jaxbw._src.primitives.overlap import overlaps
from jaxbw._src.primitives.plain_collective import plain_dot_general
from jaxbw._src.primitives.ring import Array, Ring, ring_dot_general
from jaxbw._src.primitives.transposition import backward_params, transposition
from jaxbw._src.problem import DimensionNumbers
from jaxbw._src.selection.config import ANY
from jaxbw._src.selection.policy import Policy

collective_dot_general_p = Primitive("jaxbw_collective_dot_general")


def collective_dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: DimensionNumbers,
    ring: Ring,
    overlap: bool | None,
    **params: Any,
) -> Any:
    """Binds the primitive. The other parameters are those of dot_general_p, canonical and all."""
    lhs, rhs = compat.insert_reshard(*(compat.vary(x, ring.axis_name) for x in (lhs, rhs)))
    return collective_dot_general_p.bind(
        lhs, rhs, dimension_numbers=dimension_numbers, ring=ring, overlap=overlap, **params
    )


def _abstract_eval(lhs: Any, rhs: Any, *, ring: Ring, **params: Any) -> Any:
    if ring.array == "lhs":
        lhs = _resized(lhs, ring.dimension, lhs.shape[ring.dimension] * ring.size)
    elif ring.array == "rhs":
        rhs = _resized(rhs, ring.dimension, rhs.shape[ring.dimension] * ring.size)
    result, effects = compat.dot_general_type(lhs, rhs, lax_params(params))
    if ring.array == "out":
        result = _resized(result, ring.dimension, result.shape[ring.dimension] // ring.size)
    return result, effects


def _resized(aval: Any, dimension: int, size: int) -> Any:
    return aval.update(shape=(*aval.shape[:dimension], size, *aval.shape[dimension + 1 :]))


# Differentiation


def _transpose_rule(
    of_rhs: bool,
    cotangent: Any,
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: DimensionNumbers,
    ring: Ring,
    overlap: bool | None,
    **params: Any,
) -> Any:
    x, y = (rhs, lhs) if of_rhs else (lhs, rhs)
    ranks = (np.ndim(y), x.aval.ndim) if of_rhs else (x.aval.ndim, np.ndim(y))
    plan = transposition(ranks, dimension_numbers, of_rhs=of_rhs)
    gathers = ring.array != "out"
    # What was in chunks still is: the cotangent is what the result was, and the result what x was.
    roles: tuple[Array, Array] = ("lhs", "rhs") if plan.cotangent_first else ("rhs", "lhs")
    if ring.array == "out":
        ring = replace(ring, array=roles[0])
    elif ring.array == ("rhs" if of_rhs else "lhs"):
        ring = replace(ring, array="out", dimension=plan.axes.index(ring.dimension))
    else:
        ring = replace(ring, array=roles[1])
    params = backward_params(params, plan)
    if gathers:
        # One cotangent is scattered, the other one needs what is gathered again: neither waits for
        # the other, so that XLA runs the matmul of the one beside the collective of the other.
        params["policy"] = _beside_a_collective(params["policy"], ring)
    matmul = collective_dot_general(
        *plan.operands(cotangent, y),
        plan.dimension_numbers,
        ring,
        overlap,
        out_sharding=None,
        **params,
    )
    return plan.result(matmul, x.aval)


ad.defbilinear(
    collective_dot_general_p, partial(_transpose_rule, False), partial(_transpose_rule, True)
)
_bilinear_jvp = ad.primitive_jvps[collective_dot_general_p]


def _jvp(primals: Any, tangents: Any, *, overlap: bool | None, **params: Any) -> Any:
    """Of a matmul that is differentiated, only a ring that was asked for is one.

    What is gathered is needed again for a gradient. XLA keeps it where the same collective gathered
    it, so that a ring here and none there would send it twice.
    """
    return _bilinear_jvp(primals, tangents, overlap=bool(overlap), **params)


ad.primitive_jvps[collective_dot_general_p] = _jvp


# Batching


def _batch(axis_data: Any, operands: Any, batched: Any, **params: Any) -> Any:
    lhs, rhs = operands
    if all(axis is None for axis in batched):
        return collective_dot_general(lhs, rhs, **params), None
    ring: Ring = params.pop("ring")
    dims, result = batched_dimension_numbers(
        (np.ndim(lhs), np.ndim(rhs)), batched, params.pop("dimension_numbers")
    )
    new = {"lhs": batched[0], "rhs": batched[1], "out": result}[ring.array]
    ring = replace(ring, dimension=ring.dimension + (new is not None and ring.dimension >= new))
    return collective_dot_general(lhs, rhs, dims, ring, **params), result


batching.fancy_primitive_batchers[collective_dot_general_p] = _batch


# Lowering


def _lower(ctx: Any, lhs: Any, rhs: Any, *, overlap: bool | None, **params: Any) -> Any:
    params["preferred_element_type"] = ctx.avals_out[0].dtype
    of_lhs, of_rhs = ctx.avals_in
    on_ring = overlaps(overlap, params["ring"], of_lhs, of_rhs, params["dimension_numbers"])
    if on_ring:
        params["policy"] = _beside_a_collective(params["policy"], params["ring"])

    def matmul(lhs: Any, rhs: Any) -> Any:
        return (ring_dot_general if on_ring else plain_dot_general)(lhs, rhs, **params)

    return mlir.lower_fun(matmul, multiple_results=False)(ctx, lhs, rhs)


def _beside_a_collective(policy: Policy, ring: Ring) -> Policy:
    """The policy of a matmul that may run while a collective holds SMs.

    Where each CTA has a fixed share of the tiles, those that find no SM free begin when the
    collective ends, and nothing of it is hidden. What the user says stays.
    """
    config = policy.config or ANY
    if ring.size == 1 or config.scheduler is not None or not config.leaves_tile_open:
        return policy
    return replace(policy, config=replace(config, scheduler="dynamic"))


collective_dot_general_p.def_effectful_abstract_eval(_abstract_eval)
compat.apply_eagerly(collective_dot_general_p)
compat.register_remat_rule(collective_dot_general_p)
mlir.register_lowering(collective_dot_general_p, _lower)
