"""How the results of a tile leave it, and how parts of split tiles are brought together."""

from dataclasses import dataclass

import numpy as np

from jaxbw._src.families import FAMILIES
from jaxbw._src.families.family import SPAN_BYTES
from jaxbw._src.selection.candidates import Candidates, Integers
from jaxbw._src.selection.cost_model.grid import APART, SHARED, Floats, Grid
from jaxbw._src.selection.cost_model.stage import FULL_ROWS, Time
from jaxbw._src.selection.machine import Machine
from jaxbw._src.selection.workload import Workload

EPILOGUE_WARPS = 4  # of sm100
WARPGROUPS = 2  # of sm90: warpgroups that multiply, and finish what they have multiplied
STAGING_BUFFERS = 2  # of a warp of sm90, or of sm100: what is stored of a tile goes through them
_CAST = 2  # bytes of an element that a warpgroup may keep, rounded
# Of sm90: a warp's rows of a tile of so many are a slice, and parts share its chunks of columns.
_SLICES_HIGH, _SLICE_COLUMNS = 128, 32


@dataclass(frozen=True)
class Epilogue:
    """A tile's results on their way.

    Attributes:
      alone: where nothing goes on beside it.
      held: how long the next matmul waits: for all of it, unless it has accumulators of its own.
    """

    alone: Time
    held: Time


def epilogues(
    work: Workload, machine: Machine, table: Candidates, cut: Grid
) -> tuple[Epilogue, Epilogue]:
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
        # Few results, stored while other CTAs of the SM load.
        out, held = (np.where(cut.skinny == 1, 0.0, each) for each in (out, held))
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
        left = Time(leaving)
        return Epilogue(Time(alone, share_ns), Time(waiting, share_ns)), Epilogue(left, left)
    full = cut.rows > FULL_ROWS
    waits = (cut.most_accumulators == 1) | (table.relaunched == 1)
    first = held + results * beside * (cut.held_columns / table.block_n)
    early = (cut.held_columns > 0) & (table.relaunched == 0)
    holding = np.where(early, first, np.where(waits, alone, np.where(full, held, 0.0)))
    return (
        Epilogue(Time(alone, share_ns), Time(holding, np.where(waits, share_ns, 0.0))),
        Epilogue(Time(leaving), Time(np.where(waits | full, leaving, 0.0))),
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
    width = chunk_of(machine.family, work.output_size, columns)
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
    """Cycles of an epilogue by four warps; and until what the next matmul waits for has been read:

    a full Tensor Memory, or the held columns.
    """
    # With 64 rows in a CTA of a pair, two of its warps have half of the columns each.
    halves = np.where((table.block_m == 128) & (table.cta_group == 2), 2, 1)
    width = halves * chunk_of(machine.family, output_size, table.block_n // halves)
    mma_tiles = np.maximum(cut.rows // FULL_ROWS, 1)
    rows = np.minimum(cut.rows, FULL_ROWS)
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
    held_first = read_out + latency + np.maximum(cut.held_columns / width - 1, 0) * one
    return one * chunks * mma_tiles, np.where(cut.held_columns > 0, held_first, 2 * one + rest)


def chunk_of(family: str, output_size: int, columns: Integers) -> Integers:
    """Columns that a warp stores at a time: the widest that divide a tile's, and fit into a row."""
    widths = [width for width in FAMILIES[family].chunks if width * output_size <= SPAN_BYTES]
    return np.select([columns % width == 0 for width in widths], widths, widths[-1])


def end_of_split(machine: Machine, table: Candidates, cut: Grid) -> Time:
    """Each part leaves its sums. The last one reads all, or each a share, or a launch behind does,
    by all SMs."""
    sums = cut.rows * table.block_n * 4.0  # bytes
    one = sums * _of_warpgroup(table) / machine.epilogue_bytes_per_cycle
    chunks = np.maximum(cut.rows // _SLICES_HIGH * table.block_n // _SLICE_COLUMNS, 1)
    readers = np.where(cut.gathered == SHARED, np.minimum(table.split_k, chunks), 1)
    rounds = cut.part_rounds * (1 + table.split_k / readers)
    ctas = cut.parts * table.cluster_m * table.cluster_n
    reduced = ctas * sums / machine.reduce_bytes_per_ns + machine.reduce_ns
    apart = cut.gathered == APART
    waves = np.where(apart, cut.part_waves, rounds)
    return Time(waves * one, np.where(apart, reduced, machine.split_ns))
