"""Matrix products for JAX from hand-written Blackwell and Hopper kernels.

The public names are those listed here; everything else may change.
"""

from importlib import metadata as _metadata

try:
    from jaxbw import _native as _native
except ImportError as error:
    raise ImportError(
        f"jaxbw's compiled part does not load ({error}); `pip install .` in its sources builds it"
    ) from error

from jaxbw import checkpoint_policies
from jaxbw import log as _log
from jaxbw.api import dot_general, explain, gated_matmul, matmul
from jaxbw.batch_invariance import batch_invariant
from jaxbw.collective import collective_matmul
from jaxbw.exporting import export_disabled_checks
from jaxbw.primitives.gemm import register as _register
from jaxbw.profiling.call import profile
from jaxbw.selection.config import GemmConfig
from jaxbw.selection.devices import target
from jaxbw.selection.implementations import implementation
from jaxbw.selection.tuned.use import use_tuned
from jaxbw.tuning.autotune import autotune

__all__ = [
    "GemmConfig",
    "__version__",
    "autotune",
    "batch_invariant",
    "checkpoint_policies",
    "collective_matmul",
    "dot_general",
    "explain",
    "export_disabled_checks",
    "gated_matmul",
    "implementation",
    "matmul",
    "profile",
    "target",
    "use_tuned",
]

__version__ = _metadata.version("jaxbw")

_log.set_up()
_register()
