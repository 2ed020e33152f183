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
from jaxbw._src import log as _log
from jaxbw._src.api.collective import collective_matmul
from jaxbw._src.api.exporting import export_disabled_checks
from jaxbw._src.api.matmul import dot_general, explain, gated_matmul, matmul
from jaxbw._src.lab.profiling.call import profile
from jaxbw._src.lab.tuning.autotune import autotune
from jaxbw._src.primitives.gemm import register as _register
from jaxbw._src.selection.batch_invariance import batch_invariant
from jaxbw._src.selection.config import GemmConfig
from jaxbw._src.selection.devices import target
from jaxbw._src.selection.implementations import implementation
from jaxbw._src.selection.use_tuned import use_tuned

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
