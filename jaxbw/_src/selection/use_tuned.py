"""Which table of tuned products selection looks into: a context, else an environment variable."""

import os
from functools import cache
from types import TracebackType

import jax

from jaxbw._src.selection.tuned import SWITCH
from jaxbw._src.selection.tuned_products import TunedProducts

_context = jax.make_user_context(None)


class use_tuned:  # a function to those who use it
    """Lets products run in the configurations that a tuned table has for them.

    From the call on, in this thread; as a context manager until the end of its block. Products that
    the table does not name are chosen for as ever, and so are all where a call says `config=`, or
    must be batch-invariant. Functions under `jax.jit` are traced again for another table. The
    environment variable JAXBW_TUNED names a file that counts where nothing else is in use; "off"
    leaves all tables out.

    Args:
      path: a file that `jaxbw.autotune` or `python -m jaxbw tune` wrote; it is read once, now. None
        for no table.

    Raises:
      ValueError: it is not there, or no such file.

    >>> x = jax.ShapeDtypeStruct((4096, 4096), "bfloat16")
    >>> with jaxbw.use_tuned(None):  # or the name of a file
    ...     print(jaxbw.explain(x, x, device="B200").reason)  # doctest: +ELLIPSIS
    the least modelled time of ... candidates
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._entered = _context(None if path is None else TunedProducts.load(path))
        self._entered.__enter__()

    def __enter__(self) -> None:
        """Nothing is left to do."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """What was in use before the call is in use again."""
        self._entered.__exit__(kind, error, traceback)


def current() -> TunedProducts | None:
    """The table in use where a product is traced; None where there is none.

    Raises:
      ValueError: JAXBW_TUNED names what is no table.
    """
    named = os.environ.get(SWITCH)
    if named == "off":
        return None
    table: TunedProducts | None = _context.value
    if table is None and named:
        return _read(named)
    return table


@cache
def _read(path: str) -> TunedProducts:
    """The table that the environment names, read once."""
    try:
        return TunedProducts.load(path)
    except ValueError as error:
        raise ValueError(f"{SWITCH}: {error}; unset {SWITCH}, or name another file") from error
