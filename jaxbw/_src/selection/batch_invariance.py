"""The context manager that asks for batch-invariant configurations."""

import contextlib
from dataclasses import replace

import jax

from jaxbw._src.selection.config import GemmConfig

_context = jax.make_user_context(False)


def batch_invariant() -> contextlib.AbstractContextManager[None]:
    """In this block, a row of a kernel's result has the same bits whatever the batch size is.

    As `GemmConfig(batch_invariant=True)` for each call in it, and for the products of their
    gradients: the configuration depends on k, n and dtypes, never on m, and sums are never split
    along k. What XLA serves is as XLA computes it. Functions under `jax.jit` are traced again.

    >>> x, w = (jax.ShapeDtypeStruct(shape, "bfloat16") for shape in ((1, 4096), (4096, 4096)))
    >>> with jaxbw.batch_invariant(), jaxbw.target("B200"):
    ...     jaxbw.explain(x, w).config.split_k
    1
    """
    context: contextlib.AbstractContextManager[None] = _context(True)
    return context


def resolve(config: GemmConfig | None) -> GemmConfig | None:
    """The configuration of a call in the present context."""
    if not _context.value:
        return config
    return replace(config or GemmConfig(), batch_invariant=True)
