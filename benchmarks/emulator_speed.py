"""Speed of the emulator on one core: our Blackwell kernel on bfloat16 cubes, by checks and size.

    python benchmarks/emulator_speed.py --sizes 256 512 1024 2048 4096 --strict-up-to 1024

Times are CPU seconds of the launch, the least of the repeats, and say nothing about any GPU. Every
result is compared with a float32 product of the same integers.
"""

import argparse
import datetime
import platform
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import jaxbw
from jaxbw import emulator
from tests.emulator import gemm_launch
from tests.emulator.gemm_launch import BF16, SM100, Config

KERNELS = Path(jaxbw.__file__).parent / "kernels"
CONFIG = Config(SM100, block_m=256, block_n=256, cta_group=2, cluster=(2, 1), stages=4, swizzle=8)
KERNEL = "jaxbw_sm100_16bit_2cta"


@dataclass(frozen=True)
class Timing:
    """CPU seconds and executed warp instructions of one launch."""

    seconds: float
    instructions: int


def measure(module: emulator.Module, size: int, checks: str, repeats: int) -> Timing:
    """Multiplies two `size` x `size` matrices; returns the fastest launch."""
    rng = np.random.default_rng(size)
    lhs, rhs = (gemm_launch.integers(rng, 1, size, size) for _ in range(2))
    best = None
    for _ in range(repeats):
        before = time.process_time()
        result, report = gemm_launch.run(module, CONFIG, lhs, rhs, BF16, checks=checks)
        seconds = time.process_time() - before
        if best is None or seconds < best.seconds:
            best = Timing(seconds, report.steps)
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


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description="Speed of the emulator on one core")
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096])
    parser.add_argument("--strict-up-to", type=int, default=1024, metavar="SIZE")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    module = emulator.Module((KERNELS / f"{KERNEL}.ptx").read_text())
    print(
        f"{cpu()}, one core, {datetime.date.today()}, {KERNEL}, {CONFIG.block_m}x{CONFIG.block_n}"
    )
    print(
        "| m = n = k | checks off | hardware | strict | strict / off | instructions | per second |"
    )
    print("|---|---|---|---|---|---|---|")
    for size in arguments.sizes:
        repeats = arguments.repeats if size <= 2048 else 1
        timings = {"off": measure(module, size, "off", repeats)}
        if size <= arguments.strict_up_to:
            for checks in ("hardware", "strict"):
                timings[checks] = measure(module, size, checks, repeats)
        off = timings["off"]
        cells = [
            f"{timings[c].seconds:.3f} s" if c in timings else "" for c in ("hardware", "strict")
        ]
        ratio = f"{timings['strict'].seconds / off.seconds:.1f}" if "strict" in timings else ""
        rate = f"{off.instructions / off.seconds / 1e6:.2f} M"
        row = [f"{size}", f"{off.seconds:.3f} s", *cells, ratio, f"{off.instructions:,}", rate]
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
