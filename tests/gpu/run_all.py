"""Runs every test that needs a GPU, over all GPUs of the machine, and writes one results file.

    python -m tests.gpu.run_all --out benchmarks/results/DATE_h200_gpu_tests.txt

pytest runs three times: most tests with several processes to a GPU; those marked `alone`, which
take its memory or its time, with one; then those that need two GPUs or more. The exit status is 1
where a test failed, or none ran. What processes write to stderr is in the file where a run failed,
its end: there a process that was aborted says why. Some compile kernels: where nvcc is not among
the Python packages, JAXBW_SYSTEM_NVCC=1 in the environment names the one on PATH.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxbw._src.lab.bench import share

from . import environment

PROCESSES = 4  # to a GPU: more wait for each other, and for its memory
LIMIT = 500  # seconds of a run
LAST_LINES = 200  # of stderr, with the stacks of all threads of a process that was aborted
# What pytest-benchmark says about xdist is a warning, and a warning ends a run.
PYTEST = ("pytest", "-q", "-p", "no:benchmark", "--tb=short", "tests/gpu")


@dataclass(frozen=True)
class Run:
    """A run of pytest: `workers` processes, which share the GPUs out, or one that sees all."""

    marks: str
    workers: int

    @property
    def arguments(self) -> list[str]:
        """Of python -m."""
        if not self.workers:
            return [*PYTEST, "-m", self.marks]
        # One test at a time: some take a thousand times as long as others.
        shared_out = ["-n", str(self.workers), "--maxschedchunk", "1"]
        return [*PYTEST, "-m", self.marks, *shared_out]


def plan(gpus: int, processes: int) -> list[Run]:
    """What is run on so many GPUs, with so many processes to a GPU."""
    runs = [Run("gpu and not alone", gpus * processes), Run("gpu and alone", gpus)]
    return [*runs, Run("gpus", 0)] if gpus > 1 else runs


def attempt(run: Run, gpus: Sequence[str]) -> tuple[bool, str]:
    """Whether a run succeeded, and what it printed."""
    variables = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    if run.workers:
        variables["JAXBW_TEST_GPUS"] = ",".join(gpus)  # tests/conftest.py gives each worker one
    start = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", *run.arguments],
            cwd=environment.ROOT,
            env=os.environ | variables,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        succeeded, output, errors = done.returncode == 0, done.stdout, done.stderr
    except subprocess.TimeoutExpired as expired:
        partial = [(of or b"").decode(errors="replace") for of in (expired.stdout, expired.stderr)]
        succeeded, output, errors = False, f"{partial[0]}\nno end after {LIMIT} s\n", partial[1]
    if not succeeded:
        output += "\n".join(["\nthe end of stderr:", *errors.splitlines()[-LAST_LINES:], ""])
    seconds = time.monotonic() - start
    return succeeded, f"$ python -m {shlex.join(run.arguments)}\n{output}({seconds:.0f} s in all)\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the process's exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.run_all", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--gpus", type=int, help="how many to use; default all that are visible")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="to a GPU")
    parser.add_argument("--out", type=Path, required=True, help="the text file to write")
    given = parser.parse_args(arguments)
    visible = share.visible()
    count = len(visible) if given.gpus is None else given.gpus
    if not 0 < count <= len(visible):
        parser.error(f"{count} GPUs of {len(visible)} that are visible")

    lines = [f"{key}: {value}" for key, value in environment.describe().items()]
    parts = ["\n".join([*lines, f"gpus: {count}, {given.processes} processes to each"])]
    outcomes = []
    for run in plan(count, given.processes):
        succeeded, said = attempt(run, visible[:count])
        print(said, flush=True)
        outcomes.append(succeeded)
        parts.append(said)
        given.out.write_text("\n\n".join(parts))
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
