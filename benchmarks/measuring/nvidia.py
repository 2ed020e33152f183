"""NVIDIA's heuristic for the configuration of a matmul: the package nvidia-matmul-heuristics."""

from __future__ import annotations

import importlib
from typing import Any

from measuring.matmuls import Matmul


class Heuristic:
    """For CUTLASS 3 on a GPU; `modeled`: refined by its model of times.

    Raises:
      ImportError: the package is not installed.
    """

    def __init__(self, gpu: str, *, modeled: bool) -> None:
        nv: Any = importlib.import_module("nvMatmulHeuristics")
        flags = nv.NvMatmulHeuristicsFlags
        self._layouts = nv.NvMatmulHeuristicsMatmulLayout
        self._of = nv.NvMatmulHeuristicsInterfaceEx(
            backend=nv.NvMatmulHeuristicsTarget.CUTLASS3,
            flags=flags.PERF_MODEL_BASED_AUTO_TUNING if modeled else flags.NONE,
            gpu=nv.NvMatmulHeuristicsNvidiaGpu[gpu],
        )

    def first(self, matmul: Matmul) -> Any:
        """Its first choice, with cta_tile_m, cta_tile_n, cluster_m, cluster_n and split_k."""
        layout = self._layouts[f"{matmul.layout.upper()}_ROW_MAJOR"]
        problem = self._of.makeNvMatmulHeuristicsProblem(matmul.m, matmul.n, matmul.k, layout)
        return self._of.get(problem, 1, precision="TST")[0]["kernel"]  # bfloat16, float32 sums
