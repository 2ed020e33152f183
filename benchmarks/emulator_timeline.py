"""Draws docs/images/emulator-timeline.png: one CTA of the Blackwell kernel in the emulator.

python benchmarks/emulator_timeline.py picture.png [trace.json]
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import jaxbw
from jaxbw import emulator
from tests.emulator import gemm_launch
from tests.emulator.gemm_launch import BF16, SM100, Config

KERNEL = Path(jaxbw.__file__).parent / "kernels" / "jaxbw_sm100_16bit_1cta.ptx"
SIZE = 256


def main() -> None:
    """Multiplies two small matrices under a random schedule."""
    rng = np.random.default_rng(0)
    lhs, rhs = (gemm_launch.integers(rng, 1, SIZE, SIZE) for _ in range(2))
    _, report = gemm_launch.run(
        emulator.Module(KERNEL.read_text(), KERNEL.name),
        Config(SM100, block_m=128, block_n=128, stages=3),
        lhs,
        rhs,
        BF16,
        sm_count=2,
        schedule="random",
        seed=7,
        trace=True,
    )
    trace = sys.argv[2] if len(sys.argv) > 2 else None
    report.timeline(trace, png=sys.argv[1], ctas=[0])


if __name__ == "__main__":
    main()
