"""The pipeline in closed form: many configurations at once, to search among them.

It stands for the replay of warp-specialised, persistent kernels, and agrees with it within 3 % at
shapes that fill the machine (tests/model/test_analytic.py). One array element is one configuration.
"""

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from jaxbw.model.kernel import FULL_ROWS, MMA_BYTES, Kernel
from jaxbw.model.machine import Replayed
from jaxbw.model.pipeline import EPILOGUE_WARPS
from jaxbw.model.schedule import Raster, Shape

Floats = NDArray[np.float64]
_CLOCK_STEPS = 4


@dataclass(frozen=True)
class Pipelines:
    """Kernels and orders of tiles as columns."""

    block_m: Floats
    block_n: Floats
    stages: Floats
    group: Floats
    cluster_m: Floats
    cluster_n: Floats
    k_bytes: Floats
    accumulators: Floats
    chunk: Floats
    buffers: Floats
    width: Floats
    across_n: Floats

    @classmethod
    def of(cls, kernels: list[tuple[Kernel, Raster]]) -> Self:
        """The columns of kernels.

        Raises:
          ValueError: one is not of the kind that the formulas are for.
        """
        for kernel, _ in kernels:
            if not kernel.specialised or kernel.persistent is None or not kernel.own_epilogue:
                raise ValueError("the closed form is for specialised, persistent kernels")
            if kernel.chunk is None or kernel.narrow or kernel.loads != "tma":
                raise ValueError("the closed form is for TMA loads with a swizzle, and TMA stores")
        rows = [
            (
                *(k.block_m, k.block_n, k.stages, k.group, *k.cluster, k.k_bytes),
                *(k.accumulators, k.chunk, k.buffers, raster.width, raster.across == "n"),
            )
            for k, raster in kernels
        ]
        return cls(*np.array(rows, np.float64).reshape(len(rows), len(fields(cls))).T)


@dataclass(frozen=True)
class Estimates:
    """Modelled times in microseconds, and what bounds a tile in the steady state.

    `bounds` has a row for each of BOUNDS: nanoseconds of one tile.
    """

    us: Floats
    utilisation: Floats
    ghz: Floats
    waves: Floats
    bounds: Floats


BOUNDS = ("tensor cores", "SM port", "L2", "memory", "loads in flight", "epilogue")


def estimate(
    machine: Replayed,
    shape: Shape,
    table: Pipelines,
    ghz: float | None = None,
    *,
    itemsize: int = 2,
    output_size: int = 2,
) -> Estimates:
    """Estimates every kernel of a table.

    Args:
      machine, shape: where, and what.
      table: the kernels.
      ghz: a clock; None for the throttle law with normal data.
      itemsize, output_size: bytes of an element of operands and result.
    """
    clock = np.full(len(table.block_m), machine["max_clock_ghz"] if ghz is None else ghz)
    found = _at(machine, shape, table, clock, itemsize, output_size)
    for _ in range(_CLOCK_STEPS if ghz is None else 0):
        ratio = machine["throttle_utilisation"] / np.maximum(found.utilisation, 1e-3)
        clock = machine["throttle_clock_ghz"] * ratio ** machine["throttle_exponent"]
        clock = np.minimum(clock, machine["max_clock_ghz"])
        found = _at(machine, shape, table, clock, itemsize, output_size)
    return found


def _at(
    machine: Replayed, shape: Shape, t: Pipelines, ghz: Floats, itemsize: int, output_size: int
) -> Estimates:
    cycle = 1 / ghz
    ctas = t.cluster_m * t.cluster_n
    rows, columns = t.block_m / t.group, t.block_n / t.group
    tiles_m = np.ceil(shape.m / (t.cluster_m * rows))
    tiles_n = np.ceil(shape.n / (t.cluster_n * t.block_n))
    tiles = tiles_m * tiles_n * shape.batch
    fits = {size: machine.placed.resident_clusters(int(size)) for size in np.unique(ctas)}
    resident = np.minimum([fits[size] for size in ctas], tiles)
    waves = np.ceil(tiles / resident)
    last = tiles - (waves - 1) * resident
    blocks = np.ceil(shape.k * itemsize / t.k_bytes)

    # What one stage takes of everything.
    mma_tiles = np.maximum(1, rows // FULL_ROWS)
    mmas = mma_tiles * t.k_bytes / MMA_BYTES
    operands = (np.minimum(rows, FULL_ROWS) + columns) * MMA_BYTES
    useful = mmas * machine["mma_cycles_per_column"] * t.block_n * cycle
    mma = np.maximum(useful, mmas * operands / machine["smem_bytes_per_cycle"] * cycle)
    mma = np.maximum(mma, mmas * machine["mma_issue_cycles"] * cycle)
    port = (rows + columns) * t.k_bytes / machine["ingest_bytes_per_cycle"] * cycle
    asked = (rows / t.cluster_n + columns * t.group / t.cluster_m) * t.k_bytes
    stored = rows * t.block_n * output_size
    l2_rate, memory_rate = machine["l2_bytes_per_ns"], machine["dram_bytes_per_ns"]
    first, later, late = _missed(
        machine, shape, t, tiles_m, tiles_n, resident, waves, rows, itemsize
    )

    # A slot of the ring: loaded, multiplied, given back.
    wake = machine["wake_cycles"] * cycle
    remote = np.where(ctas > 1, machine["remote_cycles"] * cycle, 0.0)
    pair = np.where(t.group == 2, machine["mma_pair_latency_cycles"], machine["mma_latency_cycles"])
    commit = pair * cycle
    issue = 2 * machine["tma_issue_cycles"] * cycle
    issued = mmas * machine["mma_issue_cycles"] * cycle
    load = machine["tma_latency_ns"] + machine["tma_latency_cycles"] * cycle
    round_trip = load + port + mma + commit + remote + 2 * wake + issue
    round_trip = round_trip + np.minimum(issued, mma)

    chunks = np.ceil(t.block_n / t.chunk)
    latency = machine["tmem_latency_cycles"] + machine["chunk_cycles"]
    drained = rows * t.block_n * 4 / machine["tmem_bytes_per_cycle"]
    staged = stored / machine["stage_bytes_per_cycle"]
    # Four warps: one's latencies are another's use of the engines.
    busy = staged / (chunks * mma_tiles)
    one = np.maximum(busy, busy / EPILOGUE_WARPS + latency + drained / (chunks * mma_tiles))
    read = machine["store_read_cycles"] + busy / EPILOGUE_WARPS
    one = np.maximum(one, np.where(t.buffers > 1, (read + latency + busy) / 2, read + latency))
    epilogue = one * chunks * mma_tiles * cycle + wake

    def tile(missed: Floats, late: Floats, active: Floats) -> Floats:
        """Nanoseconds of one tile, by what bounds it; a row each."""
        share = active * ctas
        l2 = (blocks * asked + stored) * share / l2_rate
        memory = (blocks * asked * missed + stored) * share / memory_rate
        ring = blocks * (round_trip + late * machine["memory_latency_ns"]) / t.stages
        return np.array([blocks * mma, blocks * port, l2, memory, ring, epilogue])

    steady = tile(later, late, resident)
    # Where the next product waits for the accumulator, what drains it stands alone.
    full = mma_tiles > 1
    held = np.where(full, t.buffers * one * cycle + _rest(machine, t, rows, cycle), epilogue)
    exposed = np.where(full | (t.accumulators == 1), held + commit + remote + 2 * wake, 0.0)
    exposed = np.where(waves > 1, exposed, 0.0)
    one_wave = tile(first, np.ones_like(rows), resident)[:5].max(axis=0)
    middle = np.maximum(steady[:5].max(axis=0) + exposed, epilogue)
    ending = tile(later, late, last)[:5].max(axis=0) + exposed
    ending = np.where(waves == 1, 0.0, np.maximum(ending, middle - steady[:5].max(axis=0)))
    fill = np.maximum(machine["first_load_ns"], load) + port + issue
    setup = np.where(ctas > 1, machine["setup_ns"], machine["single_setup_ns"])
    visible = machine["store_visible_cycles"] * cycle
    time = setup + fill + one_wave + np.maximum(waves - 2, 0) * middle + ending
    time = time + commit + epilogue + visible + machine["launch_ns"]
    used = tiles * ctas / machine["sm_count"] * blocks * useful / time
    return Estimates(time / 1000, used, ghz, waves, steady)


def _rest(machine: Replayed, t: Pipelines, rows: Floats, cycle: Floats) -> Floats:
    """Reading what the staging buffers do not hold of a full Tensor Memory."""
    chunks = np.maximum(np.ceil(t.block_n / t.chunk) - t.buffers, 0)
    one = np.minimum(rows, FULL_ROWS) * t.chunk * 4 / machine["tmem_bytes_per_cycle"]
    return np.asarray(chunks * (one + machine["tmem_latency_cycles"]) * cycle)


def _missed(
    machine: Replayed,
    shape: Shape,
    t: Pipelines,
    tiles_m: Floats,
    tiles_n: Floats,
    resident: Floats,
    waves: Floats,
    rows: Floats,
    itemsize: int,
) -> tuple[Floats, Floats, Floats]:
    """Bytes from memory for each byte of the tiles' panels: in the first wave, and in later ones.

    And of the tiles of later waves, how many have a panel that no wave before has read: all of the
    first band, and of each band those of its first wave.
    """
    across = np.where(t.across_n == 1, tiles_n, tiles_m)
    along = np.where(t.across_n == 1, tiles_m, tiles_n)
    in_wave = np.minimum(resident, tiles_m * tiles_n)
    width = np.minimum(t.width, across)
    length = np.clip(in_wave / width, 1, along)
    bands = np.minimum(np.maximum(in_wave / (width * length), 1) * width, across)
    down = np.where(t.across_n == 1, length, bands)
    right = np.where(t.across_n == 1, bands, length)
    panel_m, panel_n = t.cluster_m * rows, t.cluster_n * t.block_n
    footprint = down * panel_m + right * panel_n  # of a wave, in rows and columns
    asked = in_wave * (panel_m + panel_n)
    whole = tiles_m * panel_m + tiles_n * panel_n
    kept = np.minimum(1.0, machine["l2_bytes"] / (footprint * shape.k * itemsize))
    again = np.maximum(waves * footprint - whole, 0) * (1 - kept)
    rest = np.maximum(whole - footprint, 0) + again
    later = rest / np.maximum((waves - 1) * asked, 1)
    band = along * width / in_wave  # waves
    late = np.where(band <= 1, 1.0, np.minimum(1.0, (band + across / width) / waves))
    late = np.where(again > 0, 1.0, late)
    return footprint / asked, np.minimum(later, footprint / asked), late
