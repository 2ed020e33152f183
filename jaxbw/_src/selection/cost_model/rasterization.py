"""The order of the tiles, and what of their operands comes from memory: the rest is in L2."""

from dataclasses import dataclass

import numpy as np

from jaxbw._src.selection.candidates import Candidates, Integers
from jaxbw._src.selection.cost_model.grid import Floats, Grid, ceil
from jaxbw._src.selection.machine import Machine
from jaxbw._src.selection.workload import Workload

SWIZZLES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Loads:
    """A wave's loads: the part of its bytes that comes from memory, and of its tiles that wait."""

    missed: Floats
    late: Floats


@dataclass(frozen=True)
class Walk:
    """The order of the tiles, and what the first wave, later ones and those of parts load."""

    band_along_n: Integers
    swizzle: Integers
    first: Loads
    later: Loads
    parts: Loads


def walk_tiles(
    work: Workload,
    machine: Machine,
    cut: Grid,
    table: Candidates,
    rasterisation: tuple[Integers, Integers] | None,
) -> Walk:
    """Which panels are read again: rows of A and columns of B, all of K, of a row of cluster tiles.

    A wave is a block of tiles, so many across as its band is wide: what it reads is its footprint.
    Of what later waves read again, L2 has kept its size of a footprint.
    """
    in_wave = np.minimum(cut.resident, cut.tiles_m * cut.tiles_n)
    # In rows and columns of whole bytes.
    all_rows = work.m * work.a_share
    all_columns = work.n * (2 if work.gated else 1) * work.b_share
    panel_m, panel_n = all_rows / cut.tiles_m, all_columns / cut.tiles_n

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
    everything = all_rows * (work.batch if work.a_batched else 1)
    everything = everything + all_columns * (work.batch if work.b_batched else 1)
    kept = np.minimum(1, machine.l2_bytes / (footprint * work.k * work.itemsize))
    again = np.maximum(cut.tiles / in_wave * footprint - everything, 0) * (1 - kept)
    begun = np.minimum(cut.resident, cut.tiles)
    first = footprint / (in_wave * asked)
    rest = np.maximum(everything - first * begun * asked, 0) + again
    later = np.minimum(rest / np.maximum((cut.tiles - begun) * asked, 1), 1)
    waves = ceil(cut.tiles, cut.resident)
    late = np.where(band <= 1, 1.0, np.minimum(1.0, (band + bands) / waves))
    late = np.where(again > 0, 1.0, late)
    always = np.ones(len(table))
    of_parts = np.minimum((everything + again) / (cut.tiles * asked), 1)
    return Walk(
        band_along_n=along_n,
        swizzle=swizzle,
        first=Loads(first, always),
        later=Loads(later, late),
        parts=Loads(of_parts, always),
    )
