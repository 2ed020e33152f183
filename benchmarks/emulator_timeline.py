"""Draws docs/images/emulator-timeline.png: one CTA of the Blackwell kernel in the emulator.

python benchmarks/emulator_timeline.py picture.png [trace.json]
"""

import hashlib
import sys
from pathlib import Path

import numpy as np
from PIL import Image, PngImagePlugin

sys.path.append(str(Path(__file__).parents[1]))  # for tests/; the installed package comes first

from jaxbw import emulator
from jaxbw._native import emulator as _core
from tests.emulator import gemm_launch, installed
from tests.emulator.gemm_launch import BF16, SM100, Config

SIZE = 256
EVENTS = "Events"  # what the picture says that it shows
_KIND = _core.EventKind
NOT_SHOWN = (_KIND.signal, getattr(_KIND, "pass"))


def main() -> None:
    """Multiplies two small matrices under a random schedule."""
    rng = np.random.default_rng(0)
    lhs, rhs = (gemm_launch.integers(rng, 1, SIZE, SIZE) for _ in range(2))
    _, report = gemm_launch.run(
        installed.load("jaxbw_sm100_16bit_1cta"),
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
    sign(sys.argv[1], report)


def sign(picture: str, report: emulator.Report) -> None:
    """Writes into a picture which events it shows, so that a test can tell when it is stale."""
    events = [
        (str(e.kind), e.cta, e.warp, e.begin, e.end, e.name)
        for e in report.events
        if e.kind not in NOT_SHOWN
    ]
    text = PngImagePlugin.PngInfo()
    text.add_text(EVENTS, hashlib.sha256(repr(events).encode()).hexdigest())
    with Image.open(picture) as image:
        image.save(picture, pnginfo=text, optimize=True)


if __name__ == "__main__":
    main()
