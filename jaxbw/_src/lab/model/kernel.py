"""What the model has to know of a kernel's structure: ours, or one that others have published."""

from dataclasses import dataclass

from jaxbw._src.selection.cost_model.stage import FULL_ROWS, MMA_BYTES

ROW_BYTES = 128  # a swizzle span: what a box holds of a row
WARPGROUP_ROWS = 64  # of an MMA of a Hopper warpgroup


@dataclass(frozen=True)
class Kernel:
    """A kernel with tensor cores, as a pipeline.

    Attributes:
      block_m, block_n: what one MMA group computes; group: its CTAs, 1 or 2.
      cluster: CTAs along M and N that share loads by multicast; with pairs, M counts both.
      k_bytes: of a row of A, in one stage of the ring; stages: its depth.
      specialised: loads, matmuls and epilogue are issued by warps of their own. Otherwise by one.
      ahead: not specialised: stages that are loaded ahead of the matmul.
      lag: not specialised: matmuls that may be in flight while the next is issued.
      persistent: "clc" or "static": a CTA computes several tiles. None: a CTA for each tile.
      accumulators: in Tensor Memory; with 2 the epilogue runs beside the next tile's matmuls.
      own_epilogue: the epilogue has warps of its own; otherwise nothing else goes on beside it.
      chunk: columns of one TMA store, or None: registers straight to global memory.
      buffers: staging buffers that chunks alternate between.
      narrow: operands without a swizzle, loaded by boxes 16 bytes wide.
      loads: "tma" or "copy" (cp.async, by all threads).
      hidden_relaunch: the next CTA of an SM is there already and waits for Tensor Memory.
      warpgroups: "cooperative" or "pingpong": Hopper's two, with accumulators in registers. None: a
        warp issues the MMAs, into Tensor Memory.
      itemsize, output_size: bytes of an element of operands and result.
      beside: columns of B that a CTA loads and does not multiply.
      counted: whether what is issued for a stage beside its MMAs is known, as of ours.
    """

    block_m: int
    block_n: int
    stages: int
    group: int = 1
    cluster: tuple[int, int] = (1, 1)
    k_bytes: int = ROW_BYTES
    specialised: bool = True
    ahead: int = 0
    lag: int = 0
    persistent: str | None = "clc"
    accumulators: int = 2
    own_epilogue: bool = True
    chunk: int | None = 64
    buffers: int = 2
    narrow: bool = False
    loads: str = "tma"
    hidden_relaunch: bool = False
    warpgroups: str | None = None
    itemsize: int = 2
    output_size: int = 2
    beside: int = 0
    counted: bool = False

    @property
    def ctas(self) -> int:
        """Of a cluster."""
        return self.cluster[0] * self.cluster[1]

    @property
    def rows(self) -> int:
        """Of A, and of accumulators, in one CTA."""
        return self.block_m // self.group

    @property
    def columns(self) -> int:
        """Of B, in one CTA."""
        return self.block_n // self.group

    @property
    def cluster_rows(self) -> int:
        """Of the result, that a cluster computes."""
        return self.cluster[0] * self.rows

    @property
    def cluster_columns(self) -> int:
        """Of the result, that a cluster computes."""
        return self.cluster[1] * self.block_n

    @property
    def mma_rows(self) -> int:
        """Rows of one instruction in a CTA, at most."""
        return FULL_ROWS if self.warpgroups is None else WARPGROUP_ROWS

    @property
    def mma_tiles(self) -> int:
        """MMA tiles on top of each other in a CTA."""
        return max(1, self.rows // self.mma_rows)

    @property
    def slots(self) -> int:
        """Accumulators of MMA tiles, in Tensor Memory."""
        return max(self.accumulators, self.mma_tiles)

    def blocks(self, k: int) -> int:
        """Stages that a tile takes."""
        return -(-k * self.itemsize // self.k_bytes)

    @property
    def loaded(self) -> tuple[int, int]:
        """Bytes of A and B in one CTA's stage."""
        return self.rows * self.k_bytes, (self.columns + self.beside) * self.k_bytes

    @property
    def asked(self) -> int:
        """Bytes that a CTA asks L2 for, for one stage: of what is shared, its part."""
        return self._asked(self.columns + self.beside)

    @property
    def multiplied(self) -> int:
        """Of these, the bytes that it multiplies."""
        return self._asked(self.columns)

    def _asked(self, columns: int) -> int:
        b = columns * self.k_bytes * self.group // self.cluster[0]
        return self.rows * self.k_bytes // self.cluster[1] + b

    @property
    def mmas(self) -> int:
        """Instructions of a group, for one stage."""
        return self.mma_tiles * (self.k_bytes // MMA_BYTES)
