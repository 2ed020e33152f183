"""What a tuned table knows of a configuration: its matmul, its launch, and what the model says."""

import numpy as np
from numpy.typing import NDArray

from jaxbw._native import Major
from jaxbw._src.families.family import SPAN_BYTES
from jaxbw._src.selection.candidates import Candidates
from jaxbw._src.selection.cost_model import Costs
from jaxbw._src.selection.cost_model.grid import Grid, grid
from jaxbw._src.selection.machine import Machine
from jaxbw._src.selection.workload import Workload

Floats = NDArray[np.float64]

# As their names are in Workload, Candidates and Costs, where that is where they come from.
_SIZES = ("m", "n", "k")
_MATMUL = ("swapped", "gated", "activated", "general", "tma_rows", "a_straddles", "b_straddles")
_LAUNCH = (
    *("block_m", "block_n", "pingpong", "cluster_m", "cluster_n", "cluster_k"),
    *("split_k", "split_tail", "stages"),
)
_SHARES = ("mma", "fill", "latency", "l2", "dram", "epilogue", "fixed", "split", "repack")

FEATURES = (
    *(f"log2 {name}" for name in _SIZES),
    *("a is K-major", "b is K-major"),
    *_MATMUL,
    *_LAUNCH,
    *(f"share of {name}" for name in _SHARES),  # of the modelled time
    "log2 modelled ns",
    "log2 waves",  # not rounded up
    "efficiency",
    "rows in tiles",  # of those that tiles have
    "columns in tiles",
    "log2 blocks of a part",  # along K
    "promoted",
)


def features(
    work: Workload, machine: Machine, table: Candidates, costs: Costs, cut: Grid | None = None
) -> Floats:
    """A row of FEATURES for each configuration of a table, whose modelled costs are given.

    `cut`: how they cut the matmul, where that is known.
    """
    cut = cut or grid(work, machine, table)
    blocks = np.ceil(work.k * work.itemsize / (table.k_spans * SPAN_BYTES))
    columns = [
        *(np.log2(getattr(work, name)) for name in _SIZES),
        *(float(major == Major.K) for major in (work.a_major, work.b_major)),
        *(float(getattr(work, name)) for name in _MATMUL),
        *(getattr(table, name) for name in _LAUNCH),
        *(getattr(costs, name) / costs.total for name in _SHARES),
        np.log2(costs.total),
        np.log2(costs.items / costs.resident),
        costs.efficiency,
        work.m / (cut.tiles_m * cut.cluster_rows),
        work.n / (cut.tiles_n * cut.cluster_columns),
        np.log2(blocks / (table.split_k * table.cluster_k)),
        float(work.promoted),
    ]
    return np.stack([np.broadcast_to(column, len(table)) for column in columns], axis=1)
