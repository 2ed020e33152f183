"""Climbs the ladder of jaxbw/ladder.py: one product, from CUDA cores to the full kernel.

    python examples/ladder.py --png ladder.png

On a Blackwell GPU every step is timed. Elsewhere it runs in the emulator, which shows what a step
does and not how fast it is: bytes that are read from global memory and that reach shared memory,
MMA instructions, and how often a warp had to wait. Both check the result bit for bit. The
published column is the articles', never ours.
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
sys.path.append(str(Path(__file__).parents[1]))

from jaxbw import _native, emulator
from jaxbw.bench.measure import bursts
from jaxbw.bench.report import columns
from jaxbw.bench.statistics import median
from jaxbw.bench.timer import Cupti, Product, Rotation
from jaxbw.ladder import PUBLISHED, RUNGS, Rung
from jaxbw.selection import manifest
from tests.emulator import gemm_launch
from tests.emulator.gemm_launch import BF16, SM100

Array = npt.NDArray[Any]
EMULATED, TIMED = (1024, 1024, 256), (4096, 4096, 4096)  # m, n, k
NAIVE_ROWS = 16  # that the first step computes in the emulator; its counts grow with the rows
NAIVE_KERNEL = "jaxbw_sm100_naive_16bit"
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


def kernel_of(rung: Rung) -> str:
    """The name of the kernel that runs a step."""
    return NAIVE_KERNEL if rung.config is None else f"jaxbw_sm100_16bit_{rung.config.cta_group}cta"


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


def emulate(rung: Rung, lhs: Array, rhs: Array) -> Counts:
    """Runs a step in the emulator, which checks it, and checks its result."""
    rows = lhs if rung.config else lhs[:NAIVE_ROWS]
    if rung.config is None:
        config = gemm_launch.Config(SM100, 128, 128, rhs_major=0, scheduler="static")
    else:
        config = gemm_launch.from_gemm_config(rung.config, 0, 0, BF16)
    path = manifest.directory() / f"{kernel_of(rung)}.ptx"
    module = emulator.Module(path.read_text(), path.name)
    product = gemm_launch.Product(rows[None], rhs.T[None], BF16)
    # "latest": what is asynchronous happens as late as it may, so that every wait shows.
    outcome = gemm_launch.launch(module, config, product, sm_count=SMS, schedule="latest")
    report = outcome.report
    assert report.findings == [], report.findings
    check(rung, outcome.d[0], rows, rhs)
    scale = len(lhs) // len(rows)
    return Counts(
        loaded=scale * report.bytes["global load"],
        to_shared=report.bytes.get("tma load", 0),
        mma_operands=report.bytes.get("mma operands", 0),
        mmas=report.operations.get("mma", 0),
        waits=report.waits.get("mbarrier", 0) + report.waits.get("bulk group", 0),
    )


def attributes(rung: Rung) -> dict[str, Any]:
    """Those of the custom call (jaxbw/_native.pyi says what they are)."""
    config = rung.config
    k_major = _native.Major.K.value
    flags = ("has_c", "has_bias", "bias_along_m", "has_residual", "gated", "save", "activation")
    launch = dict.fromkeys((*flags, "split_tail", "wave", "swap_ab", "raster", "scheduler"), 0)
    launch |= dict(lhs_major=k_major, rhs_major=k_major, split_k=1, k_spans=1, swizzle=1)
    if config is None:
        ones = ("block_m", "block_n", "cluster_m", "cluster_n", "cta_group", "stages")
        launch |= dict.fromkeys((*ones, "accumulators", "store_buffers"), 1)
        launch |= dict(tma_store=0, operand_swizzle=0)
    else:
        block_m, block_n = config.tile
        deepest = _native.max_stages("sm100", block_m, block_n, config.cta_group)
        launch |= dict(
            block_m=block_m,
            block_n=block_n,
            cluster_m=config.cluster[0],
            cluster_n=config.cluster[1],
            cta_group=config.cta_group,
            stages=config.stages or deepest,
            swizzle=config.swizzle,
            accumulators=config.accumulators or 2,
            store_buffers=config.store_buffers,
            tma_store=int(config.tma_store),
            operand_swizzle=int(config.operand_swizzle),
            scheduler=1 if config.scheduler == "clc" else 2,
        )
    integers = {name: np.int32(value) for name, value in launch.items()}
    return dict(kernel=kernel_of(rung), alpha=np.float32(1), beta=np.float32(0), **integers)


def measure(lhs: Array, rhs: Array) -> dict[str, float]:
    """TFLOP/s of every step on the GPU of this machine; checks each result."""
    (m, k), n = lhs.shape, len(rhs)
    a, b = (jnp.asarray(x[None], jnp.bfloat16) for x in (lhs, rhs))
    shape = jax.ShapeDtypeStruct((1, m, n), jnp.bfloat16)
    arms = {}
    for rung in RUNGS:
        call = jax.ffi.ffi_call("jaxbw_gemm_v2", [shape])
        step = jax.jit(lambda a, b, call=call, rung=rung: call(a, b, **attributes(rung))[0])
        check(rung, np.asarray(step(a, b))[0], lhs, rhs)
        arms[rung.name] = Rotation(Product(step), [(a, b)])
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
        left.barh(names, [rates[name] for name in names])
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
        rows = [[rung.name, published(rung), f"{rates[rung.name]:,.1f}"] for rung in RUNGS]
    else:
        heads = ["", "published", "loaded MB", "derived MB", "to smem MB", "MMA reads MB"]
        heads += ["MMAs", "waits"]
        rows = []
        for rung in RUNGS:
            c = counts[rung.name] = emulate(rung, lhs, rhs)
            sizes_of = (c.loaded, rung.bytes_loaded(m, n, k), c.to_shared, c.mma_operands)
            numbers = [*map(megabytes, sizes_of), f"{c.mmas:,}", f"{c.waits:,}"]
            if rung.config is None:
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
