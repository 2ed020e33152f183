"""How long a product would take in each of many configurations: modelled, to rank them by.

docs/selection.md explains the formulas, their sources and their limits. Constants are those of
`machine.Machine`. All functions take and give arrays, one element a configuration.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from jaxbw.selection.candidates import Candidates, Integers
from jaxbw.selection.config import MAX_CLUSTER, SPAN_BYTES
from jaxbw.selection.machine import Machine
from jaxbw.selection.workload import Workload

Floats = NDArray[np.float64]

SWIZZLES = (1, 2, 4, 8, 16)
_MMA_BYTES = 32  # hardware: of K, in one instruction, whatever the type
_MMAS_PER_SPAN = SPAN_BYTES // _MMA_BYTES
_MMA_ROWS = {"sm90": 64, "sm100": 128}  # hardware: of one instruction, in one CTA
_MAX_GRID = 2**31 - 1  # hardware: CTAs along x
_FULL_TMEM_ROWS = 256  # of a CTA whose tile is two MMA tiles


@dataclass(frozen=True)
class Costs:
    """The terms of the costs; times in nanoseconds.

    Attributes:
      tiles: cluster tiles; `items`: they, or parts of them.
      resident: clusters that run at a time.
      waves: rounds of items that fill the device.
      efficiency: the share of the SMs' time, over all waves, in which they have a tile.
      mma, fill, issue, latency: what bounds the main loop of an SM: tensor cores, its port into
        shared memory, the issuing thread, loads in flight.
      l2, dram: what the SMs together read from L2, and read and write in memory.
      main_loop: all of these together, as they overlap.
      epilogue: the part of the epilogues that nothing hides.
      fixed: launch, set-up, the first loads.
      split: bringing the parts of split tiles together.
      repack: operands that are copied ahead.
      tuned: 0, until a tuned table corrects the total.
      total: the sum.
      band_along_n, swizzle: the rasterisation.
    """

    tiles: Integers
    items: Integers
    resident: Integers
    waves: Integers
    efficiency: Floats
    mma: Floats
    fill: Floats
    issue: Floats
    latency: Floats
    l2: Floats
    dram: Floats
    main_loop: Floats
    epilogue: Floats
    fixed: Floats
    split: Floats
    repack: Floats
    tuned: Floats
    total: Floats
    band_along_n: Integers
    swizzle: Integers

    def row(self, index: int) -> dict[str, float]:
        """One configuration's terms, by name."""
        return {field.name: getattr(self, field.name)[index].item() for field in fields(self)}


@dataclass(frozen=True)
class Grid:
    """How a product is cut: CTA and cluster tiles, waves of them."""

    rows: Integers  # of a CTA
    cluster_rows: Integers
    cluster_columns: Integers  # of D
    tiles_m: Integers
    tiles_n: Integers
    tiles: Integers
    resident: Integers
    whole_waves: Integers
    part_waves: Integers
    part_rounds: Integers  # of split tiles that an SM brings to their end
    items: Integers


def grid(work: Workload, machine: Machine, table: Candidates) -> Grid:
    """Cuts a product."""
    rows = table.block_m // table.cta_group
    cluster_rows = table.cluster_m * rows
    cluster_columns = table.cluster_n * (table.block_n // 2 if work.gated else table.block_n)
    tiles_m, tiles_n = _ceil(work.m, cluster_rows), _ceil(work.n, cluster_columns)
    tiles = tiles_m * tiles_n * work.batch
    sizes = range(MAX_CLUSTER["sm100"] + 1)
    by_size = np.array([machine.resident_clusters(max(1, size)) for size in sizes])
    resident = by_size[table.ctas]
    split = np.where(table.split_k > 1, tiles, 0)
    split = np.where(table.split_tail == 1, tiles % resident, split)
    parts = split * table.split_k
    part_waves = _ceil(parts, resident)
    return Grid(
        rows=rows,
        cluster_rows=cluster_rows,
        cluster_columns=cluster_columns,
        tiles_m=tiles_m,
        tiles_n=tiles_n,
        tiles=tiles,
        resident=resident,
        whole_waves=_ceil(tiles - split, resident),
        part_waves=part_waves,
        part_rounds=_ceil(part_waves, table.split_k),
        items=tiles - split + parts,
    )


def evaluate(
    work: Workload,
    machine: Machine,
    table: Candidates,
    rasterisation: tuple[Integers, Integers] | None = None,
) -> Costs:
    """Prices configurations that `config.refusal` and `config.layout_refusal` let pass.

    Args:
      work: the product.
      machine: where it runs.
      table: the configurations.
      rasterisation: band_along_n and swizzle of each; None for the best.
    """
    cut = grid(work, machine, table)
    cycle = 1 / machine.clock_ghz  # ns
    ctas = table.ctas

    # The main loop of one SM: spans of K that it goes through, and what each of them takes.
    block = table.k_spans * (SPAN_BYTES // work.itemsize)
    blocks = _ceil(work.k, block)
    spans = table.k_spans * (
        cut.whole_waves * _ceil(blocks, table.cluster_k)
        + cut.part_waves * _ceil(blocks, table.split_k * table.cluster_k)
    )
    mma = spans * _mma_cycles(machine, cut.rows, table) * cycle
    b_columns = table.block_n / table.cta_group
    # Rows and columns beyond the matrix are filled with zeros, slowly, and not read.
    a_used = work.m / (cut.tiles_m * cut.cluster_rows)
    b_used = work.n / (cut.tiles_n * cut.cluster_columns)
    empty = (1 - a_used) * cut.rows + (1 - b_used) * b_columns
    filled = cut.rows + b_columns + (machine.empty_row_slowdown - 1) * empty
    fill = spans * filled * SPAN_BYTES / machine.ingest_bytes_per_cycle * cycle
    issue = spans * machine.stage_cycles / table.k_spans * cycle
    latency = spans * machine.load_latency_ns / (table.stages * table.k_spans)

    # All SMs together. What straddles lines takes L2 longer.
    a_loaded = a_used * cut.rows / table.cluster_n
    b_loaded = b_used * b_columns * table.cta_group / table.cluster_m
    loaded = (a_loaded + b_loaded) * SPAN_BYTES  # by a CTA, for each span
    a_asked = a_loaded * (machine.straddle_slowdown if work.a_straddles else 1.0)
    b_asked = b_loaded * (machine.straddle_slowdown if work.b_straddles else 1.0)
    all_rows = cut.tiles * table.cluster_m * table.cluster_n * work.k * work.itemsize
    l2 = all_rows * (a_asked + b_asked) / machine.l2_bytes_per_ns
    waves = cut.whole_waves + cut.part_waves
    active = np.asarray(cut.items / waves * ctas, np.float64)  # on average: the last may have few
    rate = dram_rate(machine, active, table.stages * table.k_spans * loaded)
    traffic, band_along_n, swizzle = _traffic(work, cut, table, rasterisation)
    dram = _dram_bytes(work, machine, traffic) / rate
    main_loop = _norm(machine.contention, mma, fill, issue, latency, l2, dram)

    work_waves = cut.whole_waves + cut.part_waves / table.split_k
    tile_time = main_loop / work_waves  # of a whole tile, or where a cluster shares its K of a part
    epilogue = _epilogue(work, machine, table, cut, tile_time)

    part_bytes = cut.rows * table.block_n * 4.0  # float32 sums of one CTA
    passes = cut.part_rounds * (1 + table.split_k)  # each part leaves its sums, the last reads all
    split = np.where(
        cut.part_rounds > 0,
        passes * part_bytes / machine.epilogue_bytes_per_cycle * cycle
        + machine.split_ns
        + machine.memset_ns,
        0.0,
    )
    split += _cluster_sum(machine, table, cut)
    start = machine.launch_ns + machine.setup_ns + machine.first_load_ns
    # A cluster that shares K has one item, whatever the scheduler.
    relaunched = (table.relaunched == 1) | (table.cluster_k > 1)
    relaunches = relaunched * (cut.whole_waves - 1).clip(0)
    fixed = (
        start + np.where(ctas > 1, machine.cluster_setup_ns, 0.0) + relaunches * machine.relaunch_ns
    )
    repack = work.repacks * machine.launch_ns + work.repack_bytes / machine.dram_bytes_per_ns
    useful = work.m * work.n * work.batch * ctas
    area = cut.cluster_rows * cut.cluster_columns
    return Costs(
        tiles=cut.tiles,
        items=cut.items,
        resident=cut.resident,
        waves=waves,
        efficiency=useful / (area * work_waves * machine.sm_count),
        mma=mma,
        fill=fill,
        issue=issue,
        latency=latency,
        l2=l2,
        dram=dram,
        main_loop=main_loop,
        epilogue=epilogue,
        fixed=fixed,
        split=split,
        repack=np.full(len(table), repack),
        tuned=np.zeros(len(table)),
        total=main_loop + epilogue + fixed + split + repack,
        band_along_n=band_along_n,
        swizzle=swizzle,
    )


def dram_rate(machine: Machine, sms: Floats, in_flight: Floats) -> Floats:
    """Bytes per nanosecond that so many SMs draw from memory, each with so many bytes in flight.

    Little's law, combined with what the memory gives, and what one SM can ask for.
    """
    most = np.minimum(sms * machine.dram_bytes_per_ns_sm, machine.dram_bytes_per_ns)
    return _norm(-2, sms * in_flight / machine.load_latency_ns, most)


def is_excluded(
    work: Workload, machine: Machine, table: Candidates, costs: Costs
) -> NDArray[np.bool_]:
    """Candidates that are not compared for this product.

    They have more parts than K has stages, CTAs without a tile in any cluster, more CTAs than a
    grid holds, or sums of parts that L2 does not keep; or they are another one in disguise.
    """
    blocks = _ceil(work.k, table.k_spans * (SPAN_BYTES // work.itemsize))
    columns = table.block_n // 2 if work.gated else table.block_n
    empty = (table.cluster_m > table.cta_group * _ceil(work.m, table.block_m)) | (
        table.cluster_n > _ceil(work.n, columns)
    )
    same = (costs.tiles < costs.resident) | (costs.items == costs.tiles)
    ctas = table.ctas
    all_parts = (table.split_k > 1) & (table.split_tail == 0)
    cta_sums = (table.block_m // table.cta_group) * table.block_n * 4.0
    sums = np.where(all_parts, costs.items * ctas * cta_sums, 0.0)
    return np.asarray(
        empty
        | (table.split_k * table.cluster_k > blocks)
        | ((table.split_tail == 1) & same)
        | (costs.items * ctas > _MAX_GRID)
        | (sums > machine.l2_bytes / 2)
    )


def _mma_cycles(machine: Machine, rows: Integers, table: Candidates) -> Floats:
    """Cycles of a CTA's, or pair's, tensor cores for one span of K.

    An instruction takes so many cycles per column, whatever its rows: 64 rows run at half the rate
    of 128. It reads its operands from shared memory, which bounds narrow ones.
    """
    heights = _MMA_ROWS[machine.family]
    tiles = np.maximum(rows // heights, 1)
    a_bytes = np.minimum(rows, heights) * _MMA_BYTES
    b_bytes = table.block_n / table.cta_group * _MMA_BYTES
    # wgmma: each of the two warpgroups has half of the tensor cores.
    rate = machine.mma_cycles_per_column * heights / 128
    multiply = rate * table.block_n
    read = (a_bytes + b_bytes) / machine.smem_bytes_per_cycle
    return np.asarray(_MMAS_PER_SPAN * tiles * np.maximum(multiply, read), np.float64)


def _traffic(
    work: Workload,
    cut: Grid,
    table: Candidates,
    rasterisation: tuple[Integers, Integers] | None,
) -> tuple[Floats, Integers, Integers]:
    """Rows of A and columns of B that the waves read, summed, each K long; and the rasterisation.

    A wave is a block of tiles, so many across as its band is wide: what it reads is its footprint.
    """
    in_wave = np.minimum(cut.resident, cut.tiles_m * cut.tiles_n)
    waves = cut.tiles / in_wave
    columns = table.cluster_n * table.block_n

    def footprint(along_n: Integers | int, swizzle: Integers | int) -> Floats:
        tiles_across = np.where(along_n, cut.tiles_n, cut.tiles_m)
        tiles_along = np.where(along_n, cut.tiles_m, cut.tiles_n)
        width = np.minimum(swizzle, tiles_across)
        length = np.clip(in_wave / width, 1, tiles_along)
        across = width * np.maximum(in_wave / (width * length), 1)
        down = np.where(along_n, length, across)
        right = np.where(along_n, across, length)
        return np.asarray(down * cut.cluster_rows + right * columns)

    if rasterisation is not None:
        along_n, swizzle = rasterisation
        return waves * footprint(along_n, swizzle), along_n, swizzle
    options = [(along_n, swizzle) for swizzle in SWIZZLES for along_n in (0, 1)]
    footprints = np.stack([footprint(*option) for option in options])
    best = np.round(footprints, 6).argmin(axis=0)
    along_n, swizzle = np.array(options, np.int64)[best].T
    return waves * footprints[best, np.arange(len(table))], along_n, swizzle


def _dram_bytes(work: Workload, machine: Machine, traffic: Floats) -> Floats:
    """Read and written in memory: everything once, and again what L2 did not keep."""
    row = work.k * work.itemsize
    a = work.m * row * (work.batch if work.a_batched else 1)
    b = work.n * row * (work.batch if work.b_batched else 1) * (2 if work.gated else 1)
    d = work.m * work.n * work.batch * (work.output_size + work.extra_bytes)
    lost = 1 - min(1.0, machine.l2_bytes / (a + b))
    again = np.maximum(traffic * row - (a + b), 0)
    return np.asarray(a + b + d + lost * again, np.float64)


def _epilogue(
    work: Workload, machine: Machine, table: Candidates, cut: Grid, tile_time: Floats
) -> Floats:
    """What epilogues take that no main loop hides: the last one, and where there is no second
    accumulator every one."""
    cycle = 1 / machine.clock_ghz
    # Columns are stored one by one, those of the matrix; rows and boxes whole.
    columns = np.minimum(table.block_n, work.n) if work.swapped else table.block_n
    elements = cut.rows * columns / table.cluster_k
    slow = machine.columns_slowdown if work.swapped else 1.0
    slow = slow if work.swapped or work.tma_rows else machine.rows_slowdown
    cycles = slow / machine.epilogue_elements_per_cycle
    cycles += work.activated * machine.activation_cycles
    cycles += work.extra_bytes / machine.epilogue_bytes_per_cycle
    one = elements * cycles * cycle + machine.epilogue_ns
    others = cut.whole_waves + cut.part_rounds - 1
    if machine.family == "sm90":
        # Half of the warps finish a tile of pingpong, beside the main loop of the other half.
        alone = 2 * one - machine.epilogue_ns
        hidden = alone + others * np.maximum(alone - tile_time, 0)
        return np.asarray(np.where(table.pingpong == 1, hidden, one * (others + 1)))
    # Two MMA tiles leave Tensor Memory through registers before the next item may begin.
    drain = np.where(
        cut.rows == _FULL_TMEM_ROWS, elements / machine.drain_elements_per_cycle * cycle, 0.0
    )
    hidden = others * (drain + np.maximum(one - drain - tile_time, 0))
    exposed = (table.accumulators == 1) | (table.relaunched == 1)
    return np.asarray(one + np.where(exposed, others * one, hidden))


def _cluster_sum(machine: Machine, table: Candidates, cut: Grid) -> Floats:
    """Adding up the parts along K that the CTAs of a cluster have of a tile."""
    sums = cut.rows * table.block_n * 4.0 / machine.cluster_sum_bytes_per_cycle
    one = sums / machine.clock_ghz + machine.cluster_sum_ns
    return np.asarray(np.where(table.cluster_k > 1, one * cut.whole_waves, 0.0))


def _norm(exponent: float, *terms: Floats) -> Floats:
    """Nearly the largest (or with a negative exponent the least), and more where two are close.

    What overlaps takes as long as the longest, but it contends for the same memories.
    """
    reference = np.maximum.reduce(np.broadcast_arrays(*terms))
    scaled = sum((term / reference) ** exponent for term in terms)
    return np.asarray(reference * np.asarray(scaled) ** (1 / exponent))


def _ceil(a: Integers | int, b: Integers | int) -> Integers:
    return np.asarray(-(-np.asarray(a, np.int64) // b))
