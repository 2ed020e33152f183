"""Runs the micro-kernels on a GPU of compute capability 9.0 and records what they leave behind.

    python -m tests.emulator.calibration.record --out tests/emulator/calibration/vectors.npz

Needs numpy, the driver and nvcc (12.9 or newer, on PATH); not jaxbw. Runs the cases in processes
that are started anew where one breaks or hangs its context, and prints what failed. Beside the
vectors it writes <out>.whole.npz, with every result in full, to look into a difference.
"""

import argparse
import concurrent.futures
import datetime
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

import numpy as np

from . import suite
from .case import Bytes, Case
from .driver import Device, DriverError
from .encodings import encodings

PATIENCE = 15  # seconds for one case, the start of its process included
FORK = multiprocessing.get_context("fork")
Result = Bytes | str  # or why there is none


def compile_modules(folder: Path) -> dict[str, str]:
    """Writes the cubins of all modules; returns the modules that failed, and why."""

    def build(module: str) -> tuple[str, str]:
        try:
            text = suite.ptx(module, "nvcc")
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            return module, str(error)
        source = folder / f"{module}.ptx"
        source.write_text(text)
        target = folder / f"{module}.cubin"
        command = ["nvcc", "-arch=sm_90a", "-cubin", "-o", str(target), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        return module, done.stderr if done.returncode else ""

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return {module: error for module, error in pool.map(build, suite.modules()) if error}


def work(answers: Connection, folder: Path, cases: Sequence[Case], numbers: Sequence[int]) -> None:
    """In a process of its own: runs the cases of these numbers, sends (number, result) of each."""
    device = Device()
    for number in numbers:
        case = cases[number]
        cubin = folder / f"{case.module}.cubin"
        result: Result
        lost = False
        if not cubin.exists():
            result = "its module does not compile"
        else:
            try:
                result = device.run(cubin.read_bytes(), case)
            except DriverError as error:
                result = str(error)
                lost = "cuCtxSynchronize" in result or "cuMem" in result
        answers.send((number, result))
        if lost:  # an error of a kernel sticks to the context
            return


class Lane:
    """Cases that run one after another, in a process that is started anew where one breaks it.

    Forked, so that a restart costs a CUDA context and no more: this process must not have one.
    """

    def __init__(self, folder: Path, cases: Sequence[Case], numbers: list[int]) -> None:
        self._folder, self._cases, self._pending = folder, cases, numbers
        self.results: dict[int, Result] = {}
        self._start()

    def _start(self) -> None:
        self.answers, theirs = FORK.Pipe(duplex=False)
        arguments = (theirs, self._folder, self._cases, tuple(self._pending))
        self._process = FORK.Process(target=work, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._answered, self._deadline = False, time.monotonic() + PATIENCE

    @property
    def done(self) -> bool:
        return not self._pending

    def _settle(self, result: Result) -> None:
        self.results[self._pending.pop(0)] = result

    def _restart(self) -> None:
        self._process.kill()
        self._process.join()
        self.answers.close()
        if self._pending:
            self._start()

    def receive(self) -> None:
        """Takes an answer, or the news that the process has ended."""
        try:
            number, result = self.answers.recv()
        except EOFError:
            if not self._answered:
                self._process.join()
                self._settle(f"the process ended with status {self._process.exitcode}")
            self._restart()
            return
        assert number == self._pending[0]
        self._settle(result)
        self._answered, self._deadline = True, time.monotonic() + PATIENCE
        if not self._pending:
            self._restart()

    def check_patience(self) -> None:
        """Gives a case up that has hung."""
        if self._pending and time.monotonic() > self._deadline:
            self._settle(f"no end after {PATIENCE} s")
            self._restart()


def results(folder: Path, cases: Sequence[Case], lanes: int) -> list[Result]:
    """The results of all cases, in order."""
    shares = [list(range(lane, len(cases), lanes)) for lane in range(lanes)]
    running = [Lane(folder, cases, share) for share in shares if share]
    merged: dict[int, Result] = {}
    shown = time.monotonic()
    while running:
        by_connection = {lane.answers: lane for lane in running}
        for connection in wait(list(by_connection), timeout=1):
            by_connection[connection].receive()  # type: ignore[index]
        for lane in running:
            lane.check_patience()
            merged |= lane.results
        running = [lane for lane in running if not lane.done]
        if time.monotonic() > shown + 10:
            shown = time.monotonic()
            print(f"{len(merged)} of {len(cases)} cases", flush=True)
    return [merged[number] for number in range(len(cases))]


def device_facts(answers: Connection) -> None:
    """In a process of its own: the name of the GPU, the driver's version, and the encodings."""
    device = Device()
    encoded = [device.encode(e.fields, e.address) for e in encodings()]
    answers.send((device.name, device.driver_version, encoded))


def ask_device() -> tuple[str, int, list[tuple[int, bytes]]]:
    """What `device_facts` finds."""
    answers, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=device_facts, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    found: tuple[str, int, list[tuple[int, bytes]]] = answers.recv()
    process.join()
    return found


def main() -> int:
    """Returns the process's exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=suite.VECTORS, help="the file to write")
    parser.add_argument("--lanes", type=int, default=4, help="processes at a time (default 4)")
    arguments = parser.parse_args()

    start = time.monotonic()
    gpu, driver_version, encoded = ask_device()
    cases = suite.cases()
    with tempfile.TemporaryDirectory() as name:
        broken = compile_modules(Path(name))
        print(f"compiled in {time.monotonic() - start:.0f} s", flush=True)
        outcomes = results(Path(name), cases, arguments.lanes)

    failures = {
        case.name: outcome
        for case, outcome in zip(cases, outcomes, strict=True)
        if isinstance(outcome, str)
    }
    whole = [np.zeros(0, np.uint8) if isinstance(outcome, str) else outcome for outcome in outcomes]
    short = [
        result if case.name in failures else suite.kept(case, result)
        for case, result in zip(cases, whole, strict=True)
    ]
    nvcc = subprocess.run(["nvcc", "--version"], capture_output=True, text=True).stdout
    facts = {
        "gpu": gpu,
        "driver_version": driver_version,
        "nvcc": nvcc.strip().splitlines()[-1],
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": f"python -m {__spec__.name} --out {arguments.out.name}",
        "cases": [case.name for case in cases],
        "failures": failures,
        "encodings": [e.name for e in encodings()],
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for path, kept in (
        (arguments.out, short),
        (arguments.out.with_suffix(".whole.npz"), whole),
    ):
        np.savez_compressed(
            path,
            facts=np.frombuffer(json.dumps(facts).encode(), np.uint8),
            inputs=np.stack([suite.inputs_digest(case) for case in cases]),
            sizes=np.array([part.size for part in kept], np.int32),
            results=np.concatenate(kept),
            encoding_status=np.array([status for status, _ in encoded], np.int32),
            encodings=np.stack([np.frombuffer(raw, np.uint8) for _, raw in encoded]),
        )

    for module, error in broken.items():
        print(f"{module} does not compile: {error[:500]}")
    total = Counter(case.module for case in cases)
    failed = Counter(case.module for case in cases if case.name in failures)
    print(f"{'module':10} {'cases':>6} {'failed':>6}")
    for module, number in total.items():
        print(f"{module:10} {number:6} {failed[module]:6}")
    accepted = sum(status == 0 for status, _ in encoded)
    print(f"{'encodings':10} {len(encoded):6} {len(encoded) - accepted:6} refused")
    for case_name, reason in list(failures.items())[:60]:
        print(f"  {case_name}: {reason}")
    size = arguments.out.stat().st_size
    print(f"{gpu}: {size} bytes in {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
