"""`jaxbw.profile`: what every warp did when, in one launch of a matmul."""

from collections.abc import Iterable
from os import PathLike
from typing import Any

import numpy as np

from jaxbw._src.lab import explain_grouped
from jaxbw._src.lab import group_sizes as sizes_of_groups
from jaxbw._src.lab.explain import examined
from jaxbw._src.lab.profiling.profile import Profile
from jaxbw._src.lab.tuning import autotune
from jaxbw._src.lab.tuning.launching import Chosen, Matmul
from jaxbw._src.selection.choice import Refusal
from jaxbw._src.selection.implementations import EMULATED

_CALL = "jaxbw.profile"


def profile(
    lhs: Any,
    rhs: Any,
    rhs_up: Any = None,
    *,
    group_sizes: Any = None,
    path: str | PathLike[str] | None = None,
    ctas: Iterable[int] | None = None,
    sm_count: int | None = None,
    **matmul: Any,
) -> Profile:
    """What every warp of a kernel did when, in one launch: a trace for Perfetto, and a table.

    On this machine's GPU a profiling build of the kernel is launched, in which each warp stamps
    what it begins to do: loads, matmuls, the epilogue, and everything that it waits for. The build
    is compiled when it is first asked for, which takes nvcc, a C++ compiler and a checkout of
    jaxbw. What the stamps cost is measured in the same call: `Profile.overhead`. The kernels that
    matmuls are computed with have no stamps.

    `implementation="emulator"` or `"emulator-sm90"` asks the emulator, on any machine, without a
    compiler. Its times are steps, which are order, not time.

    Nothing is done to the operands: the launch is on others of their types, random on a GPU.

    Args:
      lhs, rhs: arrays or `jax.ShapeDtypeStruct` objects, as of `matmul`.
      rhs_up: likewise, for a `gated_matmul`; default None.
      group_sizes: for a grouped matmul, `ragged_dot` or `gated_ragged_dot`, or with a
        `RaggedDotDimensionNumbers` as dimension_numbers `ragged_dot_general`: the sizes, integers
        [groups], which matter to what is shown; default None.
      path: where to write the trace, for https://ui.perfetto.dev; default nowhere, see
        `Profile.write`.
      ctas: which the trace shows; default the first ones, as many as Perfetto shows at once.
      sm_count: of the emulated GPU; default two clusters' CTAs.
      matmul: the other arguments of `explain`, or of `ragged_dot`, among them `implementation`
        and `config`.

    Returns:
      The `Profile`. `print` shows when the first load was issued, the first stage full, the first
      matmul begun, and so on, over all CTAs.

    Raises:
      TypeError, ValueError, NotImplementedError: as `explain`; ValueError where XLA serves the
        matmul, there is no GPU, or the emulator is asked for a large matmul.
      RuntimeError: there is no profiling build: the message says what it needs.

    >>> x = jax.ShapeDtypeStruct((128, 256), jnp.bfloat16)
    >>> w = jax.ShapeDtypeStruct((256, 128), jnp.bfloat16)
    >>> found = jaxbw.profile(x, w, implementation="emulator-sm90")
    >>> found.unit, found.overhead
    ('steps', None)
    >>> found.moments["first load issued"] < found.moments["first stage full"]
    True
    """
    # Loaded when they are asked for: `import jaxbw` needs neither the emulator nor what measures.
    from jaxbw._src.lab.profiling import emulated, gpu

    choice: Chosen | Refusal
    problem: Matmul
    sizes: str | sizes_of_groups.Sizes = sizes_of_groups.DEFAULT
    if group_sizes is None:
        choice, problem, _ = examined(_CALL, lhs, rhs, rhs_up, weighs_xla=False, **matmul)
    else:
        sizes = np.asarray(group_sizes, np.int32)
        choice, problem, _ = explain_grouped.examined(
            _CALL, lhs, rhs, rhs_up, groups=len(sizes), **matmul
        )
    if isinstance(choice, Refusal) or choice.kernel is None:
        raise ValueError(
            f"{_CALL}: XLA serves this matmul ({choice.reason}), and has nothing to profile; name "
            'a kernel, or implementation="emulator-sm90" on a machine without a GPU'
        )
    if choice.implementation in EMULATED:
        found = emulated.profile(problem, choice, sm_count, sizes)
    else:
        found = gpu.profile(problem, choice, autotune.measurable_device(), autotune.gpu(sizes))
    if path is not None:
        found.write(path, ctas)
    return found
