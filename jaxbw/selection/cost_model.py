"""How long a configuration would take, in SM cycles: a first model, to rank candidates by.

Its numbers are hardware rates or predicted, none is fitted to a measurement of jaxbw. It counts
the waves of cluster tiles over the SMs and prices a tile's main loop and epilogue.
"""

import math
from dataclasses import dataclass

from jaxbw.problem import GemmProblem
from jaxbw.selection.config import GemmConfig
from jaxbw.selection.devices import Device

# Hardware: dense 16-bit multiply-adds per cycle and SM (H100 SXM: 989 TFLOP/s over 132 SMs at
# 1.83 GHz; B200: tcgen05.mma of K = 16 takes N/2 cycles for 128 rows of a CTA).
_FMA_PER_CYCLE = {"sm90": 2048, "sm100": 4096}
_L2_BYTES_PER_CYCLE = 64  # hardware: per SM
_EPILOGUE_BYTES_PER_CYCLE = 128  # hardware: shared-memory bandwidth, which the staging goes through
# Predicted: loads overlap the MMAs, but a part of their time shows through contention for L2 and
# shared memory. Below 0.4 for sm100 to prefer seven full waves of 256x128 over 3.5 of 256x256.
_VISIBLE_LOADS = 0.25
_ELEMENT_BYTES = 2


@dataclass(frozen=True)
class Cost:
    """`waves`: how often the device is filled. `cycles`: of the whole product."""

    waves: int
    cycles: float


def grid(problem: GemmProblem, config: GemmConfig) -> tuple[int, int]:
    """Cluster tiles along M and N."""
    rows = config.cluster[0] * config.block_m // config.cta_group
    columns = config.cluster[1] * config.block_n
    return math.ceil(problem.m / rows), math.ceil(problem.n / columns)


def resident_clusters(device: Device, config: GemmConfig) -> int:
    """Clusters that run at a time, one CTA to an SM. SMs come in pairs: clusters of 2 fit."""
    return max(1, device.sm_count // math.prod(config.cluster))


def cost(problem: GemmProblem, device: Device, family: str, config: GemmConfig) -> Cost:
    """Prices a valid configuration. Its `stages` and `swizzle` do not matter here."""
    work = math.prod(grid(problem, config)) * problem.batch
    waves = math.ceil(work / resident_clusters(device, config))

    rows, columns = config.block_m // config.cta_group, config.block_n
    k_blocks = math.ceil(problem.k / config.block_k)
    mma = rows * columns * config.block_k / _FMA_PER_CYCLE[family]
    # Read from L2 by one CTA: its part of A and of B, each loaded once for the CTAs that share it.
    loaded = rows / config.cluster[1] + columns / config.cluster[0]
    load = loaded * config.block_k * _ELEMENT_BYTES / _L2_BYTES_PER_CYCLE
    main_loop = k_blocks * (mma + _VISIBLE_LOADS * load)
    epilogue = rows * columns * problem.output.itemsize / _EPILOGUE_BYTES_PER_CYCLE
    # sm100 has two accumulators: the next tile's main loop hides every epilogue but the last.
    epilogues = waves if family == "sm90" else 1
    return Cost(waves, waves * main_loop + epilogues * epilogue)


def rasterisation(problem: GemmProblem, device: Device, config: GemmConfig) -> int:
    """Cluster tiles along M to walk together: the least rows and columns that one wave reads."""
    tiles_m, _ = grid(problem, config)
    resident = resident_clusters(device, config)
    rows = config.cluster[0] * config.block_m // config.cta_group
    columns = config.cluster[1] * config.block_n

    def footprint(group: int) -> int:
        return group * rows + math.ceil(resident / group) * columns

    return min((group for group in (1, 2, 4, 8, 16) if group <= tiles_m), key=footprint)
