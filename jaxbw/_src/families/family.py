"""Family: limits, dtypes, configurations and candidates of the kernels of one architecture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jaxbw._src.selection.config import GemmConfig
    from jaxbw._src.selection.kernel_table import Kernel

SPAN_BYTES = 128  # hardware: one span of the 128-byte swizzle
MAX_SPANS = 4  # swizzle spans along K in a stage

BF16 = np.dtype("bfloat16")  # registered by ml_dtypes, which jax imports
F16, F32 = np.dtype("float16"), np.dtype("float32")

InstanceKey = tuple[int | None, ...]
Tile = tuple[tuple[int, int], int, bool]  # (block_m, block_n), cta_group, pingpong


@dataclass(frozen=True, kw_only=True, eq=False)
class Family(ABC):
    """The kernels of one architecture.

    Attributes:
      name: as in `implementation=` and in the names of kernels.
      emulator: the name of the implementation that runs them on the CPU.
      capabilities: compute capabilities of the GPUs that run them; gpus: the same in words.
      default_target: the GPU that a strict call is lowered for where none is there.
      inputs: dtypes of operands, and the `input` of the instances that take them.
      max_cluster: CTAs of a cluster; above 8 with the non-portable attribute.
      cluster_k: how many CTAs may compute parts along K of one tile.
      max_split: parts along K of a tile, at most.
      min_shared_parts: from so many parts on all that are still there share what is left to do
        (cuda/gemm/split_k.h).
      min_reduced_parts: from so many parts on a launch of its own adds them up (reduces_apart in
        cuda/host/gemm_rules.cc).
      schedulers: the default first; dynamic: which of them "dynamic" stands for.
      accumulators: of a CTA, unless a configuration says another number.
      column_span: bytes of the columns in which TMA brings an MN-major tile.
      has_tensor_memory: whether accumulators are there, not in registers.
      mma_rows: hardware: of one instruction, in one CTA.
      chunks: columns that a warp stores at a time, the first that divides its tile's.
      clusters: candidates, by cta_group: CTAs along m, n and k.
      splits: candidates of split_k.
      stage_spans: candidates of spans in a stage: at most so many bytes per CTA and span.
    """

    name: str
    emulator: str
    capabilities: Sequence[tuple[int, int]]
    gpus: str
    default_target: str
    inputs: Mapping[np.dtype[Any], str]
    max_cluster: int
    cluster_k: tuple[int, ...]
    max_split: int
    min_shared_parts: int
    min_reduced_parts: int
    schedulers: tuple[str, ...]
    dynamic: str
    accumulators: int
    column_span: int
    has_tensor_memory: bool
    mma_rows: int
    chunks: tuple[int, ...]
    clusters: Mapping[int, tuple[tuple[int, int, int], ...]]
    splits: tuple[int, ...]
    stage_spans: Mapping[int, int]

    @abstractmethod
    def faults(self, config: GemmConfig) -> Iterator[str]:
        """What is wrong with the tile of a configuration, and with fields of other families."""

    @abstractmethod
    def gated_fault(self, config: GemmConfig) -> str | None:
        """Why a gated matmul cannot have a tile that `faults` lets pass; None where it can."""

    @abstractmethod
    def tiles(self) -> Iterator[Tile]:
        """The tiles that are compared, wide ones first."""

    @abstractmethod
    def key_of(self, kernel: Kernel) -> InstanceKey:
        """What tells an instance from the others of its dtype and layout."""

    @abstractmethod
    def key(self, block_m: Any, block_n: Any, cta_group: Any, pingpong: Any) -> tuple[Any, ...]:
        """The key of the instance that a configuration launches; of columns of them, columns."""

    @abstractmethod
    def fills_accumulators(self, config: GemmConfig) -> bool:
        """Whether one tile takes all the accumulators there are."""
