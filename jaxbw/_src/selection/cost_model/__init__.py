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

import numpy as np

from jaxbw._src.families.family import SPAN_BYTES
from jaxbw._src.selection.candidates import Candidates, Integers
from jaxbw._src.selection.cost_model.epilogue import Epilogue, end_of_split, epilogues
from jaxbw._src.selection.cost_model.grid import Floats, Grid, ceil, grid
from jaxbw._src.selection.cost_model.rasterization import Walk, walk_tiles
from jaxbw._src.selection.cost_model.stage import Stage, Time, stage_of
from jaxbw._src.selection.cost_model.waves import (
    WaveEpilogues,
    Waves,
    kinds_of_waves,
    overlapping,
    tile_period,
)
from jaxbw._src.selection.machine import Machine
from jaxbw._src.selection.workload import Workload

BOUNDS = ("mma", "fill", "l2", "dram", "latency")  # terms of a main loop, as `_at` has them
_CLOCK_STEPS = 3  # of the fixed point of clock and utilisation


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
class _Parts:
    """What the clock does not change.

    Attributes:
      blocks: stages along K of a tile; the others as they are named.
    """

    work: Workload
    cut: Grid
    walk: Walk
    blocks: Integers
    waves: Waves
    stage: Stage
    one: Epilogue
    leaving: Epilogue
    split: Time
    fixed: Floats  # without the first loads
    efficiency: Floats


def _parts(
    work: Workload,
    machine: Machine,
    table: Candidates,
    cut: Grid,
    rasterisation: tuple[Integers, Integers] | None,
) -> _Parts:
    walk = walk_tiles(work, machine, cut, table, rasterisation)
    blocks = ceil(work.k, table.k_spans * int(SPAN_BYTES / work.itemsize))
    one, leaving = epilogues(work, machine, table, cut)
    # A cluster that shares K has one item, whatever the scheduler.
    relaunched = (table.relaunched == 1) | (table.cluster_k > 1)
    setup = np.where(table.ctas > 1, machine.setup_ns, machine.single_setup_ns)
    fixed = (
        machine.launch_ns
        + np.where(cut.skinny == 1, 0, setup)  # no barriers, no tensor maps
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
        waves=kinds_of_waves(work, table, cut, walk, blocks),
        stage=stage_of(work, machine, table, cut),
        one=one,
        leaving=leaving,
        split=end_of_split(machine, table, cut),
        fixed=fixed,
        efficiency=outputs * table.ctas / (area * work_waves * machine.sm_count),
    )


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
    together = overlapping(machine, bounds)

    alone = np.where(waves.one, one, leaving)
    held = np.where(waves.one, parts.one.held.at(cycle), parts.leaving.held.at(cycle))
    ends = WaveEpilogues(alone, held, cycle)
    period = tile_period(machine, table, stage, bounds, together, ends)
    exposed = (waves.followed * (period - together)).sum(axis=0)
    main_loop = (waves.count * together).sum(axis=0)
    split = np.where(cut.part_rounds > 0, parts.split.at(cycle), 0.0)
    repack = work.repacks * machine.launch_ns + work.repack_bytes / machine.dram_bytes_per_ns
    first = np.where(cut.skinny == 1, machine.skinny_first_load_ns, machine.first_load_ns)
    fixed = parts.fixed + np.maximum(first, load) + fill
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
