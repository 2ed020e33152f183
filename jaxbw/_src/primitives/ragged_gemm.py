"""ragged_gemm: a grouped matmul by the kernel that was chosen for it, as one custom call.

It is a `gemm_p`, bound inside lowering rules as ever: the kernel's name says that there are groups.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxbw._native import Plan
from jaxbw._src import compat
from jaxbw._src.primitives.gemm import gemm_p
from jaxbw._src.primitives.ragged_xla import group_bounds, steps_of
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
        rhs_up, in this order; then their tiles of scales.
    """
    plan = plan_of(problem, choice)
    if problem.epilogue.formats:
        tiles = 2 + problem.epilogue.gated
        of_lhs, *of_rights = terms[-tiles:]
        of_groups = _of_groups(problem, plan, of_lhs[0], group_sizes)
        terms = (*terms[:-tiles], of_groups[None], *(x[0] for x in of_rights))
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


def _of_groups(problem: RaggedProblem, plan: Plan, tiles: Any, group_sizes: Any) -> Any:
    """The tiles of scales of lhs, as those of the table's entries: the kernel finds them there."""
    from jaxbw._src import scale_tiles  # wanted by few

    bounds = group_bounds(group_sizes, np.int32(0), problem.total_groups, problem.m)[0]
    bounds = jnp.append(bounds, np.int32(problem.m))  # what is behind the last group has entries
    rows = int(plan.attributes["block_m"])
    entries = steps_of(bounds, rows, plan.tiles_m)
    first = entries.first[:, None] + np.arange(0, rows, scale_tiles.ROWS, dtype=np.int32)
    stop = jnp.broadcast_to(entries.stop[:, None], first.shape)
    return scale_tiles.of_groups(tiles, first.ravel(), stop.ravel())
