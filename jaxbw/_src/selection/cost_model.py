"""How long a matmul would take in each of many configurations: a kernel's pipeline in closed form.

It stands for the replay of `lab.model`, whose agents wait for one another, and agrees with it
within 3 % where that serves (tests/model/test_closed_form.py). docs/selection.md explains the
formulas, their sources and their limits. Constants are those of `machine.Machine`. All functions
take and give arrays, one element a configuration.

Why it is so long: a rule of ten lines, with trees of its own, loses 0.4 % more on an H200
(benchmarks/ablate_selection.py), and a B200 has no trees: there the terms are all that is known,
and what `explain` and the laboratory show.
"""

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from jaxbw._native import Major, limits
from jaxbw._src.families import FAMILIES
from jaxbw._src.families.family import SPAN_BYTES
from jaxbw._src.selection.candidates import Candidates, Integers
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.machine import Machine
from jaxbw._src.selection.workload import Workload

Floats = NDArray[np.float64]

SWIZZLES = (1, 2, 4, 8, 16)
EPILOGUE_WARPS = 4  # of sm100
WARPGROUPS = 2  # of sm90: warpgroups that multiply, and finish what they have multiplied
STAGING_BUFFERS = 2  # of a warp of sm90, or of sm100: what is stored of a tile goes through them
_CAST = 2  # bytes of an element that a warpgroup may keep, rounded
_MMA_BYTES = 32  # hardware: of K, in one instruction, whatever the type
_FULL_ROWS = 128  # of an MMA on sm100, in one CTA; 64 take as long
_SHARED, _APART = 1, 2  # values of Grid.gathered
_CLOCK_STEPS = 3  # of the fixed point of clock and utilisation
# Of sm90: a warp's rows of a tile of so many are a slice, and parts share its chunks of columns.
_SLICES_HIGH, _SLICE_COLUMNS = 128, 32


@dataclass(frozen=True)
class Costs:
    """The terms of the costs; times in nanoseconds.

    Attributes:
      tiles: cluster tiles; `items`: they, or parts of them.
      resident: clusters that run at a time.
      waves: rounds of items that fill the device.
      efficiency: the share of the SMs' time, over all waves, in which they have a tile.
      ghz: the clock; utilisation: the part of the time in which tensor cores multiply.
      mma, fill, latency: what bounds the main loops of an SM: tensor cores, its port into shared
        memory, loads in flight.
      l2, dram: what the SMs together read from L2, and read and write in memory.
      main_loop: all of these together, as they overlap.
      epilogue: the part of the epilogues that nothing hides.
      fixed: launch, set-up, the first loads.
      split: bringing the parts of split tiles together.
      repack: operands that are copied ahead.
      tuned: 0, until a tuned table corrects the total.
      total: the sum.
      accumulators: the fewest that there can be.
      band_along_n, swizzle: the rasterisation.
    """

    tiles: Integers
    items: Integers
    resident: Integers
    waves: Integers
    efficiency: Floats
    ghz: Floats
    utilisation: Floats
    mma: Floats
    fill: Floats
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
    accumulators: Integers
    band_along_n: Integers
    swizzle: Integers

    def row(self, index: int) -> dict[str, float]:
        """One configuration's terms, by name."""
        return {field.name: getattr(self, field.name)[index].item() for field in fields(self)}


BOUNDS = ("mma", "fill", "l2", "dram", "latency")  # terms of a main loop, as `_loop` has them


@dataclass(frozen=True)
class Grid:
    """How a matmul is cut: CTA and cluster tiles, waves of them. See `_native.plan_many`."""

    legal: Integers
    kernel: Integers  # its place in `_native.kernel_names`
    stages: Integers
    rows: Integers  # of A, that a CTA loads and multiplies
    columns: Integers  # of B, that it loads
    cluster_rows: Integers
    cluster_columns: Integers  # of D
    tiles_m: Integers
    tiles_n: Integers
    tiles: Integers
    resident: Integers
    whole_tiles: Integers
    whole_waves: Integers
    part_waves: Integers
    part_rounds: Integers  # of split tiles that an SM brings to their end
    parts: Integers  # of split tiles
    items: Integers
    accumulators: Integers  # the fewest that there can be
    general: Integers  # 1: the epilogue takes the general way
    gathered: Integers  # who adds up parts: the last, all that are there, a launch behind

    @property
    def waves(self) -> Integers:
        """Of whole tiles and of parts."""
        return self.whole_waves + self.part_waves

    def take(self, keep: NDArray[Any]) -> Self:
        """Some of the rows: a mask, or indices."""
        return type(self)(*(getattr(self, field.name)[keep] for field in fields(self)))


def grid(work: Workload, machine: Machine, table: Candidates) -> Grid:
    """Cuts a matmul."""
    resident = machine.resident_by_size
    plans = table.plans(machine.family, work.native, swap_ab=work.swapped, resident=resident)
    return Grid(**plans)


def evaluate(
    work: Workload,
    machine: Machine,
    table: Candidates,
    rasterisation: tuple[Integers, Integers] | None = None,
    ghz: float | None = None,
    cut: Grid | None = None,
    rough: bool = False,
) -> Costs:
    """Prices configurations that are legal for a matmul.

    Args:
      work: the matmul.
      machine: where it runs.
      table: the configurations.
      rasterisation: band_along_n and swizzle of each; None for the best.
      ghz: a fixed clock; None for what power leaves of it, with normal data.
      cut: how they cut the matmul, where that is known.
      rough: whether the clock may be some percent too high.
    """
    parts = _parts(work, machine, table, cut or grid(work, machine, table), rasterisation)
    clock = np.broadcast_to(machine.max_clock_ghz if ghz is None else ghz, (len(table),))
    costs = _at(machine, table, parts, clock)
    for _ in range(0 if ghz is not None else 1 if rough else _CLOCK_STEPS):
        before, clock = clock, machine.throttled_ghz(costs.utilisation)
        if np.array_equal(before, clock):
            break
        costs = _at(machine, table, parts, clock)
    return costs


@dataclass(frozen=True)
class _Time:
    """A time of which a part goes with the clock."""

    cycles: Floats
    ns: Floats | float = 0.0

    def at(self, cycle: Floats) -> Floats:
        """Nanoseconds."""
        return np.asarray(self.cycles * cycle + self.ns)


@dataclass(frozen=True)
class _Waves:
    """The kinds of waves that there are, a row for each.

    Attributes:
      count: how many; `followed`: behind how many of them another one follows.
      blocks: stages that a CTA loads in one; `clusters`: that run in it.
      missed, late: see `_Loads`.
      stored: bytes of each CTA.
      one: 1 where tiles are finished, 0 where sums of parts are left.
    """

    count: Floats
    followed: Floats
    blocks: Floats
    clusters: Floats
    missed: Floats
    late: Floats
    stored: Floats
    one: Floats


@dataclass(frozen=True)
class _Parts:
    """What the clock does not change.

    Attributes:
      blocks: stages along K of a tile; `area`: elements of all tiles; the others as they are named.
    """

    work: Workload
    cut: Grid
    walk: "_Walk"
    blocks: Integers
    waves: _Waves
    stage: "_Stage"
    one: "_Epilogue"
    leaving: "_Epilogue"
    split: _Time
    fixed: Floats  # without the first loads
    efficiency: Floats


def _parts(
    work: Workload,
    machine: Machine,
    table: Candidates,
    cut: Grid,
    rasterisation: tuple[Integers, Integers] | None,
) -> _Parts:
    walk = _walk(work, machine, cut, table, rasterisation)
    blocks = _ceil(work.k, table.k_spans * (SPAN_BYTES // work.itemsize))
    one, leaving = _epilogues(work, machine, table, cut)
    # A cluster that shares K has one item, whatever the scheduler.
    relaunched = (table.relaunched == 1) | (table.cluster_k > 1)
    fixed = (
        machine.launch_ns
        + np.where(table.ctas > 1, machine.setup_ns, machine.single_setup_ns)
        + relaunched * np.maximum(cut.whole_waves - 1, 0) * machine.relaunch_ns
    )
    area = cut.cluster_rows * cut.cluster_columns
    work_waves = cut.whole_waves + cut.part_waves / table.split_k
    outputs = work.m * work.n * work.batch
    return _Parts(
        work=work,
        cut=cut,
        walk=walk,
        blocks=blocks,
        waves=_waves(work, table, cut, walk, blocks),
        stage=_stage(work, machine, table, cut),
        one=one,
        leaving=leaving,
        split=_split(machine, table, cut),
        fixed=fixed,
        efficiency=outputs * table.ctas / (area * work_waves * machine.sm_count),
    )


def _waves(work: Workload, table: Candidates, cut: Grid, walk: "_Walk", blocks: Integers) -> _Waves:
    """Waves of whole tiles, then of parts: of either the first, those between, and the last.

    Another one follows on all but the last of all, and may hide their epilogues.
    """
    w, p = cut.whole_waves, cut.part_waves
    whole, part = _ceil(blocks, table.cluster_k), _ceil(blocks, table.split_k * table.cluster_k)
    resident = np.minimum(cut.resident, cut.items)
    last_whole = cut.whole_tiles - np.maximum(w - 1, 0) * cut.resident
    last_part = cut.items - cut.whole_tiles - np.maximum(p - 1, 0) * cut.resident
    bytes_stored = work.m * work.n * work.batch * (work.output_size + work.extra_bytes)
    stored = bytes_stored / (cut.tiles * table.ctas)
    of_part = stored / table.split_k
    several = w > 1
    last_missed = np.where(several, walk.later.missed, walk.first.missed)
    last_late = np.where(several, walk.later.late, walk.first.late)
    inner, more, none = np.maximum(w - 2, 0), np.maximum(p - 1, 0), np.zeros_like(p)
    ones = np.ones_like(p)
    first, later, parts = (
        (each.missed, each.late) for each in (walk.first, walk.later, walk.parts)
    )
    kinds = (
        (several, several, whole, resident, *first, stored, ones),
        (inner, inner, whole, resident, *later, stored, ones),
        (w > 0, (w > 0) & (p > 0), whole, last_whole, last_missed, last_late, stored, ones),
        (more, more, part, resident, *parts, of_part, none),
        (p > 0, none, part, last_part, *parts, of_part, none),
    )
    there = [kind for kind in kinds if kind[0].any()] or [kinds[0]]  # of no candidate, an empty one
    return _Waves(*(np.array(column, np.float64) for column in zip(*there, strict=True)))


def _at(machine: Machine, table: Candidates, parts: _Parts, ghz: Floats) -> Costs:
    """The costs at given clocks."""
    cycle = 1 / ghz  # ns
    work, cut, walk, waves = parts.work, parts.cut, parts.walk, parts.waves
    stage = parts.stage
    mma, fill = stage.mma * cycle, stage.fill * cycle
    load, commit = stage.load.at(cycle), stage.commit * cycle
    one, leaving = parts.one.alone.at(cycle), parts.leaving.alone.at(cycle)

    # Nanoseconds of a wave of each kind, by what bounds it: a row for each of BOUNDS.
    sms = waves.clusters * table.ctas
    l2 = (waves.blocks * stage.straddled + waves.stored) * sms / machine.l2_bytes_per_ns
    memory_rate = np.minimum(sms * machine.dram_bytes_per_ns_sm, machine.dram_bytes_per_ns)
    memory = (waves.blocks * stage.asked * waves.missed + waves.stored) * sms
    memory = memory / np.maximum(memory_rate, 1)
    trip = stage.round_trip.at(cycle) + waves.late * machine.memory_latency_ns
    ring = waves.blocks * trip / cut.stages
    bounds = np.array([waves.blocks * mma, waves.blocks * fill, l2, memory, ring])
    together = _overlapping(machine, bounds)

    alone = np.where(waves.one, one, leaving)
    held = np.where(waves.one, parts.one.held.at(cycle), parts.leaving.held.at(cycle))
    period = _period(machine, table, stage, bounds, together, _Shown(alone, held, cycle))
    exposed = (waves.followed * (period - together)).sum(axis=0)
    main_loop = (waves.count * together).sum(axis=0)
    split = np.where(cut.part_rounds > 0, parts.split.at(cycle), 0.0)
    repack = work.repacks * machine.launch_ns + work.repack_bytes / machine.dram_bytes_per_ns
    fixed = parts.fixed + np.maximum(machine.first_load_ns, load) + fill
    behind = exposed + commit + one + machine.store_visible_cycles * cycle
    total = main_loop + behind + fixed + split + repack
    used = cut.tiles * table.cluster_m * table.cluster_n * parts.blocks * stage.useful * cycle
    return Costs(
        tiles=cut.tiles,
        items=cut.items,
        resident=cut.resident,
        waves=cut.waves,
        efficiency=parts.efficiency,
        ghz=ghz,
        utilisation=used / machine.sm_count / total,
        **dict(zip(BOUNDS, (waves.count * bounds).sum(axis=1), strict=True)),
        main_loop=main_loop,
        epilogue=behind,
        fixed=fixed,
        split=split,
        repack=np.full(len(table), repack),
        tuned=np.zeros(len(table)),
        total=total,
        accumulators=cut.accumulators,
        band_along_n=walk.band_along_n,
        swizzle=walk.swizzle,
    )


def memset_us(machine: Machine, config: GemmConfig) -> float:
    """Microseconds of clearing the counters of split tiles, which CUPTI leaves out of a call."""
    counted = 1 < config.split_k < limits(machine.family)["min_reduced_parts"]
    return machine.memset_ns / 1000 if counted else 0.0


def is_excluded(
    work: Workload, machine: Machine, table: Candidates, cut: Grid
) -> NDArray[np.bool_]:
    """Candidates that are not compared for this matmul.

    They are illegal for its sizes, or have CTAs without a tile in any cluster, parts for more than
    two waves (the fastest never had, of 1,266 matmuls measured on an H200), or sums of parts that
    L2 does not keep; or they are another one in disguise.
    """
    columns = table.block_n // 2 if work.gated else table.block_n
    empty = (table.cluster_m > table.cta_group * _ceil(work.m, table.block_m)) | (
        table.cluster_n > _ceil(work.n, columns)
    )
    same = (cut.tiles < cut.resident) | (cut.items == cut.tiles)
    all_parts = (table.split_k > 1) & (table.split_tail == 0)
    cta_sums = (table.block_m // table.cta_group) * table.block_n * 4.0
    sums = np.where(all_parts, cut.items * table.ctas * cta_sums, 0.0)
    return np.asarray(
        (cut.legal == 0)
        | empty
        | ((table.split_tail == 1) & same)
        | (all_parts & (cut.part_waves > 2))
        | (sums > machine.l2_bytes / 2)
    )


@dataclass(frozen=True)
class _Stage:
    """One stage of the ring, in cycles of a CTA, and what lies behind the last one.

    Attributes:
      mma: of the tensor cores; useful: of that, where nothing holds them up.
      fill: of the SM's port into shared memory.
      asked: bytes that the CTA asks L2 for and multiplies; straddled: as many as would take L2 as
        long as all that it asks for.
      load: from the issue of a load to its bytes; round_trip: until the stage is empty again.
      commit: from the last matmul to who waits for it; handover: from there to the next one.
      turn: from one warpgroup to the other.
    """

    mma: Floats
    useful: Floats
    fill: Floats
    asked: Floats
    straddled: Floats
    load: _Time
    round_trip: _Time
    commit: Floats
    handover: Floats
    turn: float


def _stage(work: Workload, machine: Machine, table: Candidates, cut: Grid) -> _Stage:
    """An instruction takes so many cycles per column, whatever its rows: 64 rows of sm100 run at
    half the rate of 128. It reads its operands from shared memory, which bounds narrow ones."""
    height = FAMILIES[machine.family].mma_rows
    steps = table.k_spans * (SPAN_BYTES // _MMA_BYTES)
    mmas = steps * np.maximum(cut.rows // height, 1)
    columns = table.block_n / table.cta_group
    useful = mmas * machine.mma_cycles_per_column * height / _FULL_ROWS * table.block_n
    read = (np.minimum(cut.rows, height) + columns) * _MMA_BYTES / machine.smem_bytes_per_cycle
    issued = mmas * machine.mma_issue_cycles + machine.stage_issue_cycles
    # A matmul of a warpgroup waits for the accumulators of the one before it.
    chain = steps * machine.mma_interval_cycles
    mma = np.maximum.reduce([useful, mmas * read, issued, chain])

    # Rows and columns beyond the matrix are filled with zeros, slowly, and not read; so are ends of
    # rows, where an operand that is not K-major is narrower than a span. What straddles lines takes
    # L2 longer.
    a_used = work.m / (cut.tiles_m * cut.cluster_rows) * cut.rows
    b_used = work.n / (cut.tiles_n * cut.cluster_columns) * columns
    # Columns that are loaded and not multiplied: the tile beside has them, but for the last.
    parts = cut.tiles_n * table.cluster_n * table.cta_group
    b_read = b_used + (cut.columns - columns) * (1 - 1 / parts)
    b_share = table.cta_group / table.cluster_m
    empty = np.minimum(cut.rows - a_used, cut.rows / table.cluster_n)
    empty = empty + np.minimum(cut.columns - b_read, cut.columns * b_share)
    filled = cut.rows + cut.columns + (machine.empty_row_slowdown - 1) * empty
    bytes_of_row = table.k_spans * SPAN_BYTES
    narrow_a = work.a_major == Major.MN and work.m * work.itemsize < SPAN_BYTES
    narrow_b = work.b_major == Major.MN and work.n * work.itemsize < SPAN_BYTES
    narrow = (narrow_a / table.cluster_n + narrow_b / table.cluster_m) * machine.narrow_row_cycles
    fill = filled * bytes_of_row / machine.ingest_bytes_per_cycle
    fill = fill + narrow * bytes_of_row / work.itemsize
    a = a_used / table.cluster_n
    slow = machine.straddle_slowdown
    straddled = a * (slow if work.a_straddles else 1)
    straddled = straddled + b_read * b_share * (slow if work.b_straddles else 1)

    remote = np.where(table.ctas > 1, machine.remote_cycles, 0.0)
    pair, single = machine.mma_pair_latency_cycles, machine.mma_latency_cycles
    commit = np.where(table.cta_group == 2, pair, single)
    waiting = commit + remote + 2 * machine.wake_cycles + 2 * machine.tma_issue_cycles
    round_trip = machine.tma_latency_cycles + fill + mma + np.minimum(issued, mma) + waiting
    return _Stage(
        mma=mma,
        useful=useful,
        fill=fill,
        asked=(a + b_used * b_share) * bytes_of_row,
        straddled=straddled * bytes_of_row,
        load=_Time(np.asarray(machine.tma_latency_cycles), machine.tma_latency_ns),
        round_trip=_Time(round_trip, machine.tma_latency_ns),
        commit=commit + machine.wake_cycles,
        handover=remote + machine.wake_cycles,
        turn=machine.sync_cycles,
    )


@dataclass(frozen=True)
class _Loads:
    """A wave's loads: the part of its bytes that comes from memory, and of its tiles that wait."""

    missed: Floats
    late: Floats


@dataclass(frozen=True)
class _Walk:
    """The order of the tiles, and what the first wave, later ones and those of parts load."""

    band_along_n: Integers
    swizzle: Integers
    first: _Loads
    later: _Loads
    parts: _Loads


def _walk(
    work: Workload,
    machine: Machine,
    cut: Grid,
    table: Candidates,
    rasterisation: tuple[Integers, Integers] | None,
) -> _Walk:
    """Which panels are read again: rows of A and columns of B, all of K, of a row of cluster tiles.

    A wave is a block of tiles, so many across as its band is wide: what it reads is its footprint.
    Of what later waves read again, L2 has kept its size of a footprint.
    """
    in_wave = np.minimum(cut.resident, cut.tiles_m * cut.tiles_n)
    all_columns = work.n * (2 if work.gated else 1)
    panel_m, panel_n = work.m / cut.tiles_m, all_columns / cut.tiles_n

    def footprint_of(
        swizzle: Integers | int, across: Integers, along: Integers, panels: tuple[Floats, Floats]
    ) -> Floats:
        """Of a wave in bands of `swizzle` tiles across, whose panels are the first."""
        width = np.minimum(swizzle, across)
        length = np.clip(in_wave / width, 1, along)
        wide = np.minimum(width * np.maximum(in_wave / (width * length), 1), across)
        return np.asarray(wide * panels[0] + length * panels[1])

    if rasterisation is not None:
        along_n, swizzle = rasterisation
    else:
        by_m = (cut.tiles_m, cut.tiles_n, (panel_m, panel_n))
        by_n = (cut.tiles_n, cut.tiles_m, (panel_n, panel_m))
        options = [(along_n, swizzle) for swizzle in SWIZZLES for along_n in (0, 1)]
        footprints = np.stack([footprint_of(s, *(by_n if n else by_m)) for n, s in options])
        best = np.round(footprints, 6).argmin(axis=0)
        along_n, swizzle = np.array(options, np.int64)[best].T
    across, along = (
        np.where(along_n, *sides)
        for sides in ((cut.tiles_n, cut.tiles_m), (cut.tiles_m, cut.tiles_n))
    )
    panels = np.where(along_n, panel_n, panel_m), np.where(along_n, panel_m, panel_n)
    footprint = footprint_of(swizzle, across, along, panels)
    width = np.minimum(swizzle, across)
    band, bands = along * width / in_wave, across / width

    asked = panel_m + panel_n  # by a cluster tile
    everything = work.m * (work.batch if work.a_batched else 1)
    everything = everything + all_columns * (work.batch if work.b_batched else 1)
    kept = np.minimum(1, machine.l2_bytes / (footprint * work.k * work.itemsize))
    again = np.maximum(cut.tiles / in_wave * footprint - everything, 0) * (1 - kept)
    begun = np.minimum(cut.resident, cut.tiles)
    first = footprint / (in_wave * asked)
    rest = np.maximum(everything - first * begun * asked, 0) + again
    later = np.minimum(rest / np.maximum((cut.tiles - begun) * asked, 1), 1)
    waves = _ceil(cut.tiles, cut.resident)
    late = np.where(band <= 1, 1.0, np.minimum(1.0, (band + bands) / waves))
    late = np.where(again > 0, 1.0, late)
    always = np.ones(len(table))
    of_parts = np.minimum((everything + again) / (cut.tiles * asked), 1)
    return _Walk(
        band_along_n=along_n,
        swizzle=swizzle,
        first=_Loads(first, always),
        later=_Loads(later, late),
        parts=_Loads(of_parts, always),
    )


@dataclass(frozen=True)
class _Epilogue:
    """A tile's results on their way.

    Attributes:
      alone: where nothing goes on beside it.
      held: how long the next matmul waits: for all of it, unless it has accumulators of its own.
    """

    alone: _Time
    held: _Time


def _epilogues(
    work: Workload, machine: Machine, table: Candidates, cut: Grid
) -> tuple[_Epilogue, _Epilogue]:
    """Of a tile, and of a part of one, which leaves its sums in memory."""
    in_tensor_memory = FAMILIES[machine.family].has_tensor_memory
    of_warpgroup = _of_warpgroup(table)
    # Columns are stored one by one, those of the matrix; rows and boxes whole.
    swapped = work.swapped
    columns = np.minimum(table.block_n, work.n) if swapped else table.block_n
    elements = cut.rows * columns / table.cluster_k * of_warpgroup
    results = elements / 2 if work.gated else elements
    if swapped or not work.tma_rows:
        slow = 1 + swapped * (machine.columns_slowdown - 1)
        slow += (not work.tma_rows) * (machine.rows_slowdown - 1)
        out = held = elements * slow / machine.epilogue_elements_per_cycle
    elif not in_tensor_memory:
        out, held = _by_warpgroups(machine, work, table, cut)
        out, held = out / table.cluster_k, held / table.cluster_k
    else:
        out, held = _through_tensor_memory(machine, work.output_size, table, cut)
    beside = np.full(len(table), work.activated * machine.activation_cycles)
    if not in_tensor_memory:  # general_cycles has the activation in it
        general = (cut.general == 1) | (work.activated & (table.cluster_k > 1))
        in_general = results * machine.general_cycles
        out, held = np.where(general, in_general, out), np.where(general, in_general, held)
        beside[general] = 0.0
    beside += work.extra_bytes / machine.epilogue_bytes_per_cycle
    sums = cut.rows * table.block_n * 4.0  # float32, of one CTA
    sent = sums * of_warpgroup * (1 - 1 / table.cluster_k)
    share = sent / machine.cluster_sum_bytes_per_cycle
    share_ns = np.where(table.cluster_k > 1, machine.cluster_sum_ns, 0.0)
    leaving = sums / machine.epilogue_bytes_per_cycle * of_warpgroup
    alone = out + results * beside + share
    if not in_tensor_memory:
        waiting = held + results * beside + share
        left = _Time(leaving)
        return _Epilogue(_Time(alone, share_ns), _Time(waiting, share_ns)), _Epilogue(left, left)
    full = cut.rows > _FULL_ROWS
    waits = (table.accumulators == 1) | (table.relaunched == 1)
    holding = np.where(waits, alone, np.where(full, held, 0.0))
    return (
        _Epilogue(_Time(alone), _Time(holding)),
        _Epilogue(_Time(leaving), _Time(np.where(waits | full, leaving, 0.0))),
    )


def _of_warpgroup(table: Candidates) -> Floats:
    """How much more of a tile a warp of sm90 finishes: in pingpong half of them have all of it."""
    return np.where(table.pingpong == 1, WARPGROUPS, 1.0)


def _by_warpgroups(
    machine: Machine, work: Workload, table: Candidates, cut: Grid
) -> tuple[Floats, Floats]:
    """Cycles of a warpgroup's epilogue, a box after the other; and until the next matmul may begin.

    Cooperative warpgroups share the way out. They store some boxes at once, and the others beside
    the next tile where what is left to do is a cast to 16 bits.
    """
    pingpong = table.pingpong == 1
    sharing = np.where(pingpong, 1, WARPGROUPS)
    columns = table.block_n // 2 if work.gated else table.block_n
    width = _chunk(machine.family, work.output_size, columns)
    count = columns / width * (cut.rows // FAMILIES[machine.family].mma_rows) / sharing
    size = FAMILIES[machine.family].mma_rows * width * work.output_size
    filling, leaving = size / machine.stage_bytes_per_cycle, size / machine.store_bytes_per_cycle
    box = filling + machine.chunk_cycles + machine.tma_issue_cycles
    # Two buffers: the one is filled while the other is read.
    again = (box + leaving + machine.store_read_cycles) / STAGING_BUFFERS
    each = np.maximum.reduce([box, again, sharing * filling, sharing * leaving])
    alone = (count - 1) * each + box
    cast = not work.gated and work.output_size == _CAST
    delayed = ~pingpong & cast & (table.cluster_k * table.split_k == 1)
    at_once = np.minimum(count, STAGING_BUFFERS) * np.maximum(box, sharing * filling)
    return alone + leaving, np.where(delayed, np.minimum(at_once, alone), alone)


def _through_tensor_memory(
    machine: Machine, output_size: int, table: Candidates, cut: Grid
) -> tuple[Floats, Floats]:
    """Cycles of an epilogue by four warps; and until a full Tensor Memory has been read."""
    # With 64 rows in a CTA of a pair, two of its warps have half of the columns each.
    halves = np.where((table.block_m == 128) & (table.cta_group == 2), 2, 1)
    width = halves * _chunk(machine.family, output_size, table.block_n // halves)
    mma_tiles = np.maximum(cut.rows // _FULL_ROWS, 1)
    rows = np.minimum(cut.rows, _FULL_ROWS)
    chunks = np.ceil(table.block_n / width)
    read_out = rows * width * 4 / machine.tmem_bytes_per_cycle
    busy = rows * width * output_size / machine.stage_bytes_per_cycle
    latency = machine.tmem_latency_cycles + machine.chunk_cycles
    # One warp's latencies are another's use of the engines.
    one = np.maximum(busy, busy / EPILOGUE_WARPS + latency + read_out)
    again = (machine.store_read_cycles + busy / EPILOGUE_WARPS + latency + busy) / 2
    one = np.maximum(one, again)
    # It drains first what fits into two staging buffers, then the rest into registers.
    rest = np.maximum(chunks - 2, 0) * (read_out + machine.tmem_latency_cycles)
    return one * chunks * mma_tiles, 2 * one + rest


def _chunk(family: str, output_size: int, columns: Integers) -> Integers:
    """Columns that a warp stores at a time: the widest that divide a tile's, and fit into a row."""
    widths = [width for width in FAMILIES[family].chunks if width * output_size <= SPAN_BYTES]
    return np.select([columns % width == 0 for width in widths], widths, widths[-1])


@dataclass(frozen=True)
class _Shown:
    """The epilogues of waves, in nanoseconds; see `_Epilogue`."""

    alone: Floats
    held: Floats
    cycle: Floats


def _period(
    machine: Machine,
    table: Candidates,
    stage: _Stage,
    bounds: Floats,
    together: Floats,
    epilogue: _Shown,
) -> Floats:
    """Nanoseconds from one tile to the next, of a CTA that has several."""
    cycle, commit = epilogue.cycle, stage.commit * epilogue.cycle
    if FAMILIES[machine.family].has_tensor_memory:
        handed = epilogue.held + commit + stage.handover * cycle
        waits = np.where(epilogue.held > 0, handed, 0.0)
        return np.asarray(np.maximum(together + waits, epilogue.alone))
    # Nobody multiplies until a tile is on its way, or the other warpgroup does; loads go on.
    whole = bounds[0] + commit + epilogue.held
    turn = bounds[0] + stage.turn * cycle
    busy = np.where(table.pingpong == 1, np.maximum(turn, whole / WARPGROUPS), whole)
    beside = _overlapping(machine, np.array([busy, *bounds[1:]]))
    # CTAs that share K have one tile, and the next ones start when they are gone.
    return np.where(table.cluster_k > 1, together + commit + epilogue.alone, beside)


def _split(machine: Machine, table: Candidates, cut: Grid) -> _Time:
    """Each part leaves its sums. The last one reads all, or each a share, or a launch behind does,
    by all SMs."""
    sums = cut.rows * table.block_n * 4.0  # bytes
    one = sums * _of_warpgroup(table) / machine.epilogue_bytes_per_cycle
    chunks = np.maximum(cut.rows // _SLICES_HIGH * table.block_n // _SLICE_COLUMNS, 1)
    readers = np.where(cut.gathered == _SHARED, np.minimum(table.split_k, chunks), 1)
    rounds = cut.part_rounds * (1 + table.split_k / readers)
    ctas = cut.parts * table.cluster_m * table.cluster_n
    reduced = ctas * sums / machine.reduce_bytes_per_ns + machine.reduce_ns
    apart = cut.gathered == _APART
    counted = machine.split_ns + machine.memset_ns
    return _Time(np.where(apart, cut.part_waves, rounds) * one, np.where(apart, reduced, counted))


def _overlapping(machine: Machine, bounds: Floats) -> Floats:
    """Nearly the longest of what overlaps, and more where several are close.

    They contend for the same memories.
    """
    longest = bounds.max(axis=0)
    scaled = bounds / np.maximum(longest, 1e-9)
    if machine.overlap_exponent == 4:  # as on the H200: squares take a tenth of powers' time
        return np.asarray(longest * np.sqrt(np.sqrt(np.square(np.square(scaled)).sum(axis=0))))
    scaled **= machine.overlap_exponent
    return np.asarray(longest * scaled.sum(axis=0) ** (1 / machine.overlap_exponent))


def _ceil(a: Integers | int, b: Integers | int) -> Integers:
    return np.asarray(-(-np.asarray(a, np.int64) // b))
