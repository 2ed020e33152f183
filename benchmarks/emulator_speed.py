"""Speed of the emulator on one core: our Blackwell kernels on bfloat16 cubes, by checks and size.

    python benchmarks/emulator_speed.py --sizes 256 512 1024 2048 4096 --strict-up-to 2048 \\
        --compilers --out benchmarks/results/DATE_emulator_speed.json

Times are CPU seconds of the launch, the least of the repeats, and say nothing about any GPU. The
levels take turns, as the machine may be slower for a while. `--compilers` adds other compilers'
GEMMs (tests/independent), of 1024x1024x512. Every result is compared with a float32 matmul of the
same integers.
"""

import argparse
import datetime
import itertools
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))  # for tests/; the installed package comes first

from jaxbw import emulator
from tests.emulator import gemm_launch, installed
from tests.emulator.gemm_launch import BF16, SM100, Config

CONFIGS = {
    "jaxbw_sm100_16bit_1cta": Config(SM100, 128, 256, stages=4, swizzle=8),
    "jaxbw_sm100_16bit_2cta": Config(SM100, 256, 256, 2, cluster=(2, 1), stages=4, swizzle=8),
}

LEVELS = ["off", "hardware", "strict"]


@dataclass(frozen=True)
class Timing:
    """CPU seconds and executed warp instructions of one launch."""

    kernel: str
    size: int  # of a cube; 0: 1024x1024x512
    checks: str
    seconds: float
    instructions: int


Launch = Callable[[str], emulator.Report]  # at a level of checks


def measure(name: str, size: int, launch: Launch, checks: list[str], repeats: int) -> list[Timing]:
    """The fastest of the launches at each level."""
    fastest: dict[str, Timing] = {}
    for _, level in itertools.product(range(repeats), checks):
        before = time.process_time()
        report = launch(level)
        seconds = round(time.process_time() - before, 4)
        if level not in fastest or seconds < fastest[level].seconds:
            fastest[level] = Timing(name, size, level, seconds, report.steps)
    return list(fastest.values())


def cube(kernel: str, module: emulator.Module, size: int) -> Launch:
    """Multiplies two `size` x `size` matrices."""
    rng = np.random.default_rng(size)
    lhs, rhs = (gemm_launch.integers(rng, 1, size, size) for _ in range(2))
    expected = (lhs @ rhs).astype(BF16)

    def launch(checks: str) -> emulator.Report:
        result, report = gemm_launch.run(module, CONFIGS[kernel], lhs, rhs, BF16, checks=checks)
        assert not report.findings
        np.testing.assert_array_equal(result.view(np.uint16), expected.view(np.uint16))
        return report

    return launch


def compilers(repeats: int) -> Iterator[Timing]:
    """Other compilers' GEMMs; `strict` has findings in them, which take time, too."""
    from tests.independent import launching, mutation

    for name, kernel, problem in mutation.gemms(launching.Problem(1024, 1024, 512, launching.F16)):
        yield from measure(name, 0, _at_level(launching.launcher(kernel, problem)), LEVELS, repeats)


def _at_level(launch: Callable[..., emulator.Report]) -> Launch:
    return lambda checks: launch(checks=checks)


def cpu() -> str:
    """Returns what the machine calls its processor."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    return found.group(1) if found else platform.processor()


def table(kernel: str, timings: list[Timing]) -> str:
    """Returns the Markdown table of a kernel."""
    config = CONFIGS.get(kernel)
    lines = [
        f"{kernel}, tiles of {config.block_m}x{config.block_n}" if config else kernel,
        "",
        "| m = n = k | checks off | hardware | strict | strict / off | instructions | per second |",
        "|---|---|---|---|---|---|---|",
    ]
    for size in sorted({t.size for t in timings if t.kernel == kernel}):
        of = {t.checks: t for t in timings if (t.kernel, t.size) == (kernel, size)}
        off = of["off"]
        cells = [f"{of[c].seconds:.3f} s" if c in of else "" for c in ("hardware", "strict")]
        ratio = f"{of['strict'].seconds / off.seconds:.1f}" if "strict" in of else ""
        rate = f"{off.instructions / off.seconds / 1e6:.2f} M"
        row = [
            f"{size or '1024, 1024, 512'}",
            f"{off.seconds:.3f} s",
            *cells,
            ratio,
            f"{off.instructions:,}",
            rate,
        ]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def main() -> None:
    """Prints Markdown tables, and writes the figures to a file."""
    parser = argparse.ArgumentParser(description="Speed of the emulator on one core")
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096])
    parser.add_argument("--strict-up-to", type=int, default=1024, metavar="SIZE")
    parser.add_argument("--compilers", action="store_true", help="GEMMs of other compilers, too")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--note", default="", help="what else the machine did")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    timings = []
    load = [os.getloadavg()[0]]
    for kernel in CONFIGS:
        module = installed.load(kernel)
        for size in arguments.sizes:
            repeats = arguments.repeats if size <= 2048 else 1
            checks = LEVELS if size <= arguments.strict_up_to else LEVELS[:1]
            timings += measure(kernel, size, cube(kernel, module, size), checks, repeats)
        print(table(kernel, timings), end="\n\n", flush=True)
    if arguments.compilers:
        others = list(compilers(arguments.repeats))
        for name in dict.fromkeys(timing.kernel for timing in others):
            print(table(name, others), end="\n\n", flush=True)
        timings += others
    load.append(os.getloadavg()[0])
    facts: dict[str, Any] = {
        "date": f"{datetime.date.today()}",
        "command": f"python benchmarks/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}",
        "cpu": cpu(),
        "time": f"CPU seconds on one core, least of {arguments.repeats} launches; of 1 above 2048",
        "load average": load,
        "note": arguments.note,
        "timings": [asdict(timing) for timing in timings],
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
