"""The ladder: the optimisations of a Blackwell GEMM, one rung for each.

The source articles climb from a kernel without tensor cores to one that is as fast as cuBLAS. The
first rungs are kernels of their own, each a file of this folder on nothing but cuda/ptx. From
"double output" on, a rung is a configuration of the shipping kernel. Each can be run, tested and
measured alone: see run.py. All but the first compute 128x256 elements in each CTA, so that from
rung to rung only what it adds is different.
"""

from dataclasses import dataclass, replace

from jaxbw._src.selection.config import GemmConfig

MODULAR_2 = "Modular, Matrix Multiplication on Blackwell, part 2"
MODULAR_3 = "Modular, Matrix Multiplication on Blackwell, part 3"
MODULAR_4 = "Modular, Matrix Multiplication on Blackwell, part 4"
CUTLASS = "Colfax Research, CUTLASS tutorial: GEMM with thread block clusters on Blackwell"
PUBLISHED = f"bf16, 4096x4096x4096, B200; the table of: {MODULAR_4}"
TILE = (128, 256)  # of a CTA, on every rung but the first


@dataclass(frozen=True)
class Rung:
    """One step.

    Attributes:
      name: of the step.
      article: which describes it.
      adds: what it adds to the step before.
      published: TFLOP/s of the article's kernel (PUBLISHED says of what); None where it has no
        figure. Never ours: no Blackwell GPU has run our kernels.
      kernel: how the shipping kernel is launched; or the file of the rung's own, without ".cu".
    """

    name: str
    article: str
    adds: str
    published: float | None
    kernel: GemmConfig | str

    def bytes_loaded(self, m: int, n: int, k: int, itemsize: int = 2) -> int:
        """Bytes of operands that are read from global memory, or its caches, for one matmul.

        A cluster reads the rows of A and the columns of B that its tile needs once, whoever of its
        CTAs does; without tensor cores each multiply-add reads two elements. For m and n that
        tiles divide.
        """
        if self.kernel == "naive":
            return 2 * m * n * k * itemsize
        rows, columns = self.cluster_tile
        return m * n * k * itemsize * (rows + columns) // (rows * columns)

    @property
    def cluster_tile(self) -> tuple[int, int]:
        """Rows and columns of the result that a cluster computes at a time."""
        if isinstance(self.kernel, str):
            return TILE
        block_m, block_n = self.kernel.tile
        cluster_m, cluster_n = self.kernel.cluster
        return cluster_m * block_m // self.kernel.cta_group, cluster_n * block_n


_OUTPUT = GemmConfig(*TILE, stages=1, accumulators=1, scheduler="none")
_MULTICAST = replace(_OUTPUT, cluster=(4, 4))
_PAIR = replace(_OUTPUT, block_m=256, cta_group=2, cluster=(2, 1))
_PAIR_4X2 = replace(_PAIR, cluster=(4, 2))
_PAIR_4X4 = replace(_PAIR, cluster=(4, 4))
_PIPELINE = replace(_PAIR_4X2, stages=None)
_PERSISTENT = replace(_PIPELINE, scheduler="clc", accumulators=2)
_RASTER = replace(_PERSISTENT, swizzle=4)

RUNGS = (
    Rung("naive", MODULAR_4, "a thread for each element, on CUDA cores", 5.6, "naive"),
    Rung(
        "tensor cores",
        MODULAR_2,
        "TMA loads into core matrices, tcgen05.mma into Tensor Memory",
        155.0,
        "tensor_cores",
    ),
    Rung("swizzle", MODULAR_2, "operands lie in the 128-byte swizzle", 295.6, "swizzle"),
    Rung(
        "TMA store",
        MODULAR_2,
        "results are staged in shared memory and stored by TMA. The article stages by stmatrix; "
        "rows of tcgen05.ld go straight into the swizzled staging here, by st.shared.v4",
        293.6,
        "tma_store",
    ),
    Rung(
        "double output",
        MODULAR_3,
        "the shipping kernel, whose warps have roles, with a ring of one stage: load and multiply "
        "warps take turns. A second staging buffer: stores overlap. The article adds it to the "
        "pipeline",
        None,
        _OUTPUT,
    ),
    Rung("multicast 4x4", CUTLASS, "CTAs of a cluster share their loads", None, _MULTICAST),
    Rung("pair 2x1", MODULAR_3, "two CTAs share one MMA: half of B in each", 360.2, _PAIR),
    Rung("pair 4x2", MODULAR_3, "pairs that share their loads", None, _PAIR_4X2),
    Rung("pair 4x4", CUTLASS, "the cluster of the CUTLASS article", None, _PAIR_4X4),
    Rung(
        "pipeline",
        MODULAR_3,
        "cluster 4x2 again; a ring of stages: loads run ahead of the MMAs. The published figure is "
        "with two staging buffers, as here; with one it is 1,429.6",
        1493.0,
        _PIPELINE,
    ),
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
