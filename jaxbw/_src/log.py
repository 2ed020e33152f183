"""The logger "jaxbw", and the environment variable that shows it: JAXBW_LOG=info.

At level info it says of each distinct matmul, once, what serves it and why. It is quiet unless
asked: like any library's, it is for the program to configure; JAXBW_LOG does it for those who only
want to see.
"""

import logging
import os
from collections.abc import Callable

VARIABLE = "JAXBW_LOG"
LEVELS = ("debug", "info", "warning", "error")

LOGGER = logging.getLogger("jaxbw")
_told: set[str] = set()


def set_up() -> None:
    """Writes to stderr what JAXBW_LOG asks for.

    Raises:
      ValueError: it is no level.
    """
    name = os.environ.get(VARIABLE, "")
    if not name:
        return
    if name.lower() not in LEVELS:
        raise ValueError(
            f"{VARIABLE} is {name!r}; set it to one of {', '.join(LEVELS)}, or unset it"
        )
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("jaxbw: %(message)s"))
    LOGGER.addHandler(handler)
    LOGGER.setLevel(name.upper())
    LOGGER.propagate = False  # else a program that configures the root logger shows it twice


def once(message: Callable[[], str]) -> None:
    """Logs a message at level info that has not been logged before; made only if it is wanted."""
    if LOGGER.isEnabledFor(logging.INFO):
        text = message()
        if text not in _told:
            _told.add(text)
            LOGGER.info("%s", text)
