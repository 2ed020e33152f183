"""Fuzzes the emulator: `python -m tests.emulator.fuzz --minutes 10`, from the repository's root.

Cases run in child processes, one for each CPU. A child that dies, or that takes longer than
`--seconds` for a case, is reported with the number of the case, and replaced; `--case NUMBER`
prints that case's PTX and runs it. Exits with 1 where there was any.
"""

import argparse
import collections
import itertools
import multiprocessing
import multiprocessing.connection
import os
import resource
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

from . import hostile_ptx

MEMORY = 4 << 30  # bytes of address space that a child may add: hostile sizes must be refused


def _child(first: int, stride: int, pipe: Connection) -> None:
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # which reserves terabytes
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    for case in itertools.count(first, stride):
        pipe.send((case, None))
        pipe.send((case, hostile_ptx.run(case)))


class _Child:
    def __init__(self, first: int, stride: int) -> None:
        self.stride, self.case, self.since = stride, first, time.monotonic()
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe(duplex=False)
        self.process = context.Process(target=_child, args=(first, stride, other), daemon=True)
        self.process.start()
        other.close()

    def messages(self) -> Iterator[tuple[int, str | None]]:
        """Yields what has come; raises EOFError when the child is dead."""
        while self.pipe.poll():
            message = self.pipe.recv()
            self.case, self.since = message[0], time.monotonic()
            yield message


def fuzz(minutes: float, seconds: float, first: int, jobs: int) -> int:
    """Runs cases from `first` on; returns how many killed or held up a child."""
    end = time.monotonic() + 60 * minutes
    children = [_Child(first + i, jobs) for i in range(jobs)]
    outcomes: collections.Counter[str] = collections.Counter()
    failures = 0
    while time.monotonic() < end:
        multiprocessing.connection.wait([child.pipe for child in children], timeout=1)
        for i, child in enumerate(children):
            problem = ""
            try:
                outcomes.update(outcome for _, outcome in child.messages() if outcome)
            except EOFError:
                child.process.join()
                problem = f"killed its process (exit code {child.process.exitcode})"
            # A child takes a while to start.
            if not problem and time.monotonic() - child.since > seconds + 20:
                child.process.kill()
                problem = f"took longer than {seconds:.0f} s"
            if problem:
                print(f"case {child.case} {problem}", flush=True)
                failures += 1
                children[i] = _Child(child.case + jobs, jobs)
    for child in children:
        child.process.kill()
    print(f"{sum(outcomes.values())} cases, of which {outcomes['ran']} ran to their end;")
    print(f"{len(outcomes) - 1} kinds of errors; {failures} crashes or hangs")
    return failures


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Hostile PTX against the emulator")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=10, help="that one case may take")
    parser.add_argument("--first", type=int, default=0, help="the first case")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--case", type=int, help="print and run this case only")
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(hostile_ptx.text(arguments.case), flush=True)
        print(hostile_ptx.run(arguments.case))
        return 0
    return int(fuzz(arguments.minutes, arguments.seconds, arguments.first, arguments.jobs) > 0)


if __name__ == "__main__":
    sys.exit(main())
