"""Speed of the emulator on one core: our Blackwell kernels on bfloat16 cubes, by checks and size.

    python benchmarks/emulator_speed.py --sizes 256 512 1024 2048 4096 --strict-up-to 2048 \\
        --out benchmarks/results/DATE_emulator_speed.json

Times are CPU seconds of the launch, the least of the repeats, and say nothing about any GPU. Every
result is compared with a float32 product of the same integers.
"""

import argparse
import datetime
import json
import os
import platform
import re
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))  # for tests/; the installed package comes first

import jaxbw
from jaxbw import emulator
from tests.emulator import gemm_launch
from tests.emulator.gemm_launch import BF16, SM100, Config

KERNELS = Path(jaxbw.__file__).parent / "kernels"
CONFIGS = {
    "jaxbw_sm100_16bit_1cta": Config(SM100, 128, 256, stages=4, swizzle=8),
    "jaxbw_sm100_16bit_2cta": Config(SM100, 256, 256, 2, cluster=(2, 1), stages=4, swizzle=8),
}


@dataclass(frozen=True)
class Timing:
    """CPU seconds and executed warp instructions of one launch."""

    kernel: str
    size: int
    checks: str
    seconds: float
    instructions: int


def measure(kernel: str, module: emulator.Module, size: int, checks: str, repeats: int) -> Timing:
    """Multiplies two `size` x `size` matrices; returns the fastest launch."""
    rng = np.random.default_rng(size)
    lhs, rhs = (gemm_launch.integers(rng, 1, size, size) for _ in range(2))
    best = None
    for _ in range(repeats):
        before = time.process_time()
        result, report = gemm_launch.run(module, CONFIGS[kernel], lhs, rhs, BF16, checks=checks)
        seconds = time.process_time() - before
        if best is None or seconds < best.seconds:
            best = Timing(kernel, size, checks, round(seconds, 4), report.steps)
    assert best is not None
    assert not report.findings
    expected = (lhs @ rhs).astype(BF16)
    np.testing.assert_array_equal(result.view(np.uint16), expected.view(np.uint16))
    return best


def cpu() -> str:
    """Returns what the machine calls its processor."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    return found.group(1) if found else platform.processor()


def table(kernel: str, timings: list[Timing]) -> str:
    """Returns the Markdown table of a kernel."""
    config = CONFIGS[kernel]
    lines = [
        f"{kernel}, tiles of {config.block_m}x{config.block_n}",
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
        row = [f"{size}", f"{off.seconds:.3f} s", *cells, ratio, f"{off.instructions:,}", rate]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def main() -> None:
    """Prints Markdown tables, and writes the figures to a file."""
    parser = argparse.ArgumentParser(description="Speed of the emulator on one core")
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096])
    parser.add_argument("--strict-up-to", type=int, default=1024, metavar="SIZE")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--note", default="", help="what else the machine did")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    timings = []
    load = [os.getloadavg()[0]]
    for kernel in CONFIGS:
        module = emulator.Module((KERNELS / f"{kernel}.ptx").read_text())
        for size in arguments.sizes:
            repeats = arguments.repeats if size <= 2048 else 1
            checks = ["off", "hardware", "strict"] if size <= arguments.strict_up_to else ["off"]
            timings += [measure(kernel, module, size, check, repeats) for check in checks]
        print(table(kernel, timings), end="\n\n", flush=True)
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
