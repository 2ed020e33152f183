"""Climbs the ladder of rungs.py: one matmul, from CUDA cores to the full kernel.

    python examples/ladder/run.py --png ladder.png

The rungs are run in the emulator, which shows what each does and not how fast it is: bytes that are
read from global memory and that reach shared memory, MMA instructions, and how often a warp had to
wait. On a Blackwell GPU those that are configurations of the shipping kernel are timed. Both check
the result bit for bit. The published column is the articles', never ours.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

# Behind the installed jaxbw: the checkout's has no compiled part.
sys.path.extend(str(Path(__file__).parents[2] / part) for part in ("", "examples", "cuda/kernels"))

from ladder import own_kernels
from ladder.rungs import PUBLISHED, RUNGS, Rung

import jaxbw
from jaxbw import _native, emulator
from jaxbw._src.lab.bench.measure import bursts
from jaxbw._src.lab.bench.report import columns
from jaxbw._src.lab.bench.statistics import median
from jaxbw._src.lab.bench.timer import Cupti, Matmul, Rotation
from jaxbw._src.selection.config import GemmConfig
from tests.emulator import gemm_launch, installed
from tests.emulator.gemm_launch import BF16

Array = npt.NDArray[Any]
EMULATED, TIMED = (1024, 1024, 256), (4096, 4096, 4096)  # m, n, k
NAIVE_ROWS = 16  # that the first step computes in the emulator; its counts grow with the rows
SMS = 16  # of the emulated GPU: one cluster of the largest at a time
RATE = "TFLOP/s"


@dataclass(frozen=True)
class Counts:
    """What one step did, emulated: bytes, MMA instructions, and times that a warp waited."""

    loaded: int
    to_shared: int
    mma_operands: int
    mmas: int
    waits: int


def operands(m: int, n: int, k: int) -> tuple[Array, Array]:
    """lhs [m, k] and rhs [n, k], integers: every sum is exact, in any order."""
    rng = np.random.default_rng(0)
    return gemm_launch.integers(rng, m, k), gemm_launch.integers(rng, n, k)


def check(rung: Rung, result: Array, lhs: Array, rhs: Array) -> None:
    """Compares all bits of a result.

    Raises:
      AssertionError: one is wrong.
    """
    expected = (lhs @ rhs.T).astype(BF16)
    wrong = int((result.view(np.uint16) != expected.view(np.uint16)).sum())
    assert wrong == 0, f"{rung.name}: {wrong} of {expected.size} elements are wrong"


def launch(rung: Rung, lhs: Array, rhs: Array, **options: Any) -> tuple[Array, emulator.Report]:
    """Runs a step in the emulator; returns the result and the report."""
    if isinstance(rung.kernel, str):
        return own_kernels.launch(rung.kernel, lhs, rhs, sm_count=SMS, **options)
    module = installed.load(f"jaxbw_sm100_16bit_{rung.kernel.cta_group}cta")
    config = gemm_launch.from_gemm_config(rung.kernel, 0, 0, BF16)
    matmul = gemm_launch.Matmul(lhs[None], rhs.T[None], BF16)
    outcome = gemm_launch.launch(module, config, matmul, sm_count=SMS, **options)
    return outcome.d[0], outcome.report


def emulate(rung: Rung, lhs: Array, rhs: Array) -> Counts:
    """Runs a step in the emulator, which checks it, and checks its result."""
    rows = lhs[:NAIVE_ROWS] if rung.kernel == "naive" else lhs
    # "latest": what is asynchronous happens as late as it may, so that every wait shows.
    result, report = launch(rung, rows, rhs, schedule="latest")
    assert report.findings == [], report.findings
    check(rung, result, rows, rhs)
    scale = len(lhs) // len(rows)
    return Counts(
        loaded=scale * report.bytes["global load"],
        to_shared=report.bytes.get("tma load", 0),
        mma_operands=report.bytes.get("mma operands", 0),
        mmas=report.operations.get("mma", 0),
        waits=report.waits.get("mbarrier", 0) + report.waits.get("bulk group", 0),
    )


def measure(lhs: Array, rhs: Array) -> dict[str, float]:
    """TFLOP/s on the GPU of this machine of the shipping kernel's steps; checks each result."""
    (m, k), n = lhs.shape, len(rhs)
    a, b = (jnp.asarray(x, jnp.bfloat16) for x in (lhs, rhs))
    arms = {}
    for rung in RUNGS:
        if not isinstance(config := rung.kernel, GemmConfig):
            continue
        step = jax.jit(
            lambda a, b, config=config: jaxbw.dot_general(
                a, b, (((1,), (1,)), ((), ())), config=config
            )
        )
        check(rung, np.asarray(step(a, b)), lhs, rhs)
        arms[rung.name] = Rotation(Matmul(step), [(a, b)])
    timings = bursts(Cupti(), arms, rounds=6, seed=0)
    return {name: 2e-6 * m * n * k / median(each.rounds) for name, each in timings.items()}


def megabytes(count: int) -> str:
    """A number of bytes, in megabytes."""
    return f"{count / 1e6:,.2f}"


def published(rung: Rung) -> str:
    """The article's figure, if it has one."""
    return f"{rung.published:,.1f}" if rung.published else "-"


def plot(
    path: Path, sizes: tuple[int, ...], counts: dict[str, Counts], rates: dict[str, float]
) -> None:
    """Draws loads or rates of all steps, and what was published, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [rung.name for rung in RUNGS]
    shape = "x".join(map(str, sizes))
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(13, 5), sharey=True, layout="constrained"
    )
    if counts:
        title, unit = f"emulated, {shape}", "MB"
        loaded = [counts[name].loaded / 1e6 for name in names]
        shared = [counts[name].to_shared / 1e6 for name in names]
        left.barh(names, loaded, 0.4, align="edge", label="read from global memory")
        left.barh(names, shared, -0.4, align="edge", label="written to shared memory")
        derived = [rung.bytes_loaded(*sizes) / 1e6 for rung in RUNGS]
        left.plot(
            derived, np.arange(len(names)) + 0.2, "k|", ms=12, label="derived in the articles"
        )
        left.set_xscale("log")
        left.legend()
    else:
        title, unit = f"measured, {shape}", RATE
        left.barh(names, [rates.get(name, 0) for name in names])
    left.set(title=f"Operands: {title}", xlabel=unit)
    left.invert_yaxis()
    right.barh(names, [rung.published or 0 for rung in RUNGS], color="tab:gray")
    right.set(title="Published, by others (4096x4096x4096, B200)", xlabel=RATE)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Runs all steps, prints the table, draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, nargs=3, metavar=("M", "N", "K"))
    parser.add_argument("--png", type=Path, help="where to draw a picture; takes matplotlib")
    arguments = parser.parse_args()
    gpu = any(device.compute_capability[0] == 10 for device in _native.devices())
    sizes = tuple(arguments.size or (TIMED if gpu else EMULATED))
    m, n, k = sizes
    lhs, rhs = operands(m, n, k)

    rates: dict[str, float] = {}
    counts: dict[str, Counts] = {}
    if gpu:
        rates = measure(lhs, rhs)
        heads = ["", "published", f"here, {RATE}"]
        rows = [
            [rung.name, published(rung), f"{rates[rung.name]:,.1f}" if rung.name in rates else "-"]
            for rung in RUNGS
        ]
    else:
        heads = ["", "published", "loaded MB", "derived MB", "to smem MB", "MMA reads MB"]
        heads += ["MMAs", "waits"]
        rows = []
        for rung in RUNGS:
            c = counts[rung.name] = emulate(rung, lhs, rhs)
            sizes_of = (c.loaded, rung.bytes_loaded(m, n, k), c.to_shared, c.mma_operands)
            numbers = [*map(megabytes, sizes_of), f"{c.mmas:,}", f"{c.waits:,}"]
            if rung.kernel == "naive":
                numbers[2:] = "-" * 4
            rows.append([rung.name, published(rung), *numbers])
    print(f"{m}x{n}x{k}, bf16, {'on the GPU' if gpu else 'emulated: counts, not speed'}\n")
    print(columns([heads, *rows]))
    print(f"\npublished: {RATE}, {PUBLISHED}\n")
    print("\n".join(f"{rung.name}: {rung.adds}." for rung in RUNGS))
    if arguments.png:
        plot(arguments.png, sizes, counts, rates)
        print(f"\ndrawn: {arguments.png}")


if __name__ == "__main__":
    main()
