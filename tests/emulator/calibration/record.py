"""Runs the micro-kernels on a GPU of compute capability 9.0 and records what they leave behind.

    python -m tests.emulator.calibration.record --out tests/emulator/calibration/vectors.npz

Needs numpy, the driver and nvcc (12.9 or newer, on PATH); not jaxbw. Runs the cases in a process
that is started anew where one breaks or hangs its context, and prints what failed. Beside the
vectors it writes <out>.whole.npz, with every result in full, to look into a difference.
"""

import argparse
import concurrent.futures
import datetime
import json
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from . import suite
from .case import Bytes
from .driver import Device, DriverError
from .encodings import encodings

ROOT = suite.HERE.parents[2]
PATIENCE = 40  # seconds for one case, the start of its process included
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


def work(folder: Path, first: int) -> None:
    """Runs the cases from number `first` on; writes (number, result) pickles to stdout."""
    device = Device()
    for number, case in enumerate(suite.cases()):
        if number < first:
            continue
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
        pickle.dump((number, result), sys.stdout.buffer)
        sys.stdout.buffer.flush()
        if lost:  # an error of a kernel sticks to the context
            return


def results(folder: Path, count: int) -> Iterator[Result]:
    """The results of all cases, in order."""
    done = 0
    while done < count:
        command = [sys.executable, "-m", __spec__.name, "--work", str(folder), str(done)]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        answers: queue.Queue[tuple[int, Result] | None] = queue.Queue()
        reader = threading.Thread(target=_read, args=(worker, answers), daemon=True)
        reader.start()
        before = done
        while done < count:
            try:
                answer = answers.get(timeout=PATIENCE)
            except queue.Empty:
                yield f"no end after {PATIENCE} s"
                done += 1
                break
            if answer is None:  # the worker has ended
                break
            assert answer[0] == done
            yield answer[1]
            done += 1
        worker.kill()
        worker.wait()
        if done == before:
            yield f"the process ended with status {worker.returncode}"
            done += 1


def _read(worker: "subprocess.Popen[bytes]", answers: "queue.Queue[Any]") -> None:
    assert worker.stdout is not None
    try:
        while True:
            answers.put(pickle.load(worker.stdout))
    except (EOFError, pickle.UnpicklingError):
        answers.put(None)


def main() -> int:
    """Returns the process's exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=suite.VECTORS, help="the file to write")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(Path(arguments.work[0]), int(arguments.work[1]))
        return 0

    start = time.monotonic()
    device = Device()
    encoded = [device.encode(e.fields, e.address) for e in encodings()]
    cases = suite.cases()
    with tempfile.TemporaryDirectory() as name:
        broken = compile_modules(Path(name))
        print(f"compiled in {time.monotonic() - start:.0f} s", flush=True)
        outcomes = list(results(Path(name), len(cases)))

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
        "gpu": device.name,
        "driver_version": device.driver_version,
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
    print(f"{device.name}: {size} bytes in {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
