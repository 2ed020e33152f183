"""The kinds of waves that a launch has, and how the work of one overlaps."""

from dataclasses import dataclass

import numpy as np

from jaxbw._src.families import FAMILIES
from jaxbw._src.selection.candidates import Candidates, Integers
from jaxbw._src.selection.cost_model.epilogue import WARPGROUPS
from jaxbw._src.selection.cost_model.grid import Floats, Grid, ceil
from jaxbw._src.selection.cost_model.rasterization import Walk
from jaxbw._src.selection.cost_model.stage import Stage
from jaxbw._src.selection.machine import Machine
from jaxbw._src.selection.workload import Workload


@dataclass(frozen=True)
class Waves:
    """The kinds of waves that there are, a row for each.

    Attributes:
      count: how many; `followed`: behind how many of them another one follows.
      blocks: stages that a CTA loads in one; `clusters`: that run in it.
      missed, late: see `Loads`.
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


def kinds_of_waves(
    work: Workload, table: Candidates, cut: Grid, walk: Walk, blocks: Integers
) -> Waves:
    """Waves of whole tiles, then of parts: of either the first, those between, and the last.

    Another one follows on all but the last of all, and may hide their epilogues.
    """
    w, p = cut.whole_waves, cut.part_waves
    whole, part = ceil(blocks, table.cluster_k), ceil(blocks, table.split_k * table.cluster_k)
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
    return Waves(*(np.array(column, np.float64) for column in zip(*there, strict=True)))


@dataclass(frozen=True)
class WaveEpilogues:
    """The epilogues of waves, in nanoseconds; see `Epilogue`."""

    alone: Floats
    held: Floats
    cycle: Floats


def tile_period(
    machine: Machine,
    table: Candidates,
    stage: Stage,
    bounds: Floats,
    together: Floats,
    epilogue: WaveEpilogues,
) -> Floats:
    """Nanoseconds from one tile to the next, of a CTA that has several."""
    cycle, commit = epilogue.cycle, stage.commit * epilogue.cycle
    # CTAs that share K have one tile, and the next ones start when they are gone.
    shared = table.cluster_k > 1
    gone = together + commit + epilogue.alone
    if FAMILIES[machine.family].has_tensor_memory:
        handed = epilogue.held + commit + stage.handover * cycle
        waits = np.where(epilogue.held > 0, handed, 0.0)
        return np.where(shared, gone, np.maximum(together + waits, epilogue.alone))
    # Nobody multiplies until a tile is on its way, or the other warpgroup does; loads go on.
    whole = bounds[0] + commit + epilogue.held
    turn = bounds[0] + stage.turn * cycle
    busy = np.where(table.pingpong == 1, np.maximum(turn, whole / WARPGROUPS), whole)
    beside = overlapping(machine, np.array([busy, *bounds[1:]]))
    return np.where(shared, gone, beside)


def overlapping(machine: Machine, bounds: Floats) -> Floats:
    """Nearly the longest of what overlaps, and more where several are close.

    They contend for the same memories.
    """
    longest = bounds.max(axis=0)
    scaled = bounds / np.maximum(longest, 1e-9)
    if machine.overlap_exponent == 4:  # as on the H200: squares take a tenth of powers' time
        return np.asarray(longest * np.sqrt(np.sqrt(np.square(np.square(scaled)).sum(axis=0))))
    scaled **= machine.overlap_exponent
    return np.asarray(longest * scaled.sum(axis=0) ** (1 / machine.overlap_exponent))
