"""Runs compute-sanitizer over every sm90 kernel, after showing that each tool finds a planted bug.

    python -m tests.gpu.run_sanitizers --output benchmarks/results/DATE_sanitizers.json

For each tool: a kernel with a bug (planted/<tool>.cu) takes the place of an instance, is launched
as the instances are, and must be reported; nothing may be reported of the launches of sanitize.py,
which are shared out among processes. Prints a table, writes a JSON file, and exits with status 1
where that is not so.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxbw._src.selection import manifest

from . import environment, sanitize

HERE = Path(__file__).resolve().parent
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# What a tool needs to see what it is for: memory that was filled for it counts as initialised. And
# what it cannot run: see WITHHELD.
OPTIONS = {"initcheck": ["--fresh"], "synccheck": ["--peers"]}
# Reports that are held to be false, and why.
HELD_FALSE = {
    "initcheck": (
        r"^Host API memory access error .* on access by cudaMemcpy source$",
        "The tool does not see what TMA stores: it is the host that reads the results back, of "
        "launches whose results leave by TMA. That every element was written is shown by the run "
        "of memcheck, of the same launches on poisoned results: each element is compared with "
        "float64, and NaN fails.",
    )
}
# Launches that a tool is spared, and why.
WITHHELD = {
    "synccheck": (
        "launches of gemm kernels without peers in a cluster",
        "Their first barrier is barrier.cta.sync.aligned 1, 384, to which the warps of three roles "
        "come at three instructions. The tool takes that for divergence and ends the launch. PTX "
        "9.7.13.1 identifies the barrier by its number, and asks of .aligned that the threads of a "
        "warp, not of the CTA, are at one instruction. All 384 threads do come, once: a barrier of "
        "that count completes in no other way.",
    )
}
# Set by --error-exitcode: by default the tool exits with the status of the program it ran.
FOUND = 86
TAIL = 4000  # characters of output that are kept
PRINTED = 1_000_000  # reports
INDENTED = "=========     "


@dataclass(frozen=True)
class Outcome:
    """One run of a tool."""

    exit_code: int
    errors: int | None  # None: the tool printed no summary, so it did not get to the end
    seconds: float
    launches: dict[str, int]  # that were right, by kernel
    findings: dict[str, int]  # what was reported, where, and in which launch; how often
    output_tail: str

    succeeded: bool = True  # the program itself: the tool's exit status may hide its own
    held_false: int = 0  # of the errors

    @property
    def clean(self) -> bool:
        """The program ran to its end, succeeded, and nothing was reported that may be true."""
        if self.held_false and self.exit_code == FOUND:
            return self.succeeded and self.errors == self.held_false
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


def findings_of(output: str) -> dict[str, int]:
    """What a tool has reported of each launch, in the order of the launches.

    A report is a headline and indented lines behind it, of which the first says where. It comes
    before the line with which the program says how the launch went.
    """
    counts: Counter[str] = Counter()
    pending: Counter[str] = Counter()
    lines = output.splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith(("ok ", "FAILED ")):
            counts.update({f"{text}, in {line}": count for text, count in pending.items()})
            pending.clear()
        elif after.startswith(INDENTED) and not line.startswith(INDENTED):
            report = f"{line} {after[len(INDENTED) :]}".removeprefix("========= ")
            pending[re.sub(r"\b0x[0-9a-f]{9,}", "0x...", report)] += 1  # but offsets in code
    return dict(counts + pending)


def run_tool(sanitizer: str, tool: str, program: Sequence[str], timeout: float) -> Outcome:
    """Runs a command under a tool of compute-sanitizer."""
    start = time.monotonic()
    try:
        options = ["--error-exitcode", str(FOUND), "--print-limit", str(PRINTED)]
        done = subprocess.run(
            [sanitizer, "--tool", tool, *options, *program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            cwd=environment.ROOT,
        )
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as expired:
        code, partial = -1, expired.stdout or b""
        output = f"{partial.decode(errors='replace')}\nno end after {timeout} s"
    seconds = round(time.monotonic() - start, 1)
    right = re.findall(r"^ok .*", output, re.MULTILINE)
    launches = Counter(kernel for line in right for kernel in re.findall(r"\bjaxbw_\w+", line))
    findings = findings_of(output)
    return Outcome(
        code,
        error_count(output),
        seconds,
        dict(launches),
        findings,
        output[-TAIL:],
        succeeded=re.search(r"^(\d+) of \1 launches are right", output, re.MULTILINE) is not None,
        held_false=held_false(tool, findings),
    )


def held_false(tool: str, findings: Mapping[str, int]) -> int:
    """How many findings are of a kind that is held to be false."""
    pattern, _ = HELD_FALSE.get(tool, ("(?!)", ""))
    reports = ((text.split(", in ")[0], count) for text, count in findings.items())
    return sum(count for text, count in reports if re.search(pattern, text))


def command(tool: str, *arguments: str) -> list[str]:
    """What a tool is run on."""
    return [sys.executable, "-m", "tests.gpu.sanitize", *OPTIONS.get(tool, ()), *arguments]


def plant(tool: str, folder: Path) -> Path:
    """The installed kernels, but in the place of one the bug that a tool has to find."""
    kernels = folder / tool
    kernels.mkdir()
    name = sanitize.PLANTED.kernel
    for path in manifest.directory().iterdir():
        if path.stem != name:
            (kernels / path.name).symlink_to(path)
    nvcc = environment.find_program("nvcc")
    source = HERE / "planted" / f"{tool}.cu"
    compile_it = [nvcc, "-cubin", "-arch=sm_90a", "-std=c++20", "-lineinfo", f"-DKERNEL={name}"]
    compile_it += [f"-I{environment.ROOT / 'cuda'}", "-o", str(kernels / f"{name}.cubin")]
    subprocess.run([*compile_it, str(source)], check=True)
    return kernels


def summary(tool: str, planted: Outcome, parts: Sequence[Outcome]) -> dict[str, Any]:
    """What a results file says of a tool."""
    launches = sum((Counter(part.launches) for part in parts), Counter[str]())
    return {
        "planted_bug_found": planted.found,
        "clean": all(part.clean for part in parts),
        "errors": [part.errors for part in parts],
        "held_false": sum(part.held_false for part in parts),
        "proof": HELD_FALSE.get(tool, ("", ""))[1],
        "withheld": " ".join(WITHHELD.get(tool, ())),
        "instances": len(launches),
        "launches": launches.total(),
        "seconds": max(part.seconds for part in parts),
        "launches_by_instance": dict(sorted(launches.items())),
        "planted": asdict(planted),
        "not_clean": [asdict(part) for part in parts if not part.clean],
    }


def main() -> int:
    """Runs everything; returns the process's exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--timeout", type=float, default=500, help="seconds for each run of a tool")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", type=int, nargs=2, metavar=("I", "N"), help="one part of N")
    parser.add_argument("--kernels", default="", help="a part of the names of those that run")
    given = parser.parse_args()
    sanitizer = environment.find_program("compute-sanitizer")
    count = max(1, given.jobs // len(given.tools))
    shares = [given.only] if given.only else [(part, count) for part in range(count)]

    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(given.jobs) as pool,
    ):

        def start(tool: str, *arguments: str) -> Future[Outcome]:
            return pool.submit(run_tool, sanitizer, tool, command(tool, *arguments), given.timeout)

        planted = {
            tool: start(tool, "--planted", str(plant(tool, Path(folder)))) for tool in given.tools
        }
        parts = {
            tool: [
                start(tool, "--part", str(part), str(of), "--kernels", given.kernels)
                for part, of in shares
            ]
            for tool in given.tools
        }
        tools = {
            tool: summary(tool, planted[tool].result(), [part.result() for part in parts[tool]])
            for tool in given.tools
        }
    print(f"{'tool':10} {'planted bug':12} {'kernels':10} instances launches seconds")
    for tool, said in tools.items():
        seen = "found" if said["planted_bug_found"] else "NOT FOUND"
        verdict = "clean" if said["clean"] else "NOT CLEAN"
        figures = f"{said['instances']:9} {said['launches']:8} {said['seconds']:7}"
        print(f"{tool:10} {seen:12} {verdict:10} {figures}")
        if not said["planted_bug_found"]:
            print(said["planted"]["output_tail"])
        for part in said["not_clean"]:
            print(*(f"{count} x {text}" for text, count in part["findings"].items()), sep="\n")
            print(part["output_tail"][-300:])
    report = {
        "environment": environment.describe()
        | {
            "compute_sanitizer": environment.last_line([sanitizer, "--version"]),
            "nvcc": environment.last_line([environment.find_program("nvcc"), "--version"]),
        },
        "tools": tools,
    }
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(said["clean"] and said["planted_bug_found"] for said in tools.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
