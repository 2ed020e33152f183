"""Runs compute-sanitizer over the kernels, after showing that each tool finds a planted bug.

    python -m tests.gpu.run_sanitizers --output benchmarks/results/sanitizers.json

For each tool: the bug in planted/<tool>.cu must be reported, and nothing in the launches of
sanitize.py. Prints a table, writes a JSON file, and exits with status 1 where that is not so.
"""

import argparse
import datetime
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TOOLS = ("memcheck", "racecheck", "synccheck")
# Set by --error-exitcode: by default the tool exits with the status of the program it ran.
FOUND = 86
TAIL = 4000  # characters of output that are kept


@dataclass(frozen=True)
class Outcome:
    """One run of a tool."""

    exit_code: int
    errors: int | None  # None: the tool printed no summary, so it did not get to the end
    seconds: float
    output_tail: str

    @property
    def clean(self) -> bool:
        """The program ran to its end, succeeded, and nothing was reported."""
        return self.exit_code == 0 and self.errors == 0

    @property
    def found(self) -> bool:
        """The tool reported an error, and said so by its exit status."""
        return self.exit_code == FOUND and bool(self.errors)


def error_count(output: str) -> int | None:
    """The total of a tool's summary line; racecheck's has another form than the others'."""
    summary = re.search(
        r"ERROR SUMMARY: (\d+) errors?|RACECHECK SUMMARY: (\d+) hazards? displayed", output
    )
    return None if summary is None else int(summary[1] or summary[2])


def run_tool(sanitizer: str, tool: str, command: list[str], timeout: float) -> Outcome:
    """Runs a command under a tool of compute-sanitizer."""
    start = time.monotonic()
    try:
        done = subprocess.run(
            [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            cwd=ROOT,
        )
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as expired:
        code, partial = -1, expired.stdout or b""
        output = f"{partial.decode(errors='replace')}\nno end after {timeout} s"
    seconds = round(time.monotonic() - start, 1)
    return Outcome(code, error_count(output), seconds, output[-TAIL:])


def compile_planted(nvcc: str, tool: str, folder: Path) -> Path:
    """Compiles the bug that a tool has to find."""
    program = folder / tool
    source = HERE / "planted" / f"{tool}.cu"
    subprocess.run([nvcc, "-arch=sm_90", "-lineinfo", "-o", program, source], check=True)
    return program


def find_program(name: str) -> str:
    """A program of the CUDA toolkit."""
    beside_nvcc = Path(shutil.which("nvcc") or "").resolve().parent / name
    found = shutil.which(name) or (str(beside_nvcc) if beside_nvcc.is_file() else None)
    if found is None:
        sys.exit(f"{name} is not on PATH; it is a part of the CUDA toolkit")
    return found


def last_line(command: list[str]) -> str:
    """The last line of what a program prints of itself."""
    done = subprocess.run(command, capture_output=True, text=True)
    return ([line for line in done.stdout.splitlines() if line.strip()] or ["unknown"])[-1].strip()


def main() -> int:
    """Runs everything; returns the process's exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--timeout", type=float, default=500, help="seconds for each run of a tool")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    arguments = parser.parse_args()
    sanitizer, nvcc = find_program("compute-sanitizer"), find_program("nvcc")

    results: dict[str, dict[str, object]] = {}
    succeeded = True
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'tool':10} {'planted bug':12} {'kernels':20} seconds", flush=True)
        for tool in arguments.tools:
            program = compile_planted(nvcc, tool, Path(folder))
            planted = run_tool(sanitizer, tool, [str(program)], arguments.timeout)
            launches = [sys.executable, "-m", "tests.gpu.sanitize"]
            kernels = run_tool(sanitizer, tool, launches, arguments.timeout)
            succeeded &= planted.found and kernels.clean
            said = "clean" if kernels.clean else f"errors: {kernels.errors}"
            seen = "found" if planted.found else "NOT FOUND"
            print(f"{tool:10} {seen:12} {said:20} {kernels.seconds:7}", flush=True)
            for outcome in (planted,) * (not planted.found) + (kernels,) * (not kernels.clean):
                print(outcome.output_tail)
            results[tool] = {
                "planted_bug_found": planted.found,
                "kernels_clean": kernels.clean,
                "planted": asdict(planted),
                "kernels": asdict(kernels),
            }
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "gpu": last_line(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        ),
        "compute_sanitizer": last_line([sanitizer, "--version"]),
        "nvcc": last_line([nvcc, "--version"]),
        "tools": results,
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main())
