"""Block: the value of a setting in a block of code, or in a function that it decorates."""

import contextlib
from types import TracebackType
from typing import Any


class Block(contextlib.ContextDecorator):
    """A value of a JAX user context, with which `jit` keys its programs.

    As a decorator it holds for each call: as the function is traced, where that is under `jit`.
    """

    def __init__(self, context: Any, value: Any) -> None:
        self._context, self._value = context, value

    def _recreate_cm(self) -> "Block":
        return Block(self._context, self._value)  # calls may overlap, in threads or recursion

    def __enter__(self) -> None:
        """From here on the setting has the value."""
        self._entered = self._context(self._value)
        self._entered.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """The setting has the value again that it had before."""
        self._entered.__exit__(kind, error, traceback)
