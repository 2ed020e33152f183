"""The pipeline in closed form: many configurations at once, to search among them.

It stands for the replay of warp-specialised, persistent kernels, and agrees with it within 3 % at
shapes that fill the machine (tests/model/test_analytic.py). Hopper's contend for L2 beyond that,
which was fitted to measurements (`_by_teams`). One array element is one configuration.
"""

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from jaxbw.model.kernel import FULL_ROWS, MMA_BYTES, TEAM_ROWS, Kernel
from jaxbw.model.machine import Replayed
from jaxbw.model.pipeline import EPILOGUE_WARPS
from jaxbw.model.schedule import Raster, Shape
from jaxbw.model.teams import TEAMS

Floats = NDArray[np.float64]
KINDS = (None, "cooperative", "pingpong")
_PINGPONG = 2
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
    teams: Floats  # index of KINDS
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
                *(k.accumulators, k.chunk, k.buffers, KINDS.index(k.teams)),
                *(raster.width, raster.across == "n"),
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
    of_teams = machine.placed.family == "sm90"
    height = TEAM_ROWS if of_teams else FULL_ROWS
    mma_tiles = np.maximum(1, rows // height)
    mmas = mma_tiles * t.k_bytes / MMA_BYTES
    operands = (np.minimum(rows, height) + columns) * MMA_BYTES
    column = machine["mma_cycles_per_column"] * height / FULL_ROWS
    useful = mmas * column * t.block_n * cycle
    mma = np.maximum(useful, mmas * operands / machine["smem_bytes_per_cycle"] * cycle)
    mma = np.maximum(mma, mmas * machine["mma_issue_cycles"] * cycle)
    if of_teams:
        # A product waits for the accumulators of the one before it.
        mma = np.maximum(mma, t.k_bytes / MMA_BYTES * machine["mma_interval_cycles"] * cycle)
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

    def tile(missed: Floats, late: Floats, active: Floats) -> Floats:
        """Nanoseconds of one tile's products, by what bounds them; a row each."""
        share = active * ctas
        l2 = (blocks * asked + stored) * share / l2_rate
        memory = (blocks * asked * missed + stored) * share / memory_rate
        ring = blocks * (round_trip + late * machine["memory_latency_ns"]) / t.stages
        return np.array([blocks * mma, blocks * port, l2, memory, ring])

    tiles_by_bound = _Tiles(
        beginning=tile(first, np.ones_like(rows), resident),
        steady=tile(later, late, resident),
        ending=tile(later, late, last),
    )
    drained = _Drained(
        mma_tiles, np.minimum(rows, height), stored, cycle, wake, commit, commit + remote + 2 * wake
    )
    finish = _by_teams if of_teams else _through_tensor_memory
    tiles_time, epilogue = finish(machine, t, tiles_by_bound, drained, waves)
    fill = np.maximum(machine["first_load_ns"], load) + port + issue
    setup = np.where(ctas > 1, machine["setup_ns"], machine["single_setup_ns"])
    visible = machine["store_visible_cycles"] * cycle
    time = setup + fill + tiles_time + commit + epilogue + visible + machine["launch_ns"]
    used = tiles * ctas / machine["sm_count"] * blocks * useful / time
    bounds = np.array([*tiles_by_bound.steady, epilogue])
    return Estimates(time / 1000, used, ghz, waves, bounds)


@dataclass(frozen=True)
class _Tiles:
    """Nanoseconds of the products of a tile in the first, a middle and the last wave, by bound."""

    beginning: Floats
    steady: Floats
    ending: Floats


@dataclass(frozen=True)
class _Drained:
    """What is to be stored of a tile, and what lies before and behind it.

    Attributes:
      mma_tiles: MMA tiles of a CTA; mma_rows: of one; stored: bytes of the result.
      cycle, wake: nanoseconds of one; of a waiter.
      commit: from the last product to its accumulator; handover: to the next tile's products.
    """

    mma_tiles: Floats
    mma_rows: Floats
    stored: Floats
    cycle: Floats
    wake: Floats
    commit: Floats
    handover: Floats


def _through_tensor_memory(
    machine: Replayed, t: Pipelines, tiles: _Tiles, drained: _Drained, waves: Floats
) -> tuple[Floats, Floats]:
    """Nanoseconds of all tiles up to the last product, and of an epilogue by four warps."""
    mma_tiles, cycle = drained.mma_tiles, drained.cycle
    chunks = np.ceil(t.block_n / t.chunk)
    latency = machine["tmem_latency_cycles"] + machine["chunk_cycles"]
    read_out = drained.mma_rows * t.block_n * 4 / machine["tmem_bytes_per_cycle"]
    busy = drained.stored / machine["stage_bytes_per_cycle"] / (chunks * mma_tiles)
    # One's latencies are another's use of the engines.
    one = np.maximum(busy, busy / EPILOGUE_WARPS + latency + read_out / chunks)
    read = machine["store_read_cycles"] + busy / EPILOGUE_WARPS
    one = np.maximum(one, np.where(t.buffers > 1, (read + latency + busy) / 2, read + latency))
    epilogue = one * chunks * mma_tiles * cycle + drained.wake
    # Where the next product waits for the accumulator, what drains it stands alone.
    full = mma_tiles > 1
    rest = np.maximum(chunks - t.buffers, 0)
    of_chunk = drained.mma_rows * t.chunk * 4 / machine["tmem_bytes_per_cycle"]
    rest = rest * (of_chunk + machine["tmem_latency_cycles"]) * cycle
    held = np.where(full, t.buffers * one * cycle + rest, epilogue)
    exposed = np.where(full | (t.accumulators == 1), held + drained.handover, 0.0)
    exposed = np.where(waves > 1, exposed, 0.0)
    steady = tiles.steady.max(axis=0)
    middle = np.maximum(steady + exposed, epilogue)
    ending = np.maximum(tiles.ending.max(axis=0) + exposed, middle - steady)
    ending = np.where(waves == 1, 0.0, ending)
    time = tiles.beginning.max(axis=0) + np.maximum(waves - 2, 0) * middle + ending
    return time, epilogue


def _by_teams(
    machine: Replayed, t: Pipelines, tiles: _Tiles, drained: _Drained, waves: Floats
) -> tuple[Floats, Floats]:
    """The same of teams: what multiplies stores, too, while loads go on.

    Both together, or in turns. What overlaps contends for the same memories: it takes nearly as
    long as the longest, and more where several are close.
    """
    pingpong = t.teams == _PINGPONG
    sharing = np.where(pingpong, 1, TEAMS)  # the way out, of chunks
    chunks = np.ceil(t.block_n / t.chunk) * drained.mma_tiles
    size = drained.stored / chunks
    filling, leaving = (
        size / machine[rate] for rate in ("stage_bytes_per_cycle", "store_bytes_per_cycle")
    )
    chunk = filling + machine["chunk_cycles"] + machine["tma_issue_cycles"]
    again = (chunk + leaving + machine["store_read_cycles"]) / t.buffers
    each = np.maximum.reduce([chunk, again, sharing * filling, sharing * leaving])
    epilogue = ((chunks / sharing - 1) * each + chunk + leaving) * drained.cycle

    multiply = tiles.steady[0]
    whole = multiply + drained.commit + drained.wake + epilogue
    turn = multiply + machine["sync_cycles"] * drained.cycle
    busy = np.where(pingpong, np.maximum(turn, whole / TEAMS), whole)

    def together(bounds: Floats, tensor: Floats) -> Floats:
        terms = np.array([tensor, *bounds[1:]])
        most, exponent = terms.max(axis=0), machine["overlap_exponent"]
        return np.asarray(most * ((terms / most) ** exponent).sum(axis=0) ** (1 / exponent))

    several = waves > 1
    time = np.maximum(waves - 2, 0) * together(tiles.steady, busy)
    time = time + np.where(several, together(tiles.beginning, busy), 0.0)
    last = np.where(several, tiles.ending, tiles.beginning)
    return time + together(last, multiply), epilogue


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
