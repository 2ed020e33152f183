"""The ladder: the optimisations of a Blackwell GEMM, one configuration for each.

The source articles climb from a kernel without tensor cores to one that is as fast as cuBLAS. Here
every step is a configuration of one kernel (the first is a kernel of its own), so that a step can
be run, tested and measured alone: see examples/ladder.py. All steps but the first compute 128x256
elements in each CTA, so that from step to step only what it adds is different.

Our kernel is warp-specialised from the start: with a ring of one stage, its load and multiply warps
take turns, as the articles' early kernels do in one warp.
"""

from dataclasses import dataclass, replace

from jaxbw.selection.config import GemmConfig

MODULAR_2 = "Modular, Matrix Multiplication on Blackwell, part 2"
MODULAR_3 = "Modular, Matrix Multiplication on Blackwell, part 3"
MODULAR_4 = "Modular, Matrix Multiplication on Blackwell, part 4"
CUTLASS = "Colfax Research, CUTLASS tutorial: GEMM with thread block clusters on Blackwell"
PUBLISHED = f"bf16, 4096x4096x4096, B200; the table of: {MODULAR_4}"


@dataclass(frozen=True)
class Rung:
    """One step.

    Attributes:
      name: of the step.
      article: which describes it.
      adds: what it adds to the step before.
      published: TFLOP/s of the article's kernel (PUBLISHED says of what); None where it has no
        figure. Never ours: no Blackwell GPU has run our kernels.
      config: how our kernel is launched; None for the kernel without tensor cores.
    """

    name: str
    article: str
    adds: str
    published: float | None
    config: GemmConfig | None

    def bytes_loaded(self, m: int, n: int, k: int, itemsize: int = 2) -> int:
        """Bytes of operands that are read from global memory, or its caches, for one product.

        A cluster reads the rows of A and the columns of B that its tile needs once, whoever of its
        CTAs does; without tensor cores each multiply-add reads two elements. For m and n that
        tiles divide.
        """
        if self.config is None:
            return 2 * m * n * k * itemsize
        rows, columns = self.cluster_tile
        return m * n * k * itemsize * (rows + columns) // (rows * columns)

    @property
    def cluster_tile(self) -> tuple[int, int]:
        """Rows and columns of the result that a cluster computes at a time."""
        assert self.config is not None
        block_m, block_n = self.config.tile
        cluster_m, cluster_n = self.config.cluster
        return cluster_m * block_m // self.config.cta_group, cluster_n * block_n


_TENSOR_CORES = GemmConfig(
    block_m=128,
    block_n=256,
    stages=1,
    accumulators=1,
    store_buffers=1,
    tma_store=False,
    operand_swizzle=False,
    scheduler="none",
)
_SWIZZLE = replace(_TENSOR_CORES, operand_swizzle=True)
_STORE = replace(_SWIZZLE, tma_store=True)
_MULTICAST = replace(_STORE, cluster=(4, 4))
_PAIR = replace(_STORE, block_m=256, cta_group=2, cluster=(2, 1))
_PAIR_4X2 = replace(_PAIR, cluster=(4, 2))
_PAIR_4X4 = replace(_PAIR, cluster=(4, 4))
_PIPELINE = replace(_PAIR_4X2, stages=None)
_OUTPUT = replace(_PIPELINE, store_buffers=2)
_PERSISTENT = replace(_OUTPUT, scheduler="clc", accumulators=2)
_RASTER = replace(_PERSISTENT, swizzle=4)

RUNGS = (
    Rung("naive", MODULAR_4, "a thread for each element, on CUDA cores", 5.6, None),
    Rung(
        "tensor cores",
        MODULAR_2,
        "TMA loads into core matrices, tcgen05.mma into Tensor Memory",
        155.0,
        _TENSOR_CORES,
    ),
    Rung("swizzle", MODULAR_2, "operands lie in the 128-byte swizzle", 295.6, _SWIZZLE),
    Rung(
        "TMA store",
        MODULAR_2,
        "results are staged in shared memory and stored by TMA. The article stages by stmatrix; "
        "rows of tcgen05.ld go straight into the swizzled staging here, by st.shared.v4",
        293.6,
        _STORE,
    ),
    Rung("multicast 4x4", CUTLASS, "CTAs of a cluster share their loads", None, _MULTICAST),
    Rung("pair 2x1", MODULAR_3, "two CTAs share one MMA: half of B in each", 360.2, _PAIR),
    Rung("pair 4x2", MODULAR_3, "pairs that share their loads", None, _PAIR_4X2),
    Rung("pair 4x4", CUTLASS, "the cluster of the CUTLASS article", None, _PAIR_4X4),
    Rung(
        "pipeline",
        MODULAR_3,
        "cluster 4x2 again; a ring of stages: loads run ahead of the MMAs",
        1429.6,
        _PIPELINE,
    ),
    Rung("double output", MODULAR_3, "a second staging buffer: stores overlap", 1493.0, _OUTPUT),
    Rung(
        "persistent",
        MODULAR_4,
        "cluster launch control, fetched ahead; Tensor Memory as a ring of two accumulators",
        1772.9,
        _PERSISTENT,
    ),
    Rung(
        "block swizzle",
        MODULAR_4,
        "tiles are walked in bands of four, to share operands in L2",
        None,
        _RASTER,
    ),
)
