"""`jaxbw.einsum`: `jnp.einsum`, each of whose contractions is a `jaxbw.dot_general`."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxbw._src.api.arguments import hashable
from jaxbw._src.api.matmul import dot_general
from jaxbw._src.selection import implementations
from jaxbw._src.selection.implementations import Implementation


def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    optimize: Any = "auto",
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    implementation: Implementation = None,
) -> jax.Array:
    """`jnp.einsum`, with every contraction of two operands on a hand-written kernel where one fits.

    Args:
      subscripts, operands, optimize, precision, preferred_element_type, out_sharding: as of
        `jnp.einsum`.
      implementation: as of `matmul`, for each contraction.

    Returns:
      The sum, as of `jnp.einsum`. Sums over one operand, and matmuls without a contraction, are
      XLA's.

    Raises:
      TypeError, ValueError: as `jnp.einsum`; an implementation that there is not.
      NotImplementedError: as `matmul`.

    >>> x, w, v = jnp.ones((2, 8, 3)), jnp.ones((3, 4, 5)), jnp.ones((4, 5, 6))
    >>> jaxbw.einsum("btd,dhk,hkn->btn", x, w, v).shape
    (2, 8, 6)
    """
    call = "jaxbw.einsum"
    if implementation is not None:
        implementations.check_type(implementation, call)
    result: jax.Array = jnp.einsum(
        subscripts,
        *operands,
        optimize=optimize,
        precision=hashable(call, "precision", precision),
        preferred_element_type=hashable(call, "preferred_element_type", preferred_element_type),
        out_sharding=hashable(call, "out_sharding", out_sharding),
        _dot_general=_contraction(hashable(call, "implementation", implementation)),
    )
    return result


@cache
def _contraction(implementation: Implementation) -> Callable[..., jax.Array]:
    """One function for each implementation: `jnp.einsum` is compiled for a function."""
    if implementation is None:
        return dot_general
    return partial(dot_general, implementation=implementation)
