"""Draws launches of our grouped kernels from all that are legal."""

import random
from dataclasses import replace

from jaxbw._native import Plan
from jaxbw._src.selection import manifest
from jaxbw._src.selection.kernel_table import Kernel

from .gemm_cases import DTYPES, INPUTS, MX_BLOCKS
from .gemm_draw import OPTIONAL, PROPOSALS
from .ragged_launch import Ragged


def kernels() -> tuple[Kernel, ...]:
    """The grouped ones, and those that gather rows."""
    return tuple(k for k in manifest.kernels() if k.role in ("grouped", "gathered"))


def draw_case(rng: random.Random, kernel: Kernel) -> Ragged:
    """A launch of a kernel, any that is legal, of some ten thousand elements.

    Args:
      rng: draws; it may be hypothesis'.
      kernel: one of kernels().
    """
    for _ in range(PROPOSALS):
        case = _proposal(rng, kernel)
        plan = case.planned()
        if isinstance(plan, Plan) and plan.kernel == kernel.name:
            return case
    raise AssertionError(f"no launch of {kernel.name} is legal")


def _proposal(rng: random.Random, kernel: Kernel) -> Ragged:
    is_hopper, is_gathered = kernel.family == "sm90", kernel.role == "gathered"
    of_blocks = kernel.input in MX_BLOCKS
    rows_only = is_gathered or of_blocks
    contraction = kernel.layout == "tn" or (not is_hopper and not rows_only and rng.random() < 0.4)
    transposed = kernel.layout == "nt" or (
        not is_hopper and not contraction and (kernel.input == "4bit_mx" or rng.random() < 0.5)
    )
    dtype, rhs_dtype = rng.choice(INPUTS[kernel.input])
    narrow = "e2m1" in (dtype, rhs_dtype)
    # Rows are of 16 bytes; of 4 bits beside 8 they are whole boxes.
    step = 128 if narrow and dtype != rhs_dtype else 32 if narrow else 16 if dtype[0] == "e" else 8
    batch = 1 if rows_only else rng.choice((1, 1, 2))
    m, total = rng.randint(1, 400), rng.randint(1, 6)
    pingpong = is_hopper and rng.random() < 0.5
    group = kernel.cta_group
    gated = not contraction and rng.random() < 0.3
    # The product of two sums is beyond float16, of long ones.
    output = "f32" if gated and dtype[0] == "e" else rng.choice(tuple(DTYPES))
    n_step = 8 if transposed or step == 8 else 16
    case = Ragged(
        tuple(tuple(_size(rng, m) for _ in range(total)) for _ in range(batch)),
        m=m,
        k=step * rng.randint(1, 24),
        n=n_step * rng.randint(1, 400 // n_step),
        contraction=contraction,
        groups=rng.randint(1, total),
        offset=rng.randint(-2, total),
        shared=tuple(name for name in ("lhs", "rhs") if rng.random() < 0.5),
        transposed=transposed,
        dtype=dtype,
        rhs_dtype=rhs_dtype,
        promoted=kernel.input == "8bit_promoted",
        output=output,
        tile=(
            64 if pingpong else 128 * group,
            kernel.block_n or rng.choice(range(32, 257, 32)),
        ),
        pingpong=pingpong,
        stages=rng.choice((None, 1, 2, 3, 4)),
        swizzle=rng.randint(1, 4),
        scheduler=rng.choice((None, "none")),
        split=rng.randint(1, min(4, -(-m // 64))) if is_hopper and contraction else 1,
        sm_count=group * rng.randint(1, 5),
        alpha=rng.choice((1.0, -0.5)),
        adds=contraction and output == "f32" and rng.random() < 0.5,
        bias=None if contraction else rng.choice(OPTIONAL),
        activation=None if contraction else rng.choice((None, "relu")),
        gated=gated,
        source_rows=rng.randint(1, 400) if is_gathered else None,
        family=kernel.family,
        cta_group=group,
    )
    if of_blocks:
        return _with_formats(rng, case)
    if dtype[0] == "e" and not contraction:
        case = replace(case, scales=tuple(x for x in ("lhs", "rhs") if rng.random() < 0.5))
    return case


def _size(rng: random.Random, m: int) -> int:
    """Of a group: also negative, and beyond all rows."""
    return rng.choice((0, rng.randint(0, m), rng.randint(0, m), rng.randint(-(2**31), 2**31 - 1)))


def _with_formats(rng: random.Random, case: Ragged) -> Ragged:
    """Scales of blocks; NVFP4 has others of each matrix, which are columns' here."""
    lhs, rhs = ("mxfp4" if x == "e2m1" else "mxfp8" for x in (case.dtype, case.rhs_dtype))
    if lhs == rhs == "mxfp4" and rng.random() < 0.5:
        scales = ("rhs",) if rng.random() < 0.5 else ()
        return replace(case, format="nvfp4", scales=scales)
    return replace(case, format=lhs, rhs_format=None if lhs == rhs else rhs)
