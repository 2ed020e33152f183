"""A progress bar: rich's where it is installed and output is a terminal, else plain lines.

Either says for how long it will take yet, if the rest goes as what is done.
"""

import contextlib
import importlib.util
import itertools
import sys
import time
from collections.abc import Callable, Iterator

Advance = Callable[[str], None]


@contextlib.contextmanager
def bar(total: int) -> Iterator[Advance]:
    """Yields a function that prints a line and moves the bar by one."""
    if not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
        yield _plain(total)
        return
    from rich.progress import Progress

    with Progress() as progress:
        task = progress.add_task("measuring", total=total)

        def advance(text: str) -> None:
            progress.console.print(text, highlight=False, markup=False)
            progress.advance(task)

        yield advance


def _plain(total: int) -> Advance:
    steps, begin = itertools.count(1), time.monotonic()

    def advance(text: str) -> None:
        done = next(steps)
        left = (time.monotonic() - begin) / done * (total - done)
        rest = f"; about {left:.0f} s left" if done < total else ""
        print(f"[{done}/{total}] {text}{rest}", flush=True)

    return advance
