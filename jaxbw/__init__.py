"""Matmuls for JAX from hand-written Blackwell and Hopper kernels.

The public names are those listed here; everything else may change.
"""

import importlib as _importlib
from importlib import metadata as _metadata
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

try:
    from jaxbw import _native as _native
except ImportError as error:
    raise ImportError(
        f"jaxbw's compiled part does not load ({error}); `pip install .` in its sources builds it"
    ) from error

from jaxbw._src import log as _log
from jaxbw._src.api.arguments import Quantized
from jaxbw._src.api.matmul import dot_general, gated_matmul, matmul
from jaxbw._src.primitives.gemm import register as _register
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.devices import target
from jaxbw._src.selection.policy import batch_invariant, implementation, use_tuned

if _TYPE_CHECKING:
    from jaxbw import checkpoint_policies
    from jaxbw._src.api.accelerate import accelerate
    from jaxbw._src.api.block_scaled import BlockScaled
    from jaxbw._src.api.block_scaled_training import (
        mxfp8_dot_general,
        nvfp4_dot_general,
        scaled_dot_general,
    )
    from jaxbw._src.api.collective import collective_matmul
    from jaxbw._src.api.einsum import einsum
    from jaxbw._src.api.exporting import export_disabled_checks
    from jaxbw._src.api.fp8_ragged import fp8_ragged_dot, mxfp8_ragged_dot
    from jaxbw._src.api.fp8_training import fp8_dot_general
    from jaxbw._src.api.quantize import quantize
    from jaxbw._src.api.ragged import gated_ragged_dot, ragged_dot, ragged_dot_general
    from jaxbw._src.api.scaled import scaled_matmul
    from jaxbw._src.lab.explain import explain
    from jaxbw._src.lab.explain_function import explain_function
    from jaxbw._src.lab.profiling.call import profile
    from jaxbw._src.lab.tuning.autotune import autotune

__all__ = [
    "BlockScaled",
    "GemmConfig",
    "Quantized",
    "__version__",
    "accelerate",
    "autotune",
    "batch_invariant",
    "checkpoint_policies",
    "collective_matmul",
    "dot_general",
    "einsum",
    "explain",
    "explain_function",
    "export_disabled_checks",
    "fp8_dot_general",
    "fp8_ragged_dot",
    "gated_matmul",
    "gated_ragged_dot",
    "implementation",
    "matmul",
    "mxfp8_dot_general",
    "mxfp8_ragged_dot",
    "nvfp4_dot_general",
    "profile",
    "quantize",
    "ragged_dot",
    "ragged_dot_general",
    "scaled_dot_general",
    "scaled_matmul",
    "target",
    "use_tuned",
]

# Names that few programs need: their modules are loaded when they are first asked for. One is a
# module itself.
_LAZY = {
    "BlockScaled": "jaxbw._src.api.block_scaled",
    "accelerate": "jaxbw._src.api.accelerate",
    "autotune": "jaxbw._src.lab.tuning.autotune",
    "checkpoint_policies": "jaxbw.checkpoint_policies",
    "collective_matmul": "jaxbw._src.api.collective",
    "einsum": "jaxbw._src.api.einsum",
    "explain": "jaxbw._src.lab.explain",
    "explain_function": "jaxbw._src.lab.explain_function",
    "export_disabled_checks": "jaxbw._src.api.exporting",
    "fp8_dot_general": "jaxbw._src.api.fp8_training",
    "fp8_ragged_dot": "jaxbw._src.api.fp8_ragged",
    "gated_ragged_dot": "jaxbw._src.api.ragged",
    "mxfp8_dot_general": "jaxbw._src.api.block_scaled_training",
    "mxfp8_ragged_dot": "jaxbw._src.api.fp8_ragged",
    "nvfp4_dot_general": "jaxbw._src.api.block_scaled_training",
    "profile": "jaxbw._src.lab.profiling.call",
    "quantize": "jaxbw._src.api.quantize",
    "ragged_dot": "jaxbw._src.api.ragged",
    "ragged_dot_general": "jaxbw._src.api.ragged",
    "scaled_dot_general": "jaxbw._src.api.block_scaled_training",
    "scaled_matmul": "jaxbw._src.api.scaled",
}

__version__ = _metadata.version("jaxbw")

_log.set_up()
_register()


def __getattr__(name: str) -> _Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _importlib.import_module(_LAZY[name])
    found = module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
