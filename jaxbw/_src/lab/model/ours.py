"""Our kernels as the model sees them: a launch configuration as a pipeline."""

import numpy as np

from jaxbw._src.lab.model.kernel import ROW_BYTES, Kernel
from jaxbw._src.lab.model.schedule import Raster
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.cost_model.epilogue import chunk_of

_PERSISTENT = {"clc": "clc", "static": "static", "none": None}


def refusal(config: GemmConfig, *, gated: bool = False) -> str | None:
    """Why a configuration is not modelled; None where it is."""
    if config.split_k > 1:
        return "splits along K are not modelled: their sums go through memory"
    if config.swap_ab:
        return "exchanged operands are not modelled: results leave column by column"
    if gated:
        return "gated matmuls are not modelled"
    return None


def kernel_of(
    config: GemmConfig,
    itemsize: int = 2,
    output_size: int = 2,
    family: str = "sm100",
    loaded_columns: int | None = None,
) -> Kernel:
    """The pipeline of a configuration in which every field is filled in.

    `loaded_columns`: as of its plan; None where a CTA loads no more than it multiplies.
    """
    block_m, block_n = config.tile
    assert config.stages is not None
    if family == "sm90":
        return Kernel(
            block_m,
            block_n,
            config.stages,
            cluster=config.cluster,
            persistent="static",
            chunk=int(chunk_of(family, output_size, np.asarray(block_n))),
            warpgroups="pingpong" if config.pingpong else "cooperative",
            itemsize=itemsize,
            output_size=output_size,
        )
    # With 64 rows in a CTA of a pair, two of its warps have half of the columns each.
    halves = 2 if (block_m, config.cta_group) == (128, 2) else 1
    return Kernel(
        block_m,
        block_n,
        config.stages,
        group=config.cta_group,
        cluster=config.cluster,
        k_bytes=ROW_BYTES if config.block_k is None else config.block_k * itemsize,
        persistent=_PERSISTENT[config.scheduler or "clc"],
        accumulators=config.accumulators or 2,
        chunk=halves * int(chunk_of(family, output_size, np.asarray(block_n // halves))),
        itemsize=itemsize,
        output_size=output_size,
        counted=True,
        beside=0 if loaded_columns is None else loaded_columns - block_n // config.cta_group,
    )


def raster_of(config: GemmConfig) -> Raster:
    """The order of a configuration's tiles."""
    return Raster(config.raster, config.swizzle)
