"""ragged_gemm: a grouped matmul by the kernel that was chosen for it, as one custom call.

It is a `gemm_p`, bound inside lowering rules as ever: the kernel's name says that there are groups.
"""

from typing import Any

import numpy as np

from jaxbw._src import compat
from jaxbw._src.primitives.gemm import gemm_p
from jaxbw._src.ragged import RaggedProblem
from jaxbw._src.selection.ragged import RaggedChoice, plan_of


def ragged_gemm(
    problem: RaggedProblem,
    choice: RaggedChoice,
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    group_offset: Any,
    *terms: Any,
) -> Any:
    """The result, of the problem's output shape.

    Args:
      problem, choice: what `selection.ragged.choose` was asked, and what it answered.
      lhs, rhs: of the problem's shapes.
      group_sizes: int32 [batch, total_groups]; negative ones are 0, and none goes beyond m.
      group_offset: int32 []: the group of rhs's first matrix, or of the result's.
      terms: what the problem's epilogue has of rhs_up, c, bias, and the scales of lhs, rhs, and
        rhs_up, in this order.
    """
    plan = plan_of(problem, choice)
    result, *_ = gemm_p.bind(
        lhs,
        rhs,
        *terms,
        group_sizes.astype(np.int32),
        group_offset.astype(np.int32),
        shape=problem.output_shape,
        dtype=problem.output,
        workspace=plan.workspace_bytes,
        in_place=problem.epilogue.c is not None,
        **plan.attributes,
    )
    return compat.computed_once(result)
