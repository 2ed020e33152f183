"""Random launches of the sm90 kernels against float64, by the direct launcher.

    python -m tests.gpu.fuzz_direct --cases 10000 --seed 1 --budget 540 --out DATE_fuzz_direct.json

Every case is drawn from all that is legal (gemm_draw.py): instance, tile, cluster, splits, ring,
shape, layout, dtypes, epilogue. It is launched twice, on poisoned results and a workspace full of
garbage, between guards; both launches must agree bit for bit, and the first with the oracle, for
integers exactly. A run that was stopped, or that has used its budget, goes on where it was if it
is started again, as long as the kernels are the same. Exit status 1: a case is at fault.
"""

import random
import sys

from jaxbw import _native

from ..emulator import gemm_draw
from ..emulator.gemm_cases import Case
from . import direct, fuzzing
from .campaign import Outcome

# Results that a core checks in some tens of milliseconds; rings that wrap around several times.
H200 = gemm_draw.Gpu(
    fuzzing.SM_COUNT,
    ks=(1, 8, 24, 63, 64, 65, 136, 200, 520, 1000, 2056),
    area=1 << 22,
    work=1 << 28,
)
WAVES = {0.0: 30, 0.03: 30, 0.1: 20, 0.3: 12, 1.0: 3, 1.25: 3, 2.5: 2}  # and how often
REPEATS = 2
# Beside a whole page: addresses that are multiples of 16 bytes and no more, as TMA needs them.
GUARDS = (direct.GUARD, direct.GUARD + 16)


def draw(seed: int, number: int, gpu: gemm_draw.Gpu = H200) -> Case:
    """A case; always the same for the same kernels."""
    rng = random.Random(f"{seed} {number}")
    kernel = rng.choice(direct.kernels("sm90"))
    (waves,) = rng.choices(tuple(WAVES), tuple(WAVES.values()))
    return gemm_draw.draw_sm90_case(rng, kernel, waves, gpu)


def attempt(seed: int, number: int) -> Outcome:
    """Launches a case and compares it."""
    guard_bytes = GUARDS[number % len(GUARDS)]
    try:
        direct.check(draw(seed, number), repeats=REPEATS, guard_bytes=guard_bytes)
    except _native.DriverError as error:  # after which a context may be of no use
        return Outcome(number, str(error), lost=True)
    except (AssertionError, RuntimeError, ValueError) as error:
        return Outcome(number, str(error))
    return Outcome(number)


FUZZER = fuzzing.Fuzzer(
    "fuzz_direct",
    draw=lambda seed, number: [draw(seed, number)],
    attempt=attempt,
    attempts=10_000,
    repeats=REPEATS,
)

if __name__ == "__main__":
    sys.exit(fuzzing.main(FUZZER))
