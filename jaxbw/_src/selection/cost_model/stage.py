"""One stage of the ring: what loading and multiplying it takes."""

from dataclasses import dataclass

import numpy as np

from jaxbw._native import Major
from jaxbw._src.families import FAMILIES
from jaxbw._src.families.family import SPAN_BYTES
from jaxbw._src.selection.candidates import Candidates
from jaxbw._src.selection.cost_model.grid import Floats, Grid
from jaxbw._src.selection.machine import Machine
from jaxbw._src.selection.workload import Workload

FULL_ROWS = 128  # of an MMA on sm100, in one CTA; 64 take as long
MMA_BYTES = 32  # hardware: of K, in one instruction, whatever the type
SCALE_ROWS = 128  # of a tile of scales, each of which is a byte
SCALE_BLOCKS = 4  # of K
LANE_QUARTERS = 4  # of Tensor Memory, all of which have the scales


@dataclass(frozen=True)
class Time:
    """A time of which a part goes with the clock."""

    cycles: Floats
    ns: Floats | float = 0.0

    def at(self, cycle: Floats) -> Floats:
        """Nanoseconds."""
        return np.asarray(self.cycles * cycle + self.ns)


@dataclass(frozen=True)
class Stage:
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
    load: Time
    round_trip: Time
    commit: Floats
    handover: Floats
    turn: float


def stage_of(work: Workload, machine: Machine, table: Candidates, cut: Grid) -> Stage:
    """An instruction takes so many cycles per column, whatever its rows: 64 rows of sm100 run at
    half the rate of 128. It reads its operands from shared memory, which bounds narrow ones."""
    height = FAMILIES[machine.family].mma_rows
    steps = table.k_spans * (SPAN_BYTES // MMA_BYTES)
    mmas = steps * np.maximum(cut.rows // height, 1)
    columns = table.block_n / table.cta_group
    useful = mmas * machine.mma_cycles_per_column * height / FULL_ROWS * table.block_n
    read = (np.minimum(cut.rows, height) + columns) * MMA_BYTES / machine.smem_bytes_per_cycle
    # Scales are copied ahead of the matmuls: each tile is issued, read, and written four times.
    scales = _scale_bytes(work, table, cut) if work.mx else 0.0
    copies = scales / (SCALE_ROWS * SCALE_BLOCKS)
    copied = scales * LANE_QUARTERS / machine.tmem_bytes_per_cycle
    read = mmas * read + scales / machine.smem_bytes_per_cycle
    issued = (mmas + copies) * machine.mma_issue_cycles + machine.stage_issue_cycles
    # machines.toml says what it stands for; several CTAs of few rows are on an SM.
    narrow_mma = np.where(cut.skinny == 1, 0, steps * machine.mma_interval_cycles)
    mma = np.maximum.reduce([useful + copied, read, issued, narrow_mma])

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
    fill = fill + scales / machine.ingest_bytes_per_cycle
    # A gap behind numbers of 4 bits fills shared memory as they do, and is not loaded.
    a, b = a_used / table.cluster_n * work.a_share, b_share * work.b_share
    slow = machine.straddle_slowdown
    straddled = a * (slow if work.a_straddles else 1)
    # Along its rows, every second tile of 96 or 160 columns begins in the middle of a line; one of
    # 32 asks for half a line.
    halves = (work.b_major == Major.MN) & (columns * work.itemsize % SPAN_BYTES != 0)
    b_slow = slow if work.b_straddles else np.where(halves, (1 + slow) / 2, 1.0)
    straddled = straddled + b_read * b * b_slow

    remote = np.where(table.ctas > 1, machine.remote_cycles, 0.0)
    pair, single = machine.mma_pair_latency_cycles, machine.mma_latency_cycles
    commit = np.where(table.cta_group == 2, pair, single)
    waiting = commit + remote + 2 * machine.wake_cycles + 2 * machine.tma_issue_cycles
    round_trip = machine.tma_latency_cycles + fill + mma + np.minimum(issued, mma) + waiting
    return Stage(
        mma=mma,
        useful=useful,
        fill=fill,
        asked=(a + b_used * b) * bytes_of_row + scales,
        straddled=straddled * bytes_of_row + scales,
        load=Time(np.asarray(machine.tma_latency_cycles), machine.tma_latency_ns),
        round_trip=Time(round_trip, machine.tma_latency_ns),
        commit=commit + machine.wake_cycles,
        handover=remote + machine.wake_cycles,
        turn=machine.sync_cycles,
    )


def _scale_bytes(work: Workload, table: Candidates, cut: Grid) -> Floats:
    """The scales in a stage of a CTA: of its rows, and of all columns of its pair."""
    last = SCALE_ROWS - np.gcd(table.block_n, SCALE_ROWS)  # row of one at which a tile starts
    of_columns = 2 if work.gated else np.ceil((last + table.block_n) / SCALE_ROWS)
    rows = np.ceil(cut.rows / SCALE_ROWS) + of_columns
    blocks = table.k_spans * SPAN_BYTES / work.itemsize / work.mx  # whole tiles
    return np.asarray(rows * SCALE_ROWS * blocks)
