"""Policy: what a call says of who may serve it, and the contexts that say it for many calls."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import TracebackType

import jax

from jaxbw._src.compat import Block
from jaxbw._src.selection import devices
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.implementations import Implementation, canonical
from jaxbw._src.selection.tuned_matmuls import SWITCH, TunedMatmuls

_implementation = jax.make_user_context(None)
_batch_invariant = jax.make_user_context(False)
_tuned = jax.make_user_context(None)


@dataclass(frozen=True)
class Policy:
    """How a matmul is to be served. It is one parameter of the primitives, from call to lowering.

    Attributes:
      implementation: what may serve it, in order; None to choose freely.
      config: the launch configuration, or what it must be like, batch-invariant for one; None to
        choose freely.
      target: the name of the GPU that a lowering is for; None for this machine's.
      tuned: the table of measured matmuls that is looked into first; None without one.
    """

    implementation: tuple[str, ...] | None = None
    config: GemmConfig | None = None
    target: str | None = None
    tuned: TunedMatmuls | None = None

    @property
    def for_gradients(self) -> "Policy":
        """That of the transposed matmuls.

        Strictness ends here: those of a cotangent of another dtype (of a float32 output of bfloat16
        operands) are XLA's. A tile is for the matmul that it was given for; what is said of the
        choice of one stays.
        """
        names, config = self.implementation, self.config
        if names is not None and "xla" not in names:
            names = (*names, "xla")
        return replace(
            self,
            implementation=names,
            config=None if config is None else config.for_gradients,
        )


FREE = Policy()


def policy_of(given: Implementation, config: GemmConfig | None, call: str) -> Policy:
    """The policy of a call in the present contexts; its own arguments come first.

    Raises:
      ValueError: there is no such implementation, or JAXBW_TUNED names what is no table.
    """
    names = _implementation.value if given is None else canonical(given, call)
    if _batch_invariant.value:
        config = replace(config or GemmConfig(), batch_invariant=True)
    return Policy(names, config, devices.current_target(), current_tuned())


def implementation(name: str | Sequence[str]) -> Block:
    """Sets what calls in this block use that do not say `implementation=` themselves.

    Also a decorator, for the calls of a function. Functions under `jax.jit` are traced again for
    each value.

    Args:
      name: "kernel" (of either family), "sm100", "sm90", "xla", "emulator" or "emulator-sm90", or
        a sequence of them that is tried in order.

    Raises:
      ValueError: another name.

    >>> with jaxbw.implementation("xla"):
    ...     jaxbw.explain(jnp.ones((2, 3)), jnp.ones((3, 4))).reason
    'asked for'
    """
    return Block(_implementation, canonical(name, "jaxbw.implementation"))


def batch_invariant() -> Block:
    """In this block, a row of a kernel's result has the same bits whatever the batch size is.

    As `GemmConfig(batch_invariant=True)` for each call in it, and for the matmuls of their
    gradients: the configuration depends on k, n and dtypes, never on m, and sums are never split
    along k. What XLA serves is as XLA computes it. Also a decorator, for the calls of a function.
    Functions under `jax.jit` are traced again.

    >>> x, w = (jax.ShapeDtypeStruct(shape, "bfloat16") for shape in ((1, 4096), (4096, 4096)))
    >>> with jaxbw.batch_invariant(), jaxbw.target("B200"):
    ...     jaxbw.explain(x, w).config.split_k
    1
    """
    return Block(_batch_invariant, True)


class use_tuned:  # a function to those who use it
    """Lets matmuls run in the configurations that a tuned table has for them.

    From the call on, in this thread; as a context manager until the end of its block. Matmuls that
    the table does not name are chosen for as ever, and so are all where a call says `config=`, or
    must be batch-invariant. Functions under `jax.jit` are traced again for another table. The
    environment variable JAXBW_TUNED names a file that counts where nothing else is in use; "off"
    leaves all tables out.

    Args:
      path: a file that `jaxbw.autotune` or `python -m jaxbw tune` wrote; it is read once, now. None
        for no table.

    Raises:
      TypeError: it is no name.
      ValueError: it is not there, or no such file.

    >>> x = jax.ShapeDtypeStruct((4096, 4096), "bfloat16")
    >>> with jaxbw.use_tuned(None):  # or the name of a file
    ...     print(jaxbw.explain(x, x, device="B200").reason)  # doctest: +ELLIPSIS
    the least modelled time of ... candidates, weighed over uncertain constants
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        if not isinstance(path, str | os.PathLike | None):
            raise TypeError(f"jaxbw.use_tuned: path is {path!r}; it is a file's name, or None")
        self._entered = _tuned(None if path is None else TunedMatmuls.load(path))
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


def current_tuned() -> TunedMatmuls | None:
    """The table in use where a matmul is traced; None where there is none.

    Raises:
      ValueError: JAXBW_TUNED names what is no table.
    """
    named = os.environ.get(SWITCH)
    if named == "off":
        return None
    table: TunedMatmuls | None = _tuned.value
    if table is None and named:
        return _read(named)
    return table


@cache
def _read(path: str) -> TunedMatmuls:
    """The table that the environment names, read once."""
    try:
        return TunedMatmuls.load(path)
    except ValueError as error:
        raise ValueError(f"{SWITCH}: {error}; unset {SWITCH}, or name another file") from error
