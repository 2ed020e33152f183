"""Family: dtypes, candidates and cost terms of the kernels of one architecture.

What a configuration may be is not said here: the planner knows it (selection/planner.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SPAN_BYTES = 128  # hardware: one span of the 128-byte swizzle

BF16 = np.dtype("bfloat16")  # registered by ml_dtypes, which jax imports
F16, F32 = np.dtype("float16"), np.dtype("float32")
E4M3, E5M2 = np.dtype("float8_e4m3fn"), np.dtype("float8_e5m2")
E2M1 = np.dtype("float4_e2m1fn")

Tile = tuple[tuple[int, int], int, bool]  # (block_m, block_n), cta_group, pingpong


@dataclass(frozen=True, kw_only=True, eq=False)
class Family(ABC):
    """The kernels of one architecture.

    Attributes:
      name: as in `implementation=` and in the names of kernels.
      emulator: the name of the implementation that runs them on the CPU.
      capabilities: compute capabilities of the GPUs that run them; gpus: the same in words.
      default_target: the GPU that a strict call is lowered for where none is there.
      inputs: dtypes of operands, and the `input` of the instances that take them. Both operands
        have one, or 8 bits each.
      on_request: dtypes of operands that are left to XLA unless the kernels are asked for by name.
      k_major_only: dtypes that its instructions take K-major only.
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
    on_request: tuple[np.dtype[Any], ...]
    k_major_only: tuple[np.dtype[Any], ...]
    has_tensor_memory: bool
    mma_rows: int
    chunks: tuple[int, ...]
    clusters: Mapping[int, tuple[tuple[int, int, int], ...]]
    splits: tuple[int, ...]
    stage_spans: Mapping[int, int]

    @abstractmethod
    def tiles(self) -> Iterator[Tile]:
        """The tiles that are compared, wide ones first."""
